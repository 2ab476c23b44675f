"""Encodes script arguments and decodes replies for record processing: rows, attempts, messages, parking.

Times are integer milliseconds or microseconds. Many items of one kind are packed as structs, one after the other, which
a script unpacks several times faster than MessagePack. All others, and the replies, are MessagePack arrays. Lua's
MessagePack has no binary type: it reads and writes every string as text, so bytes are sent and received as `Raw`.
"""

import math
import struct
from collections.abc import Sequence
from typing import Final, get_args

import msgspec

from relay.domain.numbering import NumberGap, Numbering
from relay.log.port import Coordinate, TopicPartition
from relay.state.attempts import (
    AlreadySettled,
    AmbiguousAttempt,
    BeginRequest,
    CallKind,
    Change,
    Go,
    LookedUp,
    PingDue,
    Settlement,
    Stale,
    Verdict,
    Wait,
    WaitReason,
)
from relay.state.port import Lane
from relay.state.read_model import LaneHeartbeat
from relay.state.rows import (
    Arrival,
    Due,
    Mark,
    MessageRow,
    MessageStage,
    Parked,
    ParkedLife,
    Result,
    Row,
    RowKey,
    Stage,
    Superseded,
    Superseding,
)

_NO_ROW: Final = Row()
_WAITS: Final[tuple[WaitReason, ...]] = get_args(WaitReason)
_CHANGES: Final = {
    Change.STEP: 0,
    Change.RELEASED: 1,
    Change.RETRY: 2,
    Change.DOUBT: 3,
    Change.ACCEPTED: 4,
    Change.RESULT: 6,
}
APPLIED: Final = 1
"""Returned instead of a row: the current attempt was settled as requested."""

# --- values -----------------------------------------------------------------------------------------------------

encode: Final = msgspec.msgpack.Encoder().encode
EMPTY: Final = msgspec.Raw(b"\xa0")
decode_raws: Final = msgspec.msgpack.Decoder(list[list[msgspec.Raw] | bool]).decode


def ms(seconds: float) -> int:
    """Milliseconds, rounded up (so that no wait is shortened) except for float noise. -1 for infinity."""
    return -1 if seconds == math.inf else math.ceil(seconds * 1000 - 1e-6)


def seconds(whole_ms: int) -> float:
    return math.inf if whole_ms == -1 else whole_ms / 1000


_SHORT_TEXTS: Final = [bytes((0xA0 | size,)) for size in range(32)]


def raw(data: bytes) -> msgspec.Raw:
    """A MessagePack string of any bytes."""
    size = len(data)
    if size < 32:
        return msgspec.Raw(_SHORT_TEXTS[size] + data)
    if size < 2**16:
        return msgspec.Raw(b"\xda" + size.to_bytes(2, "big") + data)
    return msgspec.Raw(b"\xdb" + size.to_bytes(4, "big") + data)


def text_bytes(text: msgspec.Raw) -> bytes:
    """The content of a MessagePack string that may not be UTF-8; empty for the number 0."""
    data = bytes(text)
    size_bytes = {0xD9: 1, 0xDA: 2, 0xDB: 4}.get(data[0], 0)
    return data[1 + size_bytes :]


def lane_key(lane: Lane | TopicPartition | LaneHeartbeat) -> str:
    return f"{lane.topic}/{lane.partition}"


# --- rows -------------------------------------------------------------------------------------------------------

_decode_result: Final = msgspec.msgpack.Decoder(Result).decode


class WireNumbering(msgspec.Struct, array_like=True):
    """As in `_numbers.lua`."""

    last: int
    open: list[int]
    gaps: list[int | str]
    newest: int = 0

    def numbering(self) -> Numbering:
        flat = [value for n, value in enumerate(self.gaps) if n % 4]
        return Numbering(self.last, tuple(zip(self.open[::2], self.open[1::2], strict=True)), gaps_of(flat))


def gaps_of(flat: Sequence[int | str]) -> tuple[NumberGap, ...]:
    return tuple(msgspec.convert([*zip(flat[::3], flat[1::3], flat[2::3], strict=True)], list[NumberGap]))


def encode_numbering(numbering: Numbering) -> WireNumbering:
    gaps = [value for id, gap in enumerate(numbering.gaps, 1) for value in (id, *gap)]
    return WireNumbering(
        numbering.last, [number for each in numbering.open for number in each], gaps, len(numbering.gaps)
    )


