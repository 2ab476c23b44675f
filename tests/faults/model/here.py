"""Shared by all worlds: the workers, and their ports to the world that is being searched.

Ports answer one call at a time: a command in flight is started again for each of its calls, and gets the earlier
answers. So it can be copied, and a crash can happen between any two calls.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar

from relay.config.settings import Settings
from relay.delivery.port import Transport
from relay.domain.exchange import Exchange, Request
from relay.domain.timing import Timing
from relay.domain.topics import Topics
from relay.engine.decision import Later
from relay.engine.effects import Effects
from relay.engine.holding import Holding
from relay.engine.observer import Observer
from relay.engine.request_limiter import RequestLimiter
from relay.engine.supervision import Retrier
from relay.engine.work import Worker
from relay.log.partitioner import place_of
from relay.log.port import TopicPartition
from tests.fakes.log import MemoryLog
from tests.fakes.world import Known, receiver
from workers.dependencies import Dependencies
from workers.from_sender import FromSender
from workers.records import Letters
from workers.to_receiver import ToReceiver
from workers.to_sender import ToSender

if TYPE_CHECKING:
    from tests.faults.model.world import World

T = TypeVar("T")

Role = Literal["from_sender", "to_receiver", "to_sender"]

TOPICS: Final = Topics()
SETTINGS: Final = Settings(receivers_file="none")
HOLD_S: Final = 5.0
"""Longer waits are parked."""
HELD_S: Final = 1.0
PARKED_S: Final = 8.0
TOKEN: Final = b"token-"
"""What every attempt token begins with."""


class Here:
    """The world that is being looked at."""

    world: "World"

    def monotonic(self) -> float:
        return self.world.now

    time = wall = monotonic

    def now_ms(self) -> int:
        return int(self.world.now * 1000)

    async def sleep(self, seconds: float) -> None:
        await asyncio.Event().wait()  # a task that sleeps here is cancelled in the end

    async def wait(self, event: asyncio.Event, seconds: float | None) -> None:
        await event.wait()

    def random(self, count: int) -> bytes:
        tokens = []
        for _ in range(count // 8):
            self.world.tokens += 1
            tokens.append(TOKEN + self.world.tokens.to_bytes(2, "big"))
        return b"".join(tokens)


HERE: Final = Here()


class NextCall(BaseException):
    """A command wants to make a call more than it may now."""


class Died(BaseException):
    """The process ended in the midst of a call."""


class _Calls:
    """The calls of the command that is being carried on: `known` are answered already, `left` may be made now."""

    def __init__(self) -> None:
        self.begin([])

    def begin(self, known: list[Any], left: int = 1_000, times: int = 1, part: int | None = None) -> None:
        """`times`: each call is made so often, as a client library does that lost an answer. `part`: of its items only
        so many get through, and then the process is dead."""
        self.known, self.left, self.times, self.part = known, left, times, part
        self._position = 0

    async def make(self, method: Callable[..., Awaitable[T]], arguments: tuple[Any, ...], named: dict[str, Any]) -> T:
        self._position += 1
        if self._position <= len(self.known):
            known: T = self.known[self._position - 1]
            return known
        if not self.left:
            raise NextCall
        self.left -= 1
        if self.part is not None:
            await method(arguments[0][: self.part], *arguments[1:], **named)
            raise Died
        for _ in range(self.times - 1):
            await method(*arguments, **named)
        reply = await method(*arguments, **named)
        self.known.append(reply)
        return reply


CALLS: Final = _Calls()


class _Port:
    """A port of the world that is being looked at."""

    def __init__(self, implementation: Callable[[], Any]) -> None:
        self._implementation = implementation

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]:
        async def call(*arguments: Any, **named: Any) -> Any:
            return await CALLS.make(getattr(self._implementation(), name), arguments, named)

        return call


class _LogPort(_Port):
    async def scan(self, *arguments: Any, **named: Any) -> AsyncIterator[Any]:
        """One call."""

        async def all_of(*arguments: Any, **named: Any) -> list[Any]:
            return [batch async for batch in self._implementation().scan(*arguments, **named)]

        for batch in await CALLS.make(all_of, arguments, named):
            yield batch


def finished(call: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine that never waits."""
    try:
        while True:
            call.send(None)
    except StopIteration as end:
        result: T = end.value
        return result


