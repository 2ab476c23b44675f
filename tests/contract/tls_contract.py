"""Contract tests of the transport port over TLS, on raw sockets."""

import asyncio
from pathlib import Path

from relay.delivery.port import Transport
from relay.domain.exchange import NoResponse, Response
from tests.contract.raw_server import OK, Server, failure, keeping_alive, replying, server_context
from tests.contract.transport_rig import LOOPBACK, TransportRig, post
from tests.expecting import expect


class TlsContract(TransportRig):
    async def test_a_self_signed_certificate_is_refused(self, transport: Transport, certificate: Path) -> None:
        async with replying(OK).running(context=server_context(certificate)) as server:
            result = await transport.exchange(post(server.url(scheme="https")))
        assert failure(result) == ("tls", False)
        assert server.requests == []

    async def test_tls_to_a_port_without_it(self, transport: Transport) -> None:
        async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read(1)
            writer.write(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n")

        async with Server(script).running() as server:
            result = await transport.exchange(post(server.url(scheme="https")))
        assert isinstance(result, NoResponse)
        assert (result.kind, result.sent) == ("tls", False)
        assert "is it an http:// URL?" in result.detail

    async def test_a_port_with_tls_that_is_sent_plain_text(self, transport: Transport, certificate: Path) -> None:
        alert = b"\x15\x03\x01\x00\x02\x02\x46"  # fatal: protocol version
        async with replying(alert).running() as server:
            result = await transport.exchange(post(server.url()))
        assert isinstance(result, NoResponse)
        assert result.kind == "protocol"
        assert "is it an https:// URL?" in result.detail

    async def test_a_further_authority_can_be_trusted(self, certificate: Path) -> None:
        async with (
            keeping_alive().running(context=server_context(certificate)) as server,
            self.started(LOOPBACK, str(certificate)) as transport,
        ):
            for _ in range(2):
                result = expect(Response, await transport.exchange(post(server.url(scheme="https"))))
                assert (result.status, result.body) == (200, b"ok")
        assert server.accepted == 1

    async def test_a_large_body_over_tls(self, certificate: Path) -> None:
        body = bytes(range(256)) * 4000
        async with (
            keeping_alive().running(context=server_context(certificate)) as server,
            self.started(LOOPBACK, str(certificate)) as transport,
        ):
            for _ in range(2):
                assert isinstance(await transport.exchange(post(server.url(scheme="https"), body=body)), Response)
        assert [request.partition(b"\r\n\r\n")[2] == body for request in server.requests] == [True, True]
        assert server.accepted == 1

    async def test_an_answer_over_tls_that_comes_before_the_whole_request(self, certificate: Path) -> None:
        async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\n\r\n")
            await enough.wait()

        enough = asyncio.Event()
        async with (
            Server(script).running(context=server_context(certificate)) as server,
            self.started(LOOPBACK, str(certificate)) as transport,
        ):
            url = server.url(scheme="https")
            for body in (bytes(20_000_000), b"{}"):
                result = expect(Response, await transport.exchange(post(url, body=body)))
                assert result.status == 413
            enough.set()
        assert server.accepted == 2

    async def test_a_tls_connection_that_ends_without_an_answer(self, certificate: Path) -> None:
        async with (
            replying().running(context=server_context(certificate)) as server,
            self.started(LOOPBACK, str(certificate)) as transport,
        ):
            result = await transport.exchange(post(server.url(scheme="https")))
        assert failure(result) == ("disconnected", True)

    async def test_a_certificate_for_another_host_is_refused(self, certificate: Path) -> None:
        async with (
            replying(OK).running(context=server_context(certificate)) as server,
            self.started(LOOPBACK, str(certificate)) as transport,
        ):
            result = await transport.exchange(post(server.url(host="localhost", scheme="https")))
        assert failure(result) == ("tls", False)

    async def test_a_server_without_tls(self, transport: Transport) -> None:
        async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(OK)
            await reader.read()

        async with Server(script).running() as server:
            result = await transport.exchange(post(server.url(scheme="https")))
        assert failure(result) == ("tls", False)
