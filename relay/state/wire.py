"""What goes into the scripts and comes out of them: arrays for MessagePack. Milliseconds and microseconds, as integers.

Lua's MessagePack knows no binary type: it reads and writes every string as text. So bytes go as `Raw` both ways.
"""

import math
from functools import lru_cache
from typing import Final, Literal

import msgspec

from relay.log.port import Coordinate
from relay.state import port
from relay.state.port import (
    Ambiguous,
    Arrival,
    BeginAsk,
    Change,
    Due,
    EndpointHealth,
    FailedEntry,
    Go,
    Have,
    Kind,
    Lane,
    Limits,
    Mark,
    MessageRow,
    MessageStage,
    Parked,
    Result,
    Row,
    RowKey,
    Settlement,
    Stage,
    Stale,
    Verdict,
    Wait,
)

_EMPTY: Final = msgspec.Raw(b"\xa0")
_NO_ROW: Final = Row()
_WAITS: Final[tuple[Literal["rate", "pause", "breaker", "settling"], ...]] = ("rate", "pause", "breaker", "settling")
_BREAKERS: Final[tuple[Literal["closed", "open", "half_open"], ...]] = ("closed", "open", "half_open")
_CHANGES: Final = {Change.RELEASED: 1, Change.RETRY: 2, Change.DOUBT: 3, Change.ACCEPTED: 4, Change.RESULT: 6}
_KINDS: Final = {Kind.POST: 0, Kind.POLL: 1}


def ms(seconds: float) -> int:
    """Milliseconds, rounded up (a wait is never cut short) but for float noise. -1 stands for infinity."""
    return -1 if seconds == math.inf else math.ceil(seconds * 1000 - 1e-6)


def _seconds(ms: int) -> float:
    return math.inf if ms == -1 else ms / 1000


_SHORT_TEXTS: Final = [bytes((0xA0 | size,)) for size in range(32)]


def raw(data: bytes) -> msgspec.Raw:
    """A MessagePack string of any bytes."""
    size = len(data)
    if size < 32:
        return msgspec.Raw(_SHORT_TEXTS[size] + data)
    if size < 2**16:
        return msgspec.Raw(b"\xda" + size.to_bytes(2, "big") + data)
    return msgspec.Raw(b"\xdb" + size.to_bytes(4, "big") + data)


def _text_bytes(text: msgspec.Raw) -> bytes:
    """The content of a MessagePack string that may not be UTF-8."""
    data = bytes(text)
    size_bytes = {0xD9: 1, 0xDA: 2, 0xDB: 4}.get(data[0], 0)
    return data[1 + size_bytes :]


@lru_cache(maxsize=65_536)
def tag_of(owner: str) -> int:
    """`port.tag_of`, remembered: it is asked for every row."""
    return port.tag_of(owner)


def lane_key(lane: Lane) -> str:
    return f"{lane.topic}/{lane.partition}"


# --- rows -------------------------------------------------------------------------------------------------------

_encode_result: Final = msgspec.msgpack.Encoder().encode
_decode_result: Final = msgspec.msgpack.Decoder(Result).decode


class _WireRow(msgspec.Struct, array_like=True):
    stage: int
    flags: int
    generation: int = 0
    attempts: int = 0
    polls: int = 0
    due_ms: int = 0
    last_status: int = -1
    reason: str = ""
    partition: int = -1
    offset: int = 0
    code: int = 0
    result: msgspec.Raw = _EMPTY

    def row(self) -> Row:
        result = _text_bytes(self.result)
        return Row(
            stage=Stage(self.stage),
            generation=self.generation,
            attempts=self.attempts,
            polls=self.polls,
            due_in_s=self.due_ms / 1000,
            last_status=None if self.last_status < 0 else self.last_status,
            reason=self.reason or None,
            park_intent=bool(self.flags & 1),
            kept=bool(self.flags & 2),
            behind=bool(self.flags & 4),
            at=None if self.partition < 0 else (self.partition, self.offset),
            code=self.code,
            result=_decode_result(result) if result else None,
        )


_decode_rows: Final = msgspec.msgpack.Decoder(list[_WireRow | int]).decode


def decode_rows(reply: bytes) -> list[Row]:
    return [_NO_ROW if isinstance(item, int) else item.row() for item in _decode_rows(reply)]


class _WireVerdict(msgspec.Struct, array_like=True):
    code: int
    first: int = 0
    second: int = 0
    row: _WireRow | int = 0

    def verdict(self) -> Verdict:
        match self.code:
            case 1:
                return Go(self.first, self.second / 1e6)
            case 2:
                return Wait(_seconds(self.first), _WAITS[self.second])
            case 3:
                return Ambiguous(self.first)
            case 4:
                return Have(_NO_ROW if isinstance(self.row, int) else self.row.row())
            case _:
                return Stale(self.first)


