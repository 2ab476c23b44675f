"""A sample or more of everything that is stored and that Python writes: its version, its bytes, and how they are read.

As a script it prints what the release that it runs on writes, as JSON: name -> version -> texts. So the last release's
wheel makes what tests/fixtures/formats.json has of it.
"""

import base64
import hashlib
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from relay.config.encryption import KeyRing
from relay.control.records import EntryRecord
from relay.control.records import decode as decode_declared
from relay.domain import answer_token, session
from relay.domain import hop as hops
from relay.domain.api_key import Key, Secret, decode_key, digest_of, encode_key
from relay.domain.attempt import Attempt, AttemptFailure, AttemptResponse, decode_attempt, encode_attempt
from relay.domain.audit import AuditLine, decode_line, encode_line
from relay.domain.control_key import decode_value, encode_value
from relay.domain.coordinate import Coordinate
from relay.domain.dead_letter import DeadLetter, dead_letter_headers, parse_dead_letter
from relay.domain.hold import Hold, decode_hold, encode_hold
from relay.domain.hop import Hop, decode_hop, encode_hop, result_headers
from relay.domain.hot_receivers import HotLane
from relay.domain.identity import DeliveryId
from relay.domain.message import Message, message_headers, parse_message
from relay.domain.replay_job import OffsetSpan, ReplayOrder, ReplayProgress, Selection
from relay.domain.route import Cut, LaneRoute
from relay.domain.scope import Scope
from relay.domain.topics import TopicSpec
from relay.domain.verification import HandshakeResult
from relay.engine import parked_copy
from relay.engine.parked_copy import unwrap, wrap
from relay.engine.work import Work
from relay.history import postgres_tables, sqlite
from relay.log.kafka.member_metadata import PROTOCOL, MemberMetadata, decode_subscription
from relay.log.port import NewRecord, Record
from relay.log.streams import scripts
from relay.state.read_model import FailedEntry, Heartbeat, LaneHeartbeat, LastAttempt, LineHead
from relay.state.redis import record_wire, wire
from relay.state.redis.record_wire import raw, text_bytes
from relay.state.rows import Result, delivery_row

DELIVERY: Final = DeliveryId("ci", "github", "m-1 é")
SECRET: Final = b"a secret of this test, not of yours"
_FULL: Final = Hop(
    DELIVERY,
    event_type="push",
    time="2026-01-01T00:00:00Z",
    content_type="application/json",
    attempt=2,
    generation=1,
    sequence=7,
    origin=Coordinate("from_sender", 3, 99),
    accepted_ms=1_700_000_000_123,
    outcome="answered",
    answer_status=201,
    answer_truncated=True,
    reason="rejected",
    status_url="https://ci.example/jobs/1",
    ask_after_s=1.5,
    not_asked="no_url",
    traceparent="00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    move=2,
    ask_first=True,
    wait_s=10,
    headers=(("x-team", "blue"),),
    order="0123456789abcdef01234567",
)
_PENDING: Final = Hop(DELIVERY, attempt=1, origin=Coordinate("from_sender", 0, 0), accepted_ms=1)
_MESSAGE: Final = Message(
    "github",
    "m-1 é",
    ("ci", "cd"),
    "push",
    "2026-01-01T00:00:00Z",
    "application/json",
    b'{"n": 1.50}',
    "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    10,
    (("x-team", "blue"),),
)
_RECORD: Final = Record("to_receiver_ci", 0, 7, b"github", b'{"n": 1.50}', encode_hop(_PENDING), 1_700_000_000_123)
_LETTER: Final = DeadLetter(
    "rejected",
    "422 é",
    "to_receiver_ci",
    Coordinate("from_sender", 3, 99),
    2,
    1_700_000_000_123,
    422,
    "value=1",
    "gone",
)
_SESSION: Final = session.Session("session", "s-1", session.SessionIssuer("key-1", "0123456789abcdef"), 2_000_000_000)
_PORTAL: Final = session.Session(
    "portal", "p-1", session.SessionIssuer("api", "0123456789abcdef"), 2_000_000_000, "blue", frozenset({"ci", "cd"})
)
_ORDER: Final = ReplayOrder(
    "j-1",
    "replay",
    Selection(frozenset({"ci"}), reasons=frozenset({"gone", "expired"}), since_ms=1),
    1_700_000_000.5,
    (OffsetSpan("failed_messages", 0, 1, 9),),
    (OffsetSpan("to_receiver_ci", 0, 0, 7),),
    50.0,
)
_PROGRESS: Final = ReplayProgress("running", 9, 3, {"gone": 1}, 1, (4,), (6,), 1_700_000_000.5, None, "detail")
_KEY: Final = Key(
    "key-1",
    "for CI",
    frozenset({Scope("ingest", "github"), Scope("receiver", "ci")}),
    1_700_000_000.5,
    "RELAY_API_KEY",
    None,
    (Secret(digest_of("rk_1"), 1_700_000_000.5),),
)
_ATTEMPT: Final = Attempt(
    "post",
    1_700_000_000.5,
    12.25,
    "POST",
    "https://ci.example/hooks",
    {"webhook-id": "msg_1"},
    "retry",
    "ci",
    "github",
    "m-1",
    1,
    2,
    AttemptResponse(503, {"retry-after": "9"}, "later é", truncated=True),
    None,
    "exhausted",
    "detail",
    1_700_000_009.5,
    "not_now",
)
_MISSED: Final = Attempt(
    "ping",
    1.0,
    2.0,
    "POST",
    "https://ci.example/",
    {},
    "dead",
    "ci",
    error=AttemptFailure("dns", "no such name", False),
)
_LINE: Final = AuditLine(
    "1", "2026-01-01T00:00:00Z", "key:1", "for CI", "receiver.paused", "ci", "::1", "done", 200, {"n": 1, "to": ["a"]}
)
_RESULT: Final = Result("answered", 200, "text/plain", b"\xff\x00", True, "gone", "d", "https://ci.example/1", 1.5)
_FAILED: Final = FailedEntry("ci", Coordinate("failed_messages", 1, 2), 1_700_000_000.5, "rejected", "github", "m-1")
_HANDSHAKE: Final = HandshakeResult("challenge:1", 2.5, None, 3, 1.5, "no", 60, "relay.example")
_RING: Final = KeyRing((hashlib.sha256(SECRET).digest(),))
_PLACE: Final = ("receivers", "ci", "secret")


