"""HTTP proxy for tests of egress proxies: tunnels CONNECT requests and forwards plain ones, byte by byte."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from urllib.parse import urlsplit


class PipingProxy:
    """`heads`: of the requests. `port`: on which it listens."""

    def __init__(self) -> None:
        self.heads: list[bytes] = []
        self.port = 0
        self._connections: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        return f"http://user:p%40ss@127.0.0.1:{self.port}"

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator["PipingProxy"]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            server.close()
            for connection in self._connections:
                connection.cancel()
            await asyncio.gather(*self._connections, return_exceptions=True)
            await server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            await self._converse(reader, writer)
        except (OSError, asyncio.IncompleteReadError):
            writer.transport.abort()
        finally:
            writer.close()
            self._connections.discard(task)

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        self.heads.append(head)
        line, *fields = head.split(b"\r\n")
        method, target, version = line.split(b" ")
        url = urlsplit(f"//{target.decode()}" if method == b"CONNECT" else target.decode())
        to_reader, to_writer = await asyncio.open_connection(url.hostname, url.port or 80)
        try:
            if method == b"CONNECT":
                writer.write(b"HTTP/1.1 200 Connection established\r\nVia: tests\r\n\r\n")
            else:
                path = b"/" + target.split(b"/", 3)[3]
                kept = [one for one in fields if not one.lower().startswith(b"proxy-")]
                to_writer.write(b"\r\n".join([b" ".join((method, path, version)), *kept]))
            await asyncio.gather(_pipe(reader, to_writer), _pipe(to_reader, writer))
        finally:
            to_writer.close()


async def _pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(65_536):
            writer.write(data)
            await writer.drain()
        if not writer.is_closing():  # uvloop raises RuntimeError if it is closed already
            writer.write_eof()
    except OSError:
        writer.transport.abort()
