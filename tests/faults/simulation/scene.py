"""A relay in memory and everything that may befall it: messages, processes that come, go, die and freeze, losses."""

import asyncio
import itertools
import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import ClassVar, Self, cast

from msgspec import structs

from relay.domain.hop import decode_hop, encode_hop
from relay.domain.message import Message, parse_message
from relay.domain.receiver import Receiver
from relay.domain.route import marker_in
from relay.domain.timing import Timing
from relay.domain.topics import lane_of
from relay.log.partitioner import partition_of
from relay.log.port import Coordinate, Record, TopicPartition
from tests.fakes.virtual_time import VirtualLoop
from tests.fakes.world import World, message
from tests.faults.simulation.checks import NOBODY, over_budget, over_parked, returned, wrongs_at_rest, wrongs_now
from tests.faults.simulation.fates import Fate
from tests.faults.simulation.lacking import Configured, Crewed
from tests.faults.simulation.outside import Mishap, Wire
from tests.faults.simulation.setups import CALM, Setup
from tests.faults.simulation.story import Delivery, Sending, Story
from tests.faults.simulation.timed import untimed
from tests.faults.simulation.watched_log import Troubles, WatchedLog
from tests.faults.simulation.watched_state import WatchedState
from workers.records import lane_record

SESSION_S = 15.0
"""A process that is frozen for longer is put out of its groups."""
RESTART_S = 0.5
END_S = 1500.0
"""A message that is unfinished so long after the last fault never ends."""
MOST_PROCESSES = 3
MOST_DAYS = 6.0
"""Together less than the dedup window."""
_BUSY_S = 0.3


@dataclass
class _Member:
    process: Crewed
    fate: Fate
    frozen_for_s: float = 0.0


