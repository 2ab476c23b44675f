"""Tests of an egress proxy that one endpoint uses instead of the global one."""

import socket
from contextlib import AbstractAsyncContextManager

import pytest
from msgspec import structs

from relay.delivery.lean_transport import LeanTransport
from relay.delivery.port import Transport
from relay.delivery.proxy import proxy_of
from relay.domain.egress import Egress, ProxyChoice, Tls, proxy_address
from relay.domain.exchange import Exchange, NoResponse, Response
from tests.contract.proxy_server import PipingProxy
from tests.contract.raw_server import keeping_alive, replying
from tests.contract.test_transport_proxy import LOGIN
from tests.contract.transport_rig import LOOPBACK, post, running
from tests.fakes.certificates import authority, issued

AUTHORITY = authority()
SERVER = issued(AUTHORITY)


def lean(proxy: str | None = None) -> AbstractAsyncContextManager[Transport]:
    return running(LeanTransport(LOOPBACK, proxy=proxy_of(proxy, ()) if proxy else None))


async def asked(transport: Transport, url: str, own: ProxyChoice | None, tls: Tls | None = None) -> Exchange:
    return await transport.exchange(structs.replace(post(url), egress=Egress(tls, own)))


async def test_it_goes_through_its_own_and_others_do_not() -> None:
    async with PipingProxy().running() as own, PipingProxy().running() as usual, keeping_alive().running() as server:
        async with lean(usual.url) as transport:
            for proxy in (proxy_address(own.url), None, "none", proxy_address(own.url)):
                assert isinstance(await asked(transport, server.url(), proxy), Response)
        assert [len(own.heads), len(usual.heads), server.accepted] == [1, 1, 3]
    assert LOGIN in own.heads[0]
    assert b"roxy-" not in server.requests[2]


async def test_tls_of_its_own_through_a_tunnel_of_its_own() -> None:
    secure = keeping_alive().running(context=SERVER.server_context())
    async with PipingProxy().running() as own, secure as server, lean() as transport:
        url = server.url(scheme="https")
        assert isinstance(await asked(transport, url, proxy_address(own.url), Tls(AUTHORITY.pem)), Response)
    assert own.heads[0].startswith(b"CONNECT 127.0.0.1:%d HTTP/1.1\r\n" % server.port)


@pytest.mark.parametrize("scheme", ["http", "https"])
async def test_that_it_is_away_is_the_endpoints_affair(scheme: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    async with lean() as transport:
        exchange = await asked(transport, f"{scheme}://ci.example/", proxy_address(f"http://127.0.0.1:{port}"))
    assert isinstance(exchange, NoResponse)
    assert (exchange.kind, exchange.sent) == ("refused", False)
    assert "the egress proxy cannot be reached" in exchange.detail


@pytest.mark.parametrize(
    ("reply", "said"),
    [
        (b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n", "the egress proxy answered 407 to CONNECT"),
        (b"", "closed"),
    ],
    ids=["it does not know us", "it closes the connection"],
)
async def test_that_it_refuses_is_the_endpoints_affair(reply: bytes, said: str) -> None:
    async with replying(reply).running() as proxy, lean() as transport:
        exchange = await asked(transport, "https://ci.example/", proxy_address(proxy.url("")))
    assert isinstance(exchange, NoResponse)
    assert (exchange.kind, said in exchange.detail) == ("refused", True), exchange
