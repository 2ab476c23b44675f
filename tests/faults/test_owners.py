"""A lane changes hands: its owner freezes and comes back as a zombie, others join and leave, it is stopped."""

import asyncio
from collections.abc import Callable
from dataclasses import replace

import pytest
from msgspec import structs

from relay.config.settings import Settings
from relay.delivery.port import Transport
from relay.domain.exchange import Exchange, NoResponse, Request
from relay.domain.message import Message
from relay.domain.timing import Timing
from tests.fakes.strikes import CRASHES, NEVER, STRIKES, Frost, Fuse, Strikes
from tests.fakes.surroundings import REFUSED
from tests.fakes.virtual_time import run_virtually
from tests.fakes.world import Process, World, message, receiver

COUNT = 3
EXPECTED = {(f"a-{number}", "r"): {"answered"} for number in range(COUNT)}


async def _world(*, status: bool) -> World:
    world = await World([receiver("r", "/answer", status=status, timeout=2.0)]).create()
    await world.send(*(message(number, "a", "r") for number in range(COUNT)))
    return world


def _in_order(arrived: list[str]) -> bool:
    first = list(dict.fromkeys(arrived))
    return first == sorted(first, key=lambda each: int(each.split("-")[1]))


# zombies


async def _zombie(freeze_at: int, *, after: bool, status: bool) -> tuple[World, str]:
    """The first process freezes, loses its partitions, and goes on after the second has taken over."""
    world = await _world(status=status)
    frost = Frost(freeze_at, after=after)
    first = Process(world, frost)
    freezing = asyncio.create_task(frost.frozen.wait())
    await asyncio.wait([freezing], timeout=20)
    freezing.cancel()
    first.log.expel()
    second = await Process(world).run(20)
    frost.thaw.set()
    await first.ended(20)
    await asyncio.gather(first.stop(), second.stop())
    return world, frost.place


async def _counted() -> Fuse:
    world, fuse = await _world(status=True), Fuse()
    await world.run(fuse, 20, until=lambda: world.outside.results() == EXPECTED)
    return fuse


@CRASHES
def test_a_zombie_posts_nothing_twice_to_a_receiver_that_can_be_asked(late: bool, strikes: Strikes) -> None:
    for freeze_at in strikes(run_virtually(_counted())):
        world, place = run_virtually(_zombie(freeze_at, after=late, status=True))
        assert world.outside.results() == EXPECTED, place
        assert world.outside.arrived("/answer") == ["a-0", "a-1", "a-2"], place
        assert not world.uncommitted(), place


@STRIKES
def test_a_zombie_doubles_at_most_the_request_it_froze_on_where_nobody_can_be_asked(strikes: Strikes) -> None:
    for freeze_at in strikes(run_virtually(_counted())):
        world, place = run_virtually(_zombie(freeze_at, after=True, status=False))
        arrived = world.outside.arrived("/answer")
        assert world.outside.results() == EXPECTED, place
        assert len(arrived) <= COUNT + 1, place
        assert _in_order(arrived), place


async def test_what_a_zombie_learnt_counts() -> None:
    """The response came while it was frozen out: it is stored, and the new owner sends nothing."""
    world = await World([receiver("r", "/slow", timeout=15.0)]).create()
    world.outside.slow_s = 10.0
    await world.send(message(0, "a", "r"))
    first = await Process(world).run(1)
    first.log.expel()
    second = await Process(world).run(60)
    await asyncio.gather(first.stop(), second.stop())
    assert world.outside.arrived("/slow") == ["a-0"]
    assert world.outside.results() == {("a-0", "r"): {"answered"}}


class _FrozenAtBegin(Frost):
    """A process that freezes between its `number`-th begin and the POST."""

    def __init__(self, number: int) -> None:
        super().__init__(blow_at=10**9)
        self._number = number

    async def after(self, name: str, number: int) -> None:
        await super().after(name, number)
        if name == "state.begin" and self.names.count("state.begin") == self._number:
            self.frozen.set()
            await self.thaw.wait()


