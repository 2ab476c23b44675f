"""What senders do to a relay under test, and what befalls the log that they write to."""

import itertools
import json
from collections.abc import Sequence

from msgspec import structs

from relay.domain.hop import decode_hop, encode_hop
from relay.domain.message import Message, parse_message
from relay.domain.receiver import Receiver
from relay.domain.route import marker_in
from relay.domain.timing import Timing
from relay.domain.topics import lane_of
from relay.log.partitioner import partition_of
from relay.log.port import Coordinate, Record, TopicPartition
from tests.fakes.world import World, message
from tests.faults.simulation.checks import NOBODY, returned
from tests.faults.simulation.outside import Mishap, Wire
from tests.faults.simulation.story import Delivery, Sending, Story
from tests.faults.simulation.watched_log import Troubles
from workers.records import lane_record


class Senders:
    """The part of a scene that sends. `numbers`: of the messages so far."""

    world: World
    wire: Wire
    troubles: Troubles
    story: Story
    numbers: int

    async def run(self, seconds: float) -> None:
        """Let time pass."""
        raise NotImplementedError

    async def produce(
        self, source: str, receivers: Sequence[str], count: int, size: int = 0, timing: Timing | None = None
    ) -> None:
        """`size`: bytes of each payload, at least."""
        for _ in range(count):
            await self._send(Sending(structs.replace(self._new(source, receivers, size), timing=timing)))

    async def produce_timed(
        self, source: str, receivers: Sequence[str], count: int, *, delay: float, rest: float = 0.0
    ) -> None:
        """Due in `delay` seconds; none begins `rest` seconds after that, unless it is 0."""
        due = self.world.clock.time() + delay
        await self.produce(source, receivers, count, timing=Timing(due, due + rest if rest else 0.0))

    async def produce_keyed(
        self, source: str, receivers: Sequence[str], count: int, key: str, *, delay: float, window: float
    ) -> None:
        """Of one key, at once."""
        due = self.world.clock.time() + delay if delay else 0.0
        await self.produce(source, receivers, count, timing=Timing(due, key=key, window=window))
        if delay or window:
            self.story.together.append([each.message.message_id for each in self.story.sendings[-count:]])

    def _new(self, source: str, receivers: Sequence[str], size: int = 0) -> Message:
        """`ref`: for who asks in a form of its own."""
        self.numbers += 1
        one = message(self.numbers, source, *receivers)
        payload = json.dumps({"n": self.numbers, "ref": f"refs/heads/{one.message_id}"}).encode()
        return structs.replace(one, payload=payload.ljust(size))

    async def resend(self, one: Message) -> None:
        await self._send(Sending(one, again=True))

    async def conflict(self, one: Message) -> None:
        await self._send(Sending(structs.replace(one, payload=one.payload + b" "), again=True, other=True))

    async def _send(self, sending: Sending) -> None:
        self.story.add(sending)
        await self.world.send(sending.message)

    def _put(self, sending: Sending) -> None:
        """As `_send`; meanwhile no other task has a turn."""
        self.story.add(sending)
        [record] = self.world.records(sending.message)
        at = self._place(sending.message.source_id)
        self.world.broker[at].put(record, at, self.world.broker.now_ms())
        self.world.broker.watchers.notify({at.topic})

    def _place(self, source: str) -> TopicPartition:
        spec = self.world.broker.spec(self._from_sender)
        return TopicPartition(spec.name, partition_of(source.encode(), spec.partitions))

    async def replay(self, delivery: Delivery) -> None:
        """As the replay of a dead letter, or of what was delivered: its record once more, in the next generation."""
        self.story.generations[delivery] += 1
        topics = map(self.world.topics.to_receiver, self.world.lanes())
        records = (record for topic in topics for record in self.world.broker.written(topic))
        record = next(each for each in records if _delivery(each) == delivery)
        receiver = await self._receiver(delivery[1])
        hop = structs.replace(
            decode_hop(record.headers), generation=self.story.generations[delivery], move=receiver.move
        )
        lane = lane_of(receiver)
        topic, source = self.world.topics.to_receiver(lane), hop.delivery.source_id
        again = lane_record(topic, lane, receiver, source, record.value, encode_hop(hop))
        await self.world.append(topic, again.key, again.value, again.headers)

    async def _receiver(self, name: str) -> Receiver:
        """As it is now."""
        return self.world.known.receivers()[name]

    def ended(self) -> list[Delivery]:
        """Deliveries whose present generation has ended, as the sender knows."""
        known, generations = returned(self.wire), self.story.generations
        return sorted(
            (one, name)
            for one, name in self.wire.results()
            if name != NOBODY and (one, name, str(generations[one, name])) in known
        )

    async def cut_log(self, nth: int, records: int) -> None:
        """The broker comes back without the last records of a partition of `from_sender`; their senders send them
        again."""
        places = [at for at in self.world.broker.partitions_of(self._from_sender) if self.world.broker[at].end]
        if places:
            for sending in self._cut(places[nth % len(places)], records):
                await self._send(sending)

    def cut_at_commit(self, records: int, receivers: Sequence[str], *, after: bool) -> None:
        """As `cut_log`, when an offset is committed next: and in the same moment another source has sent as many as
        were lost, and only then their senders send them again. So no consumer sees that the partition was shorter."""

        def cut(at: TopicPartition) -> None:
            lost = self._cut(at, records)
            source = self._new_source(at)
            for _ in lost:
                self._put(Sending(self._new(source, receivers)))
            for sending in lost:
                self._put(sending)

        self.troubles.at_commit[self._from_sender] = after, cut

    def _new_source(self, at: TopicPartition) -> str:
        """One whose messages go there, and of which none was lost."""
        sources = (f"after-{self.numbers}.{number}" for number in itertools.count())
        return next(source for source in sources if self._place(source) == at)

    def _cut(self, at: TopicPartition, records: int) -> list[Sending]:
        """What its senders send again."""
        log = self.world.broker[at]
        end = max(log.first, log.end - records)
        lost = [_message(record) for record in log.read(end, log.end) if marker_in(record.headers) is None]
        self.world.broker.cut(Coordinate(*at, end))
        self.story.faults += 1
        firsts = self.story.firsts
        return [Sending(one, again=True, other=one.payload != firsts[one.message_id].payload) for one in lost]

    @property
    def _from_sender(self) -> str:
        return self.world.topics.from_sender

    async def transact(self, source: str, receivers: Sequence[str], ends: Sequence[bool]) -> None:
        """A transactional sender: each message in a transaction of its own, aborted where `ends` has False. What was
        aborted is sent again under the same id, or not at all."""
        for is_committed in ends:
            one, transaction = self._new(source, receivers), self.world.transaction()
            [place] = await transaction.append(self.world.records(one))
            await self.run(0.05)
            if is_committed:
                self.story.sendings.append(Sending(one))
                await transaction.commit()
                if not self._has(place, one):
                    await self._send(Sending(one, again=True))
            else:
                await transaction.abort()

    def _has(self, place: Coordinate, one: Message) -> bool:
        """Whether the log still has it, which may have lost its end before the transaction's."""
        found = self.world.broker[TopicPartition(place.topic, place.partition)].read(place.offset, place.offset + 1)
        return any(record.value == one.payload for record in found)

    def mishap(self, message_id: str, mishaps: Sequence[Mishap]) -> None:
        self.wire.mishaps[message_id].extend(mishaps)
        self.story.unheard[message_id] += sum(each.what != "turned_away" for each in mishaps)


def _message(record: Record) -> Message:
    said = parse_message(record.value, record.headers)
    return structs.replace(said, payload=record.value or b"")


def _delivery(record: Record) -> Delivery:
    hop = decode_hop(record.headers)
    return hop.delivery.message_id, hop.delivery.receiver
