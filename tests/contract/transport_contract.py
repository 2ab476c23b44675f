"""What every transport has to do, tried on raw sockets: the server of each test does exactly the bytes it says."""

import asyncio
import contextlib
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from ipaddress import ip_network
from pathlib import Path
from typing import Literal

import pytest

from relay.delivery.guard import AddressGuard
from relay.delivery.port import Transport
from relay.domain.exchange import NoResponse, Request, Response

BODY_CAP = 1000
LOOPBACK = AddressGuard([ip_network("127.0.0.0/8"), ip_network("::1/128")])
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"

Script = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class Server:
    """Plays `script` on each connection, then closes it. `accepted`, `requests`: what it has seen so far."""

    def __init__(self, script: Script) -> None:
        self._script = script
        self.accepted = 0
        self.requests: list[bytes] = []
        self.closed = asyncio.Event()
        self.port = 0
        self._connections: set[asyncio.Task[None]] = set()

    @contextlib.asynccontextmanager
    async def running(self, host: str = "127.0.0.1", context: ssl.SSLContext | None = None) -> AsyncIterator["Server"]:
        server = await asyncio.start_server(self._serve, host, 0, ssl=context)
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


def keeping_alive(reply: bytes = OK) -> Server:
    """Answers every request of a connection."""

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            await server.read_request(reader)
            writer.write(reply)

    server = Server(script)
    return server


def reset(writer: asyncio.StreamWriter) -> None:
    """Close with a RST instead of a FIN."""
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


def post(
    url: str, *, body: bytes = b"{}", timeout_s: float = 5.0, headers: tuple[tuple[str, str], ...] = ()
) -> Request:
    return Request("POST", url, headers, body, timeout_s)


