"""The AsyncAPI 3.0 document of the topics: their names and settings, the headers of records, and the types that are
written and read. Pure."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple, get_args

from relay import __version__
from relay.api.openapi.document import Schemas
from relay.domain.attempt import Attempt
from relay.domain.audit import AuditLine
from relay.domain.event_type import EventTypeEntry
from relay.domain.headers import FORWARDED
from relay.domain.hop import Outcome
from relay.domain.identity import MAX_ID_BYTES
from relay.domain.message import MAX_RECEIVERS, MAX_TEXT_BYTES, Envelope
from relay.domain.reasons import REASONS, ReasonClass
from relay.domain.result_delivery import MEDIA_TYPE, Notice
from relay.domain.topics import SHARED, Topics, TopicSpec
from relay.domain.trace import MOST_STATE

_NUMBER: Final = {"pattern": "^[0-9]{1,18}$"}
_TRUE: Final = {"const": "true"}
_ID: Final = {"minLength": 1, "maxLength": MAX_ID_BYTES}
_SHORT: Final = {"maxLength": MAX_TEXT_BYTES}
_NAME: Final = {"pattern": "^(-|[a-z0-9][a-z0-9-]{0,62})$"}
_COORDINATE: Final = {"pattern": "^.+/[0-9]+/[0-9]+$"}


@dataclass(frozen=True, slots=True)
class HeaderSpec:
    """A header of a record, in the AsyncAPI document. `rule`: of its text, as JSON Schema. `always`: every record of
    this form has it."""

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


_NOT_IN_A_NAME: Final = re.compile(r"[^A-Za-z0-9._-]")
VERSION: Final = "3.0.0"
_BINDING: Final = "0.5.0"
_JSON: Final = "application/json"
_ABOUT: Final = """\
The relay's topics on Kafka, as the relay sees them: what it receives, others send. A sender needs `from_sender`, and
with `callback: kafka` also `to_sender`; operators and auditors may read `failed_messages` and `audit`. All other topics
are the relay's alone (`x-relay-internal`): a client that can write there can have anything POSTed, and any release may
bring new forms there. Values of headers are UTF-8; headers that are not named are left aside, and may be added."""


class _Message(NamedTuple):
    """A form of record. `payload`: a type, or a schema; None: any bytes."""

    title: str
    summary: str
    headers: Sequence[HeaderSpec]
    payload: Any
    key: str
    content_type: str | None = None


class _Channel(NamedTuple):
    """A topic, by its name without the prefix; of lanes, without the receiver. `forms`: of the records that are there.
    `is_public`: others may read or write it."""

    name: str
    summary: str
    forms: tuple[str, ...]
    is_public: bool = False


_CHANNELS: Final = (
    _Channel(
        "from_sender",
        "Messages come in here, over HTTP or straight from their senders.",
        ("event", "envelope"),
        is_public=True,
    ),
    _Channel(
        "to_sender",
        "Answers and failures on their way back: to a callback, or to be read here (`callback: kafka`).",
        ("result", "failure"),
        is_public=True,
    ),
    _Channel(
        "failed_messages",
        "What was given up, to be looked at, replayed or discarded.",
        ("deadLetter",),
        is_public=True,
    ),
    _Channel(
        "delivery_attempts",
        "Every request to a receiver or a callback, for the history and for people.",
        ("attempt",),
    ),
    _Channel("audit", "Who changed what over the API.", ("auditLine",), is_public=True),
    _Channel("to_receiver", "Deliveries to one receiver, or to all that share a lane.", ("delivery",)),
    _Channel("pending_from_receiver", "Deliveries whose answer is still owed.", ("pending",)),
    _Channel("parked_messages", "What waits for long.", ("parked",)),
    _Channel("receiver_config", "Receivers, sources, and what holds for them.", ("registryRecord",)),
)
_BY_SOURCE: Final = "The source_id: what has the same key stays in order."
_BY_LANE: Final = "The source_id; in the shared lane the receiver's name."
_BY_MESSAGE: Final = "The source_id, a line feed and the message_id; of a ping, whom it went to."
_BY_DELIVERY: Final = "Of the delivery and the step: a newer record takes the place of an older one."
_MESSAGES: Final[Mapping[str, _Message]] = {
    "event": _Message(
        "Event", "A CloudEvent in binary mode; the value is the payload, byte for byte.", EVENT, None, _BY_SOURCE
    ),
    "envelope": _Message(
        "Envelope",
        "A record without any `ce_` header: the message as JSON. Its payload is passed on as it stands there.",
        ENVELOPE,
        Envelope,
        _BY_SOURCE,
        _JSON,
    ),
    "delivery": _Message(
        "Delivery", "A message on its way to one receiver; the value is the payload.", HOP, None, _BY_SOURCE
    ),
    "pending": _Message(
        "Pending answer", "A delivery whose answer comes later; the value is the payload.", HOP, None, _BY_LANE
    ),
    "result": _Message(
        "Result",
        "What a receiver answered, or that it took the message: `relay-outcome` is `answered` or `delivered`. Records "
        "with `accepted` or `running` report progress to a callback; a consumer skips them.",
        RESULT,
        None,
        _BY_SOURCE,
    ),
    "failure": _Message(
        "Failure notice",
        "A delivery failed for good: `relay-outcome` is `failed`.",
        RESULT,
        Notice,
        _BY_SOURCE,
        MEDIA_TYPE,
    ),
    "deadLetter": _Message(
        "Dead letter",
        "The record of the step that failed, its value, key and headers as they were, and why it was given up.",
        LETTER,
        None,
        _BY_SOURCE,
    ),
    "parked": _Message(
        "Parked record",
        "A record that waits for long, and what it takes to go on with it. Without a value: it waits no more. With the "
        "key `numbers:...`: JSON of the numbers of a receiver's deliveries.",
        (),
        None,
        _BY_DELIVERY,
    ),
    "registryRecord": _Message(
        "Registry record",
        "Who there is and what holds for them: an entry (the key is a receiver's name, or `source:<id>`), and with "
        "other keys holds, moves, jobs, keys of the API, and what was proved. Without a value: it ends.",
        (),
        {"type": ["object", "null"]},
        "What it is about.",
        _JSON,
    ),
    "attempt": _Message(
        "Attempt",
        "One request for a message, with its outcome; secrets are masked. Some may be missing.",
        (),
        Attempt,
        _BY_MESSAGE,
        _JSON,
    ),
    "auditLine": _Message(
        "Line of the audit", "Who changed what over the API, or was refused.", (), AuditLine, "None.", _JSON
    ),
}


def asyncapi(topics: Topics, event_types: Mapping[str, EventTypeEntry] | None = None) -> dict[str, Any]:
    """The document, with these names. `event_types`: of the catalogue, each version of which is a message of the
    senders and receivers."""
    groups = topics.fixed_groups() | topics.informational_groups()
    specs = {spec.name.removeprefix(topics.prefix).removesuffix(f"_{SHARED}"): spec for spec in topics.fixed()}
    types = _messages_of_types(event_types or {})
    schemas = Schemas([each.payload for each in _MESSAGES.values() if isinstance(each.payload, type)])
    return {
        "asyncapi": VERSION,
        "info": {
            "title": "Webhook relay: topics",
            "version": __version__,
            "description": _ABOUT,
            "license": {"name": "Apache-2.0", "url": "https://www.apache.org/licenses/LICENSE-2.0"},
        },
        "channels": {each.name: _channel(each, specs[each.name], types) for each in _CHANNELS},
        "operations": {
            name: operation
            for each in _CHANNELS
            for name, operation in _operations(each, groups.get(specs[each.name].name)).items()
        },
        "components": {
            "messages": {name: _message(each, schemas) for name, each in _MESSAGES.items()} | types,
            "schemas": schemas.components,
        },
    }


def _messages_of_types(event_types: Mapping[str, EventTypeEntry]) -> dict[str, Any]:
    """The messages of the catalogue by name; AsyncAPI allows letters, digits, `.`, `-` and `_` in one."""
    return {
        f"type.{_NOT_IN_A_NAME.sub('_', name)}.{version.version}": {
            "name": name,
            "title": f"{name}, version {version.version}",
            "summary": entry.description,
            "contentType": _JSON,
            "tags": [{"name": "deprecated"}] if entry.deprecated else [],
            "payload": version.schema,
            "examples": [{"payload": example} for example in version.examples],
        }
        for name, entry in event_types.items()
        for version in entry.versions
    }


def _channel(channel: _Channel, spec: TopicSpec, types: Iterable[str]) -> dict[str, Any]:
    forms = [*channel.forms, *(types if channel.name in ("from_sender", "to_receiver") else ())]
    settings: dict[str, Any] = {"cleanup.policy": [spec.cleanup]}
    if spec.retention_s is not None:
        settings["retention.ms"] = spec.retention_s * 1000
    kafka: dict[str, Any] = {"topicConfiguration": settings, "bindingVersion": _BINDING}
    found: dict[str, Any] = {
        "address": spec.name,
        "title": channel.name,
        "summary": channel.summary,
        "messages": {form: {"$ref": f"#/components/messages/{form}"} for form in forms},
        "bindings": {"kafka": kafka},
    }
    if spec.name.endswith(f"{channel.name}_{SHARED}"):
        found["address"] = spec.name.removesuffix(SHARED) + "{lane}"
        found["parameters"] = {"lane": {"description": f"A receiver's name, or `{SHARED}`.", "examples": [SHARED]}}
    else:  # how many partitions a lane has is its receiver's setting
        kafka |= {"topic": spec.name, "partitions": spec.partitions}
    if not channel.is_public:
        found["x-relay-internal"] = True
    return found


def _operations(channel: _Channel, group: str | None) -> dict[str, dict[str, Any]]:
    """The relay writes to each topic, and reads each. `group`: with which it reads."""
    operation = {
        "channel": {"$ref": f"#/channels/{channel.name}"},
        "messages": [{"$ref": f"#/channels/{channel.name}/messages/{form}"} for form in channel.forms],
    }
    kafka = {"groupId": {"type": "string", "const": group}, "bindingVersion": _BINDING}
    binding = {} if group is None else {"bindings": {"kafka": kafka}}
    return {
        f"send_{channel.name}": {"action": "send", **operation},
        f"receive_{channel.name}": {"action": "receive", **operation, **binding},
    }


def _message(message: _Message, schemas: Schemas) -> dict[str, Any]:
    key = {"type": "string", "description": message.key}
    found: dict[str, Any] = {
        "name": message.title,
        "title": message.title,
        "summary": message.summary,
        "headers": schema_of(message.headers),
        "bindings": {"kafka": {"key": key, "bindingVersion": _BINDING}},
    }
    if message.content_type is not None:
        found["contentType"] = message.content_type
    if message.payload is not None:
        found["payload"] = message.payload if isinstance(message.payload, dict) else schemas.of(message.payload)
    return found
