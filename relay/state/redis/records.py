"""The record-processing part of the state on Redis: items of any number of lanes in one script call."""

from collections.abc import Callable, Hashable, Iterator, Sequence
from functools import lru_cache
from typing import Any, Generic, Protocol, TypeVar

import msgspec

from relay.domain.identity import MessageId, digest12
from relay.state.attempts import BeginRequest, Settlement, Verdict
from relay.state.port import Counts, IntakeRequest, Lane
from relay.state.redis import record_wire as wire
from relay.state.redis.calls import Decode, ScriptCalls
from relay.state.redis.record_wire import encode, lane_key, raw
from relay.state.redis.servers import servers_of
from relay.state.redis.shared import Part
from relay.state.replies import REFUSALS, Refusal
from relay.state.rows import (
    Arrival,
    Due,
    DueRequest,
    Mark,
    MessageRow,
    Parked,
    ParkedLife,
    Row,
    RowKey,
    Superseded,
    Superseding,
    tag_of,
)

T = TypeVar("T")
A = TypeVar("A")
W = TypeVar("W")
K = TypeVar("K", bound=Hashable)

bools: Decode[bool] = msgspec.msgpack.Decoder(list[list[bool] | bool]).decode
numbers: Decode[int] = msgspec.msgpack.Decoder(list[list[int] | bool]).decode
counts: Decode[Counts] = msgspec.msgpack.Decoder(list[list[Counts] | bool]).decode


def identity(item: T) -> T:
    """Identity decoder, for replies that are used as they are."""
    return item


class TagBatch(Generic[K, W]):
    """Splits `items` by hash tag (and lane), their `keys`, and joins the replies in the order of the items. If all have
    the same key, as for one lane and receiver, nothing is copied."""

    def __init__(self, items: Sequence[W], keys: list[K]) -> None:
        self._items = items
        self._keys = keys
        self._positions: dict[K, list[int]] | None = None
        if keys and keys.count(keys[0]) < len(keys):
            self._positions = {}
            for position, key in enumerate(keys):
                self._positions.setdefault(key, []).append(position)

    def parts(self) -> Iterator[tuple[K, Sequence[W]]]:
        """Each key with its items, in the order of the batch."""
        if self._positions is not None:
            for key, positions in self._positions.items():
                yield key, [self._items[position] for position in positions]
        elif self._keys:
            yield self._keys[0], self._items

    def join(self, replies: Sequence[Sequence[T]], translate: Callable[[T], A]) -> list[A]:
        """The replies to all parts, translated, in the order of the batch."""
        return self._spread([list(map(translate, part)) for part in replies])

    def join_or_refuse(
        self, replies: Sequence[Sequence[T] | Refusal], translate: Callable[[T], A]
    ) -> list[A | Refusal]:
        """As `join`; if a part was refused, each of its items gets the Refusal."""
        sizes = self._sizes()
        return self._spread(
            [
                [part] * size if isinstance(part, REFUSALS) else list(map(translate, part))
                for part, size in zip(replies, sizes, strict=True)
            ]
        )

    def done(self, replies: Sequence[object | Refusal]) -> list[Refusal | None]:
        """For each item None, unless its part was refused."""
        sizes = self._sizes()
        return self._spread(
            [[part if isinstance(part, REFUSALS) else None] * size for part, size in zip(replies, sizes, strict=True)]
        )

    def _sizes(self) -> list[int]:
        if self._positions is None:
            return [len(self._keys)] if self._keys else []
        return [len(positions) for positions in self._positions.values()]

    def _spread(self, parts: Sequence[Sequence[A]]) -> list[A]:
        """The items of all parts, in the order of the batch."""
        if self._positions is None:
            return [one for part in parts for one in part]
        spread: dict[int, A] = {}
        for positions, part in zip(self._positions.values(), parts, strict=True):
            spread.update(zip(positions, part, strict=True))
        return [spread[position] for position in range(len(spread))]


