"""The transport contract through an egress proxy, and tests of what goes through the proxy."""

import asyncio
import base64
import contextlib
import socket
from collections.abc import AsyncIterator
from ipaddress import ip_network
from pathlib import Path

import pytest
from msgspec import structs

from relay.delivery import dial
from relay.delivery.guard import AddressGuard
from relay.delivery.lean_transport import LeanTransport
from relay.delivery.port import Transport
from relay.delivery.proxy import proxy_of
from relay.domain.egress import Egress, proxy_address
from relay.domain.exchange import Exchange, NoResponse, Response
from tests.contract.proxy_server import PipingProxy
from tests.contract.raw_server import OK, Server, failure, keeping_alive, replying, reset, server_context
from tests.contract.tls_contract import TlsContract
from tests.contract.transport_contract import TransportContract
from tests.contract.transport_rig import BODY_CAP, LOOPBACK, LOOPS, TransportRig, post, running

LOGIN = b"Proxy-Authorization: Basic " + base64.b64encode(b"user:p@ss")


class Proxied(TransportRig):
    loops = LOOPS

    @contextlib.asynccontextmanager
    async def started(self, guard: AddressGuard, ca_file: str | None = None) -> AsyncIterator[Transport]:
        async with PipingProxy().running() as proxy:
            proxied = LeanTransport(guard, body_cap=BODY_CAP, ca_file=ca_file, proxy=proxy_of(proxy.url, ()))
            async with running(proxied) as transport:
                yield transport


class TestTheContract(Proxied, TransportContract):
    # through a proxy, it is the proxy that finds a host unreachable
    test_refused = test_a_host_that_does_not_exist = test_a_host_that_does_not_accept = None  # type: ignore[assignment]


class TestTlsThroughATunnel(Proxied, TlsContract):
    pass


async def asked(url: str, proxy: str, *direct: str, guard: AddressGuard = LOOPBACK, ca: str | None = None) -> Exchange:
    async with running(LeanTransport(guard, proxy=proxy_of(proxy, direct), ca_file=ca)) as transport:
        return await transport.exchange(post(url))


async def test_names_are_left_to_the_proxy_and_it_alone_gets_its_credentials(certificate: Path) -> None:
    async with PipingProxy().running() as proxy:
        async with keeping_alive().running() as plain:
            assert isinstance(await asked(plain.url(), proxy.url), Response)
        async with keeping_alive().running(context=server_context(certificate)) as secure:
            assert isinstance(await asked(secure.url(scheme="https"), proxy.url, ca=str(certificate)), Response)
    forwarded, tunnel = proxy.heads
    assert forwarded.startswith(b"POST http://127.0.0.1:%d/ HTTP/1.1\r\n" % plain.port)
    assert tunnel.startswith(b"CONNECT 127.0.0.1:%d HTTP/1.1\r\n" % secure.port)
    assert LOGIN in forwarded
    assert LOGIN in tunnel
    assert b"roxy-" not in plain.requests[0] + secure.requests[0]


async def test_a_name_that_only_the_proxy_can_look_up() -> None:
    async with replying(OK).running() as proxy:
        exchange = await asked("http://ci.example.invalid/hooks", proxy.url(""))
    assert isinstance(exchange, Response)
    head = b"POST http://ci.example.invalid/hooks HTTP/1.1\r\nHost: ci.example.invalid\r\n"
    assert proxy.requests[0].startswith(head)


FORBIDDEN = """
    127.0.0.1 127.0.0.1. 2130706433 0x7f000001 0x7F.1 0x7f.0x0.0x0.0x1 017700000001 0177.0.0.1 0177.1 127.1 127.0.1 0
    0x0 0.0 10.0.0.1 10.1 012.1 0xa.1 167772161 169.254.169.254 2852039166 0xa9fea9fe 0251.0376.0251.0376 0xA9.254.43518
    [::1] [::ffff:127.0.0.1] [::ffff:7f00:1] localhost LOCALHOST. x.localhost
"""
NO_URLS = "127.0.0.256 1.2.3.4.5 0x100000000 4294967296 08.1 1..2 256.1 a.0x1g.1 a.1 １２７.0.0.1 127。0。0。1 ①"


@pytest.mark.parametrize("host", FORBIDDEN.split())
@pytest.mark.parametrize("scheme", ["http", "https"])
async def test_no_spelling_of_a_forbidden_address_gets_to_the_proxy(host: str, scheme: str) -> None:
    async with replying(OK).running() as proxy:
        exchange = await asked(f"{scheme}://{host}/", proxy.url(""), guard=AddressGuard(allow_http=True))
    assert isinstance(exchange, NoResponse)
    assert (exchange.kind, exchange.sent, proxy.accepted) == ("blocked", False, 0)


