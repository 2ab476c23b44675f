"""Tests of the TLS settings of one endpoint: its authorities, client certificate and pins."""

import asyncio
import socket
import ssl
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from relay.delivery import dial
from relay.delivery import tls as tls_module
from relay.delivery.lean_transport import LeanTransport
from relay.delivery.port import Transport
from relay.domain.egress import Egress, Tls
from relay.domain.exchange import Exchange, NoResponse, Response
from tests.contract.raw_server import Server, failure, keeping_alive
from tests.contract.transport_rig import LOOPBACK, LOOPS, post, running
from tests.expecting import expect, present
from tests.fakes.certificates import LOOPBACK as ADDRESS
from tests.fakes.certificates import Issued, authority, issued

OURS = authority("ours")
OTHERS = authority("others")
SERVER = issued(OURS)
CLIENT = issued(OURS, "relay.example")
STRANGER = issued(OTHERS, "stranger.example")
EXPIRED = issued(OURS, "relay.example", days=-1)


def pinned(digest: str) -> tuple[bytes, ...]:
    from relay.config.endpoint_entry import TlsEntry, tls_of

    return present(tls_of(TlsEntry(pinned=(digest,)))).pinned


def as_client(client: Issued) -> Tls:
    return Tls(OURS.pem, client.pem, client.key_pem)


def lean() -> AbstractAsyncContextManager[Transport]:
    return running(LeanTransport(LOOPBACK))


async def asked(transport: Transport, server: Server, tls: Tls | None) -> Exchange:
    request = post(server.url(scheme="https"))
    return await transport.exchange(structs.replace(request, egress=Egress(tls) if tls else None))


def refused(exchange: Exchange) -> str:
    assert failure(exchange) == ("tls", False)
    return expect(NoResponse, exchange).detail


def shake_hands(context: ssl.SSLContext, listener: socket.socket) -> None:
    """Blocking, as the servers of asyncio end a handshake without saying why."""
    connection, _ = listener.accept()
    with connection:
        context.wrap_socket(connection, server_side=True).close()