@dataclass(frozen=True)
class Format:
    """`version`: the version in the stored form, if it has one. `read` returns the sample, or the part of it that is
    checked; None: it is read by its version only."""

    version: int | str
    samples: Sequence[Any]
    write: Callable[[Any], Any]
    read: Callable[[Any], Any] | None


def _parked(sample: bool) -> NewRecord:
    row = delivery_row(DELIVERY)
    work = Work(_RECORD, row, 1, b"a queue's 12" if sample else None, row.owner)
    work.attempts = 2
    return wrap("parked_messages", "s", work, row, due_ms=1_700_000_009_000, poll=sample)


def _headers_of_parked(sample: bool) -> Any:
    return _parked(sample).headers


def _unparked(headers: Any) -> bool:
    new = _parked(True)
    found = unwrap(Record(new.topic, 0, 0, new.key, new.value, headers, 1))
    assert (found.record, found.generation, found.attempts) == (_RECORD, 1, 2)
    assert (found.row, found.due_ms) == (delivery_row(DELIVERY), 1_700_000_009_000)
    assert found.queue == (b"a queue's 12" if found.poll else None)
    return found.poll


def _sign_of(heads: tuple[LineHead, ...]) -> bytes:
    sign: Any = wire.encode_heartbeat(LaneHeartbeat("to_receiver_ci", 0, Heartbeat(heads)))[1]
    return text_bytes(sign)


def _heads_of(stored: bytes) -> tuple[LineHead, ...]:
    return wire.WireServed(0, raw(stored)).served().heads


def _schema(text: str) -> bytes:
    return hashlib.sha256(text.encode()).hexdigest().encode()


def _issued(one: session.Session) -> bytes:
    return session.issue(SECRET, one).encode()


def _session(token: bytes) -> session.Session:
    return session.read([SECRET], token.decode(), 0)


def _encrypted(text: str) -> bytes:
    return _RING.encrypted(text, _PLACE, lambda size: bytes(range(size))).encode()


def _read(kind: type[Any]) -> Callable[[bytes], Any]:
    return lambda value: decode_value(kind, value)


_METADATA: Final = MemberMetadata({"to_receiver_ci": 1, "to_receiver_shared": 32})

