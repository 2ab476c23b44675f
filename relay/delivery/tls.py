"""TLS contexts of the transport: a default one, and those for endpoints with their own settings."""

import asyncio
import hashlib
import os
import ssl
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Final

from relay.domain.egress import Tls
from relay.domain.errors import UserError
from relay.domain.key_material import clean_certificates, clean_private_key

_CONTEXTS_KEPT: Final = 64
"""A context with the system's authorities takes 1 MB, and 20 ms to create."""

MAKERS: Final = 2
"""Threads that create contexts."""
MAKING_S: Final = 10.0


class PinMismatch(Exception):
    """The server's certificate is valid but not pinned."""


def client_context(ca_file: str | None) -> ssl.SSLContext:
    """A context for HTTP/1.1 over TLS 1.2 or newer, which checks host names. `ca_file`: PEM file of additional
    authorities.

    Raises UserError if the file cannot be read.
    """
    context = _restricted(ssl.create_default_context())
    if ca_file is not None:
        try:
            context.load_verify_locations(ca_file)
        except OSError as error:  # also ssl.SSLError
            raise UserError(f"RELAY_CA_FILE: {ca_file} cannot be read: {error.strerror or error}") from error
    return context


class Contexts:
    """TLS contexts by settings: the default one, and others that are created on demand and kept in an LRU cache.
    `ca_file`: as in `client_context`."""

    def __init__(self, ca_file: str | None) -> None:
        self._ca_file = ca_file
        self._makers = ThreadPoolExecutor(MAKERS, thread_name_prefix="tls settings")
        self._usual = self._makers.submit(client_context, ca_file)  # in a thread, as it takes 20 ms of a start
        if ca_file is not None:
            self._usual.result()  # only a file of the user can be wrong
        self._kept: dict[Tls, asyncio.Task[ssl.SSLContext]] = {}

    async def of(self, tls: Tls | None) -> ssl.SSLContext:
        """The context for these settings. Raises ssl.SSLError for a certificate or key that OpenSSL rejects; UserError
        as `client_context`."""
        if tls is None or (tls.ca is None and tls.client_certificate is None):
            return await asyncio.shield(asyncio.wrap_future(self._usual))
        making = self._kept.pop(tls, None)
        if making is None or (making.done() and (making.cancelled() or making.exception() is not None)):
            if len(self._kept) >= _CONTEXTS_KEPT:
                del self._kept[next(iter(self._kept))]
            making = asyncio.create_task(self._made(tls))
            making.add_done_callback(_retrieved)
        self._kept[tls] = making
        return await asyncio.shield(making)  # other tasks may wait for it, too

    async def _made(self, tls: Tls) -> ssl.SSLContext:
        """Create a context in a thread, with a timeout."""
        making = asyncio.get_running_loop().run_in_executor(self._makers, _context_of, tls, self._ca_file)
        try:
            async with asyncio.timeout(MAKING_S):
                return await making
        except TimeoutError:
            raise ssl.SSLError(f"its certificates and key could not be read within {MAKING_S:g} s") from None

    async def close(self) -> None:
        await asyncio.gather(*self._kept.values(), return_exceptions=True)
        self._kept.clear()
        self._makers.shutdown(wait=False, cancel_futures=True)


def check_pins(pinned: Sequence[bytes], certificate: bytes) -> None:
    """Raises PinMismatch unless `certificate` (DER), or its public key, has one of the digests `pinned`."""
    digest = hashlib.sha256(certificate).digest()
    if digest not in pinned and _digest_of_key(certificate) not in pinned:
        raise PinMismatch(f"the server's certificate (SHA-256 {digest.hex(':').upper()}) is not one of the pinned ones")


def _digest_of_key(certificate: bytes) -> bytes:
    # imported here, because most processes do not need it and it takes memory
    from cryptography import x509
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    try:
        key = x509.load_der_x509_certificate(certificate).public_key()
        return hashlib.sha256(key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)).digest()
    except Exception as error:  # the library may raise anything for a certificate that OpenSSL has accepted
        raise PinMismatch(f"the server's certificate cannot be read: {error}") from error


def _restricted(context: ssl.SSLContext) -> ssl.SSLContext:
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    return context


def _context_of(tls: Tls, ca_file: str | None) -> ssl.SSLContext:
    """Creates a context, which is slow if the system's authorities have to be read."""
    try:
        own = None if tls.ca is None else clean_certificates(tls.ca)
        certificate = None if tls.client_certificate is None else clean_certificates(tls.client_certificate)
        key = "" if certificate is None else clean_private_key(tls.client_key or "")
    except ValueError as error:  # the entry may have been stored before this was rejected
        raise ssl.SSLError(f"a certificate or key of this endpoint cannot be used: it {error}") from error
    context = client_context(ca_file) if own is None else _restricted(ssl.create_default_context(cadata=own))
    if certificate is not None:
        with _as_file(certificate + key) as path:
            context.load_cert_chain(path, password=_no_passphrase)
    return context


@contextmanager
def _as_file(text: str) -> Iterator[str]:
    """The path of a file with `text`, because `ssl` only loads certificates and keys from files. In memory if possible,
    so that the key is not written to a disk."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("relay-client-certificate")
        try:
            os.write(descriptor, text.encode())
            yield f"/proc/self/fd/{descriptor}"
        finally:
            os.close(descriptor)
        return
    with tempfile.NamedTemporaryFile("w", encoding="utf-8") as file:  # only readable by this user
        file.write(text)
        file.flush()
        yield file.name


def _no_passphrase() -> str:
    """Rejects encrypted keys; without this callback OpenSSL would prompt at the terminal."""
    raise ssl.SSLError("the private key is encrypted with a passphrase")


def _retrieved(making: "asyncio.Task[ssl.SSLContext]") -> None:
    """Retrieve the task's exception, because all tasks that waited for it may have been cancelled."""
    if not making.cancelled():
        making.exception()
