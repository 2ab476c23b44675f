"""A recovery pass: what it restores, and its report."""

import asyncio
import tracemalloc
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from copy import deepcopy

import pytest
from msgspec import structs

from relay.domain.errors import LogUnavailable
from relay.domain.identity import DeliveryId
from relay.domain.topics import Topics, TopicSpec
from relay.engine.holding import Holding
from relay.engine.observer import Observer, Recovered, StateMemory
from relay.engine.parked_copy import FORM, LIFE_KEY, wrap
from relay.engine.parked_reader import adopt_cluster
from relay.engine.supervision import Retrier, end
from relay.engine.work import Work
from relay.log.port import Coordinate, NewRecord, Record
from relay.recovery.recovery_pass import LEASE, Recovery
from relay.state.port import Lane, Restored
from relay.state.replies import answered, of
from relay.state.rows import TAGS, Mark, Parked, Stage, delivery_row
from tests.expecting import present
from tests.fakes.log import MemoryBroker, MemoryLog
from tests.fakes.state import MemoryState
from tests.fakes.virtual_time import LoopClock, virtually
from tests.log_reads import newest

TOPICS = Topics()
PARKED = TopicSpec(TOPICS.parked_messages, 2, "compact", None)
ALL = frozenset(range(TAGS))
WINDOW_S = 5_000.0


class _Told(Observer):
    def __init__(self) -> None:
        self.events: list[tuple[str, int, int]] = []
        self.done: list[Recovered] = []

    def not_ready(self, tags: frozenset[int], forgotten: frozenset[int]) -> None:
        self.events.append(("not ready", len(tags), len(forgotten)))

    def other_cluster(self) -> None:
        self.events.append(("other cluster", 0, 0))

    def state_outdated(self) -> None:
        self.events.append(("outdated", 0, 0))

    def recovery_begun(self, tags: frozenset[int], forgotten: frozenset[int]) -> None:
        self.events.append(("begun", len(tags), len(forgotten)))

    def recovered(self, done: Recovered) -> None:
        self.events.append(("recovered", len(done.tags), 0))
        self.done.append(done)


class _Restarted(MemoryState):
    """It came back with everything it ever acknowledged."""

    def forgotten(self) -> frozenset[int]:
        return frozenset()


class _OneAway(MemoryState):
    """The server of its last tag may be away."""

    is_away = False

    def __init__(self) -> None:
        super().__init__(ready=False)

    async def set_edition(self, edition: int) -> bool:
        if not self.is_away:
            return await super().set_edition(edition)
        for tag in self._tags[:-1]:
            tag.edition = edition
        return False


class _Large(MemoryLog):
    """Each value is of 250 kB and made when it is read, and a scan brings about a megabyte at a time, as Kafka's."""

    def _read_anew(self, records: Sequence[Record]) -> list[Record]:
        return [structs.replace(each, value=each.value and bytes(250_000)) for each in records]

    async def scan(
        self, topic: str, partition: int, *, start: int = 0, end: int | None = None, batch: int = 1_000
    ) -> AsyncIterator[Sequence[Record]]:
        async for records in super().scan(topic, partition, start=start, end=end, batch=min(batch, 4)):
            yield self._read_anew(records)


