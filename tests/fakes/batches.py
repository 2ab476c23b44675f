"""Batches as a receiver sees them: the messages in a POST, each as it would arrive alone."""

import base64
import json
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from msgspec import structs

from relay.domain.exchange import Exchange, NoResponse, Request, Response
from relay.domain.numbering import NumberGap, gap_text
from relay.domain.requests import BATCH_HEADER, attribute_value

AFTER_A_FAILED_ONE = Response(425, {}, b"")
_decode = msgspec.json.Decoder(list[dict[str, msgspec.Raw]]).decode
FINAL = frozenset({400, 410, 413, 415, 422})


def is_batch(request: Request) -> bool:
    return any(name == BATCH_HEADER for name, _ in request.headers)


def messages_in(request: Request) -> list[Request]:
    events = json.loads(request.body)
    for event, raw in zip(events, _decode(request.body), strict=True):
        for name in event.keys() & {"data", "payload"}:
            event[name] = raw[name]
    return [_message(request, event) for event in events]


def _message(request: Request, event: dict[str, Any]) -> Request:
    of_batch = [pair for pair in request.headers if pair[0] not in ("content-type", "webhook-id")]
    own = {
        "ce-id": attribute_value(event["id"]),
        "ce-source": attribute_value(event["source"]),
        "webhook-id": event.get("webhookid") or event["webhook_id"],
        "relay-attempt": str(event.get("relayattempt", event.get("attempt"))),
        "relay-generation": str(event.get("relaygeneration", event.get("generation"))),
        "ce-type": event["type"] or "",
    }
    sequence = event.get("relaysequence", event.get("sequence"))
    if sequence is not None:
        own["relay-sequence"] = str(sequence)
    if answer_url := event.get("relayanswerurl") or event.get("answer_url"):
        own["relay-answer-url"] = answer_url
    if event.get("relayoutoforder") or event.get("out_of_order"):
        own["relay-out-of-order"] = "true"
    if gaps := event.get("gaps"):
        own["relay-gap"] = gap_text(NumberGap(**gap) for gap in gaps)
    elif "relaygap" in event:
        own["relay-gap"] = event["relaygap"]
    return structs.replace(request, headers=(*of_batch, *own.items()), body=_payload(event))


def _payload(event: dict[str, Any]) -> bytes:
    for name in ("data_base64", "payload_base64"):
        if name in event:
            return base64.b64decode(event[name])
    return bytes(event["data"] if "data" in event else event["payload"]).strip()


async def answered_each(request: Request, post: Callable[[Request], Awaitable[Exchange]]) -> Exchange:
    """A receiver that handles the messages one after the other, and lists what became of them. `post`: what becomes of
    one. After one that is to be sent again it takes no more of that source; it may also stop altogether."""
    listed: list[dict[str, Any]] = []
    failed: set[str] = set()
    for event, one in zip(json.loads(request.body), messages_in(request), strict=True):
        exchange = AFTER_A_FAILED_ONE if event["source"] in failed else await post(one)
        if isinstance(exchange, NoResponse):
            return exchange
        if exchange.status >= 300 and exchange.status not in FINAL:
            failed.add(event["source"])
        body = {"body": json.loads(exchange.body)} if exchange.body else {}
        listed.append({"id": event["id"], "source": event["source"], "status": exchange.status, **body})
    return Response(207, {}, json.dumps(listed).encode())
