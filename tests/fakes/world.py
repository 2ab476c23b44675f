"""A whole relay in memory. Broker, state, receivers and senders outlive its processes, which can die at any call."""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Mapping, Sequence
from contextlib import suppress
from typing import Any, Self

from relay.api.context import ApiContext
from relay.clock import Clock, SharedClock
from relay.config.plan import ProcessPlan
from relay.config.settings import Settings
from relay.delivery.port import Transport
from relay.domain.answer_token import issue, issue_for_payload
from relay.domain.erasure import Erasures
from relay.domain.errors import OffsetMissing, RelayError, StateRecovering
from relay.domain.hop import Hop
from relay.domain.identity import DeliveryId
from relay.domain.message import Message, message_headers
from relay.domain.numbering import PREFIX
from relay.domain.receiver import BreakerPolicy, Endpoint, Receiver, RetryPolicy, Source
from relay.domain.topics import SHARED, Topics, lane_of
from relay.engine.decision import Dead, Decision
from relay.engine.holding import Holding
from relay.engine.observer import Observer
from relay.engine.request_limiter import SEATS, RequestLimiter
from relay.engine.supervision import Retrier
from relay.engine.work import Work
from relay.log.port import Headers, NewRecord, Record, TopicPartition, size_of
from relay.recovery.rebuilding import Rebuilding
from relay.recovery.recovery_pass import Recovery
from relay.run.lanes import Lanes
from relay.run.services import Supervisor
from relay.state.rows import TAGS, tag_of
from relay.telemetry.metrics import Metrics
from relay.watch.attempt_log import AttemptLog
from tests.fakes.log import MemoryBroker, MemoryLog, MemoryTransaction
from tests.fakes.no_moves import NoMoves
from tests.fakes.state import MemoryState
from tests.fakes.state_of_process import StateOfProcess
from tests.fakes.strikes import NEVER, CrashError, Fuse, Fused
from tests.fakes.surroundings import Surroundings
from tests.fakes.virtual_time import LoopClock
from workers.dependencies import Dependencies

LIFE = b"life"
SECRET = b"secret"
"""It signs the tokens of answer and payload URLs."""


class Known(NoMoves):
    """Receivers and sources, as given."""

    def __init__(self, receivers: Sequence[Receiver], sources: Sequence[Source]) -> None:
        self._receivers = {receiver.name: receiver for receiver in receivers}
        self._sources = {source.source_id: source for source in sources}

    def receiver(self, name: str) -> Receiver | None:
        return self._receivers.get(name)

    def refusal(self, name: str) -> str | None:
        return None

    def receivers(self) -> Mapping[str, Receiver]:
        return self._receivers

    def removed(self, name: str) -> Receiver | None:
        return None

    def unusable_in_shared(self, most: int) -> list[str]:
        return []

    def left_lanes(self) -> frozenset[str]:
        return frozenset()

    def source(self, source_id: str) -> Source:
        return self._sources.get(source_id, Source(source_id, Endpoint("http://sender/callback")))

    def subscribers(self, source_id: str, event_type: str | None) -> tuple[str, ...]:
        return ()

    def filtered(self, source_id: str, event_type: str | None) -> tuple[str, ...]:
        return ()

    def remove(self, name: str) -> None:
        del self._receivers[name]

    def replace(self, receiver: Receiver) -> None:
        self._receivers[receiver.name] = receiver

    def replace_source(self, source: Source) -> None:
        self._sources[source.source_id] = source


class SilentReporter:
    def report_failure(self, *_: Any, **__: Any) -> None:
        return


