"""The transport contract on the lean transport with both kinds of event loop, and tests of its connection pool."""

import asyncio
import errno
import socket
import sys
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import pytest
from msgspec import structs

from relay.delivery import connection, connection_pool, dial
from relay.delivery.guard import AddressGuard
from relay.delivery.lean_transport import LeanTransport
from relay.delivery.port import Transport
from relay.domain.egress import Egress
from relay.domain.exchange import Exchange, NoResponse, Response
from tests.contract.connection_contract import ConnectionContract
from tests.contract.raw_server import (
    OK,
    Server,
    answer_one,
    failure,
    keeping_alive,
    not_accepting,
    replying,
    resolve_to,
)
from tests.contract.tls_contract import TlsContract
from tests.contract.transport_contract import TransportContract
from tests.contract.transport_rig import LOOPBACK, LOOPS, TransportRig, post, running
from tests.expecting import expect


class Lean(TransportRig):
    loops = LOOPS

    def make(self, guard: AddressGuard, *, body_cap: int, ca_file: str | None) -> Transport:
        return LeanTransport(guard, body_cap=body_cap, ca_file=ca_file)


class TestLeanTransport(Lean, TransportContract):
    pass


class TestLeanConnections(Lean, ConnectionContract):
    pass


class TestLeanTls(Lean, TlsContract):
    pass


