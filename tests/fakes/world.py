"""A whole relay in memory. Broker, state, receivers and senders outlive the process, which can die at any call."""

import asyncio
import json
from collections import defaultdict
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote, urlsplit

from relay.config.settings import Settings
from relay.domain.exchange import Exchange, NoResponse, Request, Response
from relay.domain.message import Message, message_headers
from relay.domain.receiver import Endpoint, Receiver, RetryPolicy, Source
from relay.domain.topics import Topics
from relay.engine.observer import SilentObserver
from relay.engine.patience import Patience
from relay.engine.recovery import Recovery
from relay.engine.supervisor import Supervisor
from relay.lanes import Lanes
from relay.log.port import NewRecord
from relay.plan import Plan
from tests.fakes.log import MemoryBroker, MemoryLog
from tests.fakes.state import MemoryState
from tests.fakes.virtual_time import LoopClock
from workers.to_receiver import Outside


class CrashError(Exception):
    """The process dies here."""


class Fuse:
    """Blows at its `blow_at`-th call (1-based; None: never): before the call has its effect, or after. Once it has
    blown, every call fails: the process is dead."""

    def __init__(self, blow_at: int | None, *, after: bool = False) -> None:
        self._blow_at = blow_at
        self._after = after
        self.calls = 0
        self.blown = False
        self.names: list[str] = []

    def before(self, name: str) -> None:
        if self.blown:
            raise CrashError(name)
        self.calls += 1
        self.names.append(name)
        if not self._after:
            self._blow(name)

    def after(self, name: str, number: int) -> None:
        if self._after and number == self._blow_at:
            self.blown = True
        if self.blown:
            raise CrashError(name)

    def _blow(self, name: str) -> None:
        if self.calls == self._blow_at:
            self.blown = True
            raise CrashError(name)


UNCOUNTED = frozenset({"poll", "close", "lost", "next_due", "take_due"})
"""Calls that change nothing and come all the time; a blown fuse fails them, too."""


class Fused:
    """A port whose calls pass a fuse."""

    def __init__(self, port: Any, fuse: Fuse, name: str) -> None:
        self._port = port
        self._fuse = fuse
        self._name = name

    def __getattr__(self, method: str) -> Any:
        real = getattr(self._port, method)
        if method == "consumer":
            return lambda *args: Fused(real(*args), self._fuse, "consumer")
        if not asyncio.iscoroutinefunction(real):
            return real

        async def call(*args: Any, **named: Any) -> Any:
            name = f"{self._name}.{method}"
            if method in UNCOUNTED and not self._fuse.blown:
                return await real(*args, **named)
            self._fuse.before(name)
            number = self._fuse.calls
            result = await real(*args, **named)
            self._fuse.after(name, number)
            return result

        return call


@dataclass
class Surroundings:
    """Receivers and senders. They never crash, and remember every POST before they answer it.

    Behaviour by the URL's path: /answer, /later (202, then an answer after two GETs), /fail (500 for ever),
    /flaky (500 once per message), /callback. `lose_response`: numbers of POSTs (1-based) whose response is lost.
    """

    posts: list[tuple[str, Mapping[str, str], bytes]] = field(default_factory=list)
    gets: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    lose_response: frozenset[int] = frozenset()
    down: set[str] = field(default_factory=set)

    async def start(self) -> None:
        return

    async def close(self) -> None:
        return

    async def exchange(self, request: Request) -> Exchange:
        await asyncio.sleep(0.01)
        path = urlsplit(request.url).path
        if path.split("/")[1] in self.down:
            return NoResponse("refused", "down", sent=False)
        return self._get(path) if request.method == "GET" else self._post(path, request)

    def _get(self, path: str) -> Response:
        _, where, message = path.split("/", 2)
        message = unquote(message)
        if message not in {headers["ce-id"] for at, headers, _ in self.posts if at == f"/{where}"}:
            return Response(404, {}, b"")
        self.gets[message] += 1
        if where == "later" and self.gets[message] < 2:
            return Response(202, {}, b"")
        return self._answer(message)

    def _post(self, path: str, request: Request) -> Exchange:
        headers = dict(request.headers)
        message = headers.get("ce-id", "")
        seen = sum(at == path and known.get("ce-id") == message for at, known, _ in self.posts)
        if path == "/flaky" and seen == 0 and f"flaked {message}" not in self.gets:
            self.gets[f"flaked {message}"] += 1
            return Response(500, {}, b"")
        if path == "/fail":
            return Response(500, {}, b"")
        self.posts.append((path, headers, request.body))
        if len(self.posts) in self.lose_response:
            return NoResponse("disconnected", "the response was lost", sent=True)
        if path == "/callback":
            return Response(204, {}, b"")
        return Response(202, {}, b"{}") if path == "/later" else self._answer(message)

    @staticmethod
    def _answer(message: str) -> Response:
        body = json.dumps({"built": message}).encode()
        return Response(200, {"content-type": "application/json"}, body)

    def arrived(self, path: str) -> list[str]:
        """Message ids in the order they arrived there."""
        return [headers["ce-id"] for at, headers, _ in self.posts if at == path]

    def results(self) -> dict[tuple[str, str], set[str]]:
        """(message, receiver) -> outcomes that reached the sender."""
        found: dict[tuple[str, str], set[str]] = defaultdict(set)
        for at, headers, _ in self.posts:
            if at == "/callback":
                found[headers["relay-message-id"], headers["relay-receiver"]].add(headers["relay-outcome"])
        return dict(found)