@pytest.mark.parametrize("number", [1, 2])
async def test_an_attempt_that_a_zombie_did_not_make_has_no_number(number: int) -> None:
    world = await World([receiver("r", "/answer", max_attempts=2)]).create()
    world.outside.troubles["a-0"] = [REFUSED] * (number - 1)
    await world.send(message(0, "a", "r"))
    frost = _FrozenAtBegin(number)
    first = Process(world, frost)
    await asyncio.wait_for(frost.frozen.wait(), 20)
    first.log.expel()
    second = await Process(world).run(10)
    frost.thaw.set()
    await second.ended(60)
    await asyncio.gather(first.stop(), second.stop())
    attempts = [headers["relay-attempt"] for path, headers, _ in world.outside.posts if path == "/answer"]
    assert attempts == [str(number)]


# an old 404


class _Late(Frost):
    """A process that sleeps from its first GET on, and hears of its lost partition last of all."""

    def __init__(self) -> None:
        super().__init__(blow_at=10**9)
        self.told = asyncio.Event()

    async def before(self, name: str) -> None:
        if self.frozen.is_set():
            await self.thaw.wait()
        self.names.append(name)

    async def after(self, name: str, number: int) -> None:
        return

    async def pass_by(self) -> None:
        if self.frozen.is_set():
            await self.told.wait()


class _HeldGets(Transport):
    """Replies to GETs are kept until `release`."""

    def __init__(self, outside: Transport, fuse: _Late) -> None:
        self._outside = outside
        self._fuse = fuse
        self._held: list[tuple[Callable[[Exchange], None], Exchange]] = []
        self.held = asyncio.Event()

    async def start(self) -> None:
        return

    async def close(self) -> None:
        return

    def send(self, request: Request, done: Callable[[Exchange], None]) -> None:
        if request.method != "GET" or self._fuse.thaw.is_set():
            self._outside.send(request, done)
            return
        self._fuse.frozen.set()
        self._outside.send(request, lambda exchange: self._keep(done, exchange))

    def release(self) -> None:
        self._fuse.thaw.set()
        for done, exchange in self._held:
            done(exchange)

    def _keep(self, done: Callable[[Exchange], None], exchange: Exchange) -> None:
        self._held.append((done, exchange))
        self.held.set()


async def test_a_404_that_is_read_late_proves_nothing() -> None:
    """Its reader slept on it while a new owner delivered, and the state lost the row and the fence since."""
    world = await World([receiver("r", "/answer", status=True)]).create()
    world.outside.troubles["a-0"] = [NoResponse("disconnected", "the response was lost", sent=True)]
    late = _Late()
    gets = _HeldGets(world.outside, late)
    first = Process(world, late, transport=gets)
    await world.send(message(0, "a", "r"))
    await gets.held.wait()
    first.log.expel()
    second = await Process(world).run(100)
    assert world.outside.arrived("/answer") == ["a-0"]
    world.state.lose()
    await second.ended(100)
    assert not await world.state.lost()
    gets.release()
    await second.ended(60)
    assert world.outside.arrived("/answer") == ["a-0"]
    late.told.set()
    await second.stop()
    await first.kill()


# rebalances


def _load(numbers: range, name: str) -> list[Message]:
    return [message(number, f"s{source}", name) for number in numbers for source in range(12)]


@pytest.mark.parametrize("path", ["/answer", "/later", "/flaky"])
async def test_others_join_and_leave_under_load_and_nothing_is_lost_doubled_or_out_of_order(path: str) -> None:
    status = path != "/flaky"  # a 500 is ambiguous: it would be asked about, and never be "flaky" again
    world = await World([receiver("r", path, status=status, partitions=4, base=0.2, failures=1000)]).create()
    first = Process(world)
    await world.send(*_load(range(20), "r"))
    await first.ended(0.3)
    second = Process(world)
    await first.ended(0.4)
    await world.send(*_load(range(20, 40), "r"))
    third = Process(world)
    await first.ended(0.4)
    await second.stop()
    await world.send(*_load(range(40, 60), "r"))
    await first.stop(after=0.3)
    await third.stop(after=60)
    for source in range(12):
        assert world.outside.arrived(path, f"s{source}") == [f"s{source}-{number}" for number in range(60)]
    assert len(world.outside.results()) == 12 * 60
    assert len([at for at, _, _ in world.outside.posts if at == "/callback"]) == 12 * 60
    assert await world.is_at_rest()