class Told(Observer):
    """Counts the events that the engine reports, over all processes."""

    def __init__(self) -> None:
        self.parked_records = 0
        self.crashed_steps = 0
        self.held_up_by: list[tuple[DeliveryId | None, int, int]] = []
        """Delivery, attempts, how many waited behind it."""
        self.broken_lanes: list[tuple[TopicPartition, str, int | None, int]] = []
        """Lane, what broke it, the offset of the record that did, how often that has done so."""
        self.wary_lanes: list[TopicPartition] = []
        self.dead_letters: Counter[str] = Counter()
        self.fenced_lanes: list[TopicPartition] = []
        self.duplicates: Counter[str] = Counter()
        self.levels: dict[TopicPartition, int] = {}
        self.stalled_at: list[tuple[TopicPartition, int]] = []
        self.outages: list[tuple[str, str]] = []
        """Id and news of endpoints in long outages: `back`, `gone`, `disabled`."""
        self.shortages: Counter[str] = Counter()
        """By kind: requests that could not be made for want of something of our own."""
        self.lost_ends: list[tuple[str, int, int, int]] = []
        """Topic, partition, and the first offset that a log lost after it was read, and the one behind the last."""
        self.tried: Counter[tuple[str, str]] = Counter()
        """By stage and kind of decision: reported attempts and polls."""

    def attempt(self, stage: str, work: Work, decision: Decision) -> None:
        self.tried[stage, type(decision).__name__.lower()] += 1

    def held_up(self, work: Work, behind: int) -> None:
        self.held_up_by.append((work.delivery, work.attempts, behind))

    def parked(self, topic: str, count: int) -> None:
        self.parked_records += count

    def step_crashed(self, stage: str, error: Exception) -> None:
        self.crashed_steps += 1

    def lane_broken(self, partition: TopicPartition, error: Exception, record: Record | None, times: int) -> None:
        self.broken_lanes.append((partition, str(error), record.offset if record is not None else None, times))

    def former_owner_died(self, partition: TopicPartition, before: int, marked: int) -> None:
        self.wary_lanes.append(partition)

    def dead(self, stage: str, endpoint_id: str, record: Record | NewRecord, dead: Dead) -> None:
        self.dead_letters[dead.reason] += 1

    def fenced(self, partition: TopicPartition) -> None:
        self.fenced_lanes.append(partition)

    def duplicate(self, stage: str) -> None:
        self.duplicates[stage] += 1

    def lane(self, partition: TopicPartition, *, unfinished: int | None) -> None:
        self.levels[partition] = unfinished or 0

    def stalled(self, partition: TopicPartition, offset: int, seconds: float) -> None:
        self.stalled_at.append((partition, offset))

    def endpoint_back(self, endpoint_id: str, down_for_s: float, since: float) -> None:
        self.outages.append((endpoint_id, "back"))

    def endpoint_gone(self, endpoint_id: str, detail: str) -> None:
        self.outages.append((endpoint_id, "gone"))

    def endpoint_disabled(self, endpoint_id: str, down_for_s: float, last_status: int | None, *, gone: bool) -> None:
        self.outages.append((endpoint_id, "gone" if gone else "disabled"))

    def sending_paused(self, kind: str, detail: str) -> None:
        self.shortages[kind] += 1

    def service_failed(self, name: str, error: RelayError, again_in_s: float) -> None:
        if isinstance(error, OffsetMissing):
            self.lost_ends += [(*at, *span) for at, span in error.lost.items()]


class _AskingObserver(Observer):
    """A process's own: hands on to `Told`, and has the state healed at once."""

    def __init__(self, told: Told) -> None:
        self.recovery: Recovery | None = None
        for name in vars(Told).keys() & vars(Observer).keys():
            if not name.startswith("_"):
                setattr(self, name, getattr(told, name))

    def state_recovering(self, tags: frozenset[int]) -> None:
        if self.recovery is not None:
            self.recovery.ask()


