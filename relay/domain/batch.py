"""Batches of messages in one POST: its body, and what its response says about each message."""

from base64 import b64encode
from codecs import BOM_UTF8
from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Any, Final

import msgspec
from msgspec import Struct

from relay.domain.exchange import Response
from relay.domain.hop import Hop
from relay.domain.identity import base32, webhook_id
from relay.domain.json_pointer import NOT_JSON
from relay.domain.message import is_json
from relay.domain.numbering import NumberGap, gap_text
from relay.domain.receiver import BatchFormat
from relay.domain.times import is_rfc3339

CONTENT_TYPES: Final[Mapping[BatchFormat, str]] = {
    "cloudevents": "application/cloudevents-batch+json",
    "list": "application/json",
}
UNTYPED: Final = "relay.message"
"""The type of a CloudEvent whose message has none: the format requires one."""
ENVELOPE_BYTES: Final = 512
"""About what an event adds to the body, beside its payload and ids."""
_encode: Final = msgspec.json.Encoder().encode
_decode: Final = msgspec.json.Decoder().decode


class BatchEvent(Struct, frozen=True):
    """A message in a batch. `attempt`: 1-based. `sequence`: None if order does not matter. `deadline`: Unix seconds,
    None if not known."""

    hop: Hop
    payload: bytes
    attempt: int
    sequence: int | None
    out_of_order: bool
    deadline: int | None
    answer_url: str | None
    gaps: tuple[NumberGap, ...] = ()


def batch_id(token: bytes) -> str:
    """The `webhook-id` of a batch. `token`: of the attempt of its first message."""
    return f"batch_{base32(sha256(b'batch' + token).digest())[:26]}"


def about_bytes(hop: Hop, payload: bytes) -> int:
    """About how many bytes of body a message takes."""
    size = len(payload) if _holds_json(hop) else len(payload) * 4 // 3
    return size + len(hop.delivery.source_id) + len(hop.delivery.message_id) + ENVELOPE_BYTES


def encoded_event(event: BatchEvent, form: BatchFormat) -> bytes:
    """The JSON of one message. A payload that is JSON stands in it as it is; any other one as base64."""
    return _encode(_cloud_event(event) if form == "cloudevents" else _list_item(event))


def _cloud_event(event: BatchEvent) -> dict[str, Any]:
    hop, (_, source_id, message_id) = event.hop, event.hop.delivery
    shown: dict[str, Any] = {
        "specversion": "1.0",
        "id": message_id,
        "source": source_id,
        "type": hop.event_type or UNTYPED,
        "datacontenttype": hop.content_type or "application/json",
        "webhookid": webhook_id(source_id, message_id),
        "relayattempt": event.attempt,
        "relaygeneration": hop.generation,
    }
    optional = {
        "time": hop.time if hop.time is not None and is_rfc3339(hop.time) else None,
        "relaysequence": None if event.sequence is None else str(event.sequence),  # CloudEvents' integers have 32 bits
        "relaydeadline": None if event.deadline is None else str(event.deadline),
        "relayanswerurl": event.answer_url,
        "relayoutoforder": event.out_of_order or None,
        "relaygap": gap_text(event.gaps) if event.gaps else None,
        "traceparent": hop.traceparent or None,
    }
    shown |= {name: value for name, value in optional.items() if value is not None}
    return {**shown, **_payload(event, "data", "data_base64")}


def _list_item(event: BatchEvent) -> dict[str, Any]:
    hop, (_, source_id, message_id) = event.hop, event.hop.delivery
    shown: dict[str, Any] = {
        "sequence": event.sequence,
        "type": hop.event_type,
        "id": message_id,
        "source": source_id,
        "time": hop.time,
        "content_type": hop.content_type or "application/json",
        "webhook_id": webhook_id(source_id, message_id),
        "attempt": event.attempt,
        "generation": hop.generation,
        "deadline": event.deadline,
        "answer_url": event.answer_url,
    }
    if event.out_of_order:
        shown["out_of_order"] = True
    if event.gaps:
        shown["gaps"] = [gap._asdict() for gap in event.gaps]
    return {**shown, **_payload(event, "payload", "payload_base64")}


def _payload(event: BatchEvent, plain: str, base64: str) -> dict[str, Any]:
    if _holds_json(event.hop) and _is_valid(event.payload):
        return {plain: msgspec.Raw(event.payload)}
    return {base64: b64encode(event.payload).decode()}


def _holds_json(hop: Hop) -> bool:
    return not hop.content_type or is_json(hop.content_type)


def _is_valid(payload: bytes) -> bool:
    """Whether it can stand in a JSON document."""
    try:
        _decode(payload)
    except NOT_JSON:
        return False
    return True


# --- verdicts ---------------------------------------------------------------------------------------------------


class BadVerdicts(ValueError):
    """The response has a list that says nothing certain."""


class _Verdict(Struct):
    id: str
    status: int
    source: str | None = None
    body: msgspec.Raw = msgspec.Raw(b"null")
    retry_after: float | None = None


_verdicts: Final = msgspec.json.Decoder(list[_Verdict]).decode


def read_verdicts(response: Response, hops: Sequence[Hop]) -> list[Response | None] | None:
    """The response to each message of a batch; None for a message that the list does not have. None if the response is
    not a list: then it applies to all. Raises BadVerdicts."""
    body = response.body.removeprefix(BOM_UTF8).lstrip()
    if not body.startswith(b"["):
        return None
    if response.truncated:
        raise BadVerdicts("the list was cut")
    try:
        listed = _verdicts(body)
    except NOT_JSON as error:
        raise BadVerdicts(f"it is no list of id and status: {error}") from None
    found: list[Response | None] = [None] * len(hops)
    places = _places(hops)
    for verdict in listed:
        at = places.get((verdict.source, verdict.id))
        if at is None:
            raise BadVerdicts(f"it has the id {verdict.id!r}, which is not in the batch")
        if found[at] is not None:
            raise BadVerdicts(f"it has the id {verdict.id!r} twice")
        if not 200 <= verdict.status <= 599:
            raise BadVerdicts(f"{verdict.status} of {verdict.id!r} is not a status")
        found[at] = _response(verdict)
    if not listed:
        raise BadVerdicts("the list is empty")
    return found


def _places(hops: Sequence[Hop]) -> dict[tuple[str | None, str], int]:
    """The places of messages by source and id, and by id alone."""
    places: dict[tuple[str | None, str], int] = {}
    for at, hop in enumerate(hops):
        _, source_id, message_id = hop.delivery
        for named in (message_id, webhook_id(source_id, message_id)):
            places[None, named] = places[source_id, named] = at
    return places


def _response(verdict: _Verdict) -> Response:
    body = bytes(verdict.body)
    headers = {} if verdict.retry_after is None else {"retry-after": f"{max(0.0, verdict.retry_after):.0f}"}
    if body == b"null":
        return Response(verdict.status, headers, b"")
    return Response(verdict.status, {**headers, "content-type": "application/json"}, body)
