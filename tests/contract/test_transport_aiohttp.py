"""The transport contract, kept by aiohttp."""

from relay.delivery.aiohttp_transport import AiohttpTransport
from relay.delivery.guard import AddressGuard
from relay.delivery.port import Transport
from tests.contract.connection_contract import ConnectionContract
from tests.contract.tls_contract import TlsContract
from tests.contract.transport_contract import TransportContract
from tests.contract.transport_rig import TransportRig


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
