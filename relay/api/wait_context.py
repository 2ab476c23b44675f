"""Context of waiting deliveries: the owners of their lanes, the state of their endpoints, the heads of their order
keys. It takes a few calls to the state for a whole message, and none if the message has ended."""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from relay.api.context import ApiContext
from relay.api.view import FoundDelivery, KnownMessage, is_owed
from relay.api.waiting import (
    Around,
    DeliveryWait,
    Head,
    HeldEndpoint,
    LaneSeen,
    before_routing,
    delayed,
    of_callback,
    of_delivery,
    supposed,
)
from relay.domain.filters import FilterInput, order_digest
from relay.domain.identity import DeliveryId
from relay.domain.receiver import Endpoint, Receiver, Source
from relay.domain.topics import SHARED, lane_of
from relay.engine.parked_copy import parked_key
from relay.incidents.stuck import names_of, original_of
from relay.log.partitioner import partition_of
from relay.log.port import Coordinate, TopicPartition, read_each
from relay.state.read_model import UNSERVED_S, LineHead, Served, unusable_at
from relay.state.rows import RowKey, Stage, delivery_row
from workers.delivery import order_key

_STAGE: Final = "to_receiver"
"""The one whose records are kept in order."""

_Lanes = Mapping[DeliveryId, tuple[TopicPartition, ...]]
_Signs = Mapping[TopicPartition, Served | None]


@dataclass(frozen=True, slots=True)
class _Seen:
    """All that was seen around the deliveries of one message. `held`: by owner. `received`, `now`: Unix seconds.
    `is_due`: as in `Around`."""

    lanes: _Lanes
    signs: _Signs
    held: Mapping[str, HeldEndpoint]
    heads: Mapping[DeliveryId, Head]
    received: float | None
    now: float
    is_due: bool = False

    def lane_of(self, one: FoundDelivery) -> LaneSeen:
        """The lane that a delivery is in: of the partitions that it has to pass, the first without an owner, otherwise
        the last."""
        found = [self._seen(lane) for lane in self.lanes[one.delivery]]
        return next((lane for lane in found if lane.unserved), found[-1])

    def lacking(self, owner: str) -> str | None:
        """A process that recently reported that it cannot use the settings of this endpoint."""
        sign = self.signs.get(unusable_at(owner))
        return sign.process if sign is not None and sign.ago_s <= UNSERVED_S else None

    def _seen(self, lane: TopicPartition) -> LaneSeen:
        sign = self.signs[lane]
        return LaneSeen(*lane, None if sign is None else sign.ago_s)