async def test_the_authorities_of_the_system_count(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    authorities = tmp_path / "authorities.pem"
    authorities.write_text(OURS.pem)
    monkeypatch.setenv("SSL_CERT_FILE", str(authorities))
    async with keeping_alive().running(context=SERVER.server_context()) as server, lean() as transport:
        assert isinstance(await asked(transport, server, None), Response)


class SlowLoop:
    """A loop whose clock shows half a minute more at each look. `looked`: twice, before and after the handshake."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._looks = 0
        self.looked = asyncio.Event()

    def time(self) -> float:
        self._looks += 1
        if self._looks > 1:
            self.looked.set()
        return self._loop.time() + 30 * self._looks

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loop, name)


class TestOwnTls:
    loops = LOOPS

    async def test_an_authority_of_its_own_and_no_other(self) -> None:
        async with keeping_alive().running(context=SERVER.server_context()) as server, lean() as transport:
            assert isinstance(await asked(transport, server, Tls(ca=OTHERS.pem + OURS.pem)), Response)
            assert "certificate verify failed" in refused(await asked(transport, server, None))
            assert "certificate verify failed" in refused(await asked(transport, server, Tls(ca=OTHERS.pem)))
        assert len(server.requests) == 1

    async def test_the_name_and_the_time_of_a_certificate_count_still(self) -> None:
        for certificate, why in ((issued(OURS, "ci.example"), "mismatch"), (issued(OURS, days=-1), "has expired")):
            async with keeping_alive().running(context=certificate.server_context()) as server, lean() as transport:
                assert why in refused(await asked(transport, server, Tls(ca=OURS.pem)))

    async def test_a_client_certificate_is_shown(self) -> None:
        async with keeping_alive().running(context=SERVER.server_context(OURS)) as server, lean() as transport:
            for _ in range(2):
                assert isinstance(await asked(transport, server, as_client(CLIENT)), Response)
        assert server.accepted == 1

    @pytest.mark.parametrize(
        ("tls", "why", "version"),
        [
            (Tls(ca=OURS.pem), "handshake failure", ssl.TLSVersion.TLSv1_2),
            (as_client(STRANGER), "unknown ca", ssl.TLSVersion.TLSv1_2),
            (as_client(STRANGER), "unknown ca", ssl.TLSVersion.TLSv1_3),
            (as_client(EXPIRED), "certificate expired", ssl.TLSVersion.TLSv1_3),
        ],
    )
    async def test_that_the_server_does_not_want_our_certificate_is_known_not_to_be_processed(
        self, tls: Tls, why: str, version: ssl.TLSVersion
    ) -> None:
        context = SERVER.server_context(OURS)
        context.maximum_version = version
        with socket.create_server((ADDRESS, 0)) as listener, ThreadPoolExecutor(1) as server:
            refusing = server.submit(shake_hands, context, listener)
            async with lean() as transport:
                request = post(f"https://{ADDRESS}:{listener.getsockname()[1]}/")
                exchange = await transport.exchange(structs.replace(request, egress=Egress(tls)))
        assert isinstance(refusing.exception(), ssl.SSLError)
        said = refused(exchange).lower().replace("_", " ")
        # of TLS 1.3 the server may have closed before its reason is read: then a reset overtakes it
        assert why in said or (version is ssl.TLSVersion.TLSv1_3 and "without a reason" in said)

    @pytest.mark.parametrize("cancelled", [True, False])
    async def test_a_dial_that_ends_in_the_pause_after_its_handshake_closes_its_connection(
        self, cancelled: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(dial, "_REFUSAL_S", 60.0)
        monkeypatch.setattr(dial, "_CONNECT_S", 60.0 if cancelled else 1.0)
        async with keeping_alive().running(context=SERVER.server_context(OURS)) as server:
            transport, loop = LeanTransport(LOOPBACK), SlowLoop(asyncio.get_running_loop())
            await transport.start()
            transport._dialler.loop = loop  # type: ignore[assignment]
            reaching = asyncio.ensure_future(transport.reach(server.url(scheme="https"), Egress(as_client(CLIENT))))
            async with asyncio.timeout(10):
                await loop.looked.wait()
                if cancelled:
                    reaching.cancel()
                [ended] = await asyncio.gather(reaching, return_exceptions=True)
                await server.closed.wait()
            assert isinstance(ended, asyncio.CancelledError if cancelled else NoResponse)
            await transport.close()

    async def test_a_connection_is_used_for_nobody_elses_certificate(self) -> None:
        both = OTHERS.pem + OURS.pem
        seen: list[str] = []

        async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            peer: Any = writer.get_extra_info("peercert")
            while True:
                await server.read_request(reader)
                seen.append(peer["subject"][0][0][1])
                writer.write(b"HTTP/1.1 204 X\r\n\r\n")

        context = SERVER.server_context(OURS)
        context.load_verify_locations(cadata=both)
        server = Server(script)
        async with server.running(context=context), lean() as transport:
            for client in (CLIENT, STRANGER, CLIENT, STRANGER):
                assert isinstance(await asked(transport, server, as_client(client)), Response)
        assert seen == ["relay.example", "stranger.example"] * 2
        assert server.accepted == 2

    async def test_a_pinned_certificate_or_key(self) -> None:
        async with keeping_alive().running(context=SERVER.server_context()) as server, lean() as transport:
            for pin in (SERVER.pin_of_key, f"sha256/{SERVER.fingerprint}"):
                tls = Tls(OURS.pem, pinned=(*pinned(OURS.pin_of_key), *pinned(pin)))
                assert isinstance(await asked(transport, server, tls), Response)
        assert server.accepted == 2

    async def test_not_a_byte_goes_to_a_server_that_is_not_the_pinned_one(self) -> None:
        async with keeping_alive().running(context=SERVER.server_context()) as server, lean() as transport:
            tls = Tls(OURS.pem, pinned=pinned(CLIENT.pin_of_key))
            said = refused(await asked(transport, server, tls))
            assert isinstance(await asked(transport, server, Tls(OURS.pem)), Response)
        assert said == f"the server's certificate (SHA-256 {SERVER.fingerprint}) is not one of the pinned ones"
        assert len(server.requests) == 1

    async def test_a_pin_does_not_make_up_for_an_authority(self) -> None:
        async with keeping_alive().running(context=SERVER.server_context()) as server, lean() as transport:
            said = refused(await asked(transport, server, Tls(pinned=pinned(SERVER.pin_of_key))))
        assert "certificate verify failed" in said


async def test_few_contexts_are_kept_and_each_is_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []

    def make(tls: Tls, _: str | None) -> ssl.SSLContext:
        made.append(tls.ca)
        return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)

    monkeypatch.setattr(tls_module, "_context_of", make)
    monkeypatch.setattr(tls_module, "_CONTEXTS_KEPT", 2)
    contexts = tls_module.Contexts(None)
    await asyncio.gather(*(contexts.of(Tls(ca="a")) for _ in range(3)))
    for name in "bacab":
        await contexts.of(Tls(ca=name))
    assert made == ["a", "b", "c", "b"]
    assert await contexts.of(None) is await contexts.of(Tls(pinned=(b"1",)))
    await contexts.close()


async def test_what_openssl_does_not_take_is_told_and_tried_anew() -> None:
    tls = Tls(OURS.pem, CLIENT.pem, STRANGER.key_pem)
    async with keeping_alive().running(context=SERVER.server_context()) as server, lean() as transport:
        for _ in range(2):
            assert "mismatch" in refused(await asked(transport, server, tls))
    assert server.requests == []
