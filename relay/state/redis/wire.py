"""Encodes script arguments and decodes replies for endpoints, dead letters, statistics and read-only queries.

As in `record_wire`, times are milliseconds, and values are MessagePack arrays.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Final, Literal

import msgspec

from relay.domain.coordinate import coordinate_text
from relay.domain.hold import Hold, HoldReason
from relay.domain.incident import Incident, Marks, PersonMark, Verb
from relay.domain.statistics import NUMBERS, Counted
from relay.log.port import Coordinate, TopicPartition
from relay.state.port import Balance, Charge, EndpointHealth, FailedEntry, StoredIncidents
from relay.state.read_model import (
    Heartbeat,
    LaneHeartbeat,
    LastAttempt,
    LastResponse,
    LineHead,
    Openings,
    ParkedHead,
    RowDetails,
    Served,
    Statistics,
    Tally,
)
from relay.state.redis.record_wire import EMPTY, WireRow, encode, lane_key, raw, row_of, seconds, text_bytes

_BREAKERS: Final[tuple[Literal["closed", "open", "half_open"], ...]] = ("closed", "open", "half_open")


class WireRowDetails(msgspec.Struct, array_like=True):
    row: WireRow | int
    since_ms: int
    under_way: bool
    starts_ms: int
    due_ms: int

    def details(self) -> RowDetails:
        since_s = None if self.since_ms < 0 else self.since_ms / 1000
        reason = "" if isinstance(self.row, int) else self.row.reason
        detail = reason.partition("\n")[2] or None
        return RowDetails(
            row_of(self.row), since_s, self.under_way, self.starts_ms / 1000, detail, due_in_s=self.due_ms / 1000
        )


decode_row_details: Final = msgspec.msgpack.Decoder(list[list[WireRowDetails] | bool]).decode

# --- endpoints --------------------------------------------------------------------------------------------------


class WireHealth(msgspec.Struct, array_like=True):
    breaker: int
    paused_ms: int
    failures: int
    outage_ms: int
    reason: HoldReason | Literal[""]
    since_ms: int
    detail: str

    def health(self) -> EndpointHealth:
        hold = Hold(self.reason, self.since_ms / 1000, self.detail) if self.reason else None
        breaker, paused_for_s = _BREAKERS[self.breaker], seconds(self.paused_ms)
        return EndpointHealth(breaker, paused_for_s, self.failures, self.outage_ms / 1000, hold)


def encode_hold(owner: str, hold: Hold) -> tuple[object, ...]:
    return owner, hold.reason, round(hold.since * 1000), hold.detail


decode_health: Final = msgspec.msgpack.Decoder(list[list[WireHealth] | bool]).decode


class WireOpenings(msgspec.Struct, array_like=True):
    rate_ms: int
    probe_ms: int

    def openings(self) -> Openings:
        return Openings(self.rate_ms / 1000, self.probe_ms / 1000)


decode_openings: Final = msgspec.msgpack.Decoder(list[list[WireOpenings] | bool]).decode


def encode_ends(ends: Mapping[TopicPartition, int]) -> list[object]:
    return [word for at, end in ends.items() for word in (lane_key(at), end)]


# --- heartbeats, and order keys ---------------------------------------------------------------------------------


_decode_content: Final = msgspec.msgpack.Decoder(Heartbeat).decode
_HeadAlone = tuple[bytes, bytes, str, str]
"""The fields of a LineHead that every release knows."""
_decode_heads: Final = msgspec.msgpack.Decoder(tuple[_HeadAlone, ...]).decode


def encode_heartbeat(beat: LaneHeartbeat) -> tuple[object, ...]:
    alone = encode([head[:4] for head in beat.content.heads])
    return lane_key(beat), raw(alone), raw(encode(beat.content))


class WireServed(msgspec.Struct, array_like=True):
    ago_ms: int
    heads: msgspec.Raw
    content: msgspec.Raw = EMPTY

    def served(self) -> Served:
        if not (data := text_bytes(self.content)):
            heads = tuple(LineHead(*head) for head in _decode_heads(text_bytes(self.heads)))
            return Served(heads, ago_s=self.ago_ms / 1000)
        return Served(*msgspec.structs.astuple(_decode_content(data)), ago_s=self.ago_ms / 1000)


decode_served: Final = msgspec.msgpack.Decoder(list[list[WireServed | int] | bool]).decode


def served_of(item: WireServed | int) -> Served | None:
    return None if isinstance(item, int) else item.served()


class WireParkedHead(msgspec.Struct, array_like=True):
    row: msgspec.Raw
    topic: str
    partition: int
    offset: int
    behind: int


decode_parked_heads: Final = msgspec.msgpack.Decoder(list[list[WireParkedHead | int] | bool]).decode


def parked_head_of(item: WireParkedHead | int) -> ParkedHead | None:
    if isinstance(item, int):
        return None
    return ParkedHead(text_bytes(item.row), Coordinate(item.topic, item.partition, item.offset), item.behind)


class WireOldestParked(msgspec.Struct, array_like=True):
    owner: str
    row: msgspec.Raw
    topic: str
    partition: int
    offset: int
    ago_ms: float


decode_oldest: Final = msgspec.msgpack.Decoder(list[list[WireOldestParked] | bool]).decode


def oldest_parked_of(item: WireOldestParked) -> ParkedHead:
    return ParkedHead(text_bytes(item.row), Coordinate(item.topic, item.partition, item.offset))


# --- failed messages --------------------------------------------------------------------------------------------

_decode_entry: Final = msgspec.msgpack.Decoder(FailedEntry).decode


def encode_failed(entry: FailedEntry) -> tuple[object, ...]:
    return entry.receiver, coordinate_text(entry.at), entry.failed_at, raw(encode(entry))


def entry_of(item: msgspec.Raw) -> FailedEntry:
    return _decode_entry(text_bytes(item))


# --- quotas -----------------------------------------------------------------------------------------------------


class WireBalance(msgspec.Struct, array_like=True):
    granted: bool
    left: int
    ends_ms: int

    def balance(self) -> Balance:
        return Balance(self.granted, self.left, self.ends_ms / 1000)


def encode_charge(charge: Charge) -> tuple[object, ...]:
    return charge.name, charge.messages, charge.quota.messages, charge.quota.window_s * 1000


decode_balances: Final = msgspec.msgpack.Decoder(list[list[WireBalance] | bool]).decode

# --- statistics -------------------------------------------------------------------------------------------------

_decode_last: Final = msgspec.msgpack.Decoder(LastAttempt).decode
_decode_response: Final = msgspec.msgpack.Decoder(LastResponse).decode


class WireStatistics(msgspec.Struct, array_like=True):
    hours: list[tuple[int, tuple[int, ...]]]
    last: tuple[int, msgspec.Raw] | int

    def statistics(self) -> Statistics:
        # those of another length were written by another version, and are skipped
        hours = {hour: Counted(numbers) for hour, numbers in sorted(self.hours) if len(numbers) == NUMBERS}
        return Statistics(hours, None if isinstance(self.last, int) else _decode_last(text_bytes(self.last[1])))


def last_attempt(found: msgspec.Raw) -> LastAttempt | None:
    return _decode_last(data) if (data := text_bytes(found)) else None


def encode_tally(tally: Tally) -> tuple[object, ...]:
    last, response = tally.last, tally.response
    kept = response is not None and raw(encode(response))
    return tally.owner, tally.counted.numbers, round(last.at * 1000), raw(encode(last)), kept


def last_response(found: msgspec.Raw) -> LastResponse:
    return _decode_response(text_bytes(found))


decode_statistics: Final = msgspec.msgpack.Decoder(list[list[WireStatistics] | bool]).decode


# --- incidents --------------------------------------------------------------------------------------------------

_decode_incident: Final = msgspec.msgpack.Decoder(Incident).decode
_decode_mark: Final = msgspec.msgpack.Decoder(PersonMark).decode


def encode_incident(one: Incident) -> tuple[object, ...]:
    return one.id, raw(encode(one))


def encode_mark(id: str, verb: Verb, mark: PersonMark) -> tuple[object, ...]:
    return f"{id}/{verb}", f"{mark.opened_at:.3f}", raw(encode(mark))


def mark_of(found: msgspec.Raw) -> PersonMark:
    return _decode_mark(text_bytes(found))


_decode_waiting: Final = msgspec.msgpack.Decoder(dict[str, float]).decode


def waiting(found: Sequence[msgspec.Raw]) -> dict[str, float]:
    return _decode_waiting(text_bytes(found[0])) if found else {}


def stored_incidents(found: Sequence[msgspec.Raw]) -> StoredIncidents:
    """The incidents in the fields and values of the hash. A newer release may have stored unknown kinds, which are
    skipped."""
    incidents, marks = dict[str, Incident](), dict[str, Marks]()
    for field, value in zip(map(text_bytes, found[::2]), map(text_bytes, found[1::2]), strict=True):
        id, _, verb = field.decode().partition("/")
        with suppress(msgspec.MsgspecError, UnicodeDecodeError):
            if not verb:
                incidents[id] = _decode_incident(value)
                continue
            mark = _decode_mark(value.partition(b"\n")[2])
            known = marks.get(id, Marks())
            marks[id] = known._replace(acknowledged=mark) if verb == "acknowledge" else known._replace(resolved=mark)
    return StoredIncidents(incidents, marks)
