"""Failpoints around every call of a port, at which a process can be killed or frozen, or the call can fail.

A point is `<port>.<method>.<before|after>`: `state.settle.after` is passed when the state has stored the outcome, and
the process does not know that yet. Requests to the outside are `http.post` and `http.get`. The armed point is given as
`name:n:action`: at the n-th passing (1-based) of that point by this process. `log.append.before@failed_messages` counts
only the appends with a record for that topic (whatever prefix it has), `log.append.after@tombstone` those with a record
that has no value.
"""

import asyncio
import json
import os
import signal
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from inspect import iscoroutinefunction
from pathlib import Path
from typing import Any, Final, Literal, cast, get_args, get_type_hints

from relay.delivery.port import Transport
from relay.domain.errors import LogUnavailable, StateUnavailable, Unavailable
from relay.domain.exchange import Exchange, NoResponse, Request
from relay.log.port import Consumer, Coordinate, Log, NewRecord, Subscription
from relay.state.port import State

Action = Literal["kill", "pause", "error"]

PORTS: Final[dict[str, type]] = {"log": Log, "consumer": Consumer, "state": State, "http": Transport}

WITHOUT_EFFECT: Final = frozenset(
    {
        "log.start",
        "log.close",
        "log.consumer",  # makes one; its calls are points of their own
        "log.describe",
        "log.scan",
        "log.follow",
        "consumer.pause",
        "consumer.subscribe",
        "consumer.resume",
        "consumer.waits_for",
        "consumer.confirm",
        "state.start",
        "state.close",
        "state.messages",
        "state.next_due",
        "state.epochs",
        "state.parked",
        "state.parked_total",
        "state.parked_results",
        "state.lost",
        "state.forgotten",
        "state.outdated",
        "state.endpoints",
        "state.failed",
        "state.failed_receivers",
        "state.hints",  # without a hint, callers look each second
        "http.start",
        "http.close",
        "http.exchange",  # goes through send
    }
)
"""Methods that change nothing, and on which no step depends: a crash there is the same as one before the next call."""

SENDS: Final = "http.send"
"""Stands for one method per kind of request."""

UNFAILING: Final = frozenset({"consumer.close.before", "consumer.close.after", "consumer.poll.after"})
"""Calls that cannot fail here: `close` never raises, and records that a poll has taken would be lost."""

APPEND: Final = "log.append"
"""Its points can be limited to certain records."""
TOMBSTONE: Final = "tombstone"

KILLED: Final = 137
NOT_SENT: Final = NoResponse("refused", "failpoint", sent=False)
LOST: Final = NoResponse("disconnected", "failpoint", sent=True)


def methods_of(port: type) -> set[str]:
    """The public methods of a port and its bases."""
    members = ((name, getattr(port, name)) for name in dir(port) if not name.startswith("_"))
    return {name for name, member in members if callable(member)}


def _points() -> Iterable[str]:
    requests = get_args(get_type_hints(Request)["method"])
    for port, protocol in PORTS.items():
        for method in sorted(methods_of(protocol)):
            call = f"{port}.{method}"
            if call == SENDS:
                yield from (f"http.{kind.lower()}" for kind in requests)
            elif call not in WITHOUT_EFFECT and iscoroutinefunction(getattr(protocol, method)):
                yield call


POINTS: Final = tuple(f"{call}.{when}" for call in _points() for when in ("before", "after"))


@dataclass(frozen=True, slots=True)
class Failpoint:
    """`action` at the `nth` passing (1-based) of the point `name`."""

    name: str
    nth: int
    action: Action


def parse(text: str) -> Failpoint:
    """From `name:n:action`. Raises ValueError."""
    name, _, rest = text.partition(":")
    number, _, action = rest.partition(":")
    point, narrowed, _ = name.partition("@")
    if point not in POINTS:
        raise ValueError(f"{text!r}: there is no point {point!r}; known: {', '.join(POINTS)}")
    if narrowed and not point.startswith(f"{APPEND}."):
        raise ValueError(f"{text!r}: only appends are told apart by what is appended")
    if not number.isdecimal() or int(number) < 1:
        raise ValueError(f"{text!r}: {number!r} is no number from 1 on")
    if action not in get_args(Action):
        raise ValueError(f"{text!r}: {action!r} is none of {', '.join(get_args(Action))}")
    if action == "error" and point in UNFAILING:
        raise ValueError(f"{text!r}: that call cannot fail there")
    return Failpoint(name, int(number), cast(Action, action))


def die() -> None:
    """Ends the process like SIGKILL, with an exit code of its own: nothing is flushed or closed."""
    os._exit(KILLED)


