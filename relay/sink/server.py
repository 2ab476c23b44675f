"""Base of the test receivers: an HTTP server on loopback, records that a test can wait for, and control over HTTP:
GET and PATCH /behaviour, GET /received."""

import asyncio
from abc import abstractmethod
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import asdict, fields
from typing import Any, ClassVar, Final, Protocol, TypeVar

import msgspec
from aiohttp import ClientSession, web

from relay.domain.errors import UserError
from relay.domain.json_pointer import NOT_JSON
from relay.sink.arrival import Poll, ReceivedPost
from relay.sink.behaviour import Behaviour
from relay.sink.builds import CiBehaviour

_REMEMBERED: Final = 100_000
"""Maximum number of records of each kind; older ones are dropped, so that a test receiver can run for days."""
T = TypeVar("T")


class LocalServer:
    """An HTTP server that can be stopped and started again, also on the same port. `stopping` is set by `stop`, which
    also cancels what `begin` has begun. `advice`: what to do if the address is not available. `ends_with_client`:
    whether a request is cancelled when its client has left."""

    advice: ClassVar = "try another --host or --port"
    ends_with_client: ClassVar = True

    def __init__(self) -> None:
        self.stopping = asyncio.Event()
        self.tasks: set[asyncio.Task[Any]] = set()
        self._runner: web.AppRunner | None = None
        self._session: ClientSession | None = None
        """For requests of its own, if it makes any."""
        self._address = ("127.0.0.1", 0)
        self._changed = asyncio.Event()

    @abstractmethod
    def app(self) -> web.Application:
        """The web application."""

    async def start(self, host: str = "127.0.0.1", port: int = 0) -> None:
        """Listen; port 0 selects a free one. Raises UserError if the address is not available."""
        self.stopping.clear()
        self._runner = web.AppRunner(
            self.app(), access_log=None, handler_cancellation=self.ends_with_client, shutdown_timeout=1.0
        )
        await self._runner.setup()
        try:
            await web.TCPSite(self._runner, host, port).start()
        except (OSError, UnicodeError) as error:
            await self._runner.cleanup()
            # the text of asyncio begins with the address, as a tuple
            why = str(getattr(error, "strerror", None) or error).rpartition(": ")[2]
            raise UserError(f"cannot listen on {host}:{port}: {why}; {self.advice}") from error
        self._address = (host, self._runner.addresses[0][1])

    async def stop(self) -> None:
        """Stop listening, and drop requests and tasks in progress. May be called twice."""
        self.stopping.set()
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        if self._session is not None:
            await self._session.close()

    @property
    def port(self) -> int:
        return self._address[1]

    @property
    def origin(self) -> str:
        host, port = self._address
        return f"http://{f'[{host}]' if ':' in host else host}:{port}"

    def begin(self, work: Coroutine[Any, Any, object]) -> None:
        """Runs `work` beside the requests."""
        task = asyncio.create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    def note(self, records: list[T], record: T) -> None:
        records.append(record)
        if len(records) > 2 * _REMEMBERED:
            del records[:-_REMEMBERED]
        self._changed.set()

    async def until(self, condition: Callable[[], bool], timeout_s: float) -> None:
        """Wait until `condition`, evaluated after each record, is true. Raises TimeoutError."""
        async with asyncio.timeout(timeout_s):
            while not condition():
                self._changed.clear()
                await self._changed.wait()

    async def noted(self, records: list[T], count: int, timeout_s: float = 30.0) -> list[T]:
        """`records`, once there are `count` of them. Raises TimeoutError."""
        await self.until(lambda: len(records) >= count, timeout_s)
        return records


class ReceivingServer(LocalServer):
    """A server that records POSTs and status GETs. `on_arrival` is called for each POST."""

    def __init__(self, on_arrival: Callable[[ReceivedPost], None] | None) -> None:
        super().__init__()
        self.received: list[ReceivedPost] = []
        self.polls: list[Poll] = []
        self._on_arrival = on_arrival

    def arrived(self, arrival: ReceivedPost) -> None:
        self.note(self.received, arrival)
        if self._on_arrival is not None:
            self._on_arrival(arrival)

    async def wait_for(self, count: int, timeout_s: float = 30.0) -> list[ReceivedPost]:
        """All POSTs, once there are `count` of them. Raises TimeoutError."""
        return await self.noted(self.received, count, timeout_s)