class _Rig:
    """A log with parked copies of `ci` and of `other`, of which that of `ci` number 2 is finished."""

    def __init__(self, state: MemoryState | None = None) -> None:
        self.clock = LoopClock()
        self.log = MemoryLog(MemoryBroker())
        self.state = state or MemoryState(ready=False)
        self.told = _Told()
        self.recovery = self.one("test")

    def one(self, owner: str, state: MemoryState | None = None) -> Recovery:
        state, retrier = state or self.state, Retrier(self.clock, self.told)
        return Recovery(
            self.log,
            state,
            PARKED,
            self.clock,
            self.told,
            retrier,
            owner=owner,
            in_doubt_s=WINDOW_S,
            holding=Holding(self.log, state, TOPICS.receiver_config),
        )

    async def filled(self, *, alive: bool = False) -> "_Rig":
        """`alive`: its state was ready once."""
        await self.fill()
        if alive:
            await self.log.append([NewRecord(PARKED.name, LIFE_KEY, b"ready")])
        return self

    async def fill(self) -> None:
        await self.log.start()
        await self.log.create([PARKED, *(spec for spec in TOPICS.fixed() if spec.name == TOPICS.receiver_config)], {})
        await self.log.append([_copy("ci", 1), _copy("ci", 2), _copy("other", 3)])

    async def parked_keys(self) -> set[bytes | None]:
        return {record.key for partition in (0, 1) for record in await newest(self.log, PARKED.name, partition)}


def _copy(receiver: str, number: int, due_ms: int = 0) -> NewRecord:
    row = delivery_row(DeliveryId(receiver, "github", f"m-{number}"))
    record = Record(TOPICS.to_receiver(receiver), 0, number, b"github", b"payload", (), 0)
    return wrap(PARKED.name, "to_receiver", Work(record, row, 0, None, row.owner), row, due_ms=due_ms, poll=False)


async def _finish(state: MemoryState, receiver: str, number: int) -> None:
    await answered(state.mark([Mark(delivery_row(DeliveryId(receiver, "github", f"m-{number}")), 0, Stage.DONE)]))


@virtually
async def test_a_loss_is_told_from_its_beginning_to_its_end() -> None:
    rig = await _Rig().filled(alive=True)
    begun = rig.clock.time()
    await rig.recovery.heal()
    assert rig.told.events == [
        ("not ready", 64, 64),
        ("begun", 64, 64),
        ("recovered", 64, 0),
        ("not ready", 0, 0),
    ]
    (done,) = rig.told.done
    assert (done.tags, done.memory, done.doubt_until) == (ALL, StateMemory.LOST, begun + WINDOW_S)
    assert done.owners == {"r:ci": Counter({Restored.PUT_BACK: 2}), "r:other": Counter({Restored.PUT_BACK: 1})}
    assert (done.count(), done.count(Restored.PUT_BACK), done.count(Restored.FINISHED)) == (3, 3, 0)


@virtually
async def test_a_new_installation_has_lost_nothing() -> None:
    rig = _Rig()
    await rig.log.start()
    await rig.log.create([PARKED], {})
    await rig.recovery.heal()
    (done,) = rig.told.done
    assert (done.memory, done.doubt_until) == (StateMemory.NEW, None)
    assert await rig.parked_keys() == {LIFE_KEY}


@virtually
async def test_neither_has_one_that_was_restarted() -> None:
    rig = await _Rig(_Restarted(ready=False)).filled(alive=True)
    await rig.recovery.heal()
    (done,) = rig.told.done
    assert (done.tags, done.memory, done.doubt_until) == (ALL, StateMemory.KEPT, None)


@virtually
async def test_a_check_pays_tombstones_and_puts_back_what_is_missing() -> None:
    rig = await _Rig(MemoryState()).filled()
    await _finish(rig.state, "ci", 2)
    row = delivery_row(DeliveryId("other", "github", "m-3"))
    parked = Parked(row, 0, (await _where(rig, b"m-3")), 0.0, None, 3)
    await answered(rig.state.park(of(Lane(TOPICS.to_receiver("other"), 0, 1), [parked])))
    expected = {
        "r:ci": Counter({Restored.PUT_BACK: 1, Restored.FINISHED: 1}),
        "r:other": Counter({Restored.THERE: 1}),
    }

    previewed = await rig.recovery.preview()
    assert previewed.owners == expected
    assert len(await rig.parked_keys()) == 3

    done = present(await rig.recovery.check())
    assert (done.tags, done.owners) == (frozenset(), expected)
    assert len(await rig.parked_keys() - {LIFE_KEY}) == 2
    again = present(await rig.recovery.check())
    assert again.owners == {"r:ci": Counter({Restored.THERE: 1}), "r:other": Counter({Restored.THERE: 1})}


