"""Experiments about where messages and results go, in memory."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from urllib.parse import urlsplit

from relay.domain.exchange import Exchange, Request
from relay.domain.message import Message
from relay.domain.receiver import Endpoint, Receiver, Source
from relay.domain.scope import Access, Scope
from tests.fakes.strikes import Fuse
from tests.fakes.surroundings import Surroundings
from tests.fakes.world import World, message, receiver
from tests.faults.simulation.lacking import Configured

ANSWERED = {"answered"}


class _ByHost(Surroundings):
    """Counts results by the host that they came to, and their source."""

    def __init__(self) -> None:
        super().__init__()
        self.results_at: Counter[tuple[str | None, str]] = Counter()

    def send(self, request: Request, done: Callable[[Exchange], None]) -> None:
        if request.url.endswith("/callback"):
            self.results_at[urlsplit(request.url).hostname, dict(request.headers)["relay-source"]] += 1
        super().send(request, done)


async def _results(
    receivers: Sequence[Receiver], *messages: Message, world: World | None = None
) -> Mapping[tuple[str, str], set[str]]:
    world = await (world or World(receivers)).create()
    await world.send(*messages)
    await world.run(Fuse(), 20)
    return world.outside.results()


async def a_message_for_many_receivers() -> None:
    names = [f"r{number}" for number in range(5)]
    found = await _results([receiver(name, "/answer") for name in names], message(0, "a", *names))
    assert found == {("a-0", name): ANSWERED for name in names}


async def a_source_that_names_a_receiver_of_another() -> None:
    receivers = [receiver("r", "/answer"), replace(receiver("own", "/own"), senders=("b",))]
    found = await _results(receivers, message(0, "a", "r", "own"), message(0, "b", "own"))
    assert found == {("a-0", "r"): ANSWERED, ("a-0", "own"): {"failed"}, ("b-0", "own"): ANSWERED}


async def a_process_that_lacks_a_secret() -> None:
    world = await World([receiver("r", "/answer"), receiver("x", "/answer")]).create()
    await world.send(message(0, "a", "r", "x"))
    process = Configured(world, Fuse(), {"x"})
    await process.ended(20)
    assert world.outside.results() == {("a-0", "r"): ANSWERED}
    process.learn()
    await process.stop(after=20)
    assert world.outside.results() == {("a-0", name): ANSWERED for name in "rx"}


async def two_sources_with_a_callback_each() -> None:
    sources = [Source(name, Endpoint(f"http://{name}/callback")) for name in "ab"]
    world = World([receiver("r", "/answer")], sources=sources)
    world.outside = outside = _ByHost()
    await _results([], *(message(number, name, "r") for number in range(3) for name in "ab"), world=world)
    assert outside.results_at == {("a", "a"): 3, ("b", "b"): 3}


async def a_key_that_is_used_for_another_source() -> None:
    key = Access("key", frozenset({Scope("ingest", "a"), Scope("read", "a*")}))
    assert key.may("ingest", "a")
    assert key.may("read", "ab")
    assert not key.may("ingest", "b")
    assert not key.may("read", "b")