@pytest.mark.parametrize("host", NO_URLS.split())
async def test_what_no_standard_reads_gets_nowhere(host: str) -> None:
    async with replying(OK).running() as proxy:
        exchange = await asked(f"http://{host}/", proxy.url(""), guard=AddressGuard(allow_http=True))
    assert isinstance(exchange, NoResponse)
    assert (exchange.kind, proxy.accepted) == ("invalid_url", 0)


async def test_the_proxy_is_told_the_usual_spelling_of_what_is_allowed() -> None:
    async with replying(OK).running() as proxy:
        guard = AddressGuard([ip_network("10.0.0.0/8")])
        assert isinstance(await asked("http://0xa.1/x", proxy.url(""), guard=guard), Response)
    assert proxy.requests[0].startswith(b"POST http://10.0.0.1/x HTTP/1.1\r\nHost: 10.0.0.1\r\n")


@pytest.mark.parametrize(
    ("reply", "kind"),
    [
        (b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n", "no_proxy"),
        (b"HTTP/1.1 403 Forbidden\r\nContent-Length: 2\r\n\r\nno", "refused"),
        (b"HTTP/1.1 502 Bad Gateway\r\n\r\n", "refused"),
        (b"HTTP/1.1 200 OK\r\n\r\nHTTP/1.1 200 OK\r\n\r\n", "refused"),
        (b"HTTP/1.1 200 OK\r\n", "no_proxy"),
        (b"SSH-2.0-x\r\n\r\n", "no_proxy"),
        (b"HTTP/1.1 2000 OK\r\n\r\n", "no_proxy"),
        (b"", "no_proxy"),
        (b"x" * 100_000, "no_proxy"),
    ],
    ids=["credentials", "forbidden", "gateway", "out of turn", "half a head", "no HTTP", "no status", "end", "flood"],
)
async def test_no_tunnel(reply: bytes, kind: str) -> None:
    async with replying(reply).running() as proxy:
        exchange = await asked("https://ci.example/", proxy.url(""))
    assert isinstance(exchange, NoResponse)
    assert (exchange.kind, exchange.sent) == (kind, False)
    assert "proxy" in exchange.detail


@pytest.mark.parametrize(("own", "kind"), [(False, "no_proxy"), (True, "refused")])
async def test_credentials_that_the_proxy_does_not_know_say_nothing_about_a_server_it_forwards_to(
    own: bool, kind: str
) -> None:
    reply = b"HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n"
    async with replying(reply).running() as proxy:
        egress = Egress(proxy=proxy_address(proxy.url(""))) if own else None
        async with running(LeanTransport(LOOPBACK, proxy=None if own else proxy_of(proxy.url(""), ()))) as transport:
            exchange = await transport.exchange(structs.replace(post("http://ci.example.invalid/"), egress=egress))
    assert failure(exchange) == (kind, False)


async def test_a_proxy_that_resets_the_connection_is_at_fault_itself() -> None:
    async def script(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        reset(writer)

    async with Server(script).running() as proxy:
        exchange = await asked("https://ci.example/", proxy.url(""))
    assert isinstance(exchange, NoResponse)
    assert (exchange.kind, exchange.sent) == ("no_proxy", False)
    assert "proxy" in exchange.detail


@pytest.mark.parametrize("flood", [b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 100])
async def test_a_proxy_that_never_gives_an_answer(monkeypatch: pytest.MonkeyPatch, flood: bytes) -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(flood)
        await reader.read(10_000)
        await asyncio.sleep(60)

    monkeypatch.setattr(dial, "_CONNECT_S", 0.1)
    async with Server(script).running() as proxy:
        exchange = await asked("https://ci.example/", proxy.url(""))
    assert isinstance(exchange, NoResponse)
    assert exchange.kind == ("refused" if flood else "connect_timeout")


async def test_that_the_proxy_is_away_is_nobodys_fault_but_ours() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    for scheme in ("http", "https"):
        exchange = await asked(f"{scheme}://ci.example/", f"http://127.0.0.1:{port}")
        assert failure(exchange) == ("no_proxy", False)


@pytest.mark.parametrize("entry", ["127.0.0.0/8", "127.0.0.1", "*", "127.0.0.1:{port}", "10.0.0.1,127.0.0.1"])
async def test_what_goes_direct(entry: str) -> None:
    async with replying(OK).running() as proxy, keeping_alive().running() as server:
        direct = entry.format(port=server.port).split(",")
        assert isinstance(await asked(server.url("/x"), proxy.url(""), *direct), Response)
    assert proxy.accepted == 0
    assert server.requests[0].startswith(b"POST /x HTTP/1.1\r\n")


@pytest.mark.parametrize("entry", ["127.0.0.2", "example", "127.0.0.1:1", "localhost", ""])
async def test_what_does_not(entry: str) -> None:
    async with replying(OK).running() as proxy:
        await asked("http://127.0.0.1:9/", proxy.url(""), *filter(None, [entry]))
    assert proxy.accepted == 1
