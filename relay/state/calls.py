"""One script call for all hash tags of a batch, on a connection whose memory is known."""

import asyncio
import secrets
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from typing import Any, TypeVar

import msgspec
from redis.exceptions import NoScriptError, ResponseError

from relay.domain.errors import PartitionLost, StateRecovering
from relay.state.connection import Command, Node
from relay.state.port import TAGS
from relay.state.script import Script, script
from relay.state.shared import Connections, SharedConnection

T = TypeVar("T")
Arguments = Mapping[int, bytes]
"""What a script is told of each hash tag."""
Part = tuple[int, bytes]
Decode = Callable[[bytes], list[list[T] | bool]]
"""Of a reply: for each tag what the script says, False where it is not ready, True where it is fenced."""

_encode = msgspec.msgpack.Encoder().encode
_decode_texts: Decode[str] = msgspec.msgpack.Decoder(list[list[str] | bool]).decode


def _together(parts: Sequence[Part]) -> list[Sequence[Part]]:
    """What one script call may serve: on one server all. (On a cluster, where a call has one slot: each tag alone.)"""
    return [parts]


class Calls:
    """Runs scripts. `clock`: Unix seconds; None, as in production, stands for the server's own clock.

    `prefix` goes before every key. The hash tag keeps all keys of a tag in one slot of a cluster.
    """

    def __init__(
        self, connections: Connections, prefix: str, window_s: float, clock: Callable[[], float] | None
    ) -> None:
        self._connections = connections
        self._keys = [f"{prefix}relay:{{{tag:02d}}}:".encode() for tag in range(TAGS)]
        self._window_ms = round(window_s * 1000)
        self._clock = clock
        self._passes: dict[int, str] = {}
        self._joints: dict[str, _Joint] = {}  # by script: what is asked for in this turn of the loop
        self._making: set[asyncio.Task[None]] = set()

    async def run(self, name: str, arguments: Arguments, decode: Decode[T]) -> dict[int, list[T]]:
        """What script `name` says of each tag, called with that tag's arguments.

        Raises StateRecovering with the tags that are not ready, PartitionLost when a tag has seen a newer owner of
        the lane; in both cases the other tags were served. Raises StateUnavailable.
        """
        if not arguments:
            return {}
        joint = self._joints.get(name)
        if joint is None:
            joint = self._joints[name] = _Joint()
            making = asyncio.create_task(self._make(name, joint, decode))
            self._making.add(making)
            making.add_done_callback(self._making.discard)
        replies = dict(zip(arguments, await joint.join(arguments), strict=True))
        said = {tag: reply for tag, reply in replies.items() if not isinstance(reply, bool)}
        if len(said) < len(arguments):
            if True in replies.values():
                raise PartitionLost(f"{name}: a newer owner has the lane")
            raise StateRecovering(frozenset(replies.keys() - said.keys()))
        return said

    async def lost(self) -> frozenset[int]:
        """Tags that are not ready; their recovery pass is known from here on, for `pass_of` and `ready`."""
        mine = secrets.token_hex(8).encode()
        found = await self.run("lost", dict.fromkeys(range(TAGS), mine), _decode_texts)
        self._passes = {tag: name for tag, (name,) in found.items() if name}
        return frozenset(self._passes)

    def pass_of(self, tag: int) -> str:
        """Name of the recovery pass that `lost` has found or begun for `tag`; "" for none."""
        return self._passes.get(tag, "")

    async def _make(self, name: str, joint: "_Joint", decode: Decode[T]) -> None:
        """Make the call when this turn of the loop is over."""
        await asyncio.sleep(0)
        del self._joints[name]
        found = script(name)
        try:
            joint.tell(await self._connections.use(lambda shared: self._on(shared, found, joint.parts, decode)))
        except Exception as error:  # noqa: BLE001  told to each of those who asked
            joint.fail(error)

    async def _on(
        self, shared: SharedConnection, found: Script, parts: Sequence[Part], decode: Decode[T]
    ) -> list[list[T] | bool]:
        before = shared.node
        replies = await self._evaluate(shared, found, parts, decode)
        refused = [n for n, reply in enumerate(replies) if reply is False]
        if refused:
            if shared.node == before:
                await shared.identify()
            if shared.node != before:
                again = await self._evaluate(shared, found, [parts[n] for n in refused], decode)
                for n, reply in zip(refused, again, strict=True):
                    replies[n] = reply
        return replies

    async def _evaluate(
        self, shared: SharedConnection, found: Script, parts: Sequence[Part], decode: Decode[T]
    ) -> list[list[T] | bool]:
        common = self._common(shared.node)
        replies: list[list[T] | bool] = []
        for together in _together(parts):
            keys = [self._keys[tag] for tag, _ in together]
            arguments = [told for _, told in together]
            call: Command = (b"EVALSHA", found.sha, b"%d" % len(keys), *keys, common, *arguments)
            (reply,) = await shared.exchange([call])
            if isinstance(reply, NoScriptError):
                _, reply = await shared.exchange([(b"SCRIPT", b"LOAD", found.source), call])
            if not isinstance(reply, bytes):
                raise reply if isinstance(reply, ResponseError) else TypeError(f"a script replied {reply!r}")
            replies += decode(reply)
        return replies

    def _common(self, node: Node) -> bytes:
        """What a script is told for all tags."""
        clock_us = round(self._clock() * 1e6) if self._clock else 0
        return _encode((node.id, clock_us, self._window_ms, node.durable))


class _Joint:
    """Calls of one script that tasks ask for in the same turn of the loop: one call does for them all.

    A call costs the server and us as much as several rows; at full speed a dozen lanes ask at once.
    """

    def __init__(self) -> None:
        self.parts: list[Part] = []
        self._callers: list[tuple[asyncio.Future[list[Any]], int]] = []

    async def join(self, arguments: Arguments) -> list[Any]:
        """The replies to `arguments`, in their order."""
        self.parts += arguments.items()
        told: asyncio.Future[list[Any]] = asyncio.get_running_loop().create_future()
        self._callers.append((told, len(arguments)))
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
