"""Script calls: one call per server for all hash tags of a batch, on a connection whose server run is known."""

import asyncio
import hashlib
import re
import secrets
from collections.abc import Awaitable, Callable, Sequence
from copy import copy
from functools import cache, partial
from importlib.resources import files
from typing import Any, Final, NamedTuple, TypeVar

import msgspec
from redis.exceptions import NoScriptError, ResponseError

from relay.domain.errors import StateRecovering, StateUnavailable
from relay.state.port import HintTopic
from relay.state.redis.connection import Command, Node, unix_seconds
from relay.state.redis.record_wire import encode
from relay.state.redis.servers import Servers
from relay.state.redis.shared import Connections, Part, SharedConnection
from relay.state.replies import Fenced, Refusal, answered, refused
from relay.state.rows import TAGS

_SCRIPTS = files("relay.state.redis") / "scripts"
_INCLUDE = re.compile(r"^--include (.+)$", re.MULTILINE)


class Script(NamedTuple):
    """A Lua script. `sha`: its name on the server once it is loaded."""

    source: bytes
    sha: bytes


@cache
def _read(name: str) -> str:
    return (_SCRIPTS / f"{name}.lua").read_text(encoding="utf-8")


def script_names() -> list[str]:
    """Names of all callable scripts; names that begin with `_` are of included parts.

    Callers read all scripts before the first call, because without free descriptors none could be opened later.
    """
    files_there = (entry.name for entry in _SCRIPTS.iterdir())
    return sorted(name[:-4] for name in files_there if name.endswith(".lua") and not name.startswith("_"))


@cache
def script(name: str) -> Script:
    """The script `scripts/<name>.lua`, complete: each `--include` line is replaced by the parts it names."""
    return _script(_INCLUDE.sub(lambda names: "\n".join(map(_read, names[1].split())), _read(name)))


def _script(source: str) -> Script:
    return Script(source.encode(), hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest().encode())


T = TypeVar("T")
Reply = list[T] | bool | ResponseError
"""An error only if each tag has its own call."""
Decode = Callable[[bytes], list[list[T] | bool]]
"""Decodes a reply: for each part the script's result, False if its tag is not ready, True if its lane is fenced."""

_NEEDS_READY: Final = b"return serve_ready("
_NO_NODE: Final = Node("", durable=False)
_CALL: Final = "local call = redis.call\n"
_NAMING_CALL: Final = """local function call(...)
  local reply = redis.pcall(...)
  if type(reply) == 'table' and reply.err then
    error(reply.err .. ': ' .. tostring(select(2, ...)), 0)
  end
  return reply
end
"""
"""It names the key of an error. Only for a repeat, because each call takes longer with it."""

decode_texts: Decode[str] = msgspec.msgpack.Decoder(list[list[str] | bool]).decode
_NEWER: Final = (
    "a newer release wrote what Redis holds, in a form that this one cannot read: start the newer release again, or see"
    " docs/upgrading.md"
)


