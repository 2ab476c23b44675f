"""The state on Redis or Valkey: one script call per hash tag and batch, all tags of a call in one round trip."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar

import msgspec

from relay.domain.errors import UserError
from relay.domain.identity import MessageId, digest12
from relay.state import wire
from relay.state.calls import Calls
from relay.state.connection import Connections
from relay.state.port import (
    TAGS,
    Arrival,
    BeginAsk,
    Counts,
    Due,
    EndpointHealth,
    FailedEntry,
    IntakeAsk,
    Lane,
    Mark,
    MessageRow,
    Parked,
    Restored,
    Row,
    RowKey,
    Settlement,
    Verdict,
)
from relay.state.wire import lane_key, raw, tag_of

T = TypeVar("T")
W = TypeVar("W")

_ALL_OF_TAG = ""
_RESTORED = (Restored.FINISHED, Restored.THERE, Restored.PUT_BACK)

_bools = msgspec.msgpack.Decoder(list[bool]).decode
_numbers = msgspec.msgpack.Decoder(list[int]).decode
_texts = msgspec.msgpack.Decoder(list[str]).decode
_counts = msgspec.msgpack.Decoder(list[Counts]).decode


class _Batch:
    """Positions of a batch's items, by the tag that each belongs to."""

    def __init__(self, tags: Iterable[int]) -> None:
        self.positions: dict[int, list[int]] = {}
        for position, tag in enumerate(tags):
            self.positions.setdefault(tag, []).append(position)

    def split(self, items: Sequence[W]) -> dict[int, list[W]]:
        return {tag: [items[position] for position in positions] for tag, positions in self.positions.items()}

    def join(self, replies: Mapping[int, bytes], decode: Callable[[bytes], Sequence[T]]) -> list[T]:
        """The decoded replies in the order of the batch."""
        joined: dict[int, T] = {}
        for tag, positions in self.positions.items():
            joined.update(zip(positions, decode(replies[tag]), strict=True))
        return [joined[position] for position in range(len(joined))]


def _indexed(values: Sequence[tuple[object, ...]]) -> tuple[list[tuple[object, ...]], list[int]]:
    """The distinct values, and for each value its 1-based index among them."""
    index: dict[tuple[object, ...], int] = {}
    places = [index.setdefault(value, len(index) + 1) for value in values]
    return list(index), places