class Records:
    """The methods of `relay.state.port.State` with a reply for each item, and similar ones.

    `url`: see `servers_of`. `prefix` goes before every key. `dedup_window_s`: minimum time for which a finished row is
    kept (at most 1.5 times as long). `clock`: Unix seconds, instead of the server's own, for tests.
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
        self._calls = ScriptCalls(self._servers, prefix, dedup_window_s, clock)

    async def arrive(self, arrivals: Sequence[Arrival]) -> list[MessageRow | Refusal | None]:
        batch = _of_messages(arrivals, _id_of)
        return batch.join_or_refuse(
            await self._calls.try_run("arrive", _packed(batch), wire.decode_raws), wire.message_of
        )

    async def enqueued(self, arrivals: Sequence[Arrival]) -> list[Refusal | None]:
        batch = _of_messages(arrivals, _id_of)
        return batch.done(await self._calls.try_run("enqueued", _packed(batch), numbers))

    async def intake(self, asks: Sequence[tuple[Lane, IntakeRequest]]) -> list[Row | Refusal]:
        batch = _of_lanes(asks, _tag_of_item)
        return await self._read_rows(batch, [(tag, lane_key(lane), part) for (lane, tag), part in batch.parts()])

    async def peek(self, rows: Sequence[RowKey]) -> list[Row | Refusal]:
        batch = of_rows([IntakeRequest(row, 0, None) for row in rows])
        return await self._read_rows(batch, [(tag, "", part) for tag, part in batch.parts()])

    async def _read_rows(
        self, batch: TagBatch[Any, IntakeRequest], asked: list[tuple[int, str, Sequence[IntakeRequest]]]
    ) -> list[Row | Refusal]:
        parts = [
            (
                tag,
                encode((lane, digests(part), _joined([wire.pack_intake(ask.generation, ask.queue) for ask in part]))),
            )
            for tag, lane, part in asked
        ]
        return batch.join_or_refuse(await self._calls.try_run("intake", parts, wire.decode_rows), wire.row_of)

    async def begin(self, asks: Sequence[tuple[Lane, BeginRequest]]) -> list[Verdict | Refusal]:
        batch = _of_lanes(asks, _tag_of_item)
        parts = []
        for (lane, tag), part in batch.parts():
            limits, places = _shared(part, lambda ask: (ask.row.owner, id(ask.limits)), wire.limits_of)
            items = _joined(list(map(wire.pack_begin, part, places)))
            parts.append((tag, encode((lane_key(lane), lane.epoch, limits, digests(part), items))))
        return batch.join_or_refuse(await self._calls.try_run("begin", parts, wire.decode_verdicts), wire.verdict_of)

    async def settle(self, settlements: Sequence[Settlement]) -> list[Row | Refusal | None]:
        batch = of_rows(settlements)
        parts = []
        for tag, part in batch.parts():
            policies, places = _shared(part, lambda one: (one.row.owner, id(one.breaker)), wire.policy_of)
            items = _joined(list(map(wire.pack_settlement, part, places)))
            parts.append((tag, encode((policies, digests(part), items))))
        return batch.join_or_refuse(await self._calls.try_run("settle", parts, wire.decode_rows), wire.settled_row_of)

    async def mark(self, marks: Sequence[Mark]) -> list[Refusal | None]:
        batch = of_rows(marks)
        return batch.done(await self._calls.try_run("mark", _packed_marks(batch), numbers))

    async def forget(self, rows: Sequence[RowKey]) -> list[Refusal | None]:
        batch = TagBatch(rows, [tag_of(row.owner) for row in rows])
        parts = [(tag, b"".join(row.digest for row in part)) for tag, part in batch.parts()]
        return batch.done(await self._calls.try_run("forget", parts, numbers))

    async def supersede(self, messages: Sequence[Superseding]) -> list[Superseded]:
        batch = of_rows(messages)
        parts = [(tag, encode(list(map(wire.encode_superseding, part)))) for tag, part in batch.parts()]
        return batch.join(await self._calls.run("supersede", parts, wire.decode_superseded), wire.superseded_of)

    async def intend_to_park(self, rows: Sequence[tuple[Lane, RowKey]]) -> list[Refusal | None]:
        batch = _of_lanes(rows, lambda row: tag_of(row.owner))
        parts = [
            (tag, encode((lane_key(lane), lane.epoch, [raw(row.digest) for row in part])))
            for (lane, tag), part in batch.parts()
        ]
        return batch.done(await self._calls.try_run("intend_to_park", parts, numbers))

    async def park(self, parked: Sequence[tuple[Lane, Parked]]) -> list[bool | Refusal]:
        batch = _of_lanes(parked, _tag_of_item)
        parts = [
            (tag, encode((lane_key(lane), lane.epoch, digests(part), list(map(wire.encode_parked, part)))))
            for (lane, tag), part in batch.parts()
        ]
        return batch.join_or_refuse(await self._calls.try_run("park", parts, bools), identity)

    async def next_due(self, tags: Sequence[tuple[Lane, int]]) -> list[float | Refusal | None]:
        parts = [(tag, encode((lane_key(lane), lane.epoch))) for lane, tag in tags]
        first = await self._calls.try_run("next_due", parts, numbers)
        return [part if isinstance(part, REFUSALS) else part[0] / 1000 if part else None for part in first]

    async def take_due(self, asks: Sequence[tuple[Lane, DueRequest]], *, lease_s: float) -> list[list[Due] | Refusal]:
        lease_ms = round(lease_s * 1000)
        parts = [
            (ask.tag, encode((lane_key(lane), lane.epoch, ask.limit, lease_ms, raw(ask.token)))) for lane, ask in asks
        ]
        taken = await self._calls.try_run("take_due", parts, wire.decode_due)
        return [part if isinstance(part, REFUSALS) else [one.due() for one in part] for part in taken]

    async def unpark(self, lives: Sequence[tuple[Lane, ParkedLife]]) -> list[bool | Refusal]:
        batch = _of_lanes(lives, _tag_of_item)
        parts = [
            (tag, encode((lane_key(lane), lane.epoch, list(map(wire.encode_life, part)))))
            for (lane, tag), part in batch.parts()
        ]
        return batch.join_or_refuse(await self._calls.try_run("unpark", parts, bools), identity)

    async def parked(self, owners: Sequence[str]) -> list[Counts | Refusal]:
        batch = TagBatch(owners, [tag_of(owner) for owner in owners])
        parts = [(tag, encode(part)) for tag, part in batch.parts()]
        return batch.join_or_refuse(await self._calls.try_run("parked", parts, counts), identity)

    # messages, and rows from the log
    async def messages(self, ids: Sequence[MessageId]) -> list[MessageRow | None]:
        batch = _of_messages(ids, identity)
        parts = [(tag, b"".join(map(_message_digest, part))) for tag, part in batch.parts()]
        return batch.join(await self._calls.run("messages", parts, wire.decode_raws), wire.message_of)

    async def remember(self, marks: Sequence[Mark]) -> None:
        await self._calls.run("remember", _packed_marks(of_rows(marks)), numbers)


class _OfRow(Protocol):
    @property
    def row(self) -> RowKey: ...


R = TypeVar("R", bound=_OfRow)


def of_rows(items: Sequence[R]) -> TagBatch[int, R]:
    return TagBatch(items, [tag_of(item.row.owner) for item in items])


def _of_lanes(items: Sequence[tuple[Lane, W]], tag: Callable[[W], int]) -> TagBatch[tuple[Lane, int], W]:
    return TagBatch([item for _, item in items], [(lane, tag(item)) for lane, item in items])


def _tag_of_item(item: _OfRow) -> int:
    return tag_of(item.row.owner)


def digests(items: Sequence[_OfRow]) -> msgspec.Raw:
    return raw(b"".join([item.row.digest for item in items]))


def _joined(packed: Sequence[bytes]) -> msgspec.Raw:
    return raw(b"".join(packed))


def _of_messages(items: Sequence[W], identity: Callable[[W], MessageId]) -> TagBatch[int, W]:
    return TagBatch(items, [tag_of(f"s:{identity(item).source_id}") for item in items])


def _id_of(arrival: Arrival) -> MessageId:
    return arrival.id


def _packed(batch: TagBatch[int, Arrival]) -> list[Part]:
    return [
        (tag, b"".join([wire.pack_arrival(arrival, _message_digest(arrival.id)) for arrival in part]))
        for tag, part in batch.parts()
    ]


def _packed_marks(batch: TagBatch[int, Mark]) -> list[Part]:
    parts = []
    for tag, part in batch.parts():
        owners, places = _shared(part, lambda mark: mark.row.owner, lambda mark: mark.row.owner)
        arguments = owners, digests(part), _joined(list(map(wire.pack_mark, part, places)))
        awaited = [mark.row.digest for mark in part if mark.awaited]
        parts.append((tag, encode((*arguments, list(map(raw, awaited))) if awaited else arguments)))
    return parts


@lru_cache(maxsize=16_384)
def _message_digest(message: MessageId) -> bytes:
    """Cached, because it is needed when a message arrives, and again soon after, when it is enqueued."""
    return digest12("m", *message)


def _shared(
    items: Sequence[W], key: Callable[[W], object], make: Callable[[W], object]
) -> tuple[list[object], list[int]]:
    """(values shared by items, made once per `key`; the 1-based index of each item's value)"""
    made: list[object] = []
    indexes: dict[object, int] = {}
    places = []
    for item in items:
        index = indexes.setdefault(key(item), len(made) + 1)
        if index > len(made):
            made.append(make(item))
        places.append(index)
    return made, places
