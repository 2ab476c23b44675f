"""The state on Redis or Valkey: one script call per batch, for all its hash tags."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Protocol, TypeVar

import msgspec

from relay.domain.hold import Hold
from relay.domain.identity import MessageId, digest12
from relay.log.port import TopicPartition
from relay.state.attempts import BeginAsk, Settlement, Verdict
from relay.state.onlooker import Openings, ParkedHead, Served, Sign, Watched
from relay.state.port import (
    Counts,
    Due,
    DueAsk,
    EndpointHealth,
    FailedEntry,
    Gap,
    IntakeAsk,
    Lane,
    Parked,
    Remains,
    Restored,
)
from relay.state.redis import wire
from relay.state.redis.batch import Batch
from relay.state.redis.calls import Calls, Decode
from relay.state.redis.problems import check, problems_of
from relay.state.redis.servers import servers_of
from relay.state.redis.shared import Part
from relay.state.redis.wire import lane_key, raw, tag_of
from relay.state.replies import REFUSALS, Refusal
from relay.state.rows import TAGS, Arrival, Mark, MessageRow, Row, RowKey

T = TypeVar("T")
W = TypeVar("W")

_ALL_OF_TAG = ""
_RESTORED = (Restored.FINISHED, Restored.THERE, Restored.PUT_BACK)

_encode = msgspec.msgpack.Encoder().encode
_bools: Decode[bool] = msgspec.msgpack.Decoder(list[list[bool] | bool]).decode
_numbers: Decode[int] = msgspec.msgpack.Decoder(list[list[int] | bool]).decode
_texts: Decode[str] = msgspec.msgpack.Decoder(list[list[str] | bool]).decode
_counts: Decode[Counts] = msgspec.msgpack.Decoder(list[list[Counts] | bool]).decode


def _tag_of_lane(topic: str, partition: int) -> int:
    return tag_of(f"l:{topic}/{partition}")


def _same(item: T) -> T:
    return item


def _shared(
    items: Sequence[W], key: Callable[[W], object], make: Callable[[W], object]
) -> tuple[list[object], list[int]]:
    """What the items share, made once for each `key`, and for each item its 1-based index among that."""
    made: list[object] = []
    indexes: dict[object, int] = {}
    places = []
    for item in items:
        index = indexes.setdefault(key(item), len(made) + 1)
        if index > len(made):
            made.append(make(item))
        places.append(index)
    return made, places


class RedisState:
    """Implements `relay.state.port.State`.

    `url`: see `servers_of`. `prefix` goes before every key. `dedup_window_s`: how long a finished row
    is kept at least (at most half as long again). `clock`: Unix seconds, in place of the server's own, for tests.
    """

    def __init__(
        self,
        url: str,
        *,
        prefix: str = "",
        dedup_window_s: float = 604_800,
        clock: Callable[[], float] | None = None,
    ) -> None:
        self._servers = servers_of(url)
        self._calls = Calls(self._servers, prefix, dedup_window_s, clock)

    async def start(self) -> None:
        await check(self._servers)

    async def problems(self) -> list[str]:
        return await problems_of(self._servers)

    async def time(self) -> float:
        return await self._calls.time()

    async def close(self) -> None:
        await self._servers.close()

    # what records need on their way
    async def arrive(self, arrivals: Sequence[Arrival]) -> list[MessageRow | Refusal | None]:
        batch = _of_messages(arrivals, _id_of)
        return batch.join_told(await self._calls.tell("arrive", _packed(batch), wire.decode_messages), wire.message_of)

    async def enqueued(self, arrivals: Sequence[Arrival]) -> list[Refusal | None]:
        batch = _of_messages(arrivals, _id_of)
        return batch.done(await self._calls.tell("enqueued", _packed(batch), _numbers))

    async def intake(self, asks: Sequence[tuple[Lane, IntakeAsk]]) -> list[Row | Refusal]:
        batch = _of_lanes(asks, _tag_of_item)
        return await self._look(batch, [(tag, lane_key(lane), part) for (lane, tag), part in batch.parts()])

    async def peek(self, rows: Sequence[RowKey]) -> list[Row | Refusal]:
        batch = _of_rows([IntakeAsk(row, 0, None) for row in rows])
        return await self._look(batch, [(tag, "", part) for tag, part in batch.parts()])

    async def _look(
        self, batch: Batch[Any, IntakeAsk], asked: list[tuple[int, str, Sequence[IntakeAsk]]]
    ) -> list[Row | Refusal]:
        parts = [
            (
                tag,
                _encode((lane, _digests(part), _joined([wire.pack_intake(ask.generation, ask.queue) for ask in part]))),
            )
            for tag, lane, part in asked
        ]
        return batch.join_told(await self._calls.tell("intake", parts, wire.decode_rows), wire.row_of)

    async def begin(self, asks: Sequence[tuple[Lane, BeginAsk]]) -> list[Verdict | Refusal]:
        batch = _of_lanes(asks, _tag_of_item)
        parts = []
        for (lane, tag), part in batch.parts():
            limits, places = _shared(part, lambda ask: (ask.row.owner, id(ask.limits)), wire.limits_of)
            items = _joined(list(map(wire.pack_begin, part, places)))
            parts.append((tag, _encode((lane_key(lane), lane.epoch, limits, _digests(part), items))))
        return batch.join_told(await self._calls.tell("begin", parts, wire.decode_verdicts), wire.verdict_of)

    async def settle(self, settlements: Sequence[Settlement]) -> list[Row | Refusal | None]:
        batch = _of_rows(settlements)
        parts = []
        for tag, part in batch.parts():
            policies, places = _shared(part, lambda one: (one.row.owner, id(one.breaker)), wire.policy_of)
            items = _joined(list(map(wire.pack_settlement, part, places)))
            parts.append((tag, _encode((policies, _digests(part), items))))
        return batch.join_told(await self._calls.tell("settle", parts, wire.decode_rows), wire.settled_row_of)

    async def mark(self, marks: Sequence[Mark]) -> list[Refusal | None]:
        batch = _of_rows(marks)
        return batch.done(await self._calls.tell("mark", _packed_marks(batch), _numbers))

    async def forget(self, rows: Sequence[RowKey]) -> list[Refusal | None]:
        batch = Batch(rows, [tag_of(row.owner) for row in rows])
        parts = [(tag, b"".join(row.digest for row in part)) for tag, part in batch.parts()]
        return batch.done(await self._calls.tell("forget", parts, _numbers))

    async def intend_to_park(self, rows: Sequence[tuple[Lane, RowKey]]) -> list[Refusal | None]:
        batch = _of_lanes(rows, _tag_of_row)
        parts = [
            (tag, _encode((lane_key(lane), lane.epoch, [raw(row.digest) for row in part])))
            for (lane, tag), part in batch.parts()
        ]
        return batch.done(await self._calls.tell("intend_to_park", parts, _numbers))

    async def park(self, parked: Sequence[tuple[Lane, Parked]]) -> list[bool | Refusal]:
        batch = _of_lanes(parked, _tag_of_item)
        parts = [
            (tag, _encode((lane_key(lane), lane.epoch, _digests(part), list(map(wire.encode_parked, part)))))
            for (lane, tag), part in batch.parts()
        ]
        return batch.join_told(await self._calls.tell("park", parts, _bools), _same)

    async def next_due(self, tags: Sequence[tuple[Lane, int]]) -> list[float | Refusal | None]:
        parts = [(tag, _encode((lane_key(lane), lane.epoch))) for lane, tag in tags]
        first = await self._calls.tell("next_due", parts, _numbers)
        return [part if isinstance(part, REFUSALS) else part[0] / 1000 if part else None for part in first]

    async def take_due(self, asks: Sequence[tuple[Lane, DueAsk]], *, lease_s: float) -> list[list[Due] | Refusal]:
        lease_ms = round(lease_s * 1000)
        parts = [(ask.tag, _encode((lane_key(lane), lane.epoch, ask.limit, lease_ms))) for lane, ask in asks]
        taken = await self._calls.tell("take_due", parts, wire.decode_due)
        return [part if isinstance(part, REFUSALS) else [one.due() for one in part] for part in taken]

    async def unpark(self, rows: Sequence[tuple[Lane, tuple[RowKey, bytes | None]]]) -> list[bool | Refusal]:
        batch = _of_lanes(rows, lambda row: tag_of(row[0].owner))
        parts = [
            (tag, _encode((lane_key(lane), [(raw(row.digest), raw(queue or b"")) for row, queue in part])))
            for (lane, tag), part in batch.parts()
        ]
        return batch.join_told(await self._calls.tell("unpark", parts, _bools), _same)

    # messages, rows, counts
    async def messages(self, ids: Sequence[MessageId]) -> list[MessageRow | None]:
        batch = _of_messages(ids, _same)
        parts = [(tag, b"".join(map(_message_digest, part))) for tag, part in batch.parts()]
        return batch.join(await self._calls.run("messages", parts, wire.decode_messages), wire.message_of)

    async def remember(self, marks: Sequence[Mark]) -> None:
        await self._calls.run("remember", _packed_marks(_of_rows(marks)), _numbers)

    async def parked(self, owners: Sequence[str]) -> list[Counts]:
        batch = Batch(owners, [tag_of(owner) for owner in owners])
        parts = [(tag, _encode(part)) for tag, part in batch.parts()]
        return batch.join(await self._calls.run("parked", parts, _counts), _same)

    async def parked_total(self) -> Counts:
        found = await self._calls.run("parked", _to_each(range(TAGS), _encode([_ALL_OF_TAG])), _counts)
        counts = [count for (count,) in found]
        return Counts(sum(one.retries for one in counts), sum(one.polls for one in counts))

    # owners
    async def epochs(self, lane: Lane, tags: Sequence[int]) -> dict[int, int]:
        found = await self._calls.run("epochs", _to_each(tags, _encode((lane_key(lane), lane.epoch))), _numbers)
        return {tag: highest for tag, numbers in zip(tags, found, strict=True) for highest in numbers}

    async def begin_anew(self, lane: Lane, seen: Mapping[int, int]) -> bool:
        parts = [(tag, _encode((lane_key(lane), lane.epoch, epoch))) for tag, epoch in seen.items()]
        done = await self._calls.run("begin_anew", parts, _bools)
        return all(said for (said,) in done)

    # who was at what
    async def reserve(self, lane: Lane, before: int) -> Remains | None:
        part = _tag_of_lane(lane.topic, lane.partition), _encode((lane_key(lane), lane.epoch, before))
        (found,) = await self._calls.run("reserve", [part], _numbers)
        return Remains(found[0], dict(zip(found[1::2], found[2::2], strict=True))) if found else None

    async def suspect(self, lane: Lane, offset: int, times: int) -> None:
        part = _tag_of_lane(lane.topic, lane.partition), _encode((lane_key(lane), offset, times))
        await self._calls.run("suspect", [part], _numbers)

    async def leave(self, lane: Lane) -> None:
        part = _tag_of_lane(lane.topic, lane.partition), _encode((lane_key(lane), lane.epoch))
        await self._calls.run("leave", [part], _numbers)

    # life and recovery
    async def lost(self) -> frozenset[int]:
        """A recovery pass has to begin with this call: what it finds is what `restore` and `ready` then belong to.

        If a tag's memory is lost anew before the pass has ended, they raise StateRecovering for it: start again.
        """
        return await self._calls.lost()

    def forgotten(self) -> frozenset[int]:
        return self._calls.forgotten

    async def restore(self, lane: Lane, parked: Sequence[Parked]) -> list[Restored]:
        batch = _of_rows(parked)
        parts = [
            (
                tag,
                _encode(
                    (lane_key(lane), self._calls.pass_of(tag), _digests(part), list(map(wire.encode_parked, part)))
                ),
            )
            for tag, part in batch.parts()
        ]
        return batch.join(await self._calls.run("restore", parts, _numbers), _RESTORED.__getitem__)

    async def ready(self, tags: Sequence[int], *, in_doubt_s: float) -> None:
        in_doubt_ms = round(in_doubt_s * 1000)
        parts = [(tag, _encode((self._calls.pass_of(tag), in_doubt_ms))) for tag in tags]
        await self._calls.run("ready", parts, _numbers)

    async def gaps(self, tags: Sequence[int]) -> dict[int, Gap]:
        found = await self._calls.run("gaps", _to_each(tags, b""), _numbers)
        return {tag: Gap(said[0] / 1000, said[1] / 1000) for tag, said in zip(tags, found, strict=True) if said}

    async def close_gaps(self, gaps: Mapping[int, Gap]) -> None:
        parts = [(tag, _encode([round(gap.since * 1000)])) for tag, gap in gaps.items()]
        await self._calls.run("close_gap", parts, _numbers)

    async def lease(self, name: str, owner: str, ttl_s: float) -> bool:
        part = tag_of(f"l:{name}"), _encode((name, owner, max(1, round(ttl_s * 1000))))
        ((holds,),) = await self._calls.run("lease", [part], _bools)
        return holds

    async def release(self, name: str, owner: str) -> None:
        await self._calls.run("release", [(tag_of(f"l:{name}"), _encode((name, owner)))], _numbers)

    # endpoints
    async def endpoints(self, owners: Sequence[str]) -> list[EndpointHealth]:
        batch = Batch(owners, [tag_of(owner) for owner in owners])
        parts = [(tag, _encode(part)) for tag, part in batch.parts()]
        return batch.join(await self._calls.run("endpoints", parts, wire.decode_health), wire.WireHealth.health)

    async def attend(self, tags: Sequence[int]) -> None:
        await self._calls.run("attend", _to_each(tags, b""), _numbers)

    async def hold(self, owner: str, hold: Hold) -> None:
        arguments = _encode(([wire.encode_hold(owner, hold)], 0, 0))
        await self._calls.run("hold", [(tag_of(owner), arguments)], _numbers)

    async def hold_again(self, holds: Mapping[str, Hold], *, tags: Collection[int] = (), before: float = 0.0) -> None:
        parts = dict(Batch(list(holds.items()), [tag_of(owner) for owner in holds]).parts())
        concerned = sorted({*parts, *tags})
        told = [
            ([wire.encode_hold(owner, hold) for owner, hold in parts.get(tag, ())], 1, wire.ms(before) * (tag in tags))
            for tag in concerned
        ]
        await self._calls.run("hold", list(zip(concerned, map(_encode, told), strict=True)), _numbers)

    async def resume(self, owner: str) -> None:
        await self._calls.run("resume", [(tag_of(owner), owner.encode())], _numbers)

    # for those who only look
    async def watch(self, rows: Sequence[RowKey]) -> list[Watched]:
        batch = Batch(rows, [tag_of(row.owner) for row in rows])
        parts = [(tag, b"".join(row.digest for row in part)) for tag, part in batch.parts()]
        return batch.join(await self._calls.run("watch", parts, wire.decode_watched), wire.WireWatched.watched)

    async def openings(self, owners: Sequence[str]) -> list[Openings]:
        batch = Batch(owners, [tag_of(owner) for owner in owners])
        parts = [(tag, _encode(part)) for tag, part in batch.parts()]
        return batch.join(await self._calls.run("openings", parts, wire.decode_openings), wire.WireOpenings.openings)

    async def sign(self, signs: Sequence[Sign]) -> None:
        parts = Batch(signs, [_tag_of_lane(sign.topic, sign.partition) for sign in signs]).parts()
        await self._calls.run(
            "sign", [(tag, _encode(list(map(wire.encode_sign, part)))) for tag, part in parts], _numbers
        )

    async def signs(self, lanes: Sequence[TopicPartition]) -> list[Served | None]:
        batch = Batch(lanes, [_tag_of_lane(*lane) for lane in lanes])
        parts = [(tag, _encode([f"{lane.topic}/{lane.partition}" for lane in part])) for tag, part in batch.parts()]
        return batch.join(await self._calls.run("signs", parts, wire.decode_served), wire.served_of)

    async def parked_heads(self, lane: TopicPartition, queues: Sequence[tuple[str, bytes]]) -> list[ParkedHead | None]:
        batch = Batch(queues, [tag_of(owner) for owner, _ in queues])
        key = f"{lane.topic}/{lane.partition}"
        parts = [(tag, _encode((key, [raw(queue) for _, queue in part]))) for tag, part in batch.parts()]
        found = await self._calls.run("parked_heads", parts, wire.decode_parked_heads)
        return batch.join(found, wire.parked_head_of)

    async def forget_endpoint(self, owner: str, lanes: Sequence[Lane] = ()) -> None:
        arguments = _encode((owner, [lane_key(lane) for lane in lanes]))
        await self._calls.run("forget_endpoint", [(tag_of(owner), arguments)], _numbers)

    # failed messages
    async def index_failed(self, entries: Sequence[FailedEntry]) -> None:
        parts = _of_failed(entries).parts()
        await self._calls.run(
            "index_failed", [(tag, _encode(list(map(wire.encode_failed, part)))) for tag, part in parts], _numbers
        )

    async def failed(self, receiver: str, *, limit: int) -> list[FailedEntry]:
        part = tag_of(f"r:{receiver}"), _encode((receiver, limit))
        (found,) = await self._calls.run("failed", [part], wire.decode_entries)
        return list(map(wire.entry_of, found))

    async def failed_receivers(self) -> list[str]:
        found = await self._calls.run("failed_receivers", _to_each(range(TAGS), b""), _texts)
        return sorted(receiver for receivers in found for receiver in receivers)


class _OfRow(Protocol):
    @property
    def row(self) -> RowKey: ...


R = TypeVar("R", bound=_OfRow)


def _of_rows(items: Sequence[R]) -> Batch[int, R]:
    return Batch(items, [tag_of(item.row.owner) for item in items])


def _of_lanes(items: Sequence[tuple[Lane, W]], tag: Callable[[W], int]) -> Batch[tuple[Lane, int], W]:
    return Batch([item for _, item in items], [(lane, tag(item)) for lane, item in items])


def _tag_of_item(item: _OfRow) -> int:
    return tag_of(item.row.owner)


def _tag_of_row(row: RowKey) -> int:
    return tag_of(row.owner)


def _to_each(tags: Iterable[int], told: bytes) -> list[Part]:
    return [(tag, told) for tag in tags]


def _digests(items: Sequence[_OfRow]) -> msgspec.Raw:
    return raw(b"".join([item.row.digest for item in items]))


def _joined(packed: Sequence[bytes]) -> msgspec.Raw:
    return raw(b"".join(packed))


def _of_messages(items: Sequence[W], identity: Callable[[W], MessageId]) -> Batch[int, W]:
    return Batch(items, [tag_of(f"s:{identity(item).source_id}") for item in items])


def _id_of(arrival: Arrival) -> MessageId:
    return arrival.id


def _packed(batch: Batch[int, Arrival]) -> list[Part]:
    return [
        (tag, b"".join([wire.pack_arrival(arrival, _message_digest(arrival.id)) for arrival in part]))
        for tag, part in batch.parts()
    ]


def _packed_marks(batch: Batch[int, Mark]) -> list[Part]:
    parts = []
    for tag, part in batch.parts():
        owners, places = _shared(part, lambda mark: mark.row.owner, lambda mark: mark.row.owner)
        parts.append((tag, _encode((owners, _digests(part), _joined(list(map(wire.pack_mark, part, places)))))))
    return parts


@lru_cache(maxsize=16_384)
def _message_digest(message: MessageId) -> bytes:
    """Remembered: asked for when a message arrives, and again soon after, when it is enqueued."""
    return digest12("m", *message)


def _of_failed(entries: Sequence[FailedEntry]) -> Batch[int, FailedEntry]:
    return Batch(entries, [tag_of(f"r:{entry.receiver}") for entry in entries])
