"""Headers of records on the topics, one table for each form of record. A test compares them with the code that writes
them."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, get_args

from relay.domain.headers import FORWARDED
from relay.domain.hop import Outcome
from relay.domain.identity import MAX_ID_BYTES
from relay.domain.message import MAX_RECEIVERS, MAX_TEXT_BYTES
from relay.domain.reasons import REASONS, ReasonClass
from relay.domain.trace import MOST_STATE

_NUMBER: Final = {"pattern": "^[0-9]{1,18}$"}
_TRUE: Final = {"const": "true"}
_ID: Final = {"minLength": 1, "maxLength": MAX_ID_BYTES}
_SHORT: Final = {"maxLength": MAX_TEXT_BYTES}
_NAME: Final = {"pattern": "^(-|[a-z0-9][a-z0-9-]{0,62})$"}
_COORDINATE: Final = {"pattern": "^.+/[0-9]+/[0-9]+$"}


@dataclass(frozen=True, slots=True)
class HeaderSpec:
    """`rule`: of its text, as JSON Schema. `always`: every record of this form has it."""

    name: str
    description: str
    rule: Mapping[str, Any] = field(default_factory=dict)
    always: bool = False


TIMING: Final = (
    HeaderSpec("relay-deliver-at", "Earliest time of the delivery: RFC 3339 or Unix seconds, at most 30 days ahead."),
    HeaderSpec("relay-delay", "How long to wait before the delivery: seconds, or such as `10m`."),
    HeaderSpec(
        "relay-supersede", "Key of the message, which replaces older ones of this source and key that were not sent."
    ),
    HeaderSpec("relay-coalesce", "JSON of a key and a window: only the newest message within the window is sent."),
    HeaderSpec("relay-deadline", "Time after which no attempt starts: RFC 3339, Unix seconds, or a duration."),
)
EVENT: Final = (
    HeaderSpec("ce_specversion", "The version of CloudEvents.", {"const": "1.0"}),
    HeaderSpec("ce_id", "Id of the message, unique in its source. A repeated id is a duplicate.", _ID, always=True),
    HeaderSpec("ce_source", "The source_id.", _ID, always=True),
    HeaderSpec("ce_type", "Event type, which subscriptions match.", _SHORT),
    HeaderSpec("ce_time", "Time of the event (RFC 3339).", _SHORT),
    HeaderSpec("content-type", "The content type of the value.", _SHORT),
    HeaderSpec(
        "ce_receiver",
        f"Who receives it: names with commas between, {MAX_RECEIVERS} at most; without it who subscribes.",
    ),
    HeaderSpec("traceparent", "W3C Trace Context, which is passed on to receiver and callback.", _SHORT),
    HeaderSpec("tracestate", f"The same. It is dropped if it is longer than {MOST_STATE} bytes, or not ASCII."),
    *TIMING,
    HeaderSpec("relay-endpoint", "JSON of the own endpoint of a message over HTTP. Only the relay sets it."),
    HeaderSpec(
        "relay-wait", "Seconds for which a request waits for the answer. Only a hint.", {"pattern": "^[0-9]{1,9}$"}
    ),
)
ENVELOPE: Final = (EVENT[8], *TIMING)
_IDENTITY: Final = (replace(EVENT[0], always=True), *EVENT[1:3])
HOP: Final = (
    *_IDENTITY,
    HeaderSpec("relay-receiver", "Name of the receiver; `-` if the message never had one.", _NAME, always=True),
    HeaderSpec("relay-attempt", "Number of POSTs so far.", _NUMBER, always=True),
    HeaderSpec(
        "relay-generation", "0 for the first life of a delivery, and 1 more for each replay.", _NUMBER, always=True
    ),
    HeaderSpec("ce_type", "Event type of the message."),
    HeaderSpec("ce_time", "Time of the event, as the sender set it."),
    HeaderSpec("content-type", "The content type of the value."),
    HeaderSpec("traceparent", "The sender's trace context (W3C)."),
    HeaderSpec("tracestate", "Likewise."),
    HeaderSpec("relay-sequence", "Grows along the order key; falls only on a replay.", _NUMBER),
    HeaderSpec("relay-origin", "Coordinate of the message's first record: topic/partition/offset.", _COORDINATE),
    HeaderSpec("relay-accepted-at", "When the message was accepted: Unix milliseconds.", _NUMBER),
    HeaderSpec("relay-outcome", "The outcome of the delivery.", {"enum": list(get_args(Outcome))}),
    HeaderSpec("relay-answer-status", "Status of the receiver's answer.", _NUMBER),
    HeaderSpec("relay-answer-truncated", "`true` if the answer was truncated.", _TRUE),
    HeaderSpec("relay-reason", "Why the delivery failed for good.", {"enum": list(REASONS)}),
    HeaderSpec("relay-status-url", "URL to poll for the answer."),
    HeaderSpec(
        "relay-ask-after", "Seconds to wait before the first poll for the answer.", {"pattern": r"^[0-9.e+-]+$"}
    ),
    HeaderSpec("relay-not-asked", "Why the receiver cannot be polled for the answer."),
    HeaderSpec(
        "relay-move", "Number of the receiver's move between lanes after which the message was routed.", _NUMBER
    ),
    HeaderSpec("relay-ask-first", "`true` for a replay of which an earlier attempt may have arrived.", _TRUE),
    HeaderSpec("relay-wait", "Seconds for which a request waits for the answer.", _NUMBER),
    HeaderSpec("relay-order-key", "Digest of the order key's value.", {"pattern": "^[0-9a-f]{24}$"}),
    HeaderSpec("relay-keep", "JSON of the values that the source keeps of the message for its callback."),
    HeaderSpec("relay-timing", "JSON of the times of the message, and of the key by which it replaces others."),
    HeaderSpec("relay-endpoint", "JSON of the message's own endpoint: its URL, and its encrypted secret."),
    HeaderSpec("relay-sealed", "`true` if the value is encrypted for its receiver.", _TRUE),
    HeaderSpec("relay-status-chain", "JSON of the status steps: the current one, and values that later ones need."),
    HeaderSpec("relay-receiver-life", "Life of the receiver's name for which the message was routed."),
)
RESULT: Final = (
    *HOP,
    HeaderSpec(
        "webhook-id",
        "The same as at a callback. It stays the same on a repeat, so use it to recognise repeats.",
        always=True,
    ),
    HeaderSpec("relay-source", "The source_id, as at a callback.", _ID, always=True),
    HeaderSpec("relay-message-id", "Id of the message, as at a callback.", _ID, always=True),
)
LETTER: Final = (
    HeaderSpec("relay-reason", "Why the delivery was given up.", {"enum": list(REASONS)}, always=True),
    HeaderSpec(
        "relay-reason-class",
        "Who has to act: sender, receiver or system.",
        {"enum": sorted(get_args(ReasonClass))},
        always=True,
    ),
    HeaderSpec("relay-detail", "The reason in words.", always=True),
    HeaderSpec("relay-stage", "Topic whose step failed, to which a replay sends it.", always=True),
    HeaderSpec("relay-attempts", "Number of attempts.", _NUMBER, always=True),
    HeaderSpec("relay-first-failed", "When the delivery was given up: Unix milliseconds.", _NUMBER, always=True),
    HeaderSpec("relay-origin", "Coordinate of the message's first record: topic/partition/offset.", _COORDINATE),
    HeaderSpec("relay-last-status", "Status of the last HTTP response.", _NUMBER),
    HeaderSpec("relay-former-reason", "Why the delivery had failed before it was discarded.", {"enum": list(REASONS)}),
    HeaderSpec("relay-omitted", "Parts of the record that were omitted, because it was too large for the log."),
    HeaderSpec("relay-moved", "`true` if it was reported before it was moved here from another relay."),
    HeaderSpec("relay-original-reason", "`relay-reason` of the record that failed."),
    HeaderSpec("relay-original-origin", "`relay-origin` of the record that failed."),
)


def schema_of(headers: Iterable[HeaderSpec]) -> dict[str, Any]:
    """The schema of a record's headers, by name. Values are UTF-8 bytes. Other headers are ignored."""
    found = list(headers)
    return {
        "type": "object",
        "properties": {one.name: {"type": "string", "description": one.description, **one.rule} for one in found},
        "patternProperties": {
            f"^{FORWARDED}": {
                "type": "string",
                "description": "A header of the message's own, for receivers that allow it.",
            }
        },
        "required": [one.name for one in found if one.always],
    }
