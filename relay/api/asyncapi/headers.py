"""The headers of records on the topics, one table for each form. A test holds them against what is written and read."""

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
class Header:
    """`rule`: of its text, as JSON Schema. `always`: every record of this form has it."""

    name: str
    description: str
    rule: Mapping[str, Any] = field(default_factory=dict)
    always: bool = False


EVENT: Final = (
    Header("ce_specversion", "Of CloudEvents.", {"const": "1.0"}),
    Header("ce_id", "The message's id, unique in its source: the same again is a duplicate.", _ID, always=True),
    Header("ce_source", "The source_id: the application that it comes from.", _ID, always=True),
    Header("ce_type", "The type of event, by which receivers subscribe.", _SHORT),
    Header("ce_time", "When it happened (RFC 3339).", _SHORT),
    Header("content-type", "Of the value.", _SHORT),
    Header(
        "ce_receiver",
        f"Who receives it: names with commas between, {MAX_RECEIVERS} at most; without it who subscribes.",
    ),
    Header("traceparent", "W3C Trace Context; goes along to receiver and callback.", _SHORT),
    Header("tracestate", f"Likewise. What is longer than {MOST_STATE} bytes, or not ASCII, is left out."),
    Header("relay-wait", "Seconds for which somebody waits for the answer: a hint.", {"pattern": "^[0-9]{1,9}$"}),
)
ENVELOPE: Final = (EVENT[-2],)
_IDENTITY: Final = (replace(EVENT[0], always=True), *EVENT[1:3])
HOP: Final = (
    *_IDENTITY,
    Header("relay-receiver", "Which receiver; `-` where the message never had one.", _NAME, always=True),
    Header("relay-attempt", "POSTs so far.", _NUMBER, always=True),
    Header("relay-generation", "0 for the first life of a delivery, one more for each replay.", _NUMBER, always=True),
    Header("ce_type", "The type of event."),
    Header("ce_time", "When it happened, as the sender has it."),
    Header("content-type", "Of the value."),
    Header("traceparent", "The sender's own (W3C Trace Context)."),
    Header("tracestate", "Likewise."),
    Header("relay-sequence", "Grows along the order key; falls only on a replay.", _NUMBER),
    Header("relay-origin", "Where the message first was: topic/partition/offset.", _COORDINATE),
    Header("relay-accepted-at", "When it was there: Unix milliseconds.", _NUMBER),
    Header("relay-outcome", "What came of the delivery.", {"enum": list(get_args(Outcome))}),
    Header("relay-answer-status", "The status that the receiver answered with.", _NUMBER),
    Header("relay-answer-truncated", "The answer was larger than is kept.", _TRUE),
    Header("relay-reason", "Why it failed for good.", {"enum": list(REASONS)}),
    Header("relay-status-url", "Where to ask for the answer."),
    Header("relay-ask-after", "Seconds to wait before asking for the answer first.", {"pattern": r"^[0-9.e+-]+$"}),
    Header("relay-not-asked", "Why nobody may be asked for the answer."),
    Header("relay-move", "By which of its receiver's moves between lanes it was routed.", _NUMBER),
    Header("relay-ask-first", "Of a replay: an attempt of its former life may have arrived.", _TRUE),
    Header("relay-wait", "Seconds for which somebody waits for the answer.", _NUMBER),
    Header("relay-order-key", "Digest of the value that it is in order by.", {"pattern": "^[0-9a-f]{24}$"}),
    Header("relay-receiver-life", "Which registration of the receiver's name it is for."),
)
RESULT: Final = (
    *HOP,
    Header("webhook-id", "As a callback has it: the same on a repeat, so remember it to do things once.", always=True),
    Header("relay-source", "The source_id, as a callback has it.", _ID, always=True),
    Header("relay-message-id", "The message's id, likewise.", _ID, always=True),
)
LETTER: Final = (
    Header("relay-reason", "Why it was given up.", {"enum": list(REASONS)}, always=True),
    Header("relay-reason-class", "Who has to act on it.", {"enum": sorted(set(REASONS.values()))}, always=True),
    Header("relay-detail", "The same in words.", always=True),
    Header("relay-stage", "The topic whose step failed, to which a replay takes it.", always=True),
    Header("relay-attempts", "How often it was tried.", _NUMBER, always=True),
    Header("relay-first-failed", "When it was given up: Unix milliseconds.", _NUMBER, always=True),
    Header("relay-origin", "Where the message first was: topic/partition/offset.", _COORDINATE),
    Header("relay-last-status", "Of the last HTTP response.", _NUMBER),
    Header("relay-former-reason", "Of one that was discarded: why it had failed.", {"enum": list(REASONS)}),
    Header("relay-omitted", "What it lacks of the record, which was too large for the log."),
    Header("relay-moved", "`true`: it was made known before it was moved here from another relay."),
    Header("relay-original-reason", "`relay-reason` of the record that failed."),
    Header("relay-original-origin", "`relay-origin` of the record that failed."),
)


def schema_of(headers: Iterable[Header]) -> dict[str, Any]:
    """Of a record's headers, by name. Values are bytes of UTF-8; others may be there, and are left aside."""
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
