"""One script call per hash tag, all tags of a batch in one go, on a connection whose memory is known."""

import secrets
from collections.abc import Callable, Mapping, Sequence

import msgspec
from redis.exceptions import NoScriptError, ResponseError

from relay.domain.errors import PartitionLost, StateRecovering
from relay.state.connection import Connections, IdentifiedConnection
from relay.state.port import TAGS
from relay.state.script import Script, script

_encode = msgspec.msgpack.Encoder().encode
_FENCED = 0


class Calls:
    """Runs scripts. `clock`: Unix seconds; None, as in production, stands for the server's own clock.

    `prefix` goes before every key. The hash tag keeps all keys of a script in one slot of a cluster.
    """

    def __init__(
        self, connections: Connections, prefix: str, window_s: float, clock: Callable[[], float] | None
    ) -> None:
        self._connections = connections
        self._keys = [f"{prefix}relay:{{{tag:02d}}}:" for tag in range(TAGS)]
        self._window_ms = round(window_s * 1000)
        self._clock = clock
        self._passes: dict[int, str] = {}

    async def run(self, name: str, batches: Mapping[int, Sequence[object]]) -> dict[int, bytes]:
        """The reply of script `name` for each tag, called with that tag's arguments.

        Raises StateRecovering with the tags that are not ready, PartitionLost when a tag has seen a newer owner of
        the lane; in both cases the other tags were served. Raises StateUnavailable.
        """
        if not batches:
            return {}
        found = script(name)
        replies = await self._connections.use(lambda connection: self._on(connection, found, batches))
        if any(reply == _FENCED for reply in replies.values()):
            raise PartitionLost(f"{name}: a newer owner has the lane")
        recovering = frozenset(tag for tag, reply in replies.items() if reply is None)
        if recovering:
            raise StateRecovering(recovering)
        return {tag: reply for tag, reply in replies.items() if isinstance(reply, bytes)}

    async def lost(self) -> frozenset[int]:
        """Tags that are not ready; their recovery pass is known from here on, for `pass_of` and `ready`."""
        mine = secrets.token_hex(8)
        replies = await self.run("lost", dict.fromkeys(range(TAGS), (mine,)))
        names = {tag: msgspec.msgpack.decode(reply, type=list[str])[0] for tag, reply in replies.items()}
        self._passes = {tag: name for tag, name in names.items() if name}
        return frozenset(self._passes)

    def pass_of(self, tag: int) -> str:
        """Name of the recovery pass that `lost` has found or begun for `tag`; "" for none."""
        return self._passes.get(tag, "")

    async def _on(
        self, connection: IdentifiedConnection, found: Script, batches: Mapping[int, Sequence[object]]
    ) -> dict[int, object]:
        replies = await self._evaluate(connection, found, batches)
        refused = {tag: batches[tag] for tag, reply in replies.items() if reply is None}
        if refused:
            before = connection.node
            await connection.identify()
            if connection.node != before:
                replies |= await self._evaluate(connection, found, refused)
        return replies

    async def _evaluate(
        self, connection: IdentifiedConnection, found: Script, batches: Mapping[int, Sequence[object]]
    ) -> dict[int, object]:
        clock_us = round(self._clock() * 1e6) if self._clock else 0
        node = connection.node
        commands = [
            (
                "EVALSHA",
                found.sha,
                1,
                self._keys[tag],
                _encode((node.id, clock_us, self._window_ms, node.durable, *args)),
            )
            for tag, args in batches.items()
        ]
        replies = dict(zip(batches, await connection.exchange(commands), strict=True))
        unknown = {tag: batches[tag] for tag, reply in replies.items() if isinstance(reply, NoScriptError)}
        if unknown:
            await _load(connection, found)
            replies |= await self._evaluate(connection, found, unknown)
        for reply in replies.values():
            if isinstance(reply, ResponseError):
                raise reply
        return replies


async def _load(connection: IdentifiedConnection, found: Script) -> None:
    (reply,) = await connection.exchange([("SCRIPT", "LOAD", found.source)])
    if isinstance(reply, ResponseError):
        raise reply