_decode_verdicts: Final = msgspec.msgpack.Decoder(list[_WireVerdict]).decode


def decode_verdicts(reply: bytes) -> list[Verdict]:
    return [item.verdict() for item in _decode_verdicts(reply)]


def encode_limits(owner: str, limits: Limits) -> tuple[object, ...]:
    interval_us = math.ceil(limits.interval_s * 1e6 - 1e-3)  # the tolerance: 0.01 s must not become 10,001 us
    return owner, interval_us, ms(limits.settle_s), ms(limits.probe_s)


def encode_begin(ask: BeginAsk, limits_index: int) -> tuple[object, ...]:
    return (
        raw(ask.row.digest),
        ask.generation,
        raw(ask.token),
        _KINDS[ask.kind],
        ask.attempts,
        ask.takeover,
        ask.ask_first,
        limits_index,
    )


def encode_policy(settlement: Settlement) -> tuple[object, ...]:
    breaker = settlement.breaker
    return settlement.row.owner, breaker.failures, ms(breaker.window), ms(breaker.open_for)


def encode_settlement(item: Settlement, policy_index: int) -> tuple[object, ...]:
    return (
        raw(item.row.digest),
        item.generation,
        raw(item.token),
        _CHANGES[item.change],
        ms(item.due_in_s),
        item.counted,
        -1 if item.last_status is None else item.last_status,
        item.reason or "",
        _EMPTY if item.result is None else raw(_encode_result(item.result)),
        -1 if item.healthy is None else int(item.healthy),
        ms(item.pause_s),
        policy_index,
    )


def encode_mark(mark: Mark) -> tuple[object, ...]:
    partition, offset = mark.at or (-1, 0)
    return raw(mark.row.digest), mark.generation, int(mark.stage), partition, offset, mark.code


# --- messages ---------------------------------------------------------------------------------------------------


class _WireMessage(msgspec.Struct, array_like=True):
    stage: int
    digest: msgspec.Raw
    partition: int
    offset: int


_decode_messages: Final = msgspec.msgpack.Decoder(list[_WireMessage | int]).decode


def encode_arrival(arrival: Arrival, digest: bytes) -> tuple[object, ...]:
    return raw(digest), (int(arrival.stage), raw(arrival.digest), arrival.partition, arrival.offset)


def decode_messages(reply: bytes) -> list[MessageRow | None]:
    return [
        None
        if isinstance(item, int)
        else MessageRow(MessageStage(item.stage), _text_bytes(item.digest), item.partition, item.offset)
        for item in _decode_messages(reply)
    ]


# --- parking ----------------------------------------------------------------------------------------------------


def encode_parked(item: Parked) -> tuple[object, ...]:
    return (
        raw(item.row.digest),
        item.row.owner,
        item.generation,
        *item.at,
        max(0, ms(item.due_in_s)),
        raw(item.queue or b""),
        item.order,
        int(item.poll),
    )


_decode_due: Final = msgspec.msgpack.Decoder(list[tuple[str, msgspec.Raw, str, int, int]]).decode


def decode_due(reply: bytes) -> list[Due]:
    return [
        Due(RowKey(owner, _text_bytes(member)), Coordinate(topic, partition, offset))
        for owner, member, topic, partition, offset in _decode_due(reply)
    ]


# --- endpoints and failed messages ------------------------------------------------------------------------------

_decode_health: Final = msgspec.msgpack.Decoder(list[tuple[int, int, int]]).decode


def decode_health(reply: bytes) -> list[EndpointHealth]:
    return [
        EndpointHealth(_BREAKERS[breaker], _seconds(paused_ms), failures)
        for breaker, paused_ms, failures in _decode_health(reply)
    ]


_encode_entry: Final = msgspec.msgpack.Encoder().encode
_decode_entry: Final = msgspec.msgpack.Decoder(FailedEntry).decode
_decode_entries: Final = msgspec.msgpack.Decoder(list[msgspec.Raw]).decode


def coordinate_key(at: Coordinate) -> str:
    return f"{at.topic}/{at.partition}/{at.offset}"


def encode_failed(entry: FailedEntry) -> tuple[object, ...]:
    return entry.receiver, coordinate_key(entry.at), entry.failed_at, raw(_encode_entry(entry))


def decode_failed(reply: bytes) -> list[FailedEntry]:
    return [_decode_entry(_text_bytes(text)) for text in _decode_entries(reply)]