def client() -> MemoryLog:
    """Of the world's broker."""
    log = MemoryLog(HERE.world.broker)
    finished(log.start())
    return log


STATE: Final[Any] = _Port(lambda: HERE.world.state)
LOG: Final[Any] = _LogPort(client)
OBSERVER: Final = Observer()
PATIENCE: Final = Retrier(HERE, OBSERVER)


def effects() -> Effects:
    """What carries a command out; made anew for each, as it remembers things for a second."""
    return Effects(LOG, STATE, HERE, PATIENCE, Holding(LOG, STATE, TOPICS.receiver_config), TOPICS.parked())


class _Requests(Transport):
    """Keeps the request that was just put."""

    def __init__(self) -> None:
        self.put: list[Request] = []

    async def start(self) -> None:
        return

    async def close(self) -> None:
        return

    def send(self, request: Request, done: Callable[[Exchange], None]) -> None:
        self.put.append(request)


class _NeverShort(RequestLimiter):
    """Of a process that has all that it needs: it remembers nothing from one world to the next."""

    def heard(self, party: str, url: str, exchange: Exchange) -> Later | None:
        return None


REQUESTS: Final = _Requests()
_OUTSIDE: Final = Dependencies(REQUESTS, HERE, lambda: 0.5, "relay/model", request_limiter=_NeverShort(HERE))


class Cast:
    """The workers, for one kind of receiver. `asked`: it has a status endpoint. `parks`: failed messages wait for
    longer than any is held in memory. `names`: each message is for all of them; only FromSender serves a second one
    here, because lanes do not affect each other. `timings`: of the messages that have one."""

    def __init__(
        self,
        *,
        asked: bool = True,
        parks: bool = False,
        names: tuple[str, ...] = ("r",),
        timings: Mapping[int, Timing] | None = None,
    ) -> None:
        self.names, self.timings = names, timings or {}
        pause_s = PARKED_S if parks else HELD_S
        retry: dict[str, Any] = {"base": pause_s, "factor": 1.0, "cap": pause_s, "max_attempts": 1_000}
        known = Known([receiver(name, "/answer", status=asked, failures=1_000, **retry) for name in names], [])
        letters = Letters(TOPICS, HERE)
        most = SETTINGS.max_payload_bytes
        self.workers: dict[Role, Worker[Any]] = {
            "from_sender": FromSender(TOPICS, known, STATE, letters, _OUTSIDE, max_payload_bytes=most, moves=known),
            "to_receiver": ToReceiver(TOPICS, known, STATE, letters, _OUTSIDE, known),
            "to_sender": ToSender(known, STATE, letters, _OUTSIDE),
        }
        self.shared = {id(each): each for each in (*self.workers.values(), known, letters)}


SOURCE: Final = "a"
LANES: Final[dict[Role, TopicPartition]] = {
    "from_sender": TopicPartition(TOPICS.from_sender, place_of(SOURCE.encode(), 0, 10)),
    "to_receiver": TopicPartition(TOPICS.to_receiver("r"), 0),
    "to_sender": TopicPartition(TOPICS.to_sender, place_of(SOURCE.encode(), 0, 10)),
}
"""What each of them reads here."""
SECOND: Final = TopicPartition(TOPICS.to_receiver("q"), 0)
"""The lane of a second receiver, which no worker reads."""
SPECS: Final = {spec.name: spec for spec in (*TOPICS.fixed(), *TOPICS.lane_specs("r", 1), *TOPICS.lane_specs("q", 1))}