class ScriptCalls:
    """Runs scripts. `clock`: Unix seconds; None, as in production, for the server's own clock.

    `prefix` goes before every key. The hash tag keeps all keys of a tag in one slot of a cluster.
    """

    def __init__(self, servers: Servers, prefix: str, window_s: float, clock: Callable[[], float] | None) -> None:
        self._servers = servers
        self._keys = [f"{prefix}relay:{{{tag:02d}}}:".encode() for tag in range(TAGS)]
        self._window_ms = round(window_s * 1000)
        self._clock = clock
        self._scripts = {name: script(name) for name in script_names()}
        self._passes: dict[int, str] = {}
        self._beats: dict[int, int] = {}
        self.forgotten: frozenset[int] = frozenset()
        """Those of the tags last returned by `lost` whose memory is gone or may be incomplete."""
        self.outdated = False
        """Whether the last call of `lost` has found an older edition."""
        self._combined: dict[tuple[str, Connections], _CombinedCall] = {}  # calls of this iteration of the event loop
        self._making: set[asyncio.Task[None]] = set()
        self._looked_at: dict[Connections, str] = {}
        """The server run of each of them that came first, or at which `lost` has looked since."""

    @property
    def spare_key(self) -> bytes:
        """A key that no script uses."""
        return self._keys[0] + b"rights"

    def channels(self, about: HintTopic) -> list[bytes]:
        """The channels of hints: `hint` in `_raising.lua`, `wake` in `_endpoints.lua`."""
        name = {"ends": b"hints", "endpoints": b"wakes"}[about]
        return [key + name for key in self._keys]

    async def try_run(self, name: str, parts: Sequence[Part], decode: Decode[T]) -> list[list[T] | Refusal]:
        """The result of script `name` for each part, or its Refusal."""
        if not parts:
            return []
        replies = await self._servers.ask(parts, partial(self._join_call, name, decode))
        return [_result(tag, reply) for (tag, _), reply in zip(parts, replies, strict=True)]

    async def run(self, name: str, parts: Sequence[Part], decode: Decode[T]) -> list[list[T]]:
        """The result of script `name` for each part. Raises as `answered` does; the other parts were processed."""
        return await answered(self.try_run(name, parts, decode))

    async def time(self) -> float:
        """Unix seconds by the clock of the server with the first tag. Raises StateUnavailable."""
        if self._clock is not None:
            return self._clock()
        (reply,) = await self._servers.ask([(0, b"")], _ask_time)
        if isinstance(reply, Exception):
            raise reply
        return float(reply)

    def _join_call(
        self, name: str, decode: Decode[T], connections: Connections, parts: Sequence[Part]
    ) -> Awaitable[list[Any]]:
        """The replies of one server to `parts`, in their order."""
        call = self._combined.get((name, connections))
        if call is None:
            loop = asyncio.get_running_loop()
            call = self._combined[name, connections] = _CombinedCall(loop)
            making = loop.create_task(self._make(name, connections, call, decode))
            self._making.add(making)
            making.add_done_callback(self._making.discard)
        return call.join(parts)

    async def lost(self, edition: int) -> frozenset[int]:
        """Tags that are not ready; stores their recovery passes for `pass_of` and `ready`.

        Tags of an unavailable server are left out if another server answers: nothing can be done for them yet, and the
        others need not wait. Later calls for them raise StateRecovering or StateUnavailable.
        """
        mine = secrets.token_hex(16)
        parts = [(tag, encode((mine, edition, self._beats.get(tag, 0)))) for tag in range(TAGS)]
        replies = await self.try_run("lost", parts, decode_texts)
        found = {tag: reply for tag, reply in enumerate(replies) if isinstance(reply, list)}
        if not found:
            raise refused([reply for reply in replies if not isinstance(reply, list)])
        if any(loss == "newer" for _, loss, _ in found.values()):
            raise StateUnavailable(_NEWER)
        self._beats |= {tag: int(beats) for tag, (*_, beats) in found.items()}
        self._passes = {tag: name for tag, (name, *_) in found.items() if name}
        self.forgotten = frozenset(tag for tag, (name, lossy, _) in found.items() if name and lossy)
        self.outdated = any(lossy == "outdated" for _, lossy, _ in found.values())
        return frozenset(self._passes)

    def pass_of(self, tag: int) -> str:
        """Name of the recovery pass that `lost` has found or started for `tag`; "" for none."""
        return self._passes.get(tag, "")

    async def _make(self, name: str, connections: Connections, call: "_CombinedCall", decode: Decode[T]) -> None:
        """Make the call after this iteration of the event loop."""
        await asyncio.sleep(0)
        del self._combined[name, connections]
        try:
            found = self._scripts[name]
            call.finish(await connections.use(lambda shared: self._on(shared, connections, found, call.parts, decode)))
        except Exception as error:  # noqa: BLE001  raised in each caller
            call.fail(error)

    async def _on(
        self,
        shared: SharedConnection,
        connections: Connections,
        found: Script,
        parts: Sequence[Part],
        decode: Decode[T],
    ) -> list[Reply[T]]:
        before = shared.node
        replies = await self._evaluate(shared, self._trusted(connections, found, before), found, parts, decode)
        not_ready = [n for n, reply in enumerate(replies) if reply is False]
        if not_ready:
            if shared.node == before:
                await shared.identify()
            if shared.node != before:
                node = self._trusted(connections, found, shared.node)
                again = await self._evaluate(shared, node, found, [parts[n] for n in not_ready], decode)
                for n, reply in zip(not_ready, again, strict=True):
                    replies[n] = reply
        if found is self._scripts["lost"] and not any(isinstance(reply, ResponseError) for reply in replies):
            self._looked_at[connections] = _run_of(shared.node)
        return replies

    def _trusted(self, connections: Connections, found: Script, node: Node) -> Node:
        """`node`; until `lost` has looked at a server that takes over, one for which no memory is ready: it may have
        led before, and its memory call itself ready without what came since."""
        run = _run_of(node)
        is_known = self._looked_at.setdefault(connections, run) == run
        return node if is_known or _NEEDS_READY not in found.source else _NO_NODE

    async def _evaluate(
        self, shared: SharedConnection, node: Node, found: Script, parts: Sequence[Part], decode: Decode[T]
    ) -> list[Reply[T]]:
        common, apart = self._common(node), self._servers.apart
        groups: Sequence[Sequence[int]] = _by_tag(parts) if apart else [range(len(parts))]
        calls = [self._call(found, common, [parts[n] for n in group]) for group in groups]
        answers = await shared.exchange(calls)
        if missing := [n for n, answer in enumerate(answers) if isinstance(answer, NoScriptError)]:
            await _repeat(shared, found, calls, answers, missing)
        if failed := [n for n, answer in enumerate(answers) if _is_of_wrong_type(answer)]:
            await _repeat(shared, _naming(found), calls, answers, failed)
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
        return (b"EVALSHA", found.sha, b"%d" % len(keys), *keys, common, *(arguments for _, arguments in parts))

    def _common(self, node: Node) -> bytes:
        """The script argument for all tags."""
        clock_us = round(self._clock() * 1e6) if self._clock else 0
        # With replicas, a restart cannot be distinguished from a fail-over followed by a restart.
        durable = node.durable and not self._servers.replicated
        return encode((node.id, clock_us, self._window_ms, durable))


