"""The sink's side of batches: the messages in a POST, and the list of what became of each."""

import base64
import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

from relay.domain.batch import CONTENT_TYPES
from relay.domain.numbering import GAP_HEADER, NumberGap, gap_text
from relay.domain.requests import ANSWER_URL_HEADER, BATCH_HEADER
from relay.sink.arrival import ReceivedPost
from relay.sink.behaviour import Behaviour, Mode, reaction

WHOLE: Final = frozenset[Mode]({"hang", "reset", "redirect", "echo"})
"""Reactions to a request, not to a message in it."""
_AFTER_A_FAILED_ONE: Final = 425


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
