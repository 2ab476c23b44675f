"""Contract tests of the transport port: connections, their reuse, and the callback that gets the result."""

import asyncio
import socket
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from ipaddress import ip_network
from typing import Literal

import pytest

from relay.delivery.guard import AddressGuard
from relay.delivery.port import Transport
from relay.domain.exchange import Exchange, NoResponse, Request, Response
from tests.contract.raw_server import (
    CHUNKED_WITH_LENGTH,
    OK,
    Server,
    answer_one,
    failure,
    keeping_alive,
    not_accepting,
    replying,
    resolve_to,
    silent,
)
from tests.contract.transport_rig import LOOPBACK, TransportRig, post
from tests.expecting import expect


class ConnectionContract(TransportRig):
    # --- callbacks ----------------------------------------------------------------------------------------------

    @pytest.mark.parametrize("url", ["", None], ids=["refusal", "response"])
    async def test_the_result_is_told_once_and_later(self, transport: Transport, url: str | None) -> None:
        told: list[Exchange] = []
        async with keeping_alive().running() as server:
            for _ in range(2):  # over a fresh connection, then over a kept one
                before, arrived = len(told), asyncio.Event()

                def done(exchange: Exchange, arrived: asyncio.Event = arrived) -> None:
                    told.append(exchange)
                    arrived.set()

                transport.send(post(server.url() if url is None else url), done)
                assert len(told) == before
                await arrived.wait()
        await transport.close()
        assert len(told) == 2

    async def test_the_next_request_may_be_made_from_where_the_result_is_told(self, transport: Transport) -> None:
        told: list[Exchange] = []
        enough = asyncio.Event()
        async with keeping_alive().running() as server:

            def done(exchange: Exchange) -> None:
                told.append(exchange)
                if len(told) < 5:
                    transport.send(post(server.url()), done)
                else:
                    enough.set()

            transport.send(post(server.url()), done)
            await enough.wait()
        assert all(isinstance(exchange, Response) for exchange in told)
        assert server.accepted == 1

    async def test_who_is_told_may_fail(self, transport: Transport) -> None:
        def done(_exchange: Exchange) -> None:
            raise RuntimeError("a bug")

        reported: asyncio.Queue[object] = asyncio.Queue()
        asyncio.get_running_loop().set_exception_handler(
            lambda _loop, context: reported.put_nowait(context["exception"])
        )
        async with keeping_alive().running() as server:
            transport.send(post(server.url()), done)
            assert isinstance(await reported.get(), RuntimeError)
            assert isinstance(await transport.exchange(post(server.url())), Response)
        assert (server.accepted, len(server.requests)) == (1, 2)

    async def test_a_request_that_nobody_waits_for_goes_to_its_end(self, transport: Transport) -> None:
        async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            while True:
                await server.read_request(reader)
                arrived.set()
                await go_on.wait()
                writer.write(OK)
                answered.set()

        arrived, go_on, answered = asyncio.Event(), asyncio.Event(), asyncio.Event()
        async with Server(script).running() as server:
            call = asyncio.create_task(transport.exchange(post(server.url())))
            await arrived.wait()
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
            go_on.set()
            await answered.wait()
            assert isinstance(await transport.exchange(post(server.url())), Response)
        assert len(server.requests) == 2

    # --- closing ------------------------------------------------------------------------------------------------

    async def test_closing_gives_up_what_was_sent(self, transport: Transport) -> None:
        told: list[Exchange] = []
        async with silent().running() as server:
            transport.send(post(server.url()), told.append)
            await server.silences.acquire()
            await transport.close()
            (result,) = told
            await server.closed.wait()
        assert failure(result) == ("disconnected", True)

    async def test_closing_gives_up_what_was_not_sent(self, transport: Transport) -> None:
        told: list[Exchange] = []
        with not_accepting() as url:
            transport.send(post(url), told.append)
            await asyncio.sleep(0.01)
            await transport.close()
        (result,) = told
        assert failure(result) == ("disconnected", False)

    async def test_closing_keeps_a_status_that_has_come(self, transport: Transport) -> None:
        told: list[Exchange] = []
        async with silent(b"HTTP/1.1 202 Accepted\r\nContent-Length: 5\r\n\r\nab").running() as server:
            transport.send(post(server.url()), told.append)
            await server.silences.acquire()
            await asyncio.sleep(0.05)  # there is no event for the client's read
            await transport.close()
        assert told == [Response(202, {"content-length": "5"}, b"ab", truncated=True, broken=True)]

    async def test_nothing_is_sent_once_it_is_closed(self, transport: Transport) -> None:
        async with keeping_alive().running() as server:
            await transport.exchange(post(server.url()))
            await transport.close()
            result = await transport.exchange(post(server.url()))
        assert failure(result) == ("disconnected", False)
        assert len(server.requests) == 1

    # --- the guard ----------------------------------------------------------------------------------------------

    @pytest.mark.parametrize("scheme", ["http", "https"])
    @pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::ffff:127.0.0.1]", "0x7f.1", "[::ffff:7f00:1]"])
    async def test_no_connection_to_a_blocked_address(self, host: str, scheme: Literal["http", "https"]) -> None:
        guard = AddressGuard([ip_network("192.0.2.0/24")], allow_http=True)
        async with replying(OK).running() as trap, self.started(guard) as transport:
            result = await transport.exchange(post(trap.url(host=host, scheme=scheme)))
        assert failure(result) == ("blocked", False)
        assert trap.accepted == 0

    async def test_each_address_of_a_name_is_judged(self, monkeypatch: pytest.MonkeyPatch) -> None:
        async with replying(OK).running() as server:
            resolve_to(monkeypatch, server.port, "fd00::1", "127.0.0.1")
            async with self.started(AddressGuard()) as transport:
                result = await transport.exchange(post(server.url(host="ci.example", scheme="https")))
            assert failure(result) == ("blocked", False)
            assert server.accepted == 0
            async with self.started(LOOPBACK) as transport:
                assert isinstance(await transport.exchange(post(server.url(host="ci.example"))), Response)

    async def test_an_allowed_name_leads_to_private_addresses_but_not_to_those_of_a_cloud(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async with replying(OK).running() as server, self.started(AddressGuard((), False, ["ci.example"])) as transport:
            url = server.url(host="CI.example")
            resolve_to(monkeypatch, server.port, "169.254.169.254", "127.0.0.1")
            assert isinstance(await transport.exchange(post(url)), Response)
        async with self.started(AddressGuard((), False, ["ci.example"])) as transport:
            resolve_to(monkeypatch, server.port, "169.254.169.254")
            result = await transport.exchange(post(url))
        assert failure(result) == ("blocked", False)

    async def test_the_next_address_is_tried_when_one_fails(
        self, transport: Transport, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async with replying(OK).running() as server:
            resolve_to(monkeypatch, server.port, "::1", "127.0.0.2", "127.0.0.1")
            assert isinstance(await transport.exchange(post(server.url(host="ci.example"))), Response)

    async def test_every_address_fails(self, transport: Transport, monkeypatch: pytest.MonkeyPatch) -> None:
        async with replying(OK).running() as server:
            port = server.port
        resolve_to(monkeypatch, port, "127.0.0.1", "127.0.0.2")
        assert failure(await transport.exchange(post(f"http://ci.example:{port}/"))) == ("refused", False)

    async def test_no_connection_to_a_blocked_ipv6_address(self) -> None:
        async with replying(OK).running("::1") as trap, self.started(AddressGuard()) as transport:
            result = await transport.exchange(post(trap.url(host="[::1]", scheme="https")))
        assert failure(result) == ("blocked", False)
        assert trap.accepted == 0

    async def test_ipv6_when_allowed(self, transport: Transport) -> None:
        async with replying(OK).running("::1") as server:
            assert isinstance(await transport.exchange(post(server.url(host="[::1]"))), Response)

    async def test_no_plain_http_to_public_addresses(self, transport: Transport) -> None:
        result = expect(NoResponse, await transport.exchange(post("http://192.0.2.1.example:1/")))
        assert result.kind == "dns"  # a name may lead to an allowed network, so it is looked up
        result = expect(NoResponse, await transport.exchange(post("http://8.8.8.8/")))
        assert (result.kind, result.sent) == ("blocked", False)
        assert "plain http" in result.detail

    # --- connections kept alive ---------------------------------------------------------------------------------

    async def test_a_connection_is_used_again(self, transport: Transport) -> None:
        async with keeping_alive().running() as server:
            for _ in range(3):
                assert isinstance(await transport.exchange(post(server.url())), Response)
        assert (server.accepted, len(server.requests)) == (1, 3)

    @pytest.mark.parametrize(
        "reply",
        [
            b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok",
            b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok",
        ],
        ids=["close", "1.0"],
    )
    async def test_a_connection_that_cannot_be_used_again(self, transport: Transport, reply: bytes) -> None:
        await self.served_by_two_connections(transport, reply)

    @pytest.mark.parametrize("junk", [b"zz", b"HTTP/1.1 20", OK], ids=["junk", "half of another", "another"])
    async def test_what_follows_a_response_ends_the_connection(self, transport: Transport, junk: bytes) -> None:
        await self.served_by_two_connections(transport, OK + junk)

    @pytest.mark.parametrize("framing", [b"Content-Length: 43", b"Transfer-Encoding: chunked"])
    async def test_the_late_end_of_a_response_is_no_answer_to_the_next_request(
        self, transport: Transport, framing: bytes
    ) -> None:
        """A 204 has no body, but its server wrote one, which comes when the next request is already there."""

        async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await server.read_request(reader)
            writer.write(b"HTTP/1.1 204 No Content\r\n" + framing + b"\r\n\r\n")
            with suppress(asyncio.IncompleteReadError):
                await server.read_request(reader)
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nwrong")

        async with Server(script).running() as server:
            for _ in range(2):
                assert expect(Response, await transport.exchange(post(server.url()))).status == 204
        assert server.accepted == 2

    async def test_two_framings_end_the_connection(self, transport: Transport) -> None:
        """Who has framed it otherwise has sent more than what was read."""
        await self.served_by_two_connections(transport, CHUNKED_WITH_LENGTH)

    async def served_by_two_connections(self, transport: Transport, reply: bytes) -> None:
        async with keeping_alive(reply).running() as server:
            for _ in range(2):
                result = expect(Response, await transport.exchange(post(server.url())))
                assert (result.status, result.body) == (200, b"ok")
        assert server.accepted == 2

    async def test_an_old_server_may_keep_alive(self, transport: Transport) -> None:
        reply = b"HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 2\r\n\r\nok"
        async with keeping_alive(reply).running() as server:
            for _ in range(2):
                assert isinstance(await transport.exchange(post(server.url())), Response)
        assert server.accepted == 1

    async def test_what_nobody_asked_for_ends_an_idle_connection(self, transport: Transport) -> None:
        async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await server.read_request(reader)
            writer.write(OK)
            await go_on.wait()
            writer.write(b"HTTP/1.1 408 Request Timeout\r\nContent-Length: 0\r\n\r\n")
            await writer.drain()
            said.set()
            await reader.read()

        go_on, said = asyncio.Event(), asyncio.Event()
        async with Server(script).running() as server:
            first = await transport.exchange(post(server.url()))
            go_on.set()
            await said.wait()
            second = await transport.exchange(post(server.url()))
        assert [getattr(result, "status", None) for result in (first, second)] == [200, 200]
        assert server.accepted == 2

    async def test_an_answer_that_comes_before_the_whole_request(self, transport: Transport) -> None:
        async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\n\r\n")
            await enough.wait()

        enough = asyncio.Event()
        async with Server(script).running() as server:
            result = expect(Response, await transport.exchange(post(server.url(), body=bytes(20_000_000))))
            assert result.status == 413
            assert isinstance(await transport.exchange(post(server.url())), Response)
            enough.set()
        assert server.accepted == 2

    @pytest.mark.parametrize("method", ["POST", "GET"])
    async def test_a_request_that_meets_a_closed_connection_takes_a_fresh_one(
        self, transport: Transport, method: Literal["POST", "GET"]
    ) -> None:
        async with replying(OK).running() as server:  # closes although it did not say so
            for _ in range(3):
                server.closed.clear()
                expect(Response, await transport.exchange(Request(method, server.url(), (), b"", 5.0)))
                await server.closed.wait()  # at the server only: the client may not know yet
        assert (server.accepted, len(server.requests)) == (3, 3)

    async def test_a_close_that_went_unnoticed_while_the_loop_was_busy(self, transport: Transport) -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor(1) as server:
            for _ in range(2):
                answered = server.submit(answer_one, listener)
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
        assert failure(second) == ("disconnected", True)
        assert (server.accepted, len(server.requests)) == (1, 2)

    async def test_one_hanging_receiver_does_not_hold_up_another(self, transport: Transport) -> None:
        async with silent().running() as hanging, replying(OK).running() as healthy:
            calls = [asyncio.create_task(transport.exchange(post(hanging.url(), timeout_s=60))) for _ in range(110)]
            for _ in calls:
                await hanging.silences.acquire()
            assert isinstance(await transport.exchange(post(healthy.url())), Response)
            for call in calls:
                call.cancel()
            await asyncio.gather(*calls, return_exceptions=True)
