"""Records of the sink: received POSTs, the messages in a batch and their statuses, status GETs, and sent callbacks."""

import base64
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple
from urllib.parse import unquote

from aiohttp import web

from relay.domain.batch import CONTENT_TYPES
from relay.domain.numbering import GAP_HEADER, NumberGap, gap_text
from relay.domain.requests import ANSWER_URL_HEADER, BATCH_HEADER
from relay.domain.text import whole_number
from relay.sink.behaviour import Behaviour, Mode, reaction

WHOLE: Final = frozenset[Mode]({"hang", "reset", "redirect", "echo"})
"""Reactions to a request, not to a message in it."""
_AFTER_A_FAILED_ONE: Final = 425


@dataclass(frozen=True, slots=True)
class ReceivedPost:
    """A received POST. Ids are decoded; they are empty for a POST without `ce-` headers.

    `verified`: whether the signature was valid; None without a secret. `met`: the reaction to it. `status`: of the
    response; None for `hang` and `reset`. `headers` have lower-case names. `payload`: the body decrypted, or fetched
    from `relay-payload-url`; None if the sink did neither. `batch`: the id of the batch that it arrived in, of which
    `headers` are.
    """

    webhook_id: str
    source_id: str
    message_id: str
    event_type: str
    attempt: int
    generation: int
    sequence: int | None
    body: bytes = field(repr=False)
    headers: Mapping[str, str] = field(repr=False)
    verified: bool | None
    met: Mode
    status: int | None
    t_monotonic: float
    payload: bytes | None = field(default=None, repr=False)
    batch: str | None = None


class Poll(NamedTuple):
    """A status GET."""

    message_id: str
    status: int
    t_monotonic: float


class CallbackSent(NamedTuple):
    """A POST to a `relay-answer-url`. `status`: of the response; None if there was none."""

    message_id: str
    status: int | None


def arrival_of(request: web.Request, body: bytes, met: Mode, status: int | None, verified: bool | None) -> ReceivedPost:
    headers = {name.lower(): value for name, value in request.headers.items()}
    return ReceivedPost(
        webhook_id=headers.get("webhook-id", ""),
        source_id=unquote(headers.get("ce-source", "")),
        message_id=unquote(headers.get("ce-id", "")),
        event_type=unquote(headers.get("ce-type", "")),
        attempt=whole_number(headers.get("relay-attempt", "")) or 1,
        generation=whole_number(headers.get("relay-generation", "")) or 0,
        sequence=whole_number(headers.get("relay-sequence", "")),
        body=body,
        headers=headers,
        verified=verified,
        met=met,
        status=status,
        t_monotonic=time.monotonic(),
    )


def is_batch(headers: Mapping[str, str]) -> bool:
    content_type = headers.get("content-type", "").partition(";")[0].strip()
    return content_type == CONTENT_TYPES["cloudevents"] or BATCH_HEADER in headers


def arrivals_in(batch: ReceivedPost) -> list[ReceivedPost]:
    """The messages of `batch`, a POST, in its order. Raises ValueError, KeyError or TypeError if it is no batch."""
    return [_arrival(batch, event) for event in json.loads(batch.body)]


def _arrival(batch: ReceivedPost, event: Mapping[str, Any]) -> ReceivedPost:
    sequence = event.get("relaysequence", event.get("sequence"))
    url = event.get("relayanswerurl") or event.get("answer_url")
    gaps = event.get("relaygap") or gap_text(NumberGap(**gap) for gap in event.get("gaps", ()))
    return replace(
        batch,
        batch=batch.webhook_id,
        webhook_id=event.get("webhookid") or event.get("webhook_id") or "",
        source_id=event["source"],
        message_id=event["id"],
        event_type=event.get("type") or "",
        attempt=event.get("relayattempt") or event.get("attempt") or 1,
        generation=event.get("relaygeneration") or event.get("generation") or 0,
        sequence=None if sequence is None else int(sequence),
        body=_payload(event),
        headers={**batch.headers, **({ANSWER_URL_HEADER: url} if url else {}), **({GAP_HEADER: gaps} if gaps else {})},
    )


def _payload(event: Mapping[str, Any]) -> bytes:
    for name in ("data_base64", "payload_base64"):
        if name in event:
            return base64.b64decode(event[name])
    return json.dumps(event.get("data", event.get("payload"))).encode()


def verdicts(
    behaviour: Behaviour, arrivals: list[ReceivedPost], *, before: int, chance: Callable[[], float]
) -> list[ReceivedPost]:
    """The messages, each with the reaction to it and its status. `before`: messages before them. After one of a source
    that is to be sent again, the others of that source are refused: it would arrive after them."""
    found: list[ReceivedPost] = []
    failed: set[str] = set()
    for nth, arrival in enumerate(arrivals, before + 1):
        met = reaction(behaviour, nth=nth, chance=chance())
        status = behaviour.status_of(met)
        if arrival.source_id in failed:
            met, status = "fail", _AFTER_A_FAILED_ONE
        elif met == "fail":
            failed.add(arrival.source_id)
        found.append(replace(arrival, met=met, status=status))
    return found


def listed(arrivals: list[ReceivedPost], bodies: Mapping[str, bytes]) -> bytes:
    """The list of ids and statuses. `bodies`: answers by webhook id."""
    items = []
    for each in arrivals:
        item: dict[str, Any] = {"id": each.message_id, "source": each.source_id, "status": each.status}
        if each.met in ("answer", "later"):
            item["body"] = json.loads(bodies[each.webhook_id or each.message_id])
        items.append(item)
    return json.dumps(items).encode()
