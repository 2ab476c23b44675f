"""The transport contract, kept by aiohttp."""

from relay.delivery.aiohttp_transport import AiohttpTransport
from relay.delivery.guard import AddressGuard
from relay.delivery.port import Transport
from relay.domain.exchange import NoResponse, Response
from tests.contract.connection_contract import ConnectionContract
from tests.contract.raw_server import OK, replying
from tests.contract.tls_contract import TlsContract
from tests.contract.transport_contract import TransportContract
from tests.contract.transport_rig import LOOPBACK, TransportRig, post


class OnAiohttp(TransportRig):
    switching_protocols_is_a_response = True
    minds_what_follows_a_response = False
    caps_framing = False

    def make(self, guard: AddressGuard, *, body_cap: int, ca_file: str | None) -> Transport:
        return AiohttpTransport(guard, body_cap=body_cap, ca_file=ca_file)


class TestAiohttpTransport(OnAiohttp, TransportContract):
    pass


class TestAiohttpConnections(OnAiohttp, ConnectionContract):
    pass


class TestAiohttpTls(OnAiohttp, TlsContract):
    pass


async def test_a_proxy_is_asked_for_names_that_only_it_can_look_up() -> None:
    async with replying(OK).running() as proxy:
        transport = AiohttpTransport(LOOPBACK, proxy=proxy.url("").rstrip("/"))
        await transport.start()
        try:
            exchange = await transport.exchange(post("http://ci.example.invalid/hooks"))
        finally:
            await transport.close()
    assert isinstance(exchange, Response)
    assert exchange.body == b"ok"
    assert proxy.requests[0].startswith(b"POST http://ci.example.invalid/hooks HTTP/1.1\r\n")


async def test_a_literal_address_is_checked_although_a_proxy_would_dial_it() -> None:
    async with replying(OK).running() as proxy:
        transport = AiohttpTransport(LOOPBACK, proxy=proxy.url("").rstrip("/"))
        await transport.start()
        try:
            exchange = await transport.exchange(post("http://10.0.0.1/hooks"))
        finally:
            await transport.close()
    assert isinstance(exchange, NoResponse)
    assert (exchange.kind, exchange.sent, proxy.accepted) == ("blocked", False, 0)