FORMATS: Final[dict[str, Format]] = {
    "record on from_sender": Format(1, [_MESSAGE], message_headers, lambda h: parse_message(_MESSAGE.payload, h)),
    "hop": Format(getattr(hops, "FORM", 1), [_FULL, _PENDING], encode_hop, decode_hop),
    "hop on to_sender": Format(getattr(hops, "FORM", 1), [_FULL], result_headers, decode_hop),
    "dead letter": Format(
        1, [_LETTER], lambda letter: dead_letter_headers(encode_hop(_PENDING), letter), parse_dead_letter
    ),
    "parked copy": Format(getattr(parked_copy, "FORM", 1), [True, False], _headers_of_parked, _unparked),
    "entry": Format(
        1, [EntryRecord("file", {"post_endpoint": "https://ci.example"})], EntryRecord.encode, decode_declared
    ),
    "hold": Format(1, [Hold("gone", 1.5, "said 410")], encode_hold, decode_hold),
    "route": Format(1, [LaneRoute(2, "shared", 4, True, "t", True, 1)], encode_value, _read(LaneRoute)),
    "cut": Format(1, [Cut("ci", 2, 3, 99)], encode_value, _read(Cut)),
    "hot receiver": Format(1, [HotLane(1.5, 0.75)], encode_value, _read(HotLane)),
    "verification": Format(1, [_HANDSHAKE], encode_value, _read(HandshakeResult)),
    "job": Format(1, [_ORDER], encode_value, _read(ReplayOrder)),
    "progress of a job": Format(1, [_PROGRESS], encode_value, _read(ReplayProgress)),
    "key of the API": Format(1, [_KEY], encode_key, lambda value: decode_key("key-1", value)),
    "further secret of a key": Format(1, [Secret("ab", 1.5, 2.5)], encode_value, _read(Secret)),
    "end of a session": Format(1, [session.SessionEnd(7, "key-1")], encode_value, _read(session.SessionEnd)),
    "session": Format(1, [_SESSION, _PORTAL], _issued, _session),
    "answer token": Format(
        1,
        [(DELIVERY, 3)],
        lambda s: answer_token.issue(SECRET, s[0], s[1], 2_000_000_000).encode(),
        lambda t: answer_token.read([SECRET], t.decode(), 0),
    ),
    "encrypted secret": Format(1, ["hush é"], _encrypted, lambda t: _RING.opened(t.decode(), _PLACE)),
    "attempt": Format(1, [_ATTEMPT, _MISSED], encode_attempt, decode_attempt),
    "line of the audit": Format(1, [_LINE], encode_line, decode_line),
    "result in a row": Format(1, [_RESULT], record_wire.encode, record_wire._decode_result),
    "dead letter in the index": Format(1, [_FAILED], record_wire.encode, wire._decode_entry),
    "heads of parked lines": Format(1, [(LineHead(b"q" * 12, b"r" * 12, "github", "m-1"),)], _sign_of, _heads_of),
    "last attempt": Format(1, [LastAttempt(1.5, None, "dns", 0.25)], record_wire.encode, wire._decode_last),
    "record of the embedded log": Format(
        1, [NewRecord("t", b"k", b"\xff", (("h", b"v"),))], scripts.pack, lambda b: NewRecord("t", *scripts._decode(b))
    ),
    "topic of the embedded log": Format(
        1,
        [TopicSpec("t", 3, "compact", None), TopicSpec("u", 1)],
        msgspec.json.encode,
        lambda b: msgspec.json.decode(b, type=TopicSpec),
    ),
    "application to a group": Format(
        PROTOCOL,
        [3],
        lambda generation: _METADATA.encode([], generation),
        lambda b: decode_subscription(b).generation,
    ),
    "history in SQLite": Format(sqlite.VERSION, [sqlite._SCHEMA], _schema, None),
    "history in PostgreSQL": Format(postgres_tables.VERSION, [postgres_tables.CREATE], _schema, None),
}


def as_text(stored: Any) -> Any:
    """For JSON: headers as an object, bytes as text where they are that, else as base64 in a list."""
    if not isinstance(stored, bytes):
        return {name: as_text(value) for name, value in stored}
    try:
        text = stored.decode()
    except UnicodeDecodeError:
        return [base64.b64encode(stored).decode()]
    return text if text.isprintable() else [base64.b64encode(stored).decode()]


def from_text(text: Any) -> Any:
    """The reverse of `as_text`."""
    if isinstance(text, dict):
        return tuple((name, from_text(value)) for name, value in text.items())
    return text.encode() if isinstance(text, str) else base64.b64decode(text[0])


def written(name: str) -> list[Any]:
    """What this release makes of the samples."""
    known = FORMATS[name]
    return [as_text(known.write(sample)) for sample in known.samples]


if __name__ == "__main__":
    everything = {name: {str(known.version): written(name)} for name, known in FORMATS.items()}
    json.dump(everything, sys.stdout, indent=1, ensure_ascii=False)
