"""Test servers on raw sockets that send exact bytes, and helpers for unreachable hosts and name resolution."""

import asyncio
import contextlib
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import pytest

from relay.domain.exchange import Exchange, NoResponse

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
CHUNKED_WITH_LENGTH = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n"

Script = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class Server:
    """Runs `script` on each connection, then closes it. `accepted`, `requests`: recorded so far;
    `silences`: one for each client of a `silent` server that waits for more."""

    def __init__(self, script: Script) -> None:
        self._script = script
        self.accepted = 0
        self.requests: list[bytes] = []
        self.closed = asyncio.Event()
        self.silences = asyncio.Semaphore(0)
        self._closings: asyncio.Queue[None] = asyncio.Queue()
        self.port = 0
        self._connections: set[asyncio.Task[None]] = set()

    @contextlib.asynccontextmanager
    async def running(
        self, host: str = "127.0.0.1", context: ssl.SSLContext | None = None, port: int = 0
    ) -> AsyncIterator["Server"]:
        server = await asyncio.start_server(self._serve, host, port, ssl=context)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            server.close()
            for connection in self._connections:
                connection.cancel()
            await asyncio.gather(*self._connections, return_exceptions=True)
            await server.wait_closed()

    def url(self, path: str = "/", *, host: str = "127.0.0.1", scheme: Literal["http", "https"] = "http") -> str:
        return f"{scheme}://{host}:{self.port}{path}"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            await self._script(reader, writer)
            await writer.drain()
        except (OSError, asyncio.IncompleteReadError):
            pass  # the client may leave whenever it likes
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()
            self._connections.discard(task)
            self.closed.set()
            self._closings.put_nowait(None)

    async def closes(self, count: int) -> None:
        """Return when so many connections have ended."""
        for _ in range(count):
            await self._closings.get()

    async def read_request(self, reader: asyncio.StreamReader) -> bytes:
        head = await reader.readuntil(b"\r\n\r\n")
        length = next(
            (int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")), 0
        )
        request = head + await reader.readexactly(length)
        self.requests.append(request)
        return request


def replying(*parts: bytes) -> Server:
    """Reads one request per connection, writes `parts` one after the other, and closes."""

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await server.read_request(reader)
        for part in parts:
            writer.write(part)
            await writer.drain()

    server = Server(script)
    return server


def silent(*parts: bytes) -> Server:
    """Reads one request per connection, writes `parts`, and then waits until the client leaves."""

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await server.read_request(reader)
        for part in parts:
            writer.write(part)
            await writer.drain()
        server.silences.release()
        await reader.read()

    server = Server(script)
    return server


def keeping_alive(reply: bytes = OK) -> Server:
    """Answers every request of a connection."""

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            await server.read_request(reader)
            writer.write(reply)

    server = Server(script)
    return server


def answer_one(listener: socket.socket) -> socket.socket:
    """Serves one connection with one request and one response, in a thread."""
    connection, _ = listener.accept()
    request = b""
    while not request.endswith(b"{}"):
        request += connection.recv(1000)
    connection.sendall(OK)
    return connection


def reset(writer: asyncio.StreamWriter) -> None:
    """Close with a RST instead of a FIN."""
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


@contextlib.contextmanager
def not_accepting() -> Iterator[str]:
    """The URL of a host that never accepts a connection."""
    with socket.socket() as listener, contextlib.ExitStack() as fillers:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        address = listener.getsockname()
        for _ in range(4):  # fill the backlog, so that the kernel drops the next handshake
            filler = fillers.enter_context(socket.socket())
            filler.setblocking(False)
            filler.connect_ex(address)
        yield f"http://127.0.0.1:{address[1]}/"


def resolve_to(monkeypatch: pytest.MonkeyPatch, port: int, *addresses: str) -> list[str]:
    """Resolve ci.example to these addresses. Returns a list that each later look-up of it is added to."""
    asked: list[str] = []
    loop = asyncio.get_running_loop()
    real = loop.getaddrinfo  # a loop may ask itself about addresses, too

    async def getaddrinfo(host: str, *rest: Any, **options: Any) -> Any:
        if host != "ci.example":
            return await real(host, *rest, **options)
        asked.append(host)
        return [
            (socket.AF_INET6, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", (ip, port, 0, 0))
            if ":" in ip
            else (socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", (ip, port))
            for ip in addresses
        ]

    monkeypatch.setattr(loop, "getaddrinfo", getaddrinfo)
    return asked


def failure(exchange: Exchange) -> tuple[str, bool]:
    """Of an exchange without a response: what kind of failure it was, and whether anything was sent."""
    assert isinstance(exchange, NoResponse), exchange
    return exchange.kind, exchange.sent


def server_context(certificate: Path) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, certificate.with_suffix(".key"))
    return context
