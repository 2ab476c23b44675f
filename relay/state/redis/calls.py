"""One script call for all hash tags of a batch that a server has, on a connection whose memory is known."""

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Sequence
from copy import copy
from functools import partial
from typing import Any, Final, TypeVar

import msgspec
from redis.exceptions import NoScriptError, ResponseError

from relay.domain.errors import StateRecovering, StateUnavailable
from relay.state.port import HintTopic
from relay.state.redis.connection import Command, Node, unix_seconds
from relay.state.redis.script import Script, script, script_names
from relay.state.redis.servers import Servers
from relay.state.redis.shared import Connections, Part, SharedConnection
from relay.state.replies import Fenced, Refusal, answered, refused
from relay.state.rows import TAGS

T = TypeVar("T")
Reply = list[T] | bool | ResponseError
"""An error only where each tag has a call of its own."""
Decode = Callable[[bytes], list[list[T] | bool]]
"""Of a reply: for each part what the script says, False where its tag is not ready, True where its lane is fenced."""

_encode = msgspec.msgpack.Encoder().encode
_decode_texts: Decode[str] = msgspec.msgpack.Decoder(list[list[str] | bool]).decode
_NEWER: Final = (
    "a newer release wrote what Redis holds, in a form that this one cannot read: start the newer release again, or see"
    " docs/upgrading.md"
)


class ScriptCalls:
    """Runs scripts. `clock`: Unix seconds; None, as in production, stands for the server's own clock.

    `prefix` goes before every key. The hash tag keeps all keys of a tag in one slot of a cluster.
    """

    def __init__(self, servers: Servers, prefix: str, window_s: float, clock: Callable[[], float] | None) -> None:
        self._servers = servers
        self._keys = [f"{prefix}relay:{{{tag:02d}}}:".encode() for tag in range(TAGS)]
        self._window_ms = round(window_s * 1000)
        self._clock = clock
        self._scripts = {name: script(name) for name in script_names()}
        self._passes: dict[int, str] = {}
        self.forgotten: frozenset[int] = frozenset()
        """Of the tags that `lost` told of last, those whose memory is gone, or may lack its end."""
        self._joints: dict[tuple[str, Connections], _Joint] = {}  # what is asked for in this turn of the loop
        self._making: set[asyncio.Task[None]] = set()

    @property
    def spare_key(self) -> bytes:
        """One that no script uses."""
        return self._keys[0] + b"rights"

    def channels(self, about: HintTopic) -> list[bytes]:
        """Where the scripts publish hints: `hint` in `_raising.lua`, `wake` in `_endpoints.lua`."""
        name = {"ends": b"hints", "endpoints": b"wakes"}[about]
        return [key + name for key in self._keys]

    async def tell(self, name: str, parts: Sequence[Part], decode: Decode[T]) -> list[list[T] | Refusal]:
        """What script `name` says of each part, or why it says nothing."""
        if not parts:
            return []
        replies = await self._servers.ask(parts, partial(self._join, name, decode))
        return [_told(tag, reply) for (tag, _), reply in zip(parts, replies, strict=True)]

    async def run(self, name: str, parts: Sequence[Part], decode: Decode[T]) -> list[list[T]]:
        """What script `name` says of each part. Raises as `answered` does; the other parts were served."""
        return await answered(self.tell(name, parts, decode))

    async def time(self) -> float:
        """Unix seconds; of several servers the one that has the first tag is asked. Raises StateUnavailable."""
        if self._clock is not None:
            return self._clock()
        (reply,) = await self._servers.ask([(0, b"")], _ask_time)
        if isinstance(reply, Exception):
            raise reply
        return float(reply)

    def _join(
        self, name: str, decode: Decode[T], connections: Connections, parts: Sequence[Part]
    ) -> Awaitable[list[Any]]:
        """The replies of one server to `parts`, in their order."""
        joint = self._joints.get((name, connections))
        if joint is None:
            joint = self._joints[name, connections] = _Joint()
            making = asyncio.create_task(self._make(name, connections, joint, decode))
            self._making.add(making)
            making.add_done_callback(self._making.discard)
        return joint.join(parts)

    async def lost(self) -> frozenset[int]:
        """Tags that are not ready; their recovery pass is known from here on, for `pass_of` and `ready`.

        Those of a server that is away are left out, as long as another one answers: nothing can be done for them yet,
        and the others need not wait. Whoever asks about them later is told StateRecovering, or StateUnavailable.
        """
        mine = secrets.token_hex(16).encode()
        replies = await self.tell("lost", [(tag, mine) for tag in range(TAGS)], _decode_texts)
        found = {tag: reply for tag, reply in enumerate(replies) if isinstance(reply, list)}
        if not found:
            raise refused([reply for reply in replies if not isinstance(reply, list)])
        if any(told == "newer" for _, told in found.values()):
            raise StateUnavailable(_NEWER)
        self._passes = {tag: name for tag, (name, _) in found.items() if name}
        self.forgotten = frozenset(tag for tag, (name, lossy) in found.items() if name and lossy)
        return frozenset(self._passes)

    def pass_of(self, tag: int) -> str:
        """Name of the recovery pass that `lost` has found or begun for `tag`; "" for none."""
        return self._passes.get(tag, "")

    async def _make(self, name: str, connections: Connections, joint: "_Joint", decode: Decode[T]) -> None:
        """Make the call when this turn of the loop is over."""
        await asyncio.sleep(0)
        del self._joints[name, connections]
        try:
            found = self._scripts[name]
            joint.tell(await connections.use(lambda shared: self._on(shared, found, joint.parts, decode)))
        except Exception as error:  # noqa: BLE001  told to each of those who asked
            joint.fail(error)

    async def _on(
        self, shared: SharedConnection, found: Script, parts: Sequence[Part], decode: Decode[T]
    ) -> list[Reply[T]]:
        before = shared.node
        replies = await self._evaluate(shared, found, parts, decode)
        not_ready = [n for n, reply in enumerate(replies) if reply is False]
        if not_ready:
            if shared.node == before:
                await shared.identify()
            if shared.node != before:
                again = await self._evaluate(shared, found, [parts[n] for n in not_ready], decode)
                for n, reply in zip(not_ready, again, strict=True):
                    replies[n] = reply
        return replies

    async def _evaluate(
        self, shared: SharedConnection, found: Script, parts: Sequence[Part], decode: Decode[T]
    ) -> list[Reply[T]]:
        common, apart = self._common(shared.node), self._servers.apart
        groups: Sequence[Sequence[int]] = _by_tag(parts) if apart else [range(len(parts))]
        calls = [self._call(found, common, [parts[n] for n in group]) for group in groups]
        answers = await shared.exchange(calls)
        missing = [n for n, answer in enumerate(answers) if isinstance(answer, NoScriptError)]
        if missing:
            _, *again = await shared.exchange([(b"SCRIPT", b"LOAD", found.source), *(calls[n] for n in missing)])
            for n, answer in zip(missing, again, strict=True):
                answers[n] = answer
        replies: dict[int, Reply[T]] = {}
        for group, answer in zip(groups, answers, strict=True):
            if isinstance(answer, bytes):
                replies.update(zip(group, decode(answer), strict=True))
            elif isinstance(answer, ResponseError) and apart:
                replies.update(dict.fromkeys(group, answer))
            else:
                raise answer if isinstance(answer, ResponseError) else TypeError(f"a script replied {answer!r}")
        return [replies[n] for n in range(len(parts))]

    def _call(self, found: Script, common: bytes, parts: Sequence[Part]) -> Command:
        keys = [self._keys[tag] for tag, _ in parts]
        return (b"EVALSHA", found.sha, b"%d" % len(keys), *keys, common, *(told for _, told in parts))

    def _common(self, node: Node) -> bytes:
        """What a script is told for all tags."""
        clock_us = round(self._clock() * 1e6) if self._clock else 0
        # Where a replica may stand in, a restart cannot be told from a fail-over that a restart followed.
        durable = node.durable and not self._servers.replicated
        return _encode((node.id, clock_us, self._window_ms, durable))


