"""Headers of records on the topics, one table for each form of record. A test compares them with the code that writes
them."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, get_args

from relay.domain.forwarding import PREFIX
from relay.domain.hop import Outcome
from relay.domain.identity import MAX_ID_BYTES
from relay.domain.message import MAX_RECEIVERS, MAX_TEXT_BYTES
from relay.domain.reasons import REASONS
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
    HeaderSpec("relay-deliver-at", "When to send it: RFC 3339 or Unix seconds, at most 30 days ahead."),
    HeaderSpec("relay-delay", "How long to wait before it is sent: seconds, or such as `10m`."),
    HeaderSpec("relay-supersede", "A key: it replaces older messages of this source and key that were not sent."),
    HeaderSpec("relay-coalesce", "JSON of a key and a window: of the messages within it only the newest is sent."),
    HeaderSpec("relay-deadline", "Time after which no attempt starts: RFC 3339, Unix seconds, or a duration."),
)
EVENT: Final = (
    HeaderSpec("ce_specversion", "Of CloudEvents.", {"const": "1.0"}),
    HeaderSpec("ce_id", "The message's id, unique in its source: the same again is a duplicate.", _ID, always=True),
    HeaderSpec("ce_source", "The source_id: the application that it comes from.", _ID, always=True),
    HeaderSpec("ce_type", "The type of event, by which receivers subscribe.", _SHORT),
    HeaderSpec("ce_time", "When it happened (RFC 3339).", _SHORT),
    HeaderSpec("content-type", "Of the value.", _SHORT),
    HeaderSpec(
        "ce_receiver",
        f"Who receives it: names with commas between, {MAX_RECEIVERS} at most; without it who subscribes.",
    ),
    HeaderSpec("traceparent", "W3C Trace Context; goes along to receiver and callback.", _SHORT),
    HeaderSpec("tracestate", f"Likewise. What is longer than {MOST_STATE} bytes, or not ASCII, is left out."),
    *TIMING,
    HeaderSpec(
        "relay-endpoint", "JSON of the endpoint that a message over HTTP brought along; only the relay sets it."
    ),
    HeaderSpec("relay-wait", "Seconds for which a request waits for the answer: a hint.", {"pattern": "^[0-9]{1,9}$"}),
)
ENVELOPE: Final = (EVENT[8], *TIMING)
_IDENTITY: Final = (replace(EVENT[0], always=True), *EVENT[1:3])
HOP: Final = (
    *_IDENTITY,
    HeaderSpec("relay-receiver", "Which receiver; `-` where the message never had one.", _NAME, always=True),
    HeaderSpec("relay-attempt", "POSTs so far.", _NUMBER, always=True),
    HeaderSpec(
        "relay-generation", "0 for the first life of a delivery, one more for each replay.", _NUMBER, always=True
    ),
    HeaderSpec("ce_type", "Event type of the message."),
    HeaderSpec("ce_time", "When it happened, as the sender has it."),
    HeaderSpec("content-type", "Of the value."),
    HeaderSpec("traceparent", "The sender's own (W3C Trace Context)."),
    HeaderSpec("tracestate", "Likewise."),
    HeaderSpec("relay-sequence", "Grows along the order key; falls only on a replay.", _NUMBER),
    HeaderSpec("relay-origin", "Where the message first was: topic/partition/offset.", _COORDINATE),
    HeaderSpec("relay-accepted-at", "When it was there: Unix milliseconds.", _NUMBER),
    HeaderSpec("relay-outcome", "The outcome of the delivery.", {"enum": list(get_args(Outcome))}),
    HeaderSpec("relay-answer-status", "The status that the receiver answered with.", _NUMBER),
    HeaderSpec("relay-answer-truncated", "The answer was larger than is kept.", _TRUE),
    HeaderSpec("relay-reason", "Why it failed for good.", {"enum": list(REASONS)}),
    HeaderSpec("relay-status-url", "Where to ask for the answer."),
    HeaderSpec("relay-ask-after", "Seconds to wait before asking for the answer first.", {"pattern": r"^[0-9.e+-]+$"}),
    HeaderSpec("relay-not-asked", "Why no receiver may be asked for the answer."),
    HeaderSpec("relay-move", "By which of its receiver's moves between lanes it was routed.", _NUMBER),
    HeaderSpec("relay-ask-first", "Of a replay: an attempt of its former life may have arrived.", _TRUE),
    HeaderSpec("relay-wait", "Seconds for which a request waits for the answer.", _NUMBER),
    HeaderSpec("relay-order-key", "Digest of the value that it is in order by.", {"pattern": "^[0-9a-f]{24}$"}),
    HeaderSpec("relay-keep", "JSON of the values that the source keeps of the message for its callback."),
    HeaderSpec("relay-timing", "JSON of when the message is due, until when, and which others it replaces."),
    HeaderSpec("relay-endpoint", "JSON of the message's own endpoint: its URL, and its encrypted secret."),
    HeaderSpec("relay-sealed", "The value is encrypted for its receiver.", _TRUE),
    HeaderSpec("relay-status-chain", "JSON of the status steps so far: the current one, and what later ones need."),
    HeaderSpec("relay-receiver-life", "Which registration of the receiver's name it is for."),
)
RESULT: Final = (
    *HOP,
    HeaderSpec(
        "webhook-id", "As a callback has it: the same on a repeat, so remember it to do things once.", always=True
    ),
    HeaderSpec("relay-source", "The source_id, as a callback has it.", _ID, always=True),
    HeaderSpec("relay-message-id", "The message's id, likewise.", _ID, always=True),
)
LETTER: Final = (
    HeaderSpec("relay-reason", "Why it was given up.", {"enum": list(REASONS)}, always=True),
    HeaderSpec("relay-reason-class", "Who has to act on it.", {"enum": sorted(set(REASONS.values()))}, always=True),
    HeaderSpec("relay-detail", "The same in words.", always=True),
    HeaderSpec("relay-stage", "The topic whose step failed, to which a replay takes it.", always=True),
    HeaderSpec("relay-attempts", "How often it was tried.", _NUMBER, always=True),
    HeaderSpec("relay-first-failed", "When it was given up: Unix milliseconds.", _NUMBER, always=True),
    HeaderSpec("relay-origin", "Where the message first was: topic/partition/offset.", _COORDINATE),
    HeaderSpec("relay-last-status", "Of the last HTTP response.", _NUMBER),
    HeaderSpec("relay-former-reason", "Of one that was discarded: why it had failed.", {"enum": list(REASONS)}),
    HeaderSpec("relay-omitted", "What it lacks of the record, which was too large for the log."),
    HeaderSpec("relay-moved", "`true`: it was made known before it was moved here from another relay."),
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
            f"^{PREFIX}": {
                "type": "string",
                "description": "A header of the message's own, for receivers that allow it.",
            }
        },
        "required": [one.name for one in found if one.always],
    }
