"""The routes of messages: in one by one or as a batch, and what became of one."""

from typing import Annotated, Any, Final

from msgspec import Meta

from relay.api.batch import BatchView
from relay.api.batch_items import MAX_ITEMS, BatchLine, CloudEvent
from relay.api.openapi.operation import (
    MESSAGE,
    SOURCE,
    Body,
    DocumentedResponse,
    Example,
    MessageIdText,
    Operation,
    Parameter,
    ReceiverName,
    json_of,
)
from relay.api.problems import (
    ID_CONFLICT,
    INVALID_JSON,
    NO_RECEIVER,
    OVER_QUOTA,
    RESERVED_SOURCE,
    UNFIT_ID,
    UNKNOWN_RECEIVER,
)
from relay.api.view import MessageView
from relay.api.wait_response import ANSWER_GONE, FAILURES
from relay.domain.message import MAX_RECEIVERS, MAX_TEXT_BYTES
from relay.domain.trace import MOST_STATE

_NOUN: Final = "messages"
_TEXT: Final = Annotated[str, Meta(max_length=MAX_TEXT_BYTES)]
_Names = Annotated[list[ReceiverName], Meta(min_length=1, max_length=MAX_RECEIVERS)]
_RECEIVERS: Final = Parameter("receiver", "query", _Names, "Who receives it; without any: whoever subscribes.")
_TYPE: Final = Parameter("type", "query", _TEXT, "The type of event; as `ce-type`.")
WAIT: Final = Parameter(
    "wait", "query", Annotated[float, Meta(ge=0, le=999_999_999)], "Seconds to stay open for the receiver's answer."
)
PREFER: Final = Parameter("Prefer", "header", str, "`wait=10` (RFC 7240): as the query has it, but only a wish.")
_TRACE: Final = (
    Parameter("traceparent", "header", _TEXT, "Goes along to receiver and callback."),
    Parameter("tracestate", "header", str, f"Likewise; left out where it is longer than {MOST_STATE} characters."),
)
_RATE: Final = {
    "RateLimit": "What is left of the quotas that hold.",
    "RateLimit-Policy": "The quotas that hold, in messages.",
}
_RESULT: Final = {
    "webhook-id": "`ans_...`, as a callback has it.",
    "relay-outcome": "`answered` or `delivered`.",
    "relay-answer-status": "The status that the receiver answered with.",
}
ANSWERED: Final = DocumentedResponse(
    200,
    "With `wait`: the receiver's answer, its body and content type as they are.",
    Body({"*/*": None}),
    _RESULT,
)
_VIEW_OR_ANSWER: Final = Annotated[
    Any, Meta(extra_json_schema={"anyOf": [{"$ref": "#/components/schemas/MessageView"}, {}]})
]
_PROBLEMS: Final = (NO_RECEIVER, RESERVED_SOURCE, UNKNOWN_RECEIVER, UNFIT_ID, OVER_QUOTA)

OPERATIONS: Final = (
    Operation(
        method="POST",
        path="/v1/sources/{source_id}/messages",
        id="sendMessage",
        noun=_NOUN,
        summary="Send a message",
        description="202 once it is on the log: from then on it is not lost. The body is the payload, of any type, and "
        "is passed on byte for byte. The same id again is a duplicate, and changes nothing.",
        parameters=(
            SOURCE,
            _RECEIVERS,
            _TYPE,
            WAIT,
            PREFER,
            Parameter("ce-id", "header", MessageIdText, "The message's id; without one it gets one."),
            Parameter("webhook-id", "header", MessageIdText, "As `ce-id`."),
            Parameter("Idempotency-Key", "header", MessageIdText, "As `ce-id`."),
            Parameter("ce-type", "header", _TEXT, "The type of event."),
            Parameter("ce-time", "header", _TEXT, "When it happened."),
            *_TRACE,
        ),
        body=Body({"application/json": None, "text/plain": str, "application/octet-stream": None}, required=False),
        answers=(
            DocumentedResponse(
                202,
                "It is on the log.",
                json_of(MessageView),
                {
                    "Location": "The path of the message.",
                    "Idempotent-Replayed": "`true`: it is a duplicate.",
                    "Retry-After": "With `wait`: the answer takes longer.",
                    **_RATE,
                },
            ),
            ANSWERED,
        ),
        problems=(*_PROBLEMS, ID_CONFLICT, INVALID_JSON, ANSWER_GONE, *FAILURES),
        example=Example(
            202,
            path={"source_id": "github"},
            query={"receiver": "ci"},
            headers={"ce-id": "my-first"},
            body={"hello": "world"},
        ),
    ),
    Operation(
        method="POST",
        path="/v1/sources/{source_id}/messages:batch",
        id="sendMessages",
        noun=_NOUN,
        summary=f"Send up to {MAX_ITEMS} messages",
        description="JSON lines, or a CloudEvents batch. 200 with a result for each, in their order: each is judged "
        "for itself, and `status` is what it would have been answered alone. Any other answer is about all of them.",
        parameters=(SOURCE, _RECEIVERS, _TYPE, *_TRACE),
        body=Body(
            {
                "application/x-ndjson": str,
                "application/cloudevents-batch+json": Annotated[list[CloudEvent], Meta(max_length=MAX_ITEMS)],
            },
            items={"application/x-ndjson": BatchLine},
        ),
        answers=(DocumentedResponse(200, "What became of each.", json_of(BatchView), _RATE),),
        problems=(OVER_QUOTA,),
        example=Example(
            200,
            path={"source_id": "github"},
            query={"receiver": "ci"},
            body='{"message_id": "b-1", "payload": {"n": 1}}\n{"message_id": "b-2", "payload": {"n": 2}}\n',
            content_type="application/x-ndjson",
        ),
    ),
    Operation(
        method="GET",
        path="/v1/sources/{source_id}/messages/{message_id}",
        id="getMessage",
        noun=_NOUN,
        summary="What became of a message",
        parameters=(
            SOURCE,
            MESSAGE,
            Parameter("receiver", "query", ReceiverName, "Only the delivery to this one."),
            WAIT,
            PREFER,
        ),
        answers=(
            DocumentedResponse(
                200,
                "The message and its deliveries; with `wait`, the receiver's answer as it is.",
                Body({"application/json": _VIEW_OR_ANSWER, "*/*": None}),
                _RESULT,
            ),
            DocumentedResponse(
                202,
                "With `wait`: the answer takes longer.",
                json_of(MessageView),
                {"Location": "The path of the message.", "Retry-After": "Seconds after which to ask again."},
            ),
        ),
        problems=(ANSWER_GONE, *FAILURES),
        example=Example(200, path={"source_id": "github", "message_id": "sent-1"}),
    ),
)