@virtually
async def test_a_former_state_that_is_used_again_is_lost() -> None:
    rig = await _Rig().filled()
    former, rig.state = rig.state, MemoryState(ready=False)
    await _started(rig.one("one", former))
    await _started(rig.one("other"))
    await _started(rig.one("other again"))
    assert [done.memory for done in rig.told.done] == [StateMemory.NEW, StateMemory.LOST]
    await _started(rig.one("former", former))
    assert rig.told.done[-1].memory is StateMemory.LOST
    assert rig.told.events.count(("outdated", 0, 0)) == 1


@virtually
async def test_a_snapshot_from_before_the_last_check_is_lost_although_no_process_started_since() -> None:
    """The log keeps tombstones for a day only, so what was parked then would be missing without a trace."""
    rig = await _Rig().filled()
    await _started(rig.recovery)
    snapshot = deepcopy(rig.state)
    await rig.recovery.check()
    await _started(rig.one("later", snapshot))
    assert rig.told.done[-1].memory is StateMemory.LOST


@virtually
@pytest.mark.parametrize("is_numbered", [False, True])
async def test_a_state_whose_edition_is_not_on_the_log_is_complete(is_numbered: bool) -> None:
    """A process died before or after it numbered the state, or did not start since a release without editions."""
    rig = await _Rig(MemoryState()).filled(alive=True)
    if is_numbered:
        await rig.state.set_edition(1)
    await _started(rig.recovery)
    assert rig.told.done == []


@virtually
async def test_a_server_that_is_away_while_the_others_are_numbered_has_lost_nothing() -> None:
    """One shard of a Redis cluster, while a process starts."""
    rig = await _Rig(state := _OneAway()).filled()
    await _started(rig.one("before"))
    state.is_away = True
    await _started(rig.one("meanwhile"))
    state.is_away = False
    await _started(rig.one("after"))
    assert [done.memory for done in rig.told.done] == [StateMemory.NEW]


@virtually
async def test_a_state_that_is_used_with_another_cluster_is_reported_until_an_operator_confirms_it() -> None:
    rig = _Rig()
    for cluster, times in (("own", 0), ("another", 1), ("own", 1), ("another", 2)):
        rig.log = MemoryLog(MemoryBroker(cluster=cluster))
        await rig.fill()
        await _started(rig.one(cluster))
        assert rig.told.events.count(("other cluster", 0, 0)) == times
    await adopt_cluster(rig.log, rig.state)
    await _started(rig.one("confirmed"))
    assert rig.told.events.count(("other cluster", 0, 0)) == 2


@virtually
async def test_editions_on_the_log_of_another_cluster_say_nothing_about_the_state() -> None:
    """An operator mistakes the address of Kafka, and the other cluster has a relay of its own."""
    rig = await _Rig().filled()
    await _started(rig.recovery)
    own, rig.log = rig.log, MemoryLog(MemoryBroker(cluster="another"))
    await rig.fill()
    await rig.log.append([NewRecord(PARKED.name, LIFE_KEY, b"9999999999999999")])
    await _started(rig.one("mistaken"))
    rig.log = own
    await _started(rig.one("right again"))
    assert [done.memory for done in rig.told.done] == [StateMemory.NEW]


class _Death(BaseException):
    pass