class Known:
    """Receivers and sources, as given."""

    def __init__(self, receivers: Sequence[Receiver], sources: Sequence[Source]) -> None:
        self._receivers = {receiver.name: receiver for receiver in receivers}
        self._sources = {source.source_id: source for source in sources}

    def receiver(self, name: str) -> Receiver | None:
        return self._receivers.get(name)

    def receivers(self) -> Mapping[str, Receiver]:
        return self._receivers

    def source(self, source_id: str) -> Source:
        return self._sources.get(source_id, Source(source_id, Endpoint("http://sender/callback")))

    def subscribers(self, source_id: str, event_type: str | None) -> tuple[str, ...]:
        return ()


class SilentReporter:
    def report_failure(
        self, receiver: str, reason: str, reason_class: str, stage: str, attempts: int, last_status: int | None
    ) -> None:
        return


class World:
    """What outlives a process, and how to run one. Settings of the relay under test in `settings`."""

    def __init__(self, receivers: Sequence[Receiver], *, settings: Settings | None = None) -> None:
        clock = LoopClock()
        self.clock = clock
        self.settings = settings or Settings(receivers_file="none")
        self.topics = Topics()
        self.broker = MemoryBroker(now_ms=lambda: int(clock.time() * 1000))
        self.state = MemoryState(clock=clock.monotonic, ready=False)
        self.outside = Surroundings()
        self.known = Known(receivers, [])
        dedicated = all(receiver.lane == "dedicated" for receiver in receivers)
        self._served = frozenset(receiver.name for receiver in receivers) if dedicated else None  # spares idle lanes

    async def create(self) -> None:
        log = MemoryLog(self.broker)
        await log.start()
        specs, groups = list(self.topics.fixed()), self.topics.fixed_groups()
        for receiver in self.known.receivers().values():
            specs += self.topics.of_receiver(receiver)
            if receiver.lane != "shared":
                groups |= self.topics.lane_groups(receiver.name)
        await log.create(specs, groups)

    async def send(self, *messages: Message) -> None:
        log = MemoryLog(self.broker)
        await log.start()
        topic = self.topics.from_sender
        await log.append([NewRecord(topic, m.source_id.encode(), m.payload, message_headers(m)) for m in messages])

    async def run(self, fuse: Fuse, seconds: float) -> None:
        """One process, for so long, then stopped cleanly; or until its fuse blows. Then its memory is gone."""
        client = MemoryLog(self.broker)
        log, state = Fused(client, fuse, "log"), Fused(self.state, fuse, "state")
        observer = SilentObserver()
        patience = Patience(self.clock, observer)
        outside = Outside(Fused(self.outside, fuse, "http"), self.clock, lambda: 0.5, "relay/test")
        lanes = Lanes(
            self.settings,
            Plan(receivers=self._served),
            self.known,
            log,
            state,
            outside,
            observer,
            patience,
            SilentReporter(),
        )
        recovery = Recovery(
            log,
            state,
            self.topics.parked(),
            self.clock,
            observer,
            patience,
            owner=f"process-{id(fuse)}",
            in_doubt_s=self.settings.dedup_window,
        )
        stop = asyncio.Event()
        try:
            async with asyncio.TaskGroup() as tasks:
                await client.start()
                healing = tasks.create_task(recovery.run())
                serving = tasks.create_task(Supervisor(lanes.wanted, _once()).run(stop))
                await asyncio.wait([serving, healing], timeout=seconds, return_when=asyncio.FIRST_EXCEPTION)
                stop.set()
                if not fuse.blown:
                    await serving
                healing.cancel()
        except* CrashError:
            pass
        finally:
            client.crash()


async def _once() -> AsyncIterator[int]:
    yield 0
    await asyncio.Event().wait()


def receiver(
    name: str, path: str, *, status: bool = False, ordering: Any = "source", lane: Any = "dedicated", **retry: Any
) -> Receiver:
    """A receiver at one of the world's paths, with quick retries."""
    policy = RetryPolicy(**({"base": 1.0, "factor": 2.0, "cap": 8.0, "max_attempts": 4, "jitter": False} | retry))
    return Receiver(
        name,
        Endpoint(f"http://{name}{path}", retry=policy),
        status_endpoint=f"http://{name}{path}/{{message_id}}" if status else None,
        ordering=ordering,
        lane=lane,
    )


def message(number: int, source: str, *receivers: str) -> Message:
    """A message whose payload tells which one it is."""
    payload = json.dumps({"n": number, "source": source}).encode()
    return Message(source, f"{source}-{number}", receivers, "push", None, "application/json", payload)
