"""The variables of expressions, made of a delivery, a response, and an answer."""

import msgspec

from relay.domain.exchange import Response
from relay.domain.expression import Document, Variables, json_or_text
from relay.domain.hop import Hop
from relay.domain.identity import webhook_id
from relay.domain.message import Message


def message_variables(message: Message) -> Variables:
    """`message` and `payload`, when it is routed."""
    return {
        "message": _message(
            message.source_id, message.message_id, message.event_type, message.time, dict(message.headers)
        ),
        "payload": Document(message.payload, "the payload"),
    }


def delivery_variables(hop: Hop, payload: bytes, *, attempt: int) -> Variables:
    """`message`, `payload`, `delivery` and `keep` of a request to a receiver. `attempt`: 1-based."""
    return {
        **_of_hop(hop),
        "payload": Document(payload, "the payload"),
        "delivery": {"receiver": hop.delivery.receiver, "attempt": attempt, "outcome": "", "reason": "", "detail": ""},
    }


def response_variables(response: Response) -> Variables:
    """`response`, and its `body`; the beginning of a body that was cut is not its value."""
    body = Document(b"", "the response's body, which was cut,") if response.truncated else None
    return {"response": response_value(response), "body": body or Document(response.body, "the response's body")}


def response_value(response: Response) -> dict[str, object]:
    """A response as the value of a variable. A body that was cut is text."""
    cut = response.truncated
    body = response.body.decode(errors="replace") if cut else json_or_text(response.body)
    return {"status": response.status, "headers": dict(response.headers), "body": body}


def callback_variables(hop: Hop, answer: bytes, *, attempt: int, detail: str = "") -> Variables:
    """`message`, `delivery`, `answer` and `keep` of a result on its way to the sender. `hop`: of the `to_sender`
    record; `answer`: its value."""
    return {
        **_of_hop(hop),
        "delivery": {
            "receiver": hop.delivery.receiver,
            "attempt": attempt,
            "outcome": hop.outcome or "",
            "reason": hop.reason or "",
            "detail": detail,
        },
        "answer": {
            "status": hop.answer_status or 0,
            "content_type": hop.content_type or "",
            "body": json_or_text(answer) if answer else None,
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