def _by_tag(parts: Sequence[Part]) -> list[list[int]]:
    """The numbers of the parts of each tag."""
    numbers: dict[int, list[int]] = {}
    for n, (tag, _) in enumerate(parts):
        numbers.setdefault(tag, []).append(n)
    return list(numbers.values())


def _told(tag: int, reply: list[T] | bool | StateUnavailable) -> list[T] | Refusal:
    if isinstance(reply, bool):
        return Fenced() if reply else StateRecovering(frozenset({tag}))
    return reply


async def _ask_time(connections: Connections, _parts: Sequence[Part]) -> list[Any]:
    return [await connections.use(_time_on)]


async def _time_on(shared: SharedConnection) -> float:
    (reply,) = await shared.exchange([(b"TIME",)])
    return unix_seconds(reply)


class _Joint:
    """Calls of one script that tasks ask for in the same turn of the loop: one call does for them all.

    A call costs the server and us as much as several rows; at full speed a dozen lanes ask at once.
    """

    def __init__(self) -> None:
        self.parts: list[Part] = []
        self._callers: list[tuple[asyncio.Future[list[Any]], int]] = []

    async def join(self, parts: Sequence[Part]) -> list[Any]:
        """The replies to `parts`, in their order."""
        self.parts += parts
        told: asyncio.Future[list[Any]] = asyncio.get_running_loop().create_future()
        self._callers.append((told, len(parts)))
        return await told

    def tell(self, replies: Sequence[object]) -> None:
        start = 0
        for told, count in self._callers:
            if not told.done():
                told.set_result(list(replies[start : start + count]))
            start += count

    def fail(self, error: Exception) -> None:
        """Each caller gets an error of its own: one that several tasks raise would gather all their tracebacks."""
        for told, _ in self._callers:
            if not told.done():
                failure = copy(error)
                failure.__cause__ = error.__cause__
                told.set_exception(failure)