_decode_numbering: Final = msgspec.msgpack.Decoder(WireNumbering).decode
decode_numberings: Final = msgspec.msgpack.Decoder(list[list[WireNumbering] | bool]).decode


class WireRow(msgspec.Struct, array_like=True):
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
    result: msgspec.Raw = EMPTY
    number: int | None = None
    numbering: msgspec.Raw = EMPTY

    def row(self) -> Row:
        result, numbering = text_bytes(self.result), text_bytes(self.numbering)
        return Row(
            stage=Stage(self.stage),
            generation=self.generation,
            attempts=self.attempts,
            polls=self.polls,
            due_in_s=self.due_ms / 1000,
            last_status=None if self.last_status < 0 else self.last_status,
            reason=self.reason.partition("\n")[0] or None,
            park_intent=bool(self.flags & 1),
            kept=bool(self.flags & 2),
            behind=self.flags >> 3 if self.flags & 4 else None,
            at=None if self.partition < 0 else (self.partition, self.offset),
            code=self.code,
            result=_decode_result(result) if result else None,
            number=self.number,
            numbering=_decode_numbering(numbering).numbering() if numbering else None,
        )


decode_rows: Final = msgspec.msgpack.Decoder(list[list[WireRow | int] | bool]).decode


def row_of(item: WireRow | int) -> Row:
    return _NO_ROW if isinstance(item, int) else item.row()


def settled_row_of(item: WireRow | int) -> Row | None:
    return None if item == APPLIED else row_of(item)


_ASK: Final = struct.Struct(">QB").pack


def pack_intake(generation: int, queue: bytes | None) -> bytes:
    return _NO_QUEUE if not generation and queue is None else _ASK(generation, len(queue or b"")) + (queue or b"")


_NO_QUEUE: Final = _ASK(0, 0)


# --- attempts ---------------------------------------------------------------------------------------------------


class WireVerdict(msgspec.Struct, array_like=True):
    code: int
    first: int = 0
    second: int = 0
    row: WireRow | int = 0
    number: int | None = None
    gaps: list[int | str] = []

    def verdict(self) -> Verdict:
        match self.code:
            case 1:
                return Go(self.first, self.second / 1e6, self.number, gaps_of(self.gaps) if self.gaps else ())
            case 2:
                return Wait(seconds(self.first), _WAITS[self.second], self.row == 1)
            case 3:
                return AmbiguousAttempt(self.first, self.second, self.row == 1)
            case 4:
                return AlreadySettled(row_of(self.row))
            case 6:
                return PingDue(seconds(self.first), seconds(self.second))
            case 7:
                return LookedUp(row_of(self.row))
            case _:
                return Stale(self.first)


decode_verdicts: Final = msgspec.msgpack.Decoder(list[list[WireVerdict | int] | bool]).decode
_FIRST: Final = Go(1, 0.0)


def verdict_of(item: WireVerdict | int) -> Verdict:
    if isinstance(item, int):
        return _FIRST if item == 1 else Go(item, 0.0)
    return item.verdict()


def limits_of(ask: BeginRequest) -> tuple[object, ...]:
    limits = ask.limits
    interval_us = math.ceil(limits.interval_s * 1e6 - 1e-3)  # the tolerance: 0.01 s must not become 10,001 us
    times = ms(limits.settle_s), ms(limits.probe_s), ms(limits.breaker.offline.after)
    counts = _count(ask.room), _count(ask.room_to_retry), _count(limits.max_in_flight)
    return ask.row.owner, interval_us, *times, *counts, ms(ask.counted_s), ms(ask.open_s)


def _count(most: int | None) -> int:
    return -1 if most is None else most


_BEGIN: Final = struct.Struct(">HQQHBH").pack
_NUMBER: Final = struct.Struct(">Q").pack
_NUMBERS: Final = struct.Struct(">QQ").pack


def pack_begin(ask: BeginRequest, limits_index: int) -> bytes:
    resolved, recorded, offset, queue = ask.resolved, ask.recorded_ms, ask.offset, ask.queue or b""
    flags = (
        (ask.kind is CallKind.POLL)
        + 2 * (resolved is not None)
        + 4 * ask.ask_first
        + 8 * (recorded is not None)
        + 16 * ask.unseen
        + 32 * (offset is not None)
        + 64 * ask.rides
        + 128 * ask.paced
        + 256 * (ask.number is not None)
    )
    packed = _BEGIN(flags, ask.generation, ask.attempts, limits_index, len(queue), len(ask.token)) + ask.token + queue
    for number in (resolved, recorded, offset):
        if number is not None:
            packed += _NUMBER(max(0, number))
    return packed if ask.number is None else packed + _NUMBERS(*ask.number)