class World:
    """What outlives a process, and how to run one. Settings of the relay under test in `settings`."""

    def __init__(
        self, receivers: Sequence[Receiver], *, settings: Settings | None = None, sources: Sequence[Source] = ()
    ) -> None:
        clock = LoopClock()
        self.clock = clock
        self.settings = settings or Settings(receivers_file="none")
        self.topics = Topics()
        self.brokers_off_s = 0.0
        self.broker = MemoryBroker(now_ms=lambda: int((clock.time() + self.brokers_off_s) * 1000))
        self.state = MemoryState(clock=clock.time, ready=False)
        self.state_available = True
        self.outside = Surroundings()
        self.make_log: Callable[[MemoryBroker], MemoryLog] = MemoryLog
        """What makes the log of a process."""
        self.told = Told()
        self.seats = SEATS
        self.attempt_log = 0.0
        """Share of messages whose requests are logged on `delivery_attempts`."""
        self.known = Known(receivers, sources)
        dedicated = all(receiver.lane == "dedicated" for receiver in receivers)
        self.served = frozenset(receiver.name for receiver in receivers) if dedicated else None  # spares idle lanes

    async def client(self) -> MemoryLog:
        log = MemoryLog(self.broker)
        await log.start()
        return log

    async def create(self) -> Self:
        """With its topics."""
        log = await self.client()
        specs = list(self.topics.fixed())
        for receiver in self.known.receivers().values():
            if receiver.lane != SHARED:
                specs += self.topics.lane_specs(receiver.name, receiver.partitions)
        await log.create(specs, self._groups())
        return self

    async def send(self, *messages: Message) -> None:
        await (await self.client()).append(self.records(*messages))

    def records(self, *messages: Message) -> list[NewRecord]:
        """As a sender writes them."""
        topic = self.topics.from_sender
        return [NewRecord(topic, m.source_id.encode(), m.payload, message_headers(m)) for m in messages]

    def transaction(self) -> MemoryTransaction:
        return self.broker.transaction()

    async def append(self, topic: str, key: bytes | None, value: bytes | None, headers: Headers) -> None:
        """Any record, behind all others."""
        await (await self.client()).append([NewRecord(topic, key, value, headers)])

    async def api_context(self, fuse: Fuse) -> ApiContext:
        """Of a process with the API."""
        fused_log: Any = Fused(await self.client(), fuse, "log")
        fused_state: Any = Fused(self.state, fuse, "state", lambda: self.state_available)
        unused: Any = None
        return ApiContext(
            log=fused_log,
            state=fused_state,
            topics=self.topics,
            directory=self.known,
            metrics_text=lambda: b"",
            ready=dict,
            api_key=None,
            answer_secrets=(SECRET,),
            max_payload_bytes=1_000,
            answer_body_cap=1_000,
            clock=self.clock,
            new_id=lambda: "",
            registrar=unused,
            verify=unused,
            replays=unused,
            keys=unused,
            catalogue=unused,
            erasures=unused,
            transport=unused,
            examine=unused,
        )

    async def run(self, fuse: Fuse, seconds: float, *, until: Callable[[], bool] | None = None) -> None:
        """One process, for so long, then stopped cleanly; or until its fuse blows. Then its memory is gone.

        It ends sooner when `until` is true and nothing is left to be done.
        """
        process = Process(self, fuse)
        end = self.clock.monotonic() + seconds
        while self.clock.monotonic() < end and not await process.ended(1.0):
            if until is not None and until() and await self.is_at_rest():
                break
        await process.stop()

    # remains

    def parked_copies(self) -> list[Record]:
        """Living records of `parked_messages`: each is an obligation."""
        topic = self.topics.parked_messages
        tables = [self.broker[at].table() for at in self.broker.partitions_of(topic)]
        return [record for table in tables for key, record in table.items() if not _is_note(key)]

    async def is_at_rest(self) -> bool:
        """Whether all records are finished, and none is parked."""
        try:
            return not (self.uncommitted() or self.parked_copies() or await self.parked_references())
        except StateRecovering:
            return False

    async def parked_references(self) -> int:
        counts = await self.state.parked_total()
        return counts.retries + counts.polls

    def lanes(self) -> set[str]:
        """All lanes of receivers."""
        return {lane_of(one) for one in self.known.receivers().values()}

    def _groups(self) -> dict[str, str]:
        return self.topics.groups(self.lanes())

    def uncommitted(self) -> dict[TopicPartition, int]:
        """Records that a group has not finished, of all topics that are read by one."""
        groups = self._groups()
        ends = {at: end for at, end in self.broker.ends().items() if at.topic in groups}
        rest = {at: end - self.broker.finished(groups[at.topic], at) for at, end in ends.items()}
        return {at: count for at, count in rest.items() if count}


def _is_note(key: bytes | None) -> bool:
    """A note of a former owner of the topic, which is no obligation."""
    return key == LIFE or (key or b"").startswith((b"import:", PREFIX))


