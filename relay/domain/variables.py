"""The variables of expressions, made of a delivery, a response, and an answer."""

from typing import Final

import msgspec

from relay.domain.errors import ExpressionError
from relay.domain.exchange import Response
from relay.domain.expression import Document, Variables
from relay.domain.hop import Hop
from relay.domain.identity import webhook_id
from relay.domain.message import Message
from relay.domain.receiver import Source
from relay.domain.result_delivery import detail_in

MOST_KEPT: Final = 4_096
"""Bytes of JSON that a source keeps of a message."""


def message_variables(message: Message) -> Variables:
    """`message` and `payload`, when it is routed."""
    return {
        "message": _message(
            message.source_id, message.message_id, message.event_type, message.time, dict(message.headers)
        ),
        "payload": Document(message.payload, "the payload"),
    }


class UnreadableKeep(ExpressionError):
    """Another process, or this one later, may be able to work it out."""


def kept_of(source: Source, message: Message) -> str | None:
    """JSON of what `source` keeps of the message; None if it keeps nothing. Raises ExpressionError."""
    keep = source.keep
    if keep is None:
        raise UnreadableKeep("the entry of its source cannot be read here")
    if not keep:
        return None
    variables = message_variables(message)
    kept = {name: msgspec.Raw(msgspec.json.encode(each.evaluate(variables))) for name, each in keep.items()}
    found = msgspec.json.encode(kept)
    if len(found) > MOST_KEPT:
        longest = max(kept, key=lambda name: len(bytes(kept[name])))
        raise ExpressionError(
            f"{keep[longest].place}: `{keep[longest].text.strip()}`: all that is kept has {len(found)} bytes of JSON, "
            f"most of them in this; {MOST_KEPT} are allowed"
        )
    return found.decode()


def delivery_variables(hop: Hop, payload: bytes, *, attempt: int, answer_url: str | None = None) -> Variables:
    """`message`, `payload`, `delivery` and `keep` of a request to a receiver. `attempt`: 1-based. `answer_url`: of a
    POST, if there is one."""
    delivery: dict[str, object] = {"receiver": hop.delivery.receiver, "attempt": attempt}
    return {
        **_of_hop(hop),
        "payload": Document(payload, "the payload"),
        "delivery": delivery | {"answer_url": answer_url or "", "outcome": "", "reason": "", "detail": ""},
    }


def response_variables(response: Response) -> Variables:
    """`response`, and its `body`, which is decoded once for both."""
    body = Document(response.body, "the response's body", cut=response.truncated)
    return {"response": _response(response, body), "body": body}


def response_value(response: Response) -> dict[str, object]:
    """A response as the value of a variable. A body that was cut is text."""
    return _response(response, Document(response.body, cut=response.truncated))


def _response(response: Response, body: Document) -> dict[str, object]:
    return {"status": response.status, "headers": dict(response.headers), "body": body.value_or_text()}


def callback_variables(hop: Hop, value: bytes) -> Variables:
    """`message`, `delivery`, `answer` and `keep` of a result on its way to the sender. `hop`, `value`: of the
    `to_sender` record. The attempts are those of the delivery, so that a repeated callback is the same."""
    failed = hop.outcome == "failed"
    answer, detail = (b"", detail_in(value)) if failed else (value, "")
    return {
        **_of_hop(hop),
        "delivery": {
            "receiver": hop.delivery.receiver,
            "attempt": hop.attempt,
            "answer_url": "",
            "outcome": hop.outcome or "",
            "reason": (hop.reason or "") if failed else "",
            "detail": detail,
        },
        "answer": {
            "status": hop.answer_status or 0,
            "content_type": "" if failed else hop.content_type or "",
            "body": Document(answer).value_or_text() if answer else None,
        },
    }


def _of_hop(hop: Hop) -> dict[str, object]:
    delivery = hop.delivery
    return {
        "message": _message(delivery.source_id, delivery.message_id, hop.event_type, hop.time, dict(hop.headers)),
        "keep": {} if hop.keep is None else msgspec.json.decode(hop.keep),
    }


def _message(
    source_id: str, message_id: str, event_type: str | None, time: str | None, headers: dict[str, str]
) -> dict[str, object]:
    return {
        "id": message_id,
        "source": source_id,
        "type": event_type or "",
        "time": time or "",
        "webhook_id": webhook_id(source_id, message_id),
        "headers": headers,
    }