class RedisState:
    """Implements `relay.state.port.State`.

    `url`: redis://, rediss:// or unix://. `prefix` goes before every key. `dedup_window_s`: how long a finished row
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
        self._connections = Connections(url)
        self._calls = Calls(self._connections, prefix, dedup_window_s, clock)

    async def start(self) -> None:
        policy = await self._connections.eviction_policy()
        if policy != "noeviction":
            raise UserError(
                f"Redis: maxmemory-policy is {policy}, so it may drop what keeps messages from being delivered twice;"
                " set `maxmemory-policy noeviction`"
            )

    async def close(self) -> None:
        await self._connections.close()

    # messages
    async def arrive(self, arrivals: Sequence[Arrival]) -> list[MessageRow | None]:
        batch, items = _arrivals(arrivals)
        return batch.join(await self._run("arrive", batch, items), wire.decode_messages)

    async def enqueued(self, arrivals: Sequence[Arrival]) -> None:
        batch, items = _arrivals(arrivals)
        await self._run("enqueued", batch, items)

    async def messages(self, ids: Sequence[MessageId]) -> list[MessageRow | None]:
        batch = _Batch(_message_tag(one) for one in ids)
        digests = [raw(_message_digest(one)) for one in ids]
        return batch.join(await self._run("messages", batch, digests), wire.decode_messages)

    # rows
    async def intake(self, lane: Lane, asks: Sequence[IntakeAsk]) -> list[Row]:
        batch = _Batch(tag_of(ask.row.owner) for ask in asks)
        items = [(raw(ask.row.digest), ask.generation, raw(ask.queue or b"")) for ask in asks]
        return batch.join(await self._run("intake", batch, items, lane_key(lane)), wire.decode_rows)

    async def peek(self, rows: Sequence[RowKey]) -> list[Row]:
        batch = _Batch(tag_of(row.owner) for row in rows)
        items = [(raw(row.digest), 0, "") for row in rows]
        return batch.join(await self._run("intake", batch, items, ""), wire.decode_rows)

    async def begin(self, lane: Lane, asks: Sequence[BeginAsk]) -> list[Verdict]:
        batch = _Batch(tag_of(ask.row.owner) for ask in asks)
        arguments: dict[int, Sequence[object]] = {}
        for tag, part in batch.split(asks).items():
            limits, places = _indexed([wire.encode_limits(ask.row.owner, ask.limits) for ask in part])
            items = [wire.encode_begin(ask, place) for ask, place in zip(part, places, strict=True)]
            arguments[tag] = (lane_key(lane), lane.epoch, limits, items)
        return batch.join(await self._calls.run("begin", arguments), wire.decode_verdicts)

    async def settle(self, settlements: Sequence[Settlement]) -> list[Row]:
        batch = _Batch(tag_of(one.row.owner) for one in settlements)
        arguments: dict[int, Sequence[object]] = {}
        for tag, part in batch.split(settlements).items():
            policies, places = _indexed([wire.encode_policy(one) for one in part])
            items = [wire.encode_settlement(one, place) for one, place in zip(part, places, strict=True)]
            arguments[tag] = (policies, items)
        return batch.join(await self._calls.run("settle", arguments), wire.decode_rows)

    async def mark(self, marks: Sequence[Mark]) -> None:
        batch = _Batch(tag_of(mark.row.owner) for mark in marks)
        await self._run("mark", batch, [wire.encode_mark(mark) for mark in marks])

    async def forget(self, rows: Sequence[RowKey]) -> None:
        await self._run("forget", _Batch(tag_of(row.owner) for row in rows), [raw(row.digest) for row in rows])

    # parking
    async def intend_to_park(self, lane: Lane, rows: Sequence[tuple[RowKey, int]]) -> None:
        batch = _Batch(tag_of(row.owner) for row, _ in rows)
        items = [(raw(row.digest), generation) for row, generation in rows]
        await self._run("intend_to_park", batch, items, lane_key(lane), lane.epoch)

    async def park(self, lane: Lane, parked: Sequence[Parked]) -> None:
        batch = _Batch(tag_of(one.row.owner) for one in parked)
        await self._run("park", batch, [wire.encode_parked(one) for one in parked], lane_key(lane), lane.epoch)

    async def next_due(self, lane: Lane, tags: Sequence[int]) -> dict[int, float]:
        replies = await self._calls.run("next_due", {tag: (lane_key(lane),) for tag in tags})
        first = {tag: _numbers(reply) for tag, reply in replies.items()}
        return {tag: found[0] / 1000 for tag, found in first.items() if found}

    async def take_due(self, lane: Lane, tags: Sequence[int], *, limit: int, lease_s: float) -> list[Due]:
        arguments = (lane_key(lane), lane.epoch, limit, round(lease_s * 1000))
        replies = await self._calls.run("take_due", dict.fromkeys(tags, arguments))
        return [due for tag in replies for due in wire.decode_due(replies[tag])]

    async def unpark(self, lane: Lane, rows: Sequence[tuple[RowKey, bytes | None]]) -> list[bool]:
        batch = _Batch(tag_of(row.owner) for row, _ in rows)
        items = [(raw(row.digest), raw(queue or b"")) for row, queue in rows]
        return batch.join(await self._run("unpark", batch, items, lane_key(lane)), _bools)

    async def parked(self, owners: Sequence[str]) -> list[Counts]:
        batch = _Batch(tag_of(owner) for owner in owners)
        return batch.join(await self._run("parked", batch, owners), _counts)

    async def parked_total(self) -> Counts:
        replies = await self._calls.run("parked", {tag: ([_ALL_OF_TAG],) for tag in range(TAGS)})
        counts = [_counts(reply)[0] for reply in replies.values()]
        return Counts(sum(one.retries for one in counts), sum(one.polls for one in counts))

    # life and recovery
    async def lost(self) -> frozenset[int]:
        """A recovery pass has to begin with this call: what it finds is what `restore` and `ready` then belong to.

        If a tag's memory is lost anew before the pass has ended, they raise StateRecovering for it: start again.
        """
        return await self._calls.lost()

    async def restore(self, lane: Lane, parked: Sequence[Parked]) -> list[Restored]:
        batch = _Batch(tag_of(one.row.owner) for one in parked)
        items = batch.split([wire.encode_parked(one) for one in parked])
        arguments = {tag: (lane_key(lane), self._calls.pass_of(tag), part) for tag, part in items.items()}
        codes = batch.join(await self._calls.run("restore", arguments), _numbers)
        return [_RESTORED[code] for code in codes]

    async def ready(self, tags: Sequence[int], *, in_doubt_s: float) -> None:
        in_doubt_ms = round(in_doubt_s * 1000)
        await self._calls.run("ready", {tag: (self._calls.pass_of(tag), in_doubt_ms) for tag in tags})

    async def lease(self, name: str, owner: str, ttl_s: float) -> bool:
        tag = tag_of(f"l:{name}")
        replies = await self._calls.run("lease", {tag: (name, owner, max(1, round(ttl_s * 1000)))})
        return _bools(replies[tag])[0]

    async def release(self, name: str, owner: str) -> None:
        await self._calls.run("release", {tag_of(f"l:{name}"): (name, owner)})

    # endpoints
    async def endpoints(self, owners: Sequence[str]) -> list[EndpointHealth]:
        batch = _Batch(tag_of(owner) for owner in owners)
        return batch.join(await self._run("endpoints", batch, owners), wire.decode_health)

    async def pause(self, owner: str, seconds: float) -> None:
        await self._calls.run("pause", {tag_of(owner): (owner, wire.ms(seconds))})

    # failed messages
    async def index_failed(self, entries: Sequence[FailedEntry]) -> None:
        batch = _Batch(tag_of(f"r:{entry.receiver}") for entry in entries)
        await self._run("index_failed", batch, [wire.encode_failed(entry) for entry in entries])

    async def failed(self, receiver: str, *, limit: int) -> list[FailedEntry]:
        tag = tag_of(f"r:{receiver}")
        replies = await self._calls.run("failed", {tag: (receiver, limit)})
        return wire.decode_failed(replies[tag])

    async def unindex_failed(self, entries: Sequence[FailedEntry]) -> None:
        batch = _Batch(tag_of(f"r:{entry.receiver}") for entry in entries)
        items = [(entry.receiver, wire.coordinate_key(entry.at)) for entry in entries]
        await self._run("unindex_failed", batch, items)

    async def failed_receivers(self) -> list[str]:
        replies = await self._calls.run("failed_receivers", dict.fromkeys(range(TAGS), ()))
        return sorted(receiver for reply in replies.values() for receiver in _texts(reply))

    async def _run(self, name: str, batch: _Batch, items: Sequence[object], *before: object) -> dict[int, bytes]:
        """Call a script whose arguments are `before`, the same for every tag, and the tag's part of `items`."""
        return await self._calls.run(name, {tag: (*before, part) for tag, part in batch.split(items).items()})


def _message_tag(message: MessageId) -> int:
    return tag_of(f"s:{message.source_id}")


def _message_digest(message: MessageId) -> bytes:
    return digest12("m", *message)


def _arrivals(arrivals: Sequence[Arrival]) -> tuple[_Batch, list[tuple[object, ...]]]:
    batch = _Batch(_message_tag(arrival.id) for arrival in arrivals)
    return batch, [wire.encode_arrival(arrival, _message_digest(arrival.id)) for arrival in arrivals]