async def test_a_request_that_takes_longer_than_a_rebalance_may_is_not_repeated() -> None:
    world = await World([receiver("r", "/slow", partitions=2)]).create()
    await world.send(*(message(0, f"s{source}", "r") for source in range(8)))
    first = await Process(world).run(1)
    second = Process(world)
    await first.ended(60)
    await asyncio.gather(first.stop(), second.stop())
    assert sorted(world.outside.arrived("/slow")) == sorted(f"s{source}-0" for source in range(8))
    assert len(world.outside.results()) == 8


async def test_a_parked_line_is_handed_over_at_once() -> None:
    """Its head may be in the former owner's hand, under a lease."""
    world = await World([receiver("r", "/slow", base=90.0, cap=90.0)]).create()
    world.outside.slow_s = 2.0
    world.outside.troubles["a-0"] = [REFUSED]
    await world.send(*(message(number, "a", "r") for number in range(5)))
    first = await Process(world).run(91)
    assert world.outside.arrived("/slow") == ["a-0"]
    await first.stop()
    await Process(world).stop(after=20)
    assert world.outside.arrived("/slow") == [f"a-{number}" for number in range(5)]
    assert await world.is_at_rest()


# stopping


async def test_a_stop_finishes_what_is_in_flight_and_leaves_the_rest() -> None:
    world = await World([receiver("r", "/slow")]).create()
    world.outside.slow_s = 3.0
    await world.send(*(message(number, "a", "r") for number in range(3)))
    first = await Process(world).run(1)
    assert 2.0 <= await first.stop() <= 2.5
    assert world.outside.arrived("/slow") == ["a-0"]
    assert sum(world.uncommitted().values()) <= 3
    await Process(world).stop(after=20)
    assert world.outside.arrived("/slow") == ["a-0", "a-1", "a-2"]


async def test_a_stop_of_an_idle_process_takes_no_time() -> None:
    world = await World([receiver("r", "/answer")]).create()
    await world.send(message(0, "a", "r"))
    process = await Process(world).run(10)
    assert await process.stop() <= 1.1, "one poll"
    assert not world.uncommitted()


async def test_a_stop_releases_what_was_begun_and_not_started() -> None:
    """Begins wait up to a second for their slots of the rate: they are given back, and are no attempts."""
    world = await World([receiver("r", "/answer", ordering="none", rate_limit=2)]).create()
    await world.send(*(message(number, "a", "r") for number in range(6)))
    await Process(world).stop(after=0.1)
    await Process(world).stop(after=30)
    assert sorted(world.outside.arrived("/answer")) == [f"a-{number}" for number in range(6)]
    assert {headers["relay-attempt"] for path, headers, _ in world.outside.posts if path == "/answer"} == {"1"}


async def test_a_stop_does_not_wait_for_ever_while_log_and_state_are_away() -> None:
    world = await World([receiver("r", "/answer", base=0.5, cap=0.5, max_attempts=100)]).create()
    world.outside.down.add("answer")
    await world.send(*(message(number, "a", "r") for number in range(3)))
    process = await Process(world).run(5)
    world.broker.available = world.state_available = False
    await process.ended(2)
    assert await process.stop() <= world.settings.shutdown_grace + 25


class _BeforeParking(Frost):
    async def before(self, name: str) -> None:
        if name == "state.parked_total":
            self.frozen.set()
        await super().before(name)


async def test_a_former_owner_without_room_does_not_give_up_what_the_next_one_has_sent() -> None:
    one = replace(receiver("r", "/later", lane="shared"), answer_deadline=60.0)
    world = await World(
        [one], settings=Settings(receivers_file="none", hold_max=5.0, parked_per_receiver=1, parked_total=1)
    ).create()
    await world.send(structs.replace(message(0, "a", "r"), timing=Timing(world.clock.time() + 20.0)))
    frost = _BeforeParking(NEVER)
    first = Process(world, frost)
    await frost.frozen.wait()
    first.log.expel()
    second = await Process(world).run(30)
    assert world.outside.arrived("/later") == ["a-0"]
    frost.thaw.set()
    await second.ended(100)
    assert not world.told.dead_letters
    assert world.outside.results() == {("a-0", "r"): {"delivered"}}
    await asyncio.gather(first.stop(), second.stop())