def policy_of(settlement: Settlement) -> tuple[object, ...]:
    breaker = settlement.breaker
    offline = ms(breaker.offline.after), ms(breaker.offline.ping_every)
    return settlement.row.owner, breaker.failures, ms(breaker.window), ms(breaker.open_for), *offline


_SETTLE: Final = struct.Struct(">QBBhbqqHHII").pack


def pack_settlement(item: Settlement, policy_index: int) -> bytes:
    reason = (f"{item.reason}\n{item.detail}" if item.detail else item.reason).encode() if item.reason else b""
    result = b"" if item.result is None else encode(item.result)
    wait_s = item.settle_s if item.change is Change.RESULT else item.due_in_s
    head = _SETTLE(
        item.generation,
        _CHANGES[item.change] + 64 * item.may_arrive + 128 * (item.number is not None),
        item.counted if item.unsent_ms is None else 2,
        -1 if item.last_status is None else item.last_status,
        2 if item.up else -1 if item.healthy is None else item.healthy,
        item.unsent_ms or (ms(wait_s) if wait_s else 0),
        ms(item.pause_s) if item.pause_s else 0,
        policy_index,
        len(item.token),
        len(reason),
        len(result),
    )
    return b"".join((head, item.token, reason, result, b"" if item.number is None else _NUMBERS(*item.number)))


_MARK: Final = struct.Struct(">QBiqBH").pack


def pack_mark(mark: Mark, owner_index: int) -> bytes:
    partition, offset = mark.at or _NOWHERE
    return _MARK(mark.generation, mark.stage, partition, offset, mark.code, owner_index)


_NOWHERE: Final = (-1, 0)


# --- superseding ------------------------------------------------------------------------------------------------

decode_superseded: Final = msgspec.msgpack.Decoder(list[list[tuple[str, msgspec.Raw, int, int]] | bool]).decode


def encode_superseding(item: Superseding) -> tuple[object, ...]:
    place = item.partition, item.offset, item.recorded_ms
    return raw(item.key), raw(item.row.digest), *place, item.message_id, ms(item.keep_s), ms(item.window_s)


def superseded_of(reply: tuple[str, msgspec.Raw, int, int]) -> Superseded:
    by, packed, wait_ms, at_ms = reply
    rows = text_bytes(packed)
    return Superseded(by or None, tuple(rows[n : n + 12] for n in range(0, len(rows), 12)), wait_ms / 1000, at_ms)


# --- messages ---------------------------------------------------------------------------------------------------

_WIDE: Final = 32
_EXCLUDED: Final = 64


def pack_arrival(arrival: Arrival, digest: bytes) -> bytes:
    """The row's digest, and the row as stored by `_messages.lua`."""
    partition, offset, stage = arrival.partition, arrival.offset, arrival.stage + arrival.excluded * _EXCLUDED
    at = offset.to_bytes((offset.bit_length() + 7) // 8 or 1, "big")
    if partition > 255:
        return b"%b%c%c%b%b%b" % (digest, 9 + len(at), stage + _WIDE, arrival.digest, partition.to_bytes(2, "big"), at)
    return b"%b%c%c%b%c%b" % (digest, 8 + len(at), stage, arrival.digest, partition, at)


def message_of(item: msgspec.Raw) -> MessageRow | None:
    row = text_bytes(item)
    if not row:
        return None
    at = 9 if row[0] & _WIDE else 8
    partition, offset = int.from_bytes(row[7:at], "big"), int.from_bytes(row[at:], "big")
    return MessageRow(MessageStage(row[0] % 16), row[1:7], partition, offset, bool(row[0] & _EXCLUDED))


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


def encode_life(life: ParkedLife) -> tuple[object, ...]:
    return raw(life.row.digest), raw(life.queue or b""), life.generation


class WireDue(msgspec.Struct, array_like=True):
    owner: str
    member: msgspec.Raw
    topic: str
    partition: int
    offset: int
    generation: int

    def due(self) -> Due:
        at = Coordinate(self.topic, self.partition, self.offset)
        return Due(RowKey(self.owner, text_bytes(self.member)), self.generation, at)


decode_due: Final = msgspec.msgpack.Decoder(list[list[WireDue] | bool]).decode
