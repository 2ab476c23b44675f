"""A TCP proxy whose connections can be delayed, blocked, cut and reset while they are in use."""

import asyncio
import random
import socket
import struct
from collections.abc import Callable
from contextlib import suppress
from typing import Final, Literal

Side = Literal["client", "target"]
_Line = asyncio.Queue[tuple[float, bytes | None]]
"""Chunks in transit, each with the time at which it may arrive; b"": the end of the stream, None: a reset."""

_CHUNK_BYTES: Final = 64 * 1024
_CHUNKS_UNDER_WAY: Final = 64
"""Maximum of chunks in transit in one direction of a connection."""
_RESET_AT_CLOSE: Final = struct.pack("ii", 1, 0)


class Direction:
    """Faults in one direction of all connections. `latency_s`: delay of each chunk. `cut_after`: a connection is reset
    after so many bytes in this direction. `cut_chance`: the probability that a reset follows a chunk.
    """

    def __init__(self) -> None:
        self._open = asyncio.Event()
        self.restore()

    def restore(self) -> None:
        self.latency_s = 0.0
        self.cut_after: int | None = None
        self.cut_chance = 0.0
        self.black_hole = False

    @property
    def black_hole(self) -> bool:
        """Connections are accepted and bytes read, but nothing is passed on, not even the end. As on a network that
        drops packets, all bytes arrive later."""
        return not self._open.is_set()

    @black_hole.setter
    def black_hole(self, holds: bool) -> None:
        if holds:
            self._open.clear()
        else:
            self._open.set()

    async def until_open(self) -> None:
        await self._open.wait()


class Proxy:
    """Between clients and one server. `port`: where to listen; 0: a free one, known after `start`.

    `chance`: uniform samples of [0, 1), for `cut_chance`. `refuse`: new connections are reset as soon as they are made.
    """

    def __init__(
        self, target_host: str, target_port: int, *, port: int = 0, chance: Callable[[], float] = random.random
    ) -> None:
        self.port = port
        self.to_target = Direction()
        self.to_client = Direction()
        self.refuse = False
        self.accepted = 0
        """Connections so far, without those refused."""
        self._target = (target_host, target_port)
        self._chance = chance
        self._server: asyncio.Server | None = None
        self._links: dict[_Link, asyncio.Task[None]] = {}

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Close the port and reset all connections."""
        if self._server is not None:
            self._server.close()
        running = list(self._links.values())
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    @property
    def connections(self) -> int:
        return len(self._links)

    def reset(self) -> None:
        """Reset every connection, to both sides; bytes in transit are lost. New connections are accepted."""
        for task in self._links.values():
            task.cancel()

    def half_close(self, side: Side = "client") -> None:
        """Close every connection in the direction to `side`. The other direction continues."""
        for link in list(self._links):
            link.half_close(side)

    def restore(self) -> None:
        """End all faults; cut connections stay cut."""
        self.refuse = False
        self.to_target.restore()
        self.to_client.restore()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.refuse:
            _reset(writer)
            return
        self.accepted += 1
        link = _Link(reader, writer, self)
        task = asyncio.get_running_loop().create_task(self._carry(link))
        self._links[link] = task
        task.add_done_callback(lambda _: self._links.pop(link, None))

    async def _carry(self, link: "_Link") -> None:
        try:
            await link.run(*self._target, self._chance)
        finally:
            link.cut()


class _Link:
    """A client's connection, and its connection to the target."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, proxy: Proxy) -> None:
        self._reader = reader
        self._proxy = proxy
        self._writers: dict[Side, asyncio.StreamWriter] = {"client": writer}
        self._told_end: set[Side] = set()

    async def run(self, host: str, port: int, chance: Callable[[], float]) -> None:
        """Forward until both sides have closed. Returns with open connections if one of them broke."""
        try:
            reader, self._writers["target"] = await asyncio.open_connection(host, port)
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._carry(self._reader, "target", self._proxy.to_target, chance))
                tasks.create_task(self._carry(reader, "client", self._proxy.to_client, chance))
            for writer in self._writers.values():
                writer.close()
                await writer.wait_closed()
        except* OSError:
            pass

    def cut(self) -> None:
        """Reset the open connections."""
        for writer in self._writers.values():
            _reset(writer)

    def half_close(self, side: Side) -> None:
        writer = self._writers.get(side)
        if writer is not None and side not in self._told_end and not writer.is_closing():
            self._told_end.add(side)
            writer.write_eof()

    async def _carry(
        self, source: asyncio.StreamReader, side: Side, way: Direction, chance: Callable[[], float]
    ) -> None:
        """Forward everything from `source` to `side`. Raises ConnectionError if the link is to be cut."""
        line: _Line = asyncio.Queue(_CHUNKS_UNDER_WAY)
        reading = asyncio.create_task(_read(source, line, way))
        carried = 0
        try:
            while chunk := await _next(line, way):
                rest = len(chunk) if way.cut_after is None else max(0, way.cut_after - carried)
                await self._write(side, chunk[:rest])
                carried += len(chunk)
                if rest < len(chunk) or chance() < way.cut_chance:
                    raise ConnectionAbortedError
            self.half_close(side)
        finally:
            reading.cancel()

    async def _write(self, side: Side, chunk: bytes) -> None:
        if side not in self._told_end:
            writer = self._writers[side]
            writer.write(chunk)
            await writer.drain()


async def _read(source: asyncio.StreamReader, line: _Line, way: Direction) -> None:
    """Read chunks, and set the time at which each may arrive."""
    clock = asyncio.get_running_loop().time
    chunk: bytes | None = b"-"
    while chunk:
        try:
            chunk = await source.read(_CHUNK_BYTES)
        except ConnectionError:
            chunk = None
        await line.put((clock() + way.latency_s, chunk))


async def _next(line: _Line, way: Direction) -> bytes:
    """The next chunk, at its time; empty at the end. Raises ConnectionError if the connection broke."""
    due, chunk = await line.get()
    wait_s = due - asyncio.get_running_loop().time()
    if wait_s > 0:
        await asyncio.sleep(wait_s)
    await way.until_open()
    if chunk is None:
        raise ConnectionResetError
    return chunk


def _reset(writer: asyncio.StreamWriter) -> None:
    """Close with an RST, at once, unless it is closed."""
    raw = writer.get_extra_info("socket")
    if raw is not None:
        with suppress(OSError):
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_AT_CLOSE)
    writer.transport.abort()
