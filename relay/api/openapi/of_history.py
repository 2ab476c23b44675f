"""The routes of the history: messages, attempts, payloads, and counts of attempts."""

from typing import Annotated, Final

from msgspec import Meta

from relay.api.history.payload import TRUNCATED
from relay.api.history.shapes import AttemptItem, AttemptPage, CountsView, MessagePage
from relay.api.openapi.operation import (
    MESSAGE,
    SOURCE,
    Body,
    DocumentedResponse,
    Example,
    Limit,
    Operation,
    Parameter,
    ReceiverName,
    SourceId,
    json_of,
)
from relay.api.problems import NO_HISTORY, PAYLOAD_GONE
from relay.domain.message import MAX_TEXT_BYTES
from relay.domain.progress import Status
from relay.history.port import By

_HISTORY: Final = "history"
_TYPE: Final = Annotated[str, Meta(min_length=1, max_length=MAX_TEXT_BYTES)]
_Time = Annotated[str, Meta(examples=["1h", "2026-01-31T12:00:00Z"])]
_Header = Annotated[str, Meta(pattern="^[^:]+:")]
_Field = Annotated[str, Meta(pattern="^(/[^=]*)?=")]
_Cursor = Annotated[str, Meta(min_length=1, max_length=500)]
_SOURCE: Final = Parameter("source", "query", SourceId, "Of this source.")
_RECEIVER: Final = Parameter("receiver", "query", ReceiverName, "With a delivery to this receiver.")
_SINCE: Final = Parameter("since", "query", _Time, "From then on: RFC 3339, or how long ago.")
_UNTIL: Final = Parameter("until", "query", _Time, "Before then: RFC 3339, or how long ago.")
_Place = Annotated[str, Meta(pattern="^[0-9]{1,9}-[0-9]{1,18}$")]
_DELIVERY: Final = Parameter("receiver", "query", ReceiverName, "About this delivery.")
_BEHIND: Final = Parameter("behind", "query", _Place, "PARTITION-OFFSET of an attempt: only those recorded later.")
_PAGE: Final = (
    Parameter("limit", "query", Limit, "So many at most; usually 50."),
    Parameter("cursor", "query", _Cursor, "Of the page before: what follows it."),
)
_AT: Final = {"source_id": "github", "message_id": "sent-1"}
_OF_MESSAGE: Final = "/v1/sources/{source_id}/messages/{message_id}"

OPERATIONS: Final = (
    Operation(
        method="GET",
        path="/v1/messages",
        id="listMessages",
        noun=_HISTORY,
        summary="Messages that came, and how far their deliveries are",
        description="All that is given has to be met; `receiver`, `status` and `reason` by one and the same delivery "
        "that the caller may see. The list follows the topics: `behind_s` says how closely. Of what came more than "
        "`RELAY_HISTORY_RETENTION` ago nothing is listed.",
        parameters=(
            _SOURCE,
            _RECEIVER,
            Parameter("owner", "query", SourceId, "With a delivery to a receiver of this owner."),
            Parameter("status", "query", Status, "With a delivery that is so far."),
            Parameter("reason", "query", str, "With a delivery that failed for this."),
            Parameter("type", "query", _TYPE, "Exactly, or with `*` at its end."),
            _SINCE,
            _UNTIL,
            Parameter("id", "query", SourceId, "How its id, or its webhook id, begins."),
            Parameter("header", "query", _Header, "`name:value`, of those it came with; where bodies are kept."),
            Parameter("payload", "query", _Field, "`/pointer=value`, in a JSON payload; where bodies are kept."),
            *_PAGE,
        ),
        answers=(DocumentedResponse(200, "The newest first.", json_of(MessagePage)),),
        problems=(NO_HISTORY,),
        example=Example(200, query={"source": "github", "since": "1h", "limit": "10"}),
    ),
    Operation(
        method="GET",
        path=f"{_OF_MESSAGE}/attempts",
        id="listAttempts",
        noun=_HISTORY,
        summary="Each HTTP exchange about a message",
        description="POSTs, status GETs and, for who may read the source, callbacks.",
        parameters=(
            SOURCE,
            MESSAGE,
            Parameter("receiver", "query", ReceiverName, "About this delivery."),
            _BEHIND,
            *_PAGE,
        ),
        answers=(DocumentedResponse(200, "The newest first.", json_of(AttemptPage)),),
        problems=(NO_HISTORY,),
        example=Example(200, path=_AT),
    ),
    Operation(
        method="GET",
        path="/v1/attempts/{partition}/{offset}",
        id="getAttempt",
        noun=_HISTORY,
        summary="One HTTP exchange, with all of its headers that are kept",
        parameters=(
            Parameter("partition", "path", Annotated[int, Meta(ge=0, le=999_999_999)], "Of `delivery_attempts`."),
            Parameter("offset", "path", Annotated[int, Meta(ge=0, lt=10**18)], "In that partition."),
        ),
        answers=(DocumentedResponse(200, "The attempt.", json_of(AttemptItem)),),
        problems=(NO_HISTORY,),
        example=Example(200, path={"partition": "0", "offset": "0"}),
    ),
    Operation(
        method="GET",
        path=f"{_OF_MESSAGE}/payload",
        id="getPayload",
        noun=_HISTORY,
        summary="A message's payload, as its sender gave it",
        description="From the log; what is gone there, as far as the history keeps it. A history need not be set up.",
        parameters=(SOURCE, MESSAGE),
        answers=(
            DocumentedResponse(
                200, "The bytes.", Body({"*/*": None}), {TRUNCATED: "`true`: only the beginning is kept."}
            ),
        ),
        problems=(PAYLOAD_GONE,),
        example=Example(200, path=_AT),
    ),
    Operation(
        method="GET",
        path="/v1/receivers/{name}/attempts",
        id="listReceiverAttempts",
        noun=_HISTORY,
        summary="Each HTTP exchange with a receiver",
        parameters=(
            Parameter("name", "path", ReceiverName, "The receiver's name."),
            Parameter("failed", "query", bool, "Only those that did not end well; `false`: only the others."),
            *_PAGE,
        ),
        answers=(DocumentedResponse(200, "The newest first.", json_of(AttemptPage)),),
        problems=(NO_HISTORY,),
        example=Example(200, path={"name": "ci"}, query={"failed": "true", "limit": "10"}),
    ),
    Operation(
        method="GET",
        path="/v1/stats",
        id="getStats",
        noun=_HISTORY,
        summary="Attempts by receiver and source, over time",
        description="By `minute` of a day at most, usually the last hour; by `hour` of 31 days at most, usually the "
        "last 24 hours. At most 20,000 points.",
        parameters=(
            Parameter("by", "query", By, "Usually `hour`."),
            _SINCE,
            _UNTIL,
            Parameter("receiver", "query", ReceiverName, "At this receiver."),
            _SOURCE,
        ),
        answers=(DocumentedResponse(200, "What was counted.", json_of(CountsView)),),
        problems=(NO_HISTORY,),
        example=Example(200, query={"by": "minute", "since": "1h"}),
    ),
)