class TransportContract:
    """Subclasses `make` a transport. Fixture `certificate`: self-signed for 127.0.0.1; beside it its `.key`."""

    def make(self, guard: AddressGuard, *, body_cap: int, ca_file: str | None) -> Transport:
        raise NotImplementedError

    @pytest.fixture
    async def transport(self) -> AsyncIterator[Transport]:
        async with self.started(LOOPBACK) as transport:
            yield transport

    @contextlib.asynccontextmanager
    async def started(self, guard: AddressGuard, ca_file: str | None = None) -> AsyncIterator[Transport]:
        transport = self.make(guard, body_cap=BODY_CAP, ca_file=ca_file)
        await transport.start()
        try:
            yield transport
        finally:
            await transport.close()

    # --- what is sent -------------------------------------------------------------------------------------------

    async def test_the_request_goes_out_verbatim(self, transport: Transport) -> None:
        headers = (("webhook-id", "msg_1"), ("Content-Type", "text/x; a=é"), ("x-twice", "1"), ("x-twice", "2"))
        body = bytes(range(256))
        async with replying(OK).running() as server:
            url = server.url("/a/../%7Bx%7d/%2e%2e//b?q=%20+%2B&r")
            await transport.exchange(post(url, body=body, headers=headers))
        head, _, sent_body = server.requests[0].partition(b"\r\n\r\n")
        first, *lines = head.split(b"\r\n")
        assert first == b"POST /a/../%7Bx%7d/%2e%2e//b?q=%20+%2B&r HTTP/1.1"
        framing = {f"host: 127.0.0.1:{server.port}".encode(), b"content-length: 256"}
        assert framing <= {line.lower() for line in lines}
        rest = [line for line in lines if line.lower() not in framing]
        assert rest == [f"{name}: {value}".encode() for name, value in headers]
        assert sent_body == body

    async def test_a_get_has_no_content(self, transport: Transport) -> None:
        async with replying(OK).running() as server:
            await transport.exchange(Request("GET", server.url("/s?x=1"), (("accept", "*/*"),)))
        lines = server.requests[0].split(b"\r\n")
        assert lines[0] == b"GET /s?x=1 HTTP/1.1"
        assert sorted(line.lower() for line in lines[1:] if line) == [
            b"accept: */*",
            f"host: 127.0.0.1:{server.port}".encode(),
        ]

    async def test_an_empty_post_says_so(self, transport: Transport) -> None:
        async with replying(OK).running() as server:
            await transport.exchange(post(server.url(), body=b""))
        assert b"\r\ncontent-length: 0\r\n" in server.requests[0].lower()

    async def test_a_large_body_arrives_whole(self, transport: Transport) -> None:
        body = bytes(3_000_000)
        async with replying(OK).running() as server:
            assert isinstance(await transport.exchange(post(server.url(), body=body)), Response)
        assert server.requests[0].partition(b"\r\n\r\n")[2] == body

    @pytest.mark.parametrize("header", [("x-a", "1\r\nx-b: 2"), ("x-a\r\nx-b", "1"), ("x-a", "\0")])
    async def test_a_header_cannot_smuggle_another(self, transport: Transport, header: tuple[str, str]) -> None:
        async with replying(OK).running() as server:
            result = await transport.exchange(post(server.url(), headers=(header,)))
        assert isinstance(result, NoResponse)
        assert (result.kind, result.sent) == ("invalid_header", False)
        assert server.requests == []

    # --- what comes back ----------------------------------------------------------------------------------------

    async def test_a_response_with_a_body(self, transport: Transport) -> None:
        reply = b"HTTP/1.1 201 Created\r\nX-One: a\r\nx-two: 1\r\nX-TWO: 2\r\nContent-Length: 4\r\n\r\n\x00\xffok"
        async with replying(reply).running() as server:
            result = await transport.exchange(post(server.url()))
        assert result == Response(
            201, {"x-one": "a", "x-two": "2", "content-length": "4"}, b"\x00\xffok", truncated=False
        )

    async def test_header_values_are_text(self, transport: Transport) -> None:
        async with replying(b"HTTP/1.1 204 X\r\nx-a: \xc3\xa9\xff\r\n\r\n").running() as server:
            assert await transport.exchange(post(server.url())) == Response(204, {"x-a": "é\ufffd"}, b"")

    @pytest.mark.parametrize("status", [204, 304])
    async def test_a_response_without_a_body(self, transport: Transport, status: int) -> None:
        async with replying(f"HTTP/1.1 {status} X\r\n\r\n".encode()).running() as server:
            assert await transport.exchange(post(server.url())) == Response(status, {}, b"")

    @pytest.mark.parametrize(
        ("reply", "body"),
        [
            (
                b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2;x=y\r\nab\r\n1\r\nc\r\n0\r\nt: 1\r\n\r\n",
                b"abc",
            ),
            (b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nuntil the end", b"until the end"),
            (b"HTTP/1.0 200 OK\r\n\r\nold", b"old"),
            (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + OK, b"ok"),
        ],
        ids=["chunked", "until close", "1.0", "1xx first"],
    )
    async def test_framings(self, transport: Transport, reply: bytes, body: bytes) -> None:
        async with replying(reply).running() as server:
            result = await transport.exchange(post(server.url()))
        assert isinstance(result, Response)
        assert (result.status, result.body, result.truncated) == (200, body, False)

    @pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
    async def test_redirects_are_not_followed(self, transport: Transport, status: int) -> None:
        async with replying().running() as trap:
            reply = f"HTTP/1.1 {status} Moved\r\nLocation: {trap.url()}\r\nContent-Length: 0\r\n\r\n".encode()
            async with replying(reply).running() as server:
                result = await transport.exchange(post(server.url()))
        assert isinstance(result, Response)
        assert result.status == status
        assert result.headers["location"] == trap.url()
        assert trap.accepted == 0

    async def test_nothing_is_decompressed(self, transport: Transport) -> None:
        reply = b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 5\r\n\r\nplain"
        async with replying(reply).running() as server:
            result = await transport.exchange(post(server.url()))
        assert isinstance(result, Response)
        assert (result.body, result.headers["content-encoding"]) == (b"plain", "gzip")
        assert b"accept-encoding" not in server.requests[0].lower()

    async def test_no_cookie_is_kept(self, transport: Transport) -> None:
        reply = b"HTTP/1.1 200 OK\r\nSet-Cookie: a=b; Path=/\r\nContent-Length: 0\r\n\r\n"
        async with keeping_alive(reply).running() as server:
            for _ in range(2):
                await transport.exchange(post(server.url(host="localhost")))  # cookie jars may ignore addresses
        assert b"cookie" not in server.requests[1].lower()

    # --- bodies that do not end well ----------------------------------------------------------------------------

    @pytest.mark.parametrize(("size", "truncated"), [(BODY_CAP, False), (BODY_CAP + 1, True), (500_000, True)])
    async def test_a_body_is_read_up_to_the_cap(self, transport: Transport, size: int, truncated: bool) -> None:
        reply = f"HTTP/1.1 200 OK\r\nContent-Length: {size}\r\n\r\n".encode() + b"x" * size
        async with replying(reply).running() as server:
            result = await transport.exchange(post(server.url()))
        assert isinstance(result, Response)
        assert (result.body, result.truncated) == (b"x" * min(size, BODY_CAP), truncated)

    async def test_an_endless_body_is_hung_up_on(self, transport: Transport) -> None:
        async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await server.read_request(reader)
            writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
            while True:
                writer.write(b"fff\r\n" + b"x" * 0xFFF + b"\r\n")
                await writer.drain()

        async with Server(script).running() as server:
            result = await transport.exchange(post(server.url()))
            await server.closed.wait()
        assert isinstance(result, Response)
        assert (result.status, len(result.body), result.truncated) == (200, BODY_CAP, True)

    @pytest.mark.parametrize("ending", ["close", "reset", "nonsense", "silence", "drip"])
    async def test_a_status_counts_when_the_body_breaks(self, transport: Transport, ending: str) -> None:
        async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await server.read_request(reader)
            writer.write(b"HTTP/1.1 202 Accepted\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n")
            await writer.drain()
            match ending:
                case "reset":
                    reset(writer)
                case "nonsense":
                    await go_on.wait()
                    writer.write(b"zz\r\n\r\n")
                case "silence":
                    await reader.read()
                case "drip":
                    while True:
                        writer.write(b"1\r\nx\r\n")
                        await asyncio.sleep(0.01)

        go_on = asyncio.Event()
        timeout_s = 5.0 if ending in ("close", "reset") else 0.3
        async with Server(script).running() as server:
            # Nonsense that comes together with the status line may spoil that, too: let it come later.
            asyncio.get_running_loop().call_later(0.1, go_on.set)
            result = await transport.exchange(post(server.url(), timeout_s=timeout_s))
        assert isinstance(result, Response)
        assert (result.status, result.body[:2], result.truncated) == (202, b"ab", True)

    # --- no status line -----------------------------------------------------------------------------------------

    async def unanswered(self, transport: Transport, server: Server, **how: float) -> NoResponse:
        async with server.running():
            result = await transport.exchange(post(server.url(), timeout_s=how.get("timeout_s", 5.0)))
        assert isinstance(result, NoResponse)
        assert len(server.requests) == 1  # never repeated
        return result

    async def test_silence(self, transport: Transport) -> None:
        async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await server.read_request(reader)
            await reader.read()

        server = Server(script)
        result = await self.unanswered(transport, server, timeout_s=0.2)
        assert (result.kind, result.sent) == ("timeout", True)

    async def test_a_flood_of_1xx(self, transport: Transport) -> None:
        async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await server.read_request(reader)
            while True:
                writer.write(b"HTTP/1.1 103 Early Hints\r\n\r\n")
                await asyncio.sleep(0.01)

        server = Server(script)
        result = await self.unanswered(transport, server, timeout_s=0.2)
        assert (result.kind, result.sent) == ("timeout", True)

    async def test_closed_before_the_status_line(self, transport: Transport) -> None:
        result = await self.unanswered(transport, replying())
        assert (result.kind, result.sent) == ("disconnected", True)

    async def test_closed_within_the_status_line(self, transport: Transport) -> None:
        result = await self.unanswered(transport, replying(b"HTTP/1.1 20"))
        assert (result.kind, result.sent) == ("disconnected", True)

    async def test_reset_before_the_status_line(self, transport: Transport) -> None:
        async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await server.read_request(reader)
            reset(writer)

        server = Server(script)
        result = await self.unanswered(transport, server)
        assert (result.kind, result.sent) == ("disconnected", True)

    async def test_reset_in_the_middle_of_a_large_body(self, transport: Transport) -> None:
        async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readexactly(100_000)
            reset(writer)

        async with Server(script).running() as server:
            result = await transport.exchange(post(server.url(), body=bytes(20_000_000)))
        assert isinstance(result, NoResponse)
        assert (result.kind, result.sent) == ("disconnected", True)
        assert server.accepted == 1

    @pytest.mark.parametrize(
        "reply",
        [b"SSH-2.0-OpenSSH_9.2\r\n", b"HTTP/1.1 abc\r\n\r\n", b"HTTP/1.1 200 OK\r\nx: " + b"y" * 100_000 + b"\r\n\r\n"],
        ids=["ssh", "no status", "huge header"],
    )
    async def test_not_http(self, transport: Transport, reply: bytes) -> None:
        result = await self.unanswered(transport, replying(reply))
        assert (result.kind, result.sent) == ("protocol", True)

    async def test_refused(self, transport: Transport) -> None:
        async with replying().running() as server:
            url = server.url()
        result = await transport.exchange(post(url))
        assert isinstance(result, NoResponse)
        assert (result.kind, result.sent) == ("refused", False)

    async def test_a_host_that_does_not_exist(self, transport: Transport) -> None:
        result = await transport.exchange(post("http://does-not-exist.invalid/"))
        assert isinstance(result, NoResponse)
        assert (result.kind, result.sent) == ("dns", False)

    async def test_a_host_that_does_not_accept(self, transport: Transport) -> None:
        with socket.socket() as listener, contextlib.ExitStack() as fillers:
            listener.bind(("127.0.0.1", 0))
            listener.listen(0)
            address = listener.getsockname()
            for _ in range(4):  # fill the backlog, so that the kernel drops the next handshake
                filler = fillers.enter_context(socket.socket())
                filler.setblocking(False)
                filler.connect_ex(address)
            result = await transport.exchange(post(f"http://127.0.0.1:{address[1]}/", timeout_s=0.3))
        assert isinstance(result, NoResponse)
        assert (result.kind, result.sent) == ("connect_timeout", False)

    @pytest.mark.parametrize(
        "url", ["", "ci.example", "ftp://127.0.0.1/", "http://", "http://u:p@127.0.0.1/", "http://127.0.0.1:99999/"]
    )
    async def test_invalid_urls(self, transport: Transport, url: str) -> None:
        result = await transport.exchange(post(url))
        assert isinstance(result, NoResponse)
        assert (result.kind, result.sent) == ("invalid_url", False)

    async def test_cancelling_closes_the_connection(self, transport: Transport) -> None:
        async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await server.read_request(reader)
            arrived.set()
            await reader.read()

        arrived = asyncio.Event()
        async with Server(script).running() as server:
            call = asyncio.create_task(transport.exchange(post(server.url())))
            await arrived.wait()
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
            await server.closed.wait()

    # --- the guard ----------------------------------------------------------------------------------------------

    @pytest.mark.parametrize("scheme", ["http", "https"])
    @pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::ffff:127.0.0.1]", "0x7f.1", "[::ffff:7f00:1]"])
    async def test_no_connection_to_a_blocked_address(self, host: str, scheme: Literal["http", "https"]) -> None:
        guard = AddressGuard([ip_network("192.0.2.0/24")], allow_http=True)
        async with replying(OK).running() as trap, self.started(guard) as transport:
            result = await transport.exchange(post(trap.url(host=host, scheme=scheme)))
        assert isinstance(result, NoResponse)
        assert (result.kind, result.sent) == ("blocked", False)
        assert trap.accepted == 0

    async def test_each_address_of_a_name_is_judged(self, monkeypatch: pytest.MonkeyPatch) -> None:
        async with replying(OK).running() as server:
            resolve_to(monkeypatch, server.port, "fd00::1", "127.0.0.1")
            async with self.started(AddressGuard()) as transport:
                result = await transport.exchange(post(server.url(host="ci.example", scheme="https")))
            assert isinstance(result, NoResponse)
            assert (result.kind, result.sent) == ("blocked", False)
            assert server.accepted == 0
            async with self.started(LOOPBACK) as transport:
                assert isinstance(await transport.exchange(post(server.url(host="ci.example"))), Response)

    async def test_no_connection_to_a_blocked_ipv6_address(self) -> None:
        async with replying(OK).running("::1") as trap, self.started(AddressGuard()) as transport:
            result = await transport.exchange(post(trap.url(host="[::1]", scheme="https")))
        assert isinstance(result, NoResponse)
        assert (result.kind, result.sent) == ("blocked", False)
        assert trap.accepted == 0

    async def test_ipv6_when_allowed(self, transport: Transport) -> None:
        async with replying(OK).running("::1") as server:
            assert isinstance(await transport.exchange(post(server.url(host="[::1]"))), Response)

    async def test_no_plain_http_to_public_addresses(self, transport: Transport) -> None:
        result = await transport.exchange(post("http://192.0.2.1.example:1/"))
        assert isinstance(result, NoResponse)
        assert result.kind == "dns"  # a name may lead to an allowed network, so it is looked up
        result = await transport.exchange(post("http://8.8.8.8/"))
        assert isinstance(result, NoResponse)
        assert (result.kind, result.sent) == ("blocked", False)
        assert "plain http" in result.detail

    # --- TLS ----------------------------------------------------------------------------------------------------

    async def test_a_self_signed_certificate_is_refused(self, transport: Transport, certificate: Path) -> None:
        async with replying(OK).running(context=server_context(certificate)) as server:
            result = await transport.exchange(post(server.url(scheme="https")))
        assert isinstance(result, NoResponse)
        assert (result.kind, result.sent) == ("tls", False)
        assert server.requests == []

    async def test_a_further_authority_can_be_trusted(self, certificate: Path) -> None:
        async with (
            keeping_alive().running(context=server_context(certificate)) as server,
            self.started(LOOPBACK, str(certificate)) as transport,
        ):
            for _ in range(2):
                result = await transport.exchange(post(server.url(scheme="https")))
                assert isinstance(result, Response)
                assert (result.status, result.body) == (200, b"ok")
        assert server.accepted == 1

    async def test_a_certificate_for_another_host_is_refused(self, certificate: Path) -> None:
        async with (
            replying(OK).running(context=server_context(certificate)) as server,
            self.started(LOOPBACK, str(certificate)) as transport,
        ):
            result = await transport.exchange(post(server.url(host="localhost", scheme="https")))
        assert isinstance(result, NoResponse)
        assert (result.kind, result.sent) == ("tls", False)

    async def test_a_server_without_tls(self, transport: Transport) -> None:
        async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(OK)
            await reader.read()

        async with Server(script).running() as server:
            result = await transport.exchange(post(server.url(scheme="https")))
        assert isinstance(result, NoResponse)
        assert (result.kind, result.sent) == ("tls", False)

    # --- connections kept alive ---------------------------------------------------------------------------------

    async def test_a_connection_is_used_again(self, transport: Transport) -> None:
        async with keeping_alive().running() as server:
            for _ in range(3):
                assert isinstance(await transport.exchange(post(server.url())), Response)
        assert (server.accepted, len(server.requests)) == (1, 3)

    @pytest.mark.parametrize("method", ["POST", "GET"])
    async def test_a_request_that_meets_a_closed_connection_takes_a_fresh_one(
        self, transport: Transport, method: Literal["POST", "GET"]
    ) -> None:
        async with replying(OK).running() as server:  # closes although it did not say so
            for _ in range(3):
                server.closed.clear()
                result = await transport.exchange(Request(method, server.url(), (), b"", 5.0))
                assert isinstance(result, Response)
                await server.closed.wait()  # at the server only: our side may not have been told yet
        assert (server.accepted, len(server.requests)) == (3, 3)

    async def test_a_close_that_went_unnoticed_while_the_loop_was_busy(self, transport: Transport) -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor(1) as server:

            def answer() -> socket.socket:
                connection, _ = listener.accept()
                request = b""
                while not request.endswith(b"{}"):
                    request += connection.recv(1000)
                connection.sendall(OK)
                return connection

            for _ in range(2):
                answered = server.submit(answer)
                url = f"http://127.0.0.1:{listener.getsockname()[1]}/"
                assert isinstance(await transport.exchange(post(url)), Response)
                answered.result().close()  # and no await until the next request

    @pytest.mark.parametrize("method", ["POST", "GET"])
    async def test_a_request_lost_on_a_kept_connection_is_not_repeated(
        self, transport: Transport, method: Literal["POST", "GET"]
    ) -> None:
        async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await server.read_request(reader)
            writer.write(OK)
            await server.read_request(reader)

        async with Server(script).running() as server:
            first = await transport.exchange(Request(method, server.url(), ()))
            second = await transport.exchange(Request(method, server.url(), ()))
        assert isinstance(first, Response)
        assert isinstance(second, NoResponse)
        assert (second.kind, second.sent) == ("disconnected", True)
        assert (server.accepted, len(server.requests)) == (1, 2)

    async def test_one_hanging_receiver_does_not_hold_up_another(self, transport: Transport) -> None:
        async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await hanging.read_request(reader)
            if len(hanging.requests) == 110:
                all_there.set()
            await reader.read()

        all_there = asyncio.Event()
        async with Server(script).running() as hanging, replying(OK).running() as healthy:
            calls = [asyncio.create_task(transport.exchange(post(hanging.url(), timeout_s=60))) for _ in range(110)]
            await all_there.wait()
            assert isinstance(await transport.exchange(post(healthy.url())), Response)
            for call in calls:
                call.cancel()
            await asyncio.gather(*calls, return_exceptions=True)


def resolve_to(monkeypatch: pytest.MonkeyPatch, port: int, *addresses: str) -> None:
    """Every name leads to these addresses."""

    async def getaddrinfo(*_: object, **__: object) -> list[tuple[int, int, int, str, tuple[str | int, ...]]]:
        return [
            (socket.AF_INET6, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", (ip, port, 0, 0))
            if ":" in ip
            else (socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", (ip, port))
            for ip in addresses
        ]

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", getaddrinfo)


def server_context(certificate: Path) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, certificate.with_suffix(".key"))
    return context