def freeze() -> None:
    """Stops the process until it gets SIGCONT."""
    os.kill(os.getpid(), signal.SIGSTOP)


class Failpoints:
    """Counts the points that a process passes, and acts at the armed one."""

    def __init__(
        self, armed: Failpoint | None = None, *, die: Callable[[], None] = die, freeze: Callable[[], None] = freeze
    ) -> None:
        self.passed: Counter[str] = Counter()
        self._armed = armed
        self._actions = {"kill": die, "pause": freeze}

    def fails(self, name: str) -> bool:
        """Pass the point `name`. True if the call has to fail."""
        self.passed[name] += 1
        armed = self._armed
        if armed is None or armed.name != name or armed.nth != self.passed[name]:
            return False
        if armed.action == "error":
            return True
        self._actions[armed.action]()
        return False

    def write(self, path: Path) -> None:
        """Append a line with the counts of points; several processes may share the file."""
        line = json.dumps({"pid": os.getpid(), "passed": self.passed}) + "\n"
        with path.open("ab", buffering=0) as file:
            file.write(line.encode())


def read_counts(path: Path) -> Counter[str]:
    """How often each point was passed by all processes that wrote to `path`."""
    lines = path.read_text().splitlines() if path.exists() else []
    return sum((Counter(json.loads(line)["passed"]) for line in lines), Counter[str]())


# --- wrappers ---------------------------------------------------------------------------------------------------


def pointed_log(log: Log, failpoints: Failpoints) -> Log:
    """`log` and its consumers, with their points."""
    return cast(Log, _PointedLog(log, "log", failpoints, LogUnavailable))


def pointed_state(state: State, failpoints: Failpoints) -> State:
    return cast(State, _Pointed(state, "state", failpoints, StateUnavailable))


class _Pointed:
    """A port whose calls pass their points. Other attributes are the port's own."""

    def __init__(self, port: object, name: str, failpoints: Failpoints, error: type[Unavailable]) -> None:
        self._port = port
        self._name = name
        self._failpoints = failpoints
        self._error = error

    def __getattr__(self, method: str) -> Any:
        real = getattr(self._port, method)
        if f"{self._name}.{method}.before" not in POINTS:
            return real
        call = partial(self._call, f"{self._name}.{method}", real)
        setattr(self, method, call)  # later look-ups find the attribute directly
        return call

    async def _call(self, name: str, real: Callable[..., Any], *args: Any, **named: Any) -> Any:
        self._pass(f"{name}.before")
        result = await real(*args, **named)
        self._pass(f"{name}.after")
        return result

    def _pass(self, point: str) -> None:
        if self._failpoints.fails(point):
            raise self._error(f"failpoint {point}")


class _PointedLog(_Pointed):
    async def append(self, records: Sequence[NewRecord]) -> list[Coordinate]:
        """Passes its points, also those limited to the kinds of these records."""
        kinds = sorted(
            {record.topic.rpartition("-")[2] for record in records}
            | {TOMBSTONE for record in records if record.value is None}
        )
        self._pass_all(f"{APPEND}.before", kinds)
        at: list[Coordinate] = await self._port.append(records)  # type: ignore[attr-defined]
        self._pass_all(f"{APPEND}.after", kinds)
        return at

    def _pass_all(self, point: str, kinds: Sequence[str]) -> None:
        for each in (point, *(f"{point}@{kind}" for kind in kinds)):
            self._pass(each)

    def consumer(self, subscription: Subscription, *callbacks: Any) -> Consumer:
        consumer = self._port.consumer(subscription, *callbacks)  # type: ignore[attr-defined]
        return cast(Consumer, _Pointed(consumer, "consumer", self._failpoints, LogUnavailable))


class PointedTransport(Transport):
    """A transport whose requests pass their points. A request that fails was not sent (before), or its response is lost
    (after)."""

    def __init__(self, transport: Transport, failpoints: Failpoints) -> None:
        self._transport = transport
        self._failpoints = failpoints

    async def start(self) -> None:
        await self._transport.start()

    async def close(self) -> None:
        await self._transport.close()

    def send(self, request: Request, done: Callable[[Exchange], None]) -> None:
        call = f"http.{request.method.lower()}"
        if self._failpoints.fails(f"{call}.before"):
            asyncio.get_running_loop().call_soon(done, NOT_SENT)
        else:
            self._transport.send(request, partial(self._answered, f"{call}.after", done))

    def _answered(self, point: str, done: Callable[[Exchange], None], exchange: Exchange) -> None:
        done(LOST if self._failpoints.fails(point) else exchange)