def as_json(status: int, value: object) -> web.Response:
    return web.Response(status=status, body=msgspec.json.encode(value), content_type="application/json")


# --- control ------------------------------------------------------------------------------------------------------


ROUTES: Final = frozenset({"/behaviour", "/received"})
B = TypeVar("B", Behaviour, CiBehaviour)
_SHOWN: Final = 100
_NAMED: Final = ("source_id", "message_id", "webhook_id", "attempt", "generation")
_BOUNDS: Final[Mapping[str, tuple[float, float]]] = {
    "delay_s": (0, 3600),
    "fail_rate": (0, 1),
    "fail_status": (200, 599),
    "fail_first": (0, 10**9),
    "retry_after": (0, 10**9),
    "later_polls": (0, 10**9),
    "answer_after_s": (0, 10**9),
    "answer_size": (0, 32 * 1024 * 1024),
    "queued_polls": (0, 10**9),
    "running_polls": (0, 10**9),
    "poll_status": (200, 599),
}


class Controlled(Protocol[B]):
    """The part of a sink or emulator that can be inspected and changed over HTTP."""

    received: list[ReceivedPost]

    @property
    def behaviour(self) -> B: ...

    def behave(self, behaviour: B) -> None: ...


def changed(behaviour: B, body: bytes) -> B:
    """`behaviour` with the fields in `body`, a JSON object, replaced. Raises UserError."""
    try:
        wanted = msgspec.json.decode(body, type=dict[str, Any])
        names = sorted(field.name for field in fields(behaviour))
        if unknown := sorted(wanted.keys() - set(names)):
            raise UserError(f"{unknown[0][:40]!r} is none of {', '.join(names)}")
        found = msgspec.convert(asdict(behaviour) | wanted, type(behaviour))
    except NOT_JSON as error:
        raise UserError(str(error)) from error
    for name, (least, most) in _BOUNDS.items():
        value = getattr(found, name, None)
        if value is not None and not least <= value <= most:
            raise UserError(f"{name} is {value}; allowed: {least} to {most}")
    return found


def received_view(received: Sequence[ReceivedPost]) -> dict[str, Any]:
    """The newest arrivals, newest first, and the total numbers of POSTs and messages."""
    shown = [
        {
            **{name: getattr(arrival, name) for name in _NAMED},
            "answered": arrival.status or arrival.met,
            "verified": arrival.verified,
            "body": arrival.body[:1024].decode(errors="replace"),
            **({} if arrival.payload is None else {"payload": arrival.payload[:1024].decode(errors="replace")}),
        }
        for arrival in reversed(received[-_SHOWN:])
    ]
    messages = {(arrival.source_id, arrival.message_id) for arrival in received}
    return {"posts": len(received), "messages": len(messages), "items": shown}


def add_control(app: web.Application, sink: Controlled[B]) -> None:
    """Add the control routes, without authentication: the sink is for tests, and listens on loopback by default."""

    async def behaviour(_: web.Request) -> web.Response:
        return as_json(200, asdict(sink.behaviour))

    async def change(request: web.Request) -> web.Response:
        if request.content_type != "application/json":  # a web page cannot send that cross-origin without a preflight
            return as_json(415, {"error": "the content type has to be application/json"})
        try:
            sink.behave(changed(sink.behaviour, await request.read()))
        except UserError as error:
            return as_json(400, {"error": str(error)})
        return as_json(200, asdict(sink.behaviour))

    async def received(_: web.Request) -> web.Response:
        return as_json(200, received_view(sink.received))

    app.router.add_get("/behaviour", behaviour)
    app.router.add_patch("/behaviour", change)
    app.router.add_get("/received", received)