class WaitContext:
    """Says why deliveries wait. Its methods raise the errors of the two ports."""

    def __init__(self, context: ApiContext) -> None:
        self._log = context.log
        self._state = context.state
        self._topics = context.topics
        self._directory = context.directory
        self._partitions = {spec.name: spec.partitions for spec in context.topics.fixed()}

    async def inspect(
        self, found: Sequence[FoundDelivery], source: Source, asked: KnownMessage, now: float
    ) -> list[FoundDelivery]:
        """`found` with why each waits. `now`: when their rows were read."""
        waiting, seen = await self._around(found, source, None if asked.routed else asked.at, now)
        heads = await self._heads(waiting, FilterInput(asked.message), seen.lanes, seen.signs)
        timing = asked.message.timing
        seen = replace(seen, heads=heads, received=asked.received_at, is_due=timing is None or not timing.window)
        not_due = delayed(asked.message, asked.received_at, now)
        waits = {one.delivery: _not_due(one, not_due) or self._wait(one, source, seen) for one in waiting}
        if asked.recipients is not None:
            assumed = [one.delivery for one in found if one.row.stage is Stage.NONE]
            waits |= {delivery: supposed(waits.get(delivery)) for delivery in assumed}
        return [replace(one, wait=waits.get(one.delivery)) for one in found]

    async def inspect_many(
        self, found: Mapping[DeliveryId, FoundDelivery], received: Mapping[DeliveryId, float], now: float
    ) -> dict[DeliveryId, FoundDelivery]:
        """`inspect` for a list: for deliveries without a result, of any messages, and without heads of order keys.
        `received`: when the log took each one's message."""
        anyone = Source("")  # the callback's endpoint, which only a result waits for
        without_result = [one for one in found.values() if one.row.stage < Stage.RESULT]
        waiting, seen = await self._around(without_result, anyone, None, now)
        whys = {
            one.delivery: self._wait(one, anyone, replace(seen, received=received[one.delivery])) for one in waiting
        }
        return {delivery: replace(one, wait=whys.get(delivery)) for delivery, one in found.items()}

    async def _around(
        self, found: Sequence[FoundDelivery], source: Source, unrouted: Coordinate | None, now: float
    ) -> tuple[list[FoundDelivery], _Seen]:
        """Those that wait, and their context, without the heads of order keys."""
        lanes = {one.delivery: passed for one in found if (passed := self._lanes_of(one, source, unrouted))}
        waiting = [one for one in found if one.delivery in lanes]
        if not waiting:
            return [], _Seen({}, {}, {}, {}, None, now)
        owners = {_owner(one, source) for one in waiting}
        signs, held = await asyncio.gather(self._signs(lanes, owners), self._held(waiting, source))
        return waiting, _Seen(lanes, signs, held, {}, None, now)

    def _wait(self, one: FoundDelivery, source: Source, seen: _Seen) -> DeliveryWait | None:
        lane, now = seen.lane_of(one), seen.now
        if one.row.stage >= Stage.RESULT:
            since = one.record.timestamp_ms / 1000 if one.record is not None else None
            if one.callback is None:
                return None
            owner = _owner(one, source)
            return of_callback(one.callback, seen.held.get(owner), lane, since, now, seen.lacking(owner))
        if lane.topic == self._topics.from_sender:
            return before_routing(lane, seen.received, now)
        receiver = self._receiver(one)
        if receiver is None:
            return None
        owner = _owner(one, source)
        head, lacking = seen.heads.get(one.delivery), seen.lacking(owner)
        around = Around(receiver, lane, seen.held[owner], head, lacking, seen.is_due)
        return of_delivery(one.seen, around, seen.received, now)

    def _receiver(self, one: FoundDelivery) -> Receiver | None:
        """The receiver, also a removed one that has unfinished messages."""
        name = one.delivery.receiver
        return self._directory.receiver(name) or self._directory.removed(name)

    # lanes

    def _lanes_of(self, one: FoundDelivery, source: Source, unrouted: Coordinate | None) -> tuple[TopicPartition, ...]:
        """The partitions that have to be served for the delivery to continue; none if it has ended."""
        topics, row = self._topics, one.row
        if row.stage < Stage.RESULT:
            if unrouted is not None and row.stage is Stage.NONE:
                return (TopicPartition(topics.from_sender, unrouted.partition),)
            return self._lane_of_receiver(one)
        if one.callback is None or one.callback.row.stage is Stage.DONE or not is_owed(one, source):
            return ()
        if one.is_result_gone:
            return ()
        passed = TopicPartition(topics.to_sender, self._partition(topics.to_sender, source.source_id))
        if row.stage is Stage.FAILED and row.at is not None and one.callback.row.stage is Stage.NONE:
            return TopicPartition(topics.failed_messages, row.at[0]), passed
        return (passed,)

    def _lane_of_receiver(self, one: FoundDelivery) -> tuple[TopicPartition, ...]:
        receiver = self._receiver(one)
        if receiver is None:
            return ()
        lane = lane_of(receiver)
        topic = self._topics.pending(lane) if one.row.stage is Stage.AWAITING else self._topics.to_receiver(lane)
        if lane == SHARED:
            return (TopicPartition(topic, self._partition(topic, receiver.name)),)
        return (TopicPartition(topic, partition_of(one.delivery.source_id.encode(), receiver.partitions)),)

    def _partition(self, topic: str, key: str) -> int:
        return partition_of(key.encode(), self._partitions[topic])

    async def _signs(self, lanes: _Lanes, owners: Iterable[str]) -> _Signs:
        each = [*{lane for passed in lanes.values() for lane in passed}, *map(unusable_at, owners)]
        return dict(zip(each, await self._state.heartbeats(each), strict=True))

    # endpoints

    async def _held(self, waiting: Sequence[FoundDelivery], source: Source) -> Mapping[str, HeldEndpoint]:
        endpoints = dict(self._endpoints(waiting, source))
        owners = list(endpoints)
        health, openings = await asyncio.gather(self._state.endpoints(owners), self._state.openings(owners))
        return {
            owner: HeldEndpoint(endpoint, of, opening)
            for (owner, endpoint), of, opening in zip(endpoints.items(), health, openings, strict=True)
        }

    def _endpoints(self, waiting: Sequence[FoundDelivery], source: Source) -> Iterable[tuple[str, Endpoint]]:
        for one in waiting:
            if one.row.stage < Stage.RESULT:
                receiver = self._receiver(one)
                if receiver is not None:
                    yield f"r:{receiver.name}", receiver.post
            elif source.callback is not None:
                yield f"s:{source.source_id}", source.callback

    # lines

    async def _heads(
        self, waiting: Sequence[FoundDelivery], event: FilterInput, lanes: _Lanes, signs: _Signs
    ) -> Mapping[DeliveryId, Head]:
        """The head of each order key: as a lane has it in memory, otherwise as it is parked."""
        keys = {one.delivery: key for one in waiting if (key := self._order_key(one, event)) is not None}
        if not keys:
            return {}
        first = await self._parked_heads(keys, lanes)
        for delivery, key in keys.items():
            sign = signs[lanes[delivery][-1]]
            head = next((head for head in sign.heads if head.queue == key), None) if sign is not None else None
            if head is not None:
                first[delivery] = head
        others = {of: head for of, head in first.items() if head.row != delivery_row(of).digest}
        rows = [RowKey(f"r:{delivery.receiver}", head.row) for delivery, head in others.items()]
        seen = await self._state.row_details(rows) if rows else []
        return {
            delivery: Head(head.source_id, head.message_id, one)
            for (delivery, head), one in zip(others.items(), seen, strict=True)
        }

    def _order_key(self, one: FoundDelivery, event: FilterInput) -> bytes | None:
        receiver = self._receiver(one)
        if receiver is None or one.row.stage > Stage.ENQUEUED:
            return None
        return order_key(receiver, one.delivery, order_digest(receiver.ordering, event))

    async def _parked_heads(self, keys: Mapping[DeliveryId, bytes], lanes: _Lanes) -> dict[DeliveryId, LineHead]:
        asked = [(lanes[delivery][-1], f"r:{delivery.receiver}", key) for delivery, key in keys.items()]
        found = await asyncio.gather(*(self._state.parked_heads(lane, [(owner, key)]) for lane, owner, key in asked))
        heads = {
            delivery: (owner, key, head)
            for delivery, (_, owner, key), (head,) in zip(keys, asked, found, strict=True)
            if head is not None
        }
        wanted = [(head.at, parked_key(_STAGE, RowKey(owner, head.row))) for owner, _, head in heads.values()]
        names = map(names_of, await read_each(self._log, wanted, original_of))
        return {
            delivery: LineHead(key, head.row, *name)
            for (delivery, (_, key, head)), name in zip(heads.items(), names, strict=True)
        }


def _not_due(one: FoundDelivery, wait: DeliveryWait | None) -> DeliveryWait | None:
    """A replay is sent at once."""
    return wait if one.row.stage is Stage.NONE and not one.row.generation else None


def _owner(one: FoundDelivery, source: Source) -> str:
    """The owner id of the endpoint that a delivery, or its result, is on its way to."""
    return f"r:{one.delivery.receiver}" if one.row.stage < Stage.RESULT else f"s:{source.source_id}"
