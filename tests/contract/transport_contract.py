"""Contract tests of the transport port: requests and responses, on raw sockets."""

import asyncio
import gzip
import zlib
from typing import Literal

import pytest

from relay.delivery.port import Transport
from relay.domain.exchange import NoResponse, Request, Response
from tests.contract.raw_server import (
    CHUNKED_WITH_LENGTH,
    OK,
    Server,
    failure,
    keeping_alive,
    not_accepting,
    replying,
    reset,
    silent,
)
from tests.contract.transport_rig import BODY_CAP, TransportRig, post
from tests.expecting import expect

PLAIN = b'{"state": "passed"}' * 20
GZIPPED = gzip.compress(PLAIN)


class TransportContract(TransportRig):
    # --- requests -----------------------------------------------------------------------------------------------

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

    @pytest.mark.parametrize("method", ["PUT", "PATCH"])
    async def test_other_methods_have_a_body_too(self, transport: Transport, method: Literal["PUT", "PATCH"]) -> None:
        async with replying(OK).running() as server:
            await transport.exchange(Request(method, server.url("/a"), (), b"body"))
        head, _, body = server.requests[0].partition(b"\r\n\r\n")
        assert head.startswith(f"{method} /a HTTP/1.1\r\n".encode())
        assert (b"content-length: 4" in head.lower(), body) == (True, b"body")

    async def test_a_large_body_arrives_whole(self, transport: Transport) -> None:
        body = bytes(3_000_000)
        async with replying(OK).running() as server:
            assert isinstance(await transport.exchange(post(server.url(), body=body)), Response)
        assert server.requests[0].partition(b"\r\n\r\n")[2] == body

    @pytest.mark.parametrize(
        "header",
        [
            ("x-a", "1\r\nx-b: 2"),
            ("x-a\r\nx-b", "1"),
            ("x-a", "\0"),
            ("x-a", "1\n"),
            ("x-a", "\x7f"),
        ],
    )
    async def test_a_header_cannot_smuggle_another(self, transport: Transport, header: tuple[str, str]) -> None:
        async with replying(OK).running() as server:
            result = await transport.exchange(post(server.url(), headers=(header,)))
        assert failure(result) == ("invalid_header", False)
        assert server.requests == []

    # --- responses ----------------------------------------------------------------------------------------------

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
            pytest.param(
                b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2;x=y\r\nab\r\n1\r\nc\r\n0\r\nt: 1\r\n\r\n",
                b"abc",
                id="chunked",
            ),
            pytest.param(
                b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nuntil the end", b"until the end", id="until close"
            ),
            pytest.param(b"HTTP/1.0 200 OK\r\n\r\nold", b"old", id="1.0"),
            pytest.param(
                b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + OK, b"ok", id="1xx first"
            ),
            pytest.param(b"HTTP/1.1 200 OK\nContent-Length: 2\n\nok", b"ok", id="bare LF"),
            pytest.param(b"HTTP/1.1 200\r\nContent-Length:  2 \r\n\r\nok", b"ok", id="no reason"),
            pytest.param(b"HTTP/1.1 200 OK\r\nx-a: 1\r\n  2\r\nContent-Length: 2\r\n\r\nok", b"ok", id="folded"),
            pytest.param(
                b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nx-a: 1\r\ncontent-length:2\r\n\r\nok",
                b"ok",
                id="twice the same length",
            ),
            pytest.param(
                b"HTTP/1.1 200 OK\nContent-Length: 2, 2\nContent-Length: 2\n\nok", b"ok", id="a list of the same length"
            ),
            pytest.param(CHUNKED_WITH_LENGTH, b"ok", id="chunked with a length"),
            pytest.param(
                b"HTTP/1.1 200 OK\r\nTransfer-Encoding: identity\r\nContent-Length: 2\r\n\r\nok",
                b"ok",
                id="identity with a length",
            ),
        ],
    )
    async def test_framings(self, transport: Transport, reply: bytes, body: bytes) -> None:
        async with replying(reply).running() as server:
            result = await transport.exchange(post(server.url()))
        assert isinstance(result, Response)
        assert (result.status, result.body, result.truncated) == (200, body, False)

    async def test_a_response_that_comes_in_single_bytes(self, transport: Transport) -> None:
        reply = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nx-a: 1\r\n\r\n2\r\nab\r\n1\r\nc\r\n0\r\n\r\n"
        async with replying(*[bytes([byte]) for byte in reply]).running() as server:
            result = await transport.exchange(post(server.url()))
        assert result == Response(200, {"transfer-encoding": "chunked", "x-a": "1"}, b"abc")

    async def test_trailers_are_no_headers(self, transport: Transport) -> None:
        reply = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nx-t: 1\r\n\r\n"
        async with replying(reply).running() as server:
            assert await transport.exchange(post(server.url())) == Response(200, {"transfer-encoding": "chunked"}, b"")

    async def test_a_half_closed_connection_still_answers(self, transport: Transport) -> None:
        async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await server.read_request(reader)
            writer.write(b"HTTP/1.1 200 OK\r\n\r\nall there is")
            writer.write_eof()
            await reader.read()

        async with Server(script).running() as server:
            assert await transport.exchange(post(server.url())) == Response(200, {}, b"all there is")

    async def test_nobody_switches_protocols(self, transport: Transport) -> None:
        reply = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\nxyz"
        async with replying(reply).running() as server:
            result = await transport.exchange(post(server.url()))
        assert failure(result) == ("protocol", True)

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

    @pytest.mark.parametrize(
        ("coding", "body", "plain", "truncated"),
        [
            pytest.param("gzip", GZIPPED, PLAIN, False, id="gzip"),
            pytest.param("X-Gzip", GZIPPED, PLAIN, False, id="its old name"),
            pytest.param("deflate", zlib.compress(PLAIN), PLAIN, False, id="deflate"),
            pytest.param("gzip", gzip.compress(b"x" * BODY_CAP), b"x" * BODY_CAP, False, id="full"),
            pytest.param("gzip", gzip.compress(b"x" * (BODY_CAP + 1)), b"x" * BODY_CAP, True, id="too much"),
            pytest.param("gzip", GZIPPED[:-1], PLAIN, True, id="cut"),
            pytest.param("gzip", b"", b"", False, id="empty"),
            pytest.param("gzip", b"plain", b"plain", False, id="not gzip"),
            pytest.param("gzip", GZIPPED * 2, GZIPPED * 2, False, id="two of them"),
            pytest.param("br", GZIPPED, GZIPPED, False, id="another"),
        ],
    )
    async def test_what_was_compressed_unasked_is_decompressed_up_to_the_cap(
        self, transport: Transport, coding: str, body: bytes, plain: bytes, truncated: bool
    ) -> None:
        head = f"HTTP/1.1 200 OK\r\nContent-Encoding: {coding}\r\nContent-Length: {len(body)}\r\n\r\n"
        async with replying(head.encode() + body).running() as server:
            result = await transport.exchange(post(server.url()))
        assert isinstance(result, Response)
        assert (result.body, result.truncated, result.broken) == (plain, truncated, False)
        assert result.headers["content-encoding"] == coding
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

    @pytest.mark.parametrize(
        "endless", [b"x-t: " + b"y" * 2000 + b"\r\n", b"y" * 2000], ids=["trailers", "one trailer"]
    )
    async def test_framing_without_end_is_hung_up_on(self, transport: Transport, endless: bytes) -> None:
        async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await server.read_request(reader)
            writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\n")
            await go_on.wait()
            if not endless.endswith(b"\n"):
                writer.write(b"x-t: ")
            while True:
                writer.write(endless)
                await writer.drain()

        go_on = asyncio.Event()
        async with Server(script).running() as server:
            # Bytes that arrive together with the status line may invalidate it, too: send them later.
            asyncio.get_running_loop().call_later(0.1, go_on.set)
            result = await transport.exchange(post(server.url(), timeout_s=1000.0))  # longer than a test may take
            await server.closed.wait()
        assert result == Response(200, {"transfer-encoding": "chunked"}, b"a", truncated=True, broken=True)

    async def test_a_length_that_was_promised_and_not_kept(self, transport: Transport) -> None:
        async with replying(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nabc").running() as server:
            result = await transport.exchange(post(server.url()))
        assert result == Response(200, {"content-length": "5"}, b"abc", truncated=True, broken=True)

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
        timeout_s = 60.0 if ending in ("close", "reset") else 0.3
        async with Server(script).running() as server:
            # Invalid bytes that arrive together with the status line may invalidate it, too: send them later.
            asyncio.get_running_loop().call_later(0.1, go_on.set)
            result = await transport.exchange(post(server.url(), timeout_s=timeout_s))
        assert isinstance(result, Response)
        assert (result.status, result.body[:2], result.truncated) == (202, b"ab", True)

    # --- no status line -----------------------------------------------------------------------------------------

    async def unanswered(self, transport: Transport, server: Server, *, timeout_s: float = 60.0) -> NoResponse:
        async with server.running():
            result = expect(NoResponse, await transport.exchange(post(server.url(), timeout_s=timeout_s)))
        assert len(server.requests) == 1  # never repeated
        return result

    async def test_silence(self, transport: Transport) -> None:
        assert failure(await self.unanswered(transport, silent(), timeout_s=0.2)) == ("timeout", True)

    async def test_a_flood_of_1xx(self, transport: Transport) -> None:
        async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await server.read_request(reader)
            while True:
                writer.write(b"HTTP/1.1 103 Early Hints\r\n\r\n")
                await asyncio.sleep(0.01)

        server = Server(script)
        assert failure(await self.unanswered(transport, server, timeout_s=0.2)) == ("timeout", True)

    @pytest.mark.parametrize("begun", [[], [b"HTTP/1.1 20"]], ids=["before the status line", "within it"])
    async def test_closed_without_a_response(self, transport: Transport, begun: list[bytes]) -> None:
        assert failure(await self.unanswered(transport, replying(*begun))) == ("disconnected", True)

    async def test_reset_before_the_status_line(self, transport: Transport) -> None:
        async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await server.read_request(reader)
            reset(writer)

        server = Server(script)
        result = await self.unanswered(transport, server)
        assert (result.kind, result.sent) == ("disconnected", True)
        assert "Errno" not in result.detail

    async def test_reset_in_the_middle_of_a_large_body(self, transport: Transport) -> None:
        async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readexactly(100_000)
            reset(writer)

        async with Server(script).running() as server:
            result = await transport.exchange(post(server.url(), body=bytes(20_000_000)))
        assert failure(result) == ("disconnected", True)
        assert server.accepted == 1

    @pytest.mark.parametrize(
        "reply",
        [
            pytest.param(b"SSH-2.0-OpenSSH_9.2\r\n", id="ssh"),
            pytest.param(b"HTTP/1.1 abc\r\n\r\n", id="no status"),
            pytest.param(b"HTTP/1.1 200 OK\r\nx: " + b"y" * 100_000 + b"\r\n\r\n", id="huge header"),
            pytest.param(b"HTTP/1.1 200 OK\r\n" + b"x: 12345\r\n" * 10_000 + b"\r\n", id="many headers"),
            pytest.param(b"HTTP/1.1 200 OK\r\nx: \0\r\nContent-Length: 0\r\n\r\n", id="NUL"),
            pytest.param(b"HTTP/1.1 200 OK\r\nx y: 1\r\nContent-Length: 0\r\n\r\n", id="blank in a name"),
            pytest.param(b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nok", id="two lengths"),
            pytest.param(b"HTTP/1.1 200 OK\r\nContent-Length: 2, 1\r\n\r\nok", id="a list of lengths"),
            pytest.param(
                b"HTTP/1.1 200 OK\r\nContent-Length: +2\r\nContent-Length: +2\r\n\r\nok", id="twice no length"
            ),
        ],
    )
    async def test_not_http(self, transport: Transport, reply: bytes) -> None:
        assert failure(await self.unanswered(transport, replying(reply))) == ("protocol", True)

    async def test_a_head_without_end(self, transport: Transport) -> None:
        async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await server.read_request(reader)
            writer.write(b"HTTP/1.1 200 OK\r\nx: ")
            while True:
                writer.write(b"y" * 1000)
                await writer.drain()

        server = Server(script)
        assert failure(await self.unanswered(transport, server)) == ("protocol", True)

    async def test_each_request_has_its_own_deadline(self, transport: Transport) -> None:
        ended: list[float] = []

        async def ask(timeout_s: float) -> None:
            expect(NoResponse, await transport.exchange(post(server.url(), timeout_s=timeout_s)))
            ended.append(timeout_s)

        async with silent().running() as server, asyncio.TaskGroup() as group:
            for timeout_s in (0.45, 0.3, 0.15, 0.45):
                group.create_task(ask(timeout_s))
        assert ended == [0.15, 0.3, 0.45, 0.45]

    async def test_refused(self, transport: Transport) -> None:
        async with replying().running() as server:
            url = server.url()
        result = expect(NoResponse, await transport.exchange(post(url)))
        assert (result.kind, result.sent) == ("refused", False)
        assert result.detail == f"connection refused by {url.removeprefix('http://').removesuffix('/')}"

    async def test_a_host_that_does_not_exist(self, transport: Transport) -> None:
        result = expect(NoResponse, await transport.exchange(post("http://does-not-exist.invalid/")))
        assert (result.kind, result.sent) == ("dns", False)
        assert result.detail.startswith("does-not-exist.invalid: ")
        assert "Errno" not in result.detail

    async def test_a_host_that_does_not_accept(self, transport: Transport) -> None:
        with not_accepting() as url:
            result = await transport.exchange(post(url, timeout_s=0.3))
        assert failure(result) == ("connect_timeout", False)

    @pytest.mark.parametrize(
        "url", ["", "ci.example", "ftp://127.0.0.1/", "http://", "http://u:p@127.0.0.1/", "http://127.0.0.1:99999/"]
    )
    async def test_invalid_urls(self, transport: Transport, url: str) -> None:
        assert failure(await transport.exchange(post(url))) == ("invalid_url", False)