@virtually
@pytest.mark.parametrize("call", ["set_edition", "append", "ready"])
@pytest.mark.parametrize("is_done", [False, True])
async def test_a_process_dies_while_it_takes_another_state_into_use(call: str, is_done: bool) -> None:
    """Of two states, the one that was not ready last is lost, whenever the process died."""
    rig = await _Rig().filled()
    await _started(rig.one("one"))
    former, rig.state = rig.state, MemoryState(ready=False)
    dying = rig.one("dying")
    port = dying.log if call == "append" else dying.state
    rightly = getattr(port, call)

    async def dies(*arguments: object, **more: object) -> None:
        if is_done:
            await rightly(*arguments, **more)
        raise _Death

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(port, call, dies)
        with pytest.raises(_Death):
            await dying.heal()
    was_ready = not await rig.state.lost()
    await _started(rig.one("former", former))
    assert (rig.told.done[-1].memory is StateMemory.LOST) >= was_ready
    await _started(rig.one("other"))
    assert rig.told.done[-1].memory is StateMemory.LOST
    assert await rig.state.lost() == frozenset()


async def _started(recovery: Recovery) -> None:
    running = asyncio.create_task(recovery.run())
    await recovery.healed.wait()
    await end([running])


@virtually
async def test_a_preview_of_a_loss_makes_nothing_ready() -> None:
    rig = await _Rig().filled(alive=True)
    previewed = await rig.recovery.preview()
    assert (previewed.tags, previewed.memory, previewed.count(Restored.PUT_BACK)) == (ALL, StateMemory.LOST, 3)
    assert await rig.state.lost() == ALL


@virtually
async def test_only_one_checks_at_a_time() -> None:
    rig = await _Rig(MemoryState()).filled()
    assert await rig.state.lease(LEASE, "another", 60)
    assert await rig.recovery.check() is None
    await rig.state.release(LEASE, "another")
    assert await rig.recovery.check() is not None
    assert await rig.one("third").check() is not None  # the lease was given back


async def _where(rig: _Rig, text: bytes) -> Coordinate:
    row = delivery_row(DeliveryId("other", "github", text.decode()))
    for partition in (0, 1):
        for record in await newest(rig.log, PARKED.name, partition):
            if record.key == b"to_receiver:" + row.digest.hex().encode():
                return record.coordinate
    raise AssertionError(text)


@virtually
async def test_payloads_of_what_is_parked_are_not_held_together() -> None:
    rig = await _Rig().filled(alive=True)
    await rig.log.append([_copy("ci", number) for number in range(10, 210)])
    large = _Large(rig.log._broker)
    await large.start()
    rig.log = large
    recovery = rig.one("large")
    tracemalloc.start()
    try:
        await recovery.heal()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert rig.told.done[0].count(Restored.PUT_BACK) == 203
    assert peak < 8_000_000, f"{peak} bytes at once, of 50,000,000"


@virtually
async def test_the_newest_record_of_a_key_counts() -> None:
    """One is finished, one is parked again and falls due later, and one is parked again after it was finished."""
    rig = await _Rig().filled()
    await rig.log.append([_without_value(_copy("ci", 1)), _copy("ci", 2, due_ms=2**42)])
    await rig.log.append([_without_value(_copy("other", 3)), _copy("other", 3)])
    await rig.recovery.heal()
    (done,) = rig.told.done
    assert done.owners == {"r:ci": Counter({Restored.PUT_BACK: 1}), "r:other": Counter({Restored.PUT_BACK: 1})}
    copies = (await rig.recovery._read_parked())[0]
    assert sorted(copy.due_ms for copy in copies) == [0, 2**42]


@virtually
async def test_what_a_newer_release_parked_holds_up_recovery_until_it_is_finished() -> None:
    rig = await _Rig().filled()
    newer = _copy("ci", 1)
    await rig.log.append([structs.replace(newer, headers=(*newer.headers, ("relay-parked-form", b"%d" % (FORM + 1))))])
    with pytest.raises(LogUnavailable, match="a newer release wrote it"):
        await rig.recovery.heal()
    await rig.log.append([_without_value(newer)])
    await rig.one("later").preview()


def _without_value(copy: NewRecord) -> NewRecord:
    return NewRecord(copy.topic, copy.key, None)
