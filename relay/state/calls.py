"""One script call for all hash tags of a batch, on a connection whose memory is known."""

import secrets
from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

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
Decode = Callable[[bytes], list[list[T] | bool]]
"""Of a reply: for each tag what the script says, False where it is not ready, True where it is fenced."""

_encode = msgspec.msgpack.Encoder().encode
_decode_texts: Decode[str] = msgspec.msgpack.Decoder(list[list[str] | bool]).decode


def _together(tags: Iterable[int]) -> list[list[int]]:
    """Tags that one script call may serve: on one server all. (On a cluster, where a call has one slot: each alone.)"""
    return [list(tags)]


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

    async def run(self, name: str, arguments: Arguments, decode: Decode[T]) -> dict[int, list[T]]:
        """What script `name` says of each tag, called with that tag's arguments.

        Raises StateRecovering with the tags that are not ready, PartitionLost when a tag has seen a newer owner of
        the lane; in both cases the other tags were served. Raises StateUnavailable.
        """
        if not arguments:
            return {}
        found = script(name)
        replies = await self._connections.use(lambda shared: self._on(shared, found, arguments, decode))
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

    async def _on(
        self, shared: SharedConnection, found: Script, arguments: Arguments, decode: Decode[T]
    ) -> dict[int, list[T] | bool]:
        before = shared.node
        replies = await self._evaluate(shared, found, arguments, decode)
        refused = {tag: arguments[tag] for tag, reply in replies.items() if reply is False}
        if refused:
            if shared.node == before:
                await shared.identify()
            if shared.node != before:
                replies |= await self._evaluate(shared, found, refused, decode)
        return replies

    async def _evaluate(
        self, shared: SharedConnection, found: Script, arguments: Arguments, decode: Decode[T]
    ) -> dict[int, list[T] | bool]:
        common = self._common(shared.node)
        replies: dict[int, list[T] | bool] = {}
        for tags in _together(arguments):
            keys = [self._keys[tag] for tag in tags]
            call: Command = (b"EVALSHA", found.sha, b"%d" % len(tags), *keys, common, *[arguments[tag] for tag in tags])
            (reply,) = await shared.exchange([call])
            if isinstance(reply, NoScriptError):
                _, reply = await shared.exchange([(b"SCRIPT", b"LOAD", found.source), call])
            if not isinstance(reply, bytes):
                raise reply if isinstance(reply, ResponseError) else TypeError(f"a script replied {reply!r}")
            replies.update(zip(tags, decode(reply), strict=True))
        return replies

    def _common(self, node: Node) -> bytes:
        """What a script is told for all tags."""
        clock_us = round(self._clock() * 1e6) if self._clock else 0
        return _encode((node.id, clock_us, self._window_ms, node.durable))