class Process:
    """A process of the relay, running from the moment it is made. `transport`: in place of the world's outside.
    `clock`: in place of the world's; then it asks the state for the time before anything else."""

    rebuilds = False
    """It reads back the rows that a loss of the state took."""

    def __init__(
        self,
        world: World,
        fuse: Fuse | None = None,
        *,
        transport: Transport | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.fuse = fuse or Fuse(NEVER)
        self.resumed: Callable[[str], None] = lambda _owner: None
        """To be called when an endpoint was resumed."""
        self.lanes: Lanes | None = None
        """Once it runs."""
        self._shared = SharedClock(clock, world.state) if clock is not None else None
        self._clock = self._shared or world.clock
        self._transport = transport or world.outside
        self._world = world
        self.log = world.make_log(world.broker)
        self._stop = asyncio.Event()
        self._task = asyncio.create_task(self._run())

    def held(self) -> dict[TopicPartition, list[int]]:
        """Bytes of each record that it has in memory, by lane: unfinished ones, and parked ones that it has taken up
        again. Counted from what the log has, not from what the engine says of it."""
        found: dict[TopicPartition, list[int]] = {}
        for lane in self.lanes.pump.lanes() if self.lanes else ():
            records = self._world.broker[lane.partition].records
            there = [records[offset] for offset in lane.watermark.unfinished if offset < len(records)]
            there += [work.record for work in lane.taken_up()]
            if there:
                found[lane.partition] = [size_of(record) for record in there]
        return found

    async def ended(self, seconds: float) -> bool:
        """Wait for at most so long; True if the process ended meanwhile."""
        await asyncio.wait([self._task], timeout=seconds)
        return self._task.done()

    async def run(self, seconds: float) -> Self:
        """Wait for so long, or until it has ended."""
        await self.ended(seconds)
        return self

    async def stop(self, *, after: float = 0.0) -> float:
        """As SIGTERM does, once it has run for so long. Returns how many seconds it took. Raises what the process died
        of, but for its fuse."""
        if after:
            await self.ended(after)
        begun = self._world.clock.monotonic()
        self._stop.set()
        await self._task
        return self._world.clock.monotonic() - begun

    async def kill(self) -> None:
        """As SIGKILL does."""
        self.fuse.blow()
        self.log.crash()
        self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task

    def _known(self) -> Any:
        """Who is known to it; a subclass may give each process a registry of its own."""
        return self._world.known

    def _erasures(self) -> Erasures:
        return Erasures()

    async def _topics_of_deliveries(self) -> dict[str, Collection[int]]:
        world = self._world
        found = [(lane_of(one), tag_of(f"r:{one.name}")) for one in world.known.receivers().values()]
        return {world.topics.to_receiver(lane): range(TAGS) if lane == SHARED else {tag} for lane, tag in found}

    def _changes(self) -> AsyncIterator[int]:
        """When to look again which lanes are wanted."""
        return _once()

    def _beside(self, log: Any, state: Any) -> Sequence[Coroutine[Any, Any, None]]:
        """What else runs in it, until it stops."""
        owner = f"process-{id(self)}"
        return (rebuilding(self._world, owner, log=log, state=state, clock=self._clock).run(),) if self.rebuilds else ()

    async def _run(self) -> None:
        world = self._world
        log = Fused(self.log, self.fuse, "log")
        state = Fused(StateOfProcess(world.state), self.fuse, "state", lambda: world.state_available)
        observer = _AskingObserver(world.told)
        retrier = Retrier(self._clock, observer)
        recovery = Recovery(
            log,
            state,
            world.topics.parked(),
            self._clock,
            observer,
            retrier,
            owner=f"process-{id(self)}",
            in_doubt_s=world.settings.dedup_window,
            holding=Holding(log, state, world.topics.receiver_config),
            lanes=self._topics_of_deliveries,
        )
        observer.recovery = recovery
        self._attempts = AttemptLog(log, world.topics, self._clock, Metrics("0"), share=world.attempt_log)
        lanes = self._lanes(log, state, observer, retrier)
        try:
            async with asyncio.TaskGroup() as tasks:
                await self.log.start()
                if self._shared is not None:
                    await self._shared.measure()
                beside = [
                    tasks.create_task(each)
                    for each in (
                        recovery.run(),
                        lanes.pump.run(),
                        lanes.pump.listen(),
                        self._attempts.run(),
                        self._die(),
                        *self._beside(log, state),
                    )
                ]
                await Supervisor(lanes.services(), self._changes(), lanes.update).run(self._stop)
                await self._attempts.end()
                for each in beside:
                    each.cancel()
        except* CrashError:
            pass
        finally:
            self.log.crash()

    async def _die(self) -> None:
        await self.fuse.dead.wait()
        raise CrashError

    def _answer_url(self, receiver: Receiver, hop: Hop) -> str:
        expires = int(self._world.clock.time() + receiver.answer_deadline)
        return f"http://relay/{issue(SECRET, hop.delivery, hop.generation, expires)}"

    def _lanes(self, log: Any, state: Any, observer: Observer, retrier: Retrier) -> Lanes:
        world = self._world
        transport: Any = Fused(self._transport, self.fuse, "http")
        outside = Dependencies(
            transport,
            self._clock,
            lambda: 0.5,
            "relay/test",
            self._answer_url,
            journals=tuple(filter(None, [self._attempts.journal])),
            report=self._attempts.report,
            payload_url=lambda hop: f"http://relay/{issue_for_payload(SECRET, hop.delivery, hop.life, 2**40)}",
            request_limiter=RequestLimiter(self._clock, observer, world.seats),
            erasures=self._erasures(),
            life_of=lambda name: None if (found := self._known().receiver(name)) is None else found.life.id,
        )
        lanes = Lanes(
            world.settings,
            ProcessPlan(receivers=world.served),
            self._known(),
            log,
            state,
            outside,
            observer,
            retrier,
            SilentReporter(),
        )
        self.resumed = lanes.pump.resumed
        self.lanes = lanes
        return lanes


def rebuilding(
    world: World,
    owner: str,
    *,
    log: Any,
    state: Any = None,
    clock: Clock | None = None,
    rate: int = 1_000,
    metrics: Metrics | None = None,
) -> Rebuilding:
    """As a process has one. `rate`: records a second."""
    clock = clock or world.clock
    return Rebuilding(
        log,
        state or world.state,
        world.topics,
        clock,
        Retrier(clock, Observer()),
        metrics or Metrics("1"),
        owner=owner,
        window_s=world.settings.dedup_window,
        rate=rate,
    )


def recovery_of(world: World, owner: str, log: Any, *, in_doubt_s: float | None = None) -> Recovery:
    """As a command has one, beside the processes."""
    silent = Observer()
    return Recovery(
        log,
        world.state,
        world.topics.parked(),
        world.clock,
        silent,
        Retrier(world.clock, silent),
        owner=owner,
        in_doubt_s=world.settings.dedup_window if in_doubt_s is None else in_doubt_s,
        holding=Holding(log, world.state, world.topics.receiver_config),
    )


async def _once() -> AsyncIterator[int]:
    yield 0
    await asyncio.Event().wait()


def receiver(
    name: str,
    path: str,
    *,
    status: bool = False,
    ordering: Any = "source",
    lane: Any = "dedicated",
    on_ambiguous: Any = "resend",
    partitions: int = 1,
    rate_limit: int | None = None,
    window_size: float = 1.0,
    max_in_flight: int = 32,
    timeout: float = 15.0,
    failures: int = 10,
    patience: float | None = None,
    **retry: Any,
) -> Receiver:
    """A receiver at one of the world's paths, with quick retries. `failures`: so many open its breaker."""
    policy = RetryPolicy(**({"base": 1.0, "factor": 2.0, "cap": 8.0, "max_attempts": 4, "jitter": False} | retry))
    return Receiver(
        name,
        Endpoint(
            f"http://{name}{path}",
            retry=policy,
            rate_limit=rate_limit,
            window_size=window_size,
            max_in_flight=max_in_flight,
            timeout=timeout,
            breaker=BreakerPolicy(failures=failures),
        ),
        status_endpoint=f"http://{name}{path}/{{message_id}}" if status else None,
        ordering=ordering,
        patience=patience,
        lane=lane,
        on_ambiguous=on_ambiguous,
        partitions=partitions,
    )


def message(number: int, source: str, *receivers: str) -> Message:
    """A message whose payload has its number."""
    payload = json.dumps({"n": number, "source": source}).encode()
    return Message(source, f"{source}-{number}", receivers, "push", None, "application/json", payload)