class TestPool(Lean):
    async def test_what_may_not_wait_for_a_connection_leaves_it_to_the_next(self, transport: Transport) -> None:
        """A slot of a rate passes while there is no connection: all that wait for one would start together."""
        now_or_never = structs.replace(post("http://unused"), start_within_s=0.0)
        async with keeping_alive().running() as server:
            request = structs.replace(now_or_never, url=server.url())
            waited = await transport.exchange(request)
            assert waited == NoResponse("late", "it had to wait for a connection", sent=False)
            assert isinstance(await transport.exchange(request), Response)
        assert (server.accepted, len(server.requests)) == (1, 1)

    async def test_what_may_not_wait_finds_its_connection_however_late_its_next_slot_is(
        self, transport: Transport, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Otherwise it would never be sent, with one slot in five seconds or many other origins."""
        monkeypatch.setattr(connection_pool, "_IDLE_S", 0.0)
        monkeypatch.setattr(connection_pool, "_IN_ALL", 0)
        monkeypatch.setattr(connection_pool, "_SWEEP_S", 0.01)
        async with keeping_alive().running() as server, keeping_alive().running() as other:
            request = structs.replace(post(server.url()), start_within_s=0.0)
            assert failure(await transport.exchange(request)) == ("late", False)
            await self.all_at_once(transport, other, 1)
            await other.closes(1)
            await asyncio.sleep(0.05)
            assert isinstance(await transport.exchange(request), Response)
            assert (server.accepted, len(server.requests)) == (1, 1)
            monkeypatch.setattr(connection_pool, "_UNUSED_S", 0.0)
            assert failure(await transport.exchange(request)) == ("late", False)
            await server.closes(2)
            assert failure(await transport.exchange(request)) == ("late", False)

    async def test_connections_that_wait_for_a_slot_give_way_to_requests(self, monkeypatch: pytest.MonkeyPatch) -> None:
        async with (
            running(LeanTransport(LOOPBACK, most_open=2)) as transport,
            keeping_alive().running() as first,
            keeping_alive().running() as second,
        ):
            for server in (first, second):
                request = structs.replace(post(server.url()), start_within_s=0.0)
                assert failure(await transport.exchange(request)) == ("late", False)
            async with keeping_alive().running() as other:
                await self.all_at_once(transport, other, 1)
            await first.closes(1)
            monkeypatch.setattr(connection_pool, "_UNUSED", 1)
            request = structs.replace(post(first.url()), start_within_s=0.0)
            assert failure(await transport.exchange(request)) == ("late", False)
            await second.closes(1)

    async def all_at_once(self, transport: Transport, server: Server, count: int) -> None:
        results = await asyncio.gather(*[transport.exchange(post(server.url())) for _ in range(count)])
        assert all(isinstance(result, Response) for result in results)

    async def test_the_connection_used_last_is_used_next(self, transport: Transport) -> None:
        async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            reply = OK.replace(b"ok", b"%02d" % server.accepted)
            while True:
                await server.read_request(reader)
                writer.write(reply)

        async with Server(script).running() as server:
            await self.all_at_once(transport, server, 5)
            results = [await transport.exchange(post(server.url())) for _ in range(5)]
        assert server.accepted == 5
        assert len({result.body for result in results if isinstance(result, Response)}) == 1

    async def test_idle_connections_are_dropped(self, transport: Transport, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(connection_pool, "_SWEEP_S", 0.01)
        monkeypatch.setattr(connection_pool, "_IDLE_S", 0.05)
        async with keeping_alive().running() as server:
            await self.all_at_once(transport, server, 3)
            await server.closes(3)
            await self.all_at_once(transport, server, 1)
        assert server.accepted == 4

    async def test_a_connection_idle_for_too_long_is_not_used(
        self, transport: Transport, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(connection_pool, "_IDLE_S", 0.0)  # and the next sweep is far
        async with keeping_alive().running() as server:
            for _ in range(2):
                await self.all_at_once(transport, server, 1)
        assert server.accepted == 2

    async def test_an_old_connection_is_not_used_again(
        self, transport: Transport, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A busy one, too: its host may have moved to another address meanwhile."""
        monkeypatch.setattr(dial, "_NAMES_KEPT_S", 0.0)
        async with keeping_alive().running() as before, keeping_alive().running() as after:
            url = "http://ci.example/"
            resolve_to(monkeypatch, before.port, "127.0.0.1")
            await transport.exchange(post(url))
            resolve_to(monkeypatch, after.port, "127.0.0.1")
            await transport.exchange(post(url))
            assert (len(before.requests), len(after.requests)) == (2, 0)
            monkeypatch.setattr(connection_pool, "_AGE_S", 0.0)
            for _ in range(2):
                await transport.exchange(post(url))
        assert (len(before.requests), len(after.requests)) == (3, 1)

    @pytest.mark.parametrize("cap", ["_PER_ORIGIN", "_IN_ALL"])
    async def test_idle_connections_are_few(
        self, transport: Transport, monkeypatch: pytest.MonkeyPatch, cap: str
    ) -> None:
        monkeypatch.setattr(connection_pool, cap, 2)
        async with keeping_alive().running() as server, keeping_alive().running() as other:
            await self.all_at_once(transport, server, 6)
            await self.all_at_once(transport, other, 1)
            await server.closes(5 if cap == "_IN_ALL" else 4)
            await self.all_at_once(transport, other, 1)
        assert (server.accepted, other.accepted) == (6, 1)

    @pytest.mark.parametrize("origins", [600, 3000])
    async def test_with_many_origins_a_connection_takes_the_place_of_the_oldest_at_once(self, origins: int) -> None:
        loop = asyncio.get_running_loop()
        pool, calls = connection_pool.ConnectionPool(loop, 10_000), connection.OpenRequests(loop)
        idle = [Unconnected(("http", f"h{at}", 80, None, None), pool, calls, 0) for at in range(origins)]
        called = 0

        def count(*_: object) -> None:
            nonlocal called
            called += 1

        for each in idle:
            each.opened_at = loop.time()
            sys.setprofile(count)
            pool.keep(each)
            sys.setprofile(None)
        assert called < 30 * origins
        assert [each.closed for each in idle] == [True] * (origins - 512) + [False] * 512
        await pool.close()

    async def test_idle_connections_give_way_to_requests(self) -> None:
        async with (
            running(LeanTransport(LOOPBACK, most_open=4)) as transport,
            keeping_alive().running() as server,
            keeping_alive().running() as other,
        ):
            await self.all_at_once(transport, server, 3)
            await self.all_at_once(transport, other, 3)
            await server.closes(2)
            assert server.accepted == other.accepted == 3

    async def test_idle_connections_are_given_up_when_there_is_nothing_left_to_open_another_with(
        self, transport: Transport, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async with keeping_alive().running() as server:
            await self.all_at_once(transport, server, 3)
            monkeypatch.setattr(dial.Dialler, "_tcp_to", failing(OSError(errno.EMFILE, "Too many open files")))
            await transport.exchange(post("http://127.0.0.1:9/"))
            await server.closes(3)

    @pytest.mark.parametrize(("responses", "connections"), [(1, 3), (2, 2)])
    async def test_a_server_that_closes_after_a_first_response_gets_a_connection_for_each_request(
        self, transport: Transport, monkeypatch: pytest.MonkeyPatch, responses: int, connections: int
    ) -> None:
        """For a while. It did not announce that, so every now and then a request would be written before the close."""

        async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            for _ in range(responses if server.accepted == 1 else 100):
                await server.read_request(reader)
                writer.write(OK)

        monkeypatch.setattr(connection_pool, "_SWEEP_S", 0.01)
        async with Server(script).running() as server:
            for _ in range(responses):
                await self.all_at_once(transport, server, 1)
            await server.closes(1)
            await asyncio.sleep(0.01)  # there is no event for the client noticing it
            for _ in range(2):
                await self.all_at_once(transport, server, 1)
            assert server.accepted == connections
            monkeypatch.setattr(connection_pool, "_HASTY_KEPT_S", 0.0)
            await asyncio.sleep(0.05)
            for _ in range(2):
                await self.all_at_once(transport, server, 1)
        assert server.accepted <= connections + 1

    @pytest.mark.parametrize(
        ("responses", "answered"),
        [(1, [True, False, True, True, True, True]), (2, [True, True, False, True, True, False])],
    )
    async def test_a_server_that_closes_instead_of_a_second_response_gets_a_connection_for_each_request(
        self, transport: Transport, responses: int, answered: list[bool]
    ) -> None:
        """Its close comes later than the next request, where one waits: every second request would be lost. One that
        closes later may have been restarted."""

        async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            for _ in range(responses):
                await server.read_request(reader)
                writer.write(OK)
            await reader.read(1)

        async with Server(script).running() as server:
            results = [await transport.exchange(post(server.url())) for _ in range(6)]
        assert [isinstance(result, Response) for result in results] == answered

    async def test_a_connection_is_used_for_half_as_long_as_its_server_has_kept_another(self) -> None:
        """For a while. A request that is written as the server closes it gets no response."""
        loop = SetLoop(asyncio.get_running_loop())
        pool, calls = connection_pool.ConnectionPool(cast(Any, loop), 100), connection.OpenRequests(cast(Any, loop))
        origin = ("http", "ci.example", 80, None, None)

        def kept() -> Unconnected:
            one = Unconnected(origin, pool, calls, 0)
            one.opened_at = loop.now
            pool.keep(one)
            return one

        def is_used(idle_s: float) -> bool:
            one = kept()
            loop.now += idle_s
            return pool.take(origin, loop.now) is one and not one.closed

        assert is_used(3.0)
        closed = kept()
        loop.now += 2.0
        pool.lost(closed)
        assert [is_used(0.9), is_used(1.1)] == [True, False]
        raced = kept()
        loop.now += 0.8
        assert pool.take(origin, loop.now) is raced
        pool.unanswered(raced)
        assert [is_used(0.3), is_used(0.5)] == [True, False]
        loop.now += 61.0
        pool._sweep()
        assert is_used(3.0)
        await pool.close()

    async def test_a_server_that_closed_early_is_trusted_again_without_requests_to_others(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(connection_pool, "_SWEEP_S", 0.0)
        loop = SetLoop(asyncio.get_running_loop())
        pool, calls = connection_pool.ConnectionPool(cast(Any, loop), 100), connection.OpenRequests(cast(Any, loop))

        async def is_kept() -> bool:
            one = Unconnected(("http", "ci.example", 80, None, None), pool, calls, 0)
            one.opened_at = loop.now
            pool.keep(one)
            found = pool.take(one.origin, loop.now)
            await asyncio.sleep(0.001)  # sweeps that are due
            pool.unanswered(one)
            return found is one

        assert [await is_kept() for _ in range(2)] == [True, False]
        loop.now += 61.0
        await asyncio.sleep(0.001)
        assert await is_kept()
        await pool.close()

    @pytest.mark.parametrize("egress", [None, Egress()])
    async def test_routes_of_long_urls_are_not_kept(self, transport: LeanTransport, egress: Egress | None) -> None:
        """Receivers choose the URLs of their jobs: thousands of the longest would take 100 MB."""
        async with keeping_alive().running() as server:
            for path in ("/", "/" + "x" * 2000):
                request = structs.replace(post(server.url(path)), egress=egress)
                assert isinstance(await transport.exchange(request), Response)
        kept = [cache.cache_info().currsize for cache in (transport._route, transport._own_route)]
        assert sum(kept) == 1
        assert len(server.requests[1]) > 2000

    async def test_after_some_dead_connections_a_fresh_one_is_made(self, transport: Transport) -> None:
        """All were closed behind our back: the request is sent once, and answered."""
        with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor(8) as server:
            url = f"http://127.0.0.1:{listener.getsockname()[1]}/"
            answered = [server.submit(answer_one, listener) for _ in range(8)]
            await asyncio.gather(*[transport.exchange(post(url)) for _ in range(8)])
            for answer_given in answered:
                answer_given.result().close()
            last = server.submit(answer_one, listener)  # and no await until the next request
            assert isinstance(await transport.exchange(post(url)), Response)
            last.result().close()


class TestDialling(Lean):
    async def test_a_connection_has_its_own_deadline(
        self, transport: Transport, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(dial, "_CONNECT_S", 0.05)
        with not_accepting() as url:
            result = await transport.exchange(post(url, timeout_s=1000.0))
        assert failure(result) == ("connect_timeout", False)

    async def test_a_handshake_without_end(self, transport: Transport, monkeypatch: pytest.MonkeyPatch) -> None:
        async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read()

        monkeypatch.setattr(dial, "_CONNECT_S", 0.1)
        async with Server(script).running() as server:
            result = await transport.exchange(post(server.url(scheme="https"), timeout_s=1000.0))
            await server.closed.wait()
        assert failure(result) == ("connect_timeout", False)

    @pytest.mark.parametrize(
        ("number", "kind"),
        [
            *((number, "no_resources") for number in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)),
            (errno.EADDRNOTAVAIL, "no_local_address"),
            *((number, "unreachable") for number in (errno.ENETUNREACH, errno.EHOSTUNREACH, errno.ENETDOWN)),
            (errno.ECONNREFUSED, "refused"),
            (errno.EACCES, "refused"),
        ],
    )
    async def test_what_is_missing_is_told(
        self, transport: Transport, monkeypatch: pytest.MonkeyPatch, number: int, kind: str
    ) -> None:
        monkeypatch.setattr(dial.Dialler, "_tcp_to", failing(OSError(number, "why")))
        assert failure(await transport.exchange(post("http://127.0.0.1:9/"))) == (kind, False)

    async def test_of_several_addresses_what_the_host_said_counts(
        self, transport: Transport, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async def fail(_: object, address: tuple[int, tuple[str, int]]) -> socket.socket:
            raise OSError({"127.0.0.2": errno.ECONNREFUSED}.get(address[1][0], errno.ENETUNREACH), "why")

        monkeypatch.setattr(dial.Dialler, "_tcp_to", fail)
        resolve_to(monkeypatch, 9, "127.0.0.1", "127.0.0.2", "127.0.0.3")
        result = expect(NoResponse, await transport.exchange(post("http://ci.example:9/")))
        assert result.kind == "refused"

    async def test_of_thousands_of_addresses_the_first_are_tried(
        self, transport: Transport, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        tried: list[str] = []

        async def fail(_: object, address: tuple[int, tuple[str, int]]) -> socket.socket:
            tried.append(address[1][0])
            raise OSError(errno.ECONNREFUSED, "why")

        monkeypatch.setattr(dial.Dialler, "_tcp_to", fail)
        resolve_to(monkeypatch, 9, *(f"127.0.{at // 250}.{at % 250}" for at in range(4000)))
        assert isinstance(await transport.exchange(post("http://ci.example:9/")), NoResponse)
        assert tried == [f"127.0.0.{at}" for at in range(16)]

    @pytest.mark.parametrize(
        ("number", "kind"),
        [(socket.EAI_AGAIN, "dns_silent"), (socket.EAI_NONAME, "dns"), (errno.EMFILE, "no_resources")],
    )
    async def test_why_a_name_has_no_address_is_told(
        self, transport: Transport, monkeypatch: pytest.MonkeyPatch, number: int, kind: str
    ) -> None:
        error = OSError if number > 0 else socket.gaierror
        monkeypatch.setattr(dial, "_resolve", failing(error(number, "why")))
        assert failure(await transport.exchange(post("http://ci.example/"))) == (kind, False)

    @pytest.mark.parametrize(("status", "counts"), [(b"503 Busy", True), (b"200 OK", False)])
    async def test_a_busy_server_that_responds_to_the_connection_itself(
        self, transport: LeanTransport, monkeypatch: pytest.MonkeyPatch, status: bytes, counts: bool
    ) -> None:
        """Before the request is written. That it responds with success proves nothing."""
        connect = transport._dialler.connect

        async def slowly(*where: Any, **options: Any) -> connection.ClientConnection:
            made: connection.ClientConnection = await connect(*where, **options)
            await closed.wait()
            return made

        def lost(self: connection_pool.ConnectionPool, one: connection.ClientConnection) -> None:
            forget(self, one)
            closed.set()

        closed, forget = asyncio.Event(), connection_pool.ConnectionPool.lost
        monkeypatch.setattr(connection_pool.ConnectionPool, "lost", lost)

        monkeypatch.setattr(transport._dialler, "connect", slowly)

        async def script(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(b"HTTP/1.1 " + status + b"\r\nRetry-After: 33\r\nConnection: close\r\n\r\n")

        async with Server(script).running() as server:
            result = await transport.exchange(post(server.url()))
        if counts:
            assert isinstance(result, Response)
            assert (result.status, result.headers["retry-after"]) == (503, "33")
        else:
            assert result == NoResponse("disconnected", "closed before anything was sent", sent=False)

    @pytest.mark.parametrize("patience", ["the call's", "the connection's"])
    async def test_a_name_server_that_says_nothing(
        self, transport: Transport, monkeypatch: pytest.MonkeyPatch, patience: str
    ) -> None:
        async def hang(*_: object) -> object:
            return await asyncio.Event().wait()

        monkeypatch.setattr(dial, "_resolve", hang)
        if patience == "the connection's":
            monkeypatch.setattr(dial, "_CONNECT_S", 0.05)
        timeout_s = 0.05 if patience == "the call's" else 1000.0
        result = await transport.exchange(post("http://ci.example/", timeout_s=timeout_s))
        assert failure(result) == ("dns_silent", False)

    async def test_whatever_goes_wrong_ends_the_call(
        self, transport: Transport, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        told: list[str] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(str(context["exception"])))
        monkeypatch.setattr(dial, "_resolve", failing(RuntimeError("can't start new thread")))
        assert failure(await transport.exchange(post("http://ci.example/"))) == ("failed", False)

    async def test_many_requests_look_a_name_up_once(
        self, transport: Transport, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async with replying(OK).running() as server:
            asked = resolve_to(monkeypatch, server.port, "127.0.0.1")
            urls = [server.url(host="ci.example")] * 4
            results = await asyncio.gather(*[transport.exchange(post(url)) for url in urls])
        assert all(isinstance(result, Response) for result in results)
        assert (server.accepted, asked) == (4, ["ci.example"])

    async def test_names_that_are_slow_to_look_up_wait_for_each_other_only(
        self, transport: Transport, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(dial, "_SLOW_S", -1.0)
        async with keeping_alive().running() as server:
            resolve_to(monkeypatch, server.port, "127.0.0.1")
            asked, hang = silent_names(monkeypatch, lambda host: host.startswith("slow"))

            async def look_up(*hosts: str) -> None:
                for host in hosts:
                    transport.send(post(f"http://{host}.example/"), lambda _: None)
                await turns()

            slow = [f"slow{at}" for at in range(40)]
            await look_up(*slow)
            assert len(asked) == 28  # nothing is known of them; the rest of the threads is for others
            hang.set()
            await turns()
            hang.clear()
            assert len(asked) == 40
            await look_up(*slow)
            assert len(asked) == 40 + 16
            monkeypatch.setattr(dial, "_SLOW_S", 1000.0)
            assert isinstance(await transport.exchange(post(server.url(host="ci.example"))), Response)
            hang.set()  # they are not slow any more
            await turns()
            hang.clear()
            await look_up(*slow)
            assert len(asked) == 40 + 40 + 28
            hang.set()

    @pytest.mark.parametrize("zone", ["silent.example", "silent.co.uk"])
    async def test_new_names_of_a_silent_zone_leave_turns_for_names_of_others(
        self, zone: str, transport: Transport, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async with keeping_alive().running() as server:
            resolve_to(monkeypatch, server.port, "127.0.0.1")
            asked, hang = silent_names(monkeypatch, lambda host: host.endswith(zone))
            for at in range(100):
                transport.send(post(f"http://h{at}.z{at}.{zone}/"), lambda _: None)
            await turns()
            assert len(asked) == 7, "half of the turns are for zones that have none, half of the others are free"
            assert isinstance(await transport.exchange(post(server.url(host="ci.example"))), Response)
            hang.set()
            await turns()
            assert len(asked) == 100, "each has its turn"

    async def test_a_lookup_that_no_request_waits_for_any_more_takes_no_turn(
        self, transport: Transport, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """There may be more such names than are kept: each request would leave a lookup of its own."""
        asked, hang = silent_names(monkeypatch, lambda _: True)
        ended = asyncio.Semaphore(0)

        def note(exchange: Exchange) -> None:
            assert failure(exchange)[0] == "dns_silent"
            ended.release()

        monkeypatch.setattr(dial, "_CONNECT_S", 0.05)
        for at in range(100):
            transport.send(post(f"http://h{at}.silent.example/"), note)
        for _ in range(100):
            await ended.acquire()
        hang.set()
        await turns()
        assert len(asked) == 7
        transport.send(post("http://h.silent.example/"), note)
        await ended.acquire()
        assert len(asked) == 8, "the turns are free again"

    async def test_a_silent_address_gives_the_next_a_chance(
        self, transport: Transport, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(dial, "_STAGGER_S", 0.01)
        with not_accepting() as url:  # the same port on another address answers
            port = int(url.rstrip("/").rpartition(":")[2])
            async with replying(OK).running("127.0.0.2", port=port) as server:
                resolve_to(monkeypatch, port, "127.0.0.1", "127.0.0.2")
                assert isinstance(await transport.exchange(post(server.url(host="ci.example"))), Response)

    async def test_a_request_that_ends_as_its_connection_is_made_leaves_nothing_open(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """uvloop closes such a connection without a report."""
        real = connection.ClientConnection.connection_made

        def made(self: connection.ClientConnection, raw: asyncio.BaseTransport) -> None:
            real(self, raw)
            for task in asyncio.all_tasks() - {this}:
                task.cancel()

        this, transport = asyncio.current_task(), LeanTransport(LOOPBACK)
        await transport.start()
        async with asyncio.timeout(30), keeping_alive().running() as server:
            monkeypatch.setattr(connection.ClientConnection, "connection_made", made)
            result = await transport.exchange(post(server.url(), timeout_s=0.1))
            await transport.close()
        assert failure(result) == ("connect_timeout", False)

    async def test_a_request_that_ends_while_dialling_leaves_nothing_open(self, transport: Transport) -> None:
        """Neither a connection nor a task: warnings are errors."""
        with not_accepting() as url:
            results = await asyncio.gather(*[transport.exchange(post(url, timeout_s=0.05)) for _ in range(3)])
        assert {result.kind for result in results if isinstance(result, NoResponse)} == {"connect_timeout"}


async def turns() -> None:
    """Whatever needs no other process is done, however slow this one is."""
    for _ in range(100):
        await asyncio.sleep(0)


def failing(error: Exception) -> Callable[..., Awaitable[Any]]:
    async def fail(*_: object) -> Any:
        raise error

    return fail


def silent_names(monkeypatch: pytest.MonkeyPatch, are: Callable[[str], bool]) -> tuple[list[str], asyncio.Event]:
    """No server knows names that `are` such ones, and says so when the event is set; the look-ups of them so far."""
    asked, hang, real = list[str](), asyncio.Event(), asyncio.get_running_loop().getaddrinfo

    async def getaddrinfo(host: str, *rest: Any, **options: Any) -> Any:
        if not are(host):
            return await real(host, *rest, **options)
        asked.append(host)
        await hang.wait()
        raise socket.gaierror(socket.EAI_AGAIN, "no name server")

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", getaddrinfo)
    return asked, hang


class SetLoop:
    """A loop with a clock that is set."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.now = 1000.0

    def time(self) -> float:
        return self.now

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loop, name)


class Unconnected(connection.ClientConnection):
    closed = False

    def is_stale(self) -> bool:
        return False

    def close(self) -> None:
        self.closed = True