@dataclass
class Scene:
    """Made by `opened`. Every operation leaves it in a state that `wrongs` can judge."""

    world: World
    state: WatchedState
    wire: Wire
    troubles: Troubles
    setup: Setup
    story: Story = field(default_factory=Story)
    crew: list[_Member] = field(default_factory=list)
    numbers: int = 0
    days: float = 0.0
    outside: ClassVar[type[Wire]] = Wire

    @classmethod
    async def opened(cls, setup: Setup = CALM) -> Self:
        return await cls._around(World(setup.receivers, settings=setup.settings), setup)

    @classmethod
    async def _around(cls, world: World, setup: Setup) -> Self:
        state = WatchedState(clock=world.clock.monotonic, ready=False)
        paced = frozenset(f"/{one.name}" for one in setup.receivers if one.post.rate_limit is not None)
        wire = cls.outside(busy_s=_BUSY_S, paced=paced)
        world.state, world.outside = state, wire
        troubles = Troubles()
        world.make_log = partial(WatchedLog, troubles=troubles)
        await world.create()
        await setup.declare(world)
        return cls(world, state, wire, troubles, setup)

    # sending

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

    # processes

    async def join(self, lacks: Collection[str] = ()) -> None:
        """One more process, if the log is there: without it a process waits with its start. `lacks`: receivers whose
        settings it cannot use yet."""
        if self.world.broker.available:
            fate = Fate()
            self.crew.append(_Member(await self._process(fate, lacks), fate))

    async def _process(self, fate: Fate, lacks: Collection[str]) -> Crewed:
        return Configured(self.world, fate, lacks)

    def learn(self) -> None:
        """Every process can use all settings."""
        for member in self.crew:
            member.process.learn()

    async def leave(self, nth: int) -> None:
        """As at a SIGTERM."""
        member = self.crew.pop(nth)
        member.fate.stay_awake()  # otherwise nothing would thaw it, and it would never end
        await member.process.stop()

    async def kill(self, nth: int) -> None:
        self.story.faults += 1
        member = self.crew.pop(nth)
        member.fate.blow()
        member.fate.thaw()  # also one that is frozen dies
        await member.process.kill()

    def strike(self, nth: int, calls: int, *, after: bool, freeze: bool) -> None:
        self.story.faults += 1
        self.crew[nth].fate.strike_in(calls, after=after, freeze=freeze)

    def expel(self, nth: int) -> None:
        """Its groups go on without it, and it does not know yet."""
        self.story.faults += 1
        self.crew[nth].process.log.expel()

    def thaw(self) -> None:
        for member in self.crew:
            member.fate.thaw()

    # time

    async def run(self, seconds: float) -> None:
        """Let time pass. Who dies is replaced at once; who is frozen for long is put out."""
        until = self.world.clock.monotonic() + seconds
        while (rest := until - self.world.clock.monotonic()) > 0:
            await self._tend()
            await asyncio.sleep(min(RESTART_S, rest))
            self._expel_frozen(min(RESTART_S, rest))
        await self._tend()

    async def _tend(self) -> None:
        for member in [each for each in self.crew if await each.process.ended(0)]:
            self.crew.remove(member)
            await member.process.stop()  # raises what it died of, but for its fate
        if all(member.fate.frozen for member in self.crew) and len(self.crew) < MOST_PROCESSES:
            await self.join()

    def _expel_frozen(self, seconds: float) -> None:
        for member in self.crew:
            member.frozen_for_s = member.frozen_for_s + seconds if member.fate.frozen else 0.0
            if member.frozen_for_s >= SESSION_S:
                member.frozen_for_s = 0.0
                member.process.log.expel()

    async def advance(self, days: float) -> None:
        """The state's clock goes on while nothing is to be done."""
        if await self.world.is_at_rest() and self.days + days <= MOST_DAYS:
            self.days += days
            self.state.advance(days * 86_400)

    async def turn_clock(self, seconds: float) -> None:
        """Turn the state's clock: back at any moment; forward only while nothing is in flight, as that may end waits
        early."""
        if seconds < 0 or await self.world.is_at_rest():
            self.state.advance(seconds)

    def stand_still(self, seconds: float) -> None:
        """Of the machine: nothing gets any time."""
        self.story.interrupted = True
        cast(VirtualLoop, asyncio.get_running_loop()).stand_still(seconds)

    # the relay's own infrastructure

    def bound(self, per_receiver: int, total: int) -> None:
        """So much may be parked. What gets no room may die, where it was never sent or others need the room."""
        self.world.settings = self.world.settings.model_copy(
            update={"parked_per_receiver": per_receiver, "parked_total": total}
        )
        self.story.is_bounded = True

    def lose_state(self) -> None:
        self.story.faults += 1
        self.story.losses += 1
        self.state.lose()

    async def away(self, *, state: bool, log: bool, seconds: float) -> None:
        self.story.interrupted = True
        self.world.state_available, self.world.broker.available = not state, not log
        await self.run(seconds)
        self.world.state_available = self.world.broker.available = True

    def partly(self, upto: int, *, arrives: bool) -> None:
        """Of the next append with more records only so many are acknowledged."""
        self.story.faults += arrives
        self.troubles.partly.append((upto, arrives))

    # judgement

    def wrongs(self) -> list[str]:
        found = self.state.wrongs + self.troubles.wrongs + wrongs_now(self.world, self.wire, self.story)
        found += over_parked(self.world, self.story, MOST_PROCESSES)
        return found + [wrong for member in self.crew for wrong in over_budget(self.world, member.process)]

    async def wrongs_at_end(self) -> list[str]:
        """After the last fault: whatever is still wrong when all is quiet, or that it never becomes so."""
        self.thaw()
        self.learn()
        self.wire.down.clear()
        self.wire.mishaps.clear()
        self.troubles.clear()
        await self._rest()
        wrong = self.wrongs()
        if (rest := await self._unfinished()) is not None:
            wrong.append(f"stuck: {rest}")
        await self.close()
        return wrong + wrongs_at_rest(self.world, self.wire, self.story, await self._ends_without_faults())

    async def _rest(self, most_s: float = END_S) -> None:
        until = self.world.clock.monotonic() + most_s
        await self.run(1.0)
        while await self._unfinished() and self.world.clock.monotonic() < until:
            await self.run(1.0)

    async def _unfinished(self) -> str | None:
        """What the relay still has to do; None if nothing."""
        if await self.world.is_at_rest():
            return None
        return f"{self.world.uncommitted()}, {len(self.world.parked_copies())} parked"

    async def _ends_without_faults(self) -> dict[tuple[str, str], set[str]]:
        """The ends of the same messages on a relay without faults."""
        calm = await type(self).opened(self.setup)
        for sending in self.story.sendings:
            await calm._send(sending._replace(message=untimed(sending.message)))
        await calm._rest()
        await calm.close()
        return calm.wire.results()

    async def close(self) -> None:
        for member in self.crew:
            await member.process.kill()
        self.crew.clear()


def _message(record: Record) -> Message:
    said = parse_message(record.value, record.headers)
    return structs.replace(said, payload=record.value or b"")


def _delivery(record: Record) -> Delivery:
    hop = decode_hop(record.headers)
    return hop.delivery.message_id, hop.delivery.receiver