def _run_of(node: Node) -> str:
    return node.id.partition(":")[0]


async def _repeat(
    shared: SharedConnection, found: Script, calls: Sequence[Command], answers: list[object], numbers: Sequence[int]
) -> None:
    """Load the script, and replace the answers to the calls of these numbers by those to calls of it."""
    again = [(b"EVALSHA", found.sha, *calls[n][2:]) for n in numbers]
    _, *replies = await shared.exchange([(b"SCRIPT", b"LOAD", found.source), *again])
    for n, answer in zip(numbers, replies, strict=True):
        answers[n] = answer


def _is_of_wrong_type(answer: object) -> bool:
    return isinstance(answer, ResponseError) and str(answer).startswith("WRONGTYPE ")


@cache
def _naming(found: Script) -> Script:
    """The script with errors that name the key."""
    return _script(found.source.decode().replace(_CALL, _NAMING_CALL))


def _by_tag(parts: Sequence[Part]) -> list[list[int]]:
    """The indexes of each tag's parts."""
    numbers: dict[int, list[int]] = {}
    for n, (tag, _) in enumerate(parts):
        numbers.setdefault(tag, []).append(n)
    return list(numbers.values())


def _result(tag: int, reply: list[T] | bool | StateUnavailable) -> list[T] | Refusal:
    if isinstance(reply, bool):
        return Fenced() if reply else StateRecovering(frozenset({tag}))
    return reply


async def _ask_time(connections: Connections, _parts: Sequence[Part]) -> list[Any]:
    return [await connections.use(_time_on)]


async def _time_on(shared: SharedConnection) -> float:
    (reply,) = await shared.exchange([(b"TIME",)])
    return unix_seconds(reply)


class _CombinedCall:
    """Combines calls of one script, made by several tasks in the same iteration of the event loop, into one call.

    A call costs as much as several rows; at full speed a dozen lanes call at once.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.parts: list[Part] = []
        self._callers: list[tuple[asyncio.Future[list[Any]], int]] = []

    async def join(self, parts: Sequence[Part]) -> list[Any]:
        """The replies to `parts`, in their order."""
        self.parts += parts
        reply: asyncio.Future[list[Any]] = self._loop.create_future()
        self._callers.append((reply, len(parts)))
        return await reply

    def finish(self, replies: Sequence[object]) -> None:
        start = 0
        for reply, count in self._callers:
            if not reply.done():
                reply.set_result(list(replies[start : start + count]))
            start += count

    def fail(self, error: Exception) -> None:
        """Fail each caller with its own copy of `error`: a shared one would collect the tracebacks of all tasks."""
        for reply, _ in self._callers:
            if not reply.done():
                failure = copy(error)
                failure.__cause__ = error.__cause__
                reply.set_exception(failure)
