"""What may be written in receivers.yaml about the TLS of one endpoint: its authorities, our certificate, its pins."""

import base64
import binascii
import re
from typing import TYPE_CHECKING, Annotated, Final

from pydantic import AfterValidator, Field, ValidationInfo, field_validator

from relay.config.entry import Entry, Text
from relay.config.references import has_reference
from relay.domain.egress import Tls
from relay.domain.key_material import NO_CERTIFICATES, NO_KEY, check_bits, clean_certificates, clean_private_key

if TYPE_CHECKING:
    from cryptography.x509 import Certificate

# The library of certificates is imported where one is read: it costs memory that most processes can do without.

_PRIVATE_KEY: Final = re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----")
_PIN: Final = re.compile(r"sha256/(?:(?P<base64>[A-Za-z0-9+/]{43}=)|(?P<hex>[0-9A-Fa-f]{2}(?::?[0-9A-Fa-f]{2}){31}))")


def _certificates(value: str) -> str:
    if not has_reference(value):
        if _PRIVATE_KEY.search(value):
            raise ValueError("holds a private key, which is a secret: that belongs into client_key alone")
        if not value.isascii():
            raise ValueError("has characters beyond ASCII; leave out what stands around the certificates")
        _read_certificates(value)
    return value


def _private_key(value: str) -> str:
    if not has_reference(value):
        _public_part(value)
    return value


def _pin(value: str) -> str:
    if not has_reference(value):
        _digest(value)
    return value


Certificates = Annotated[Text, Field(max_length=131_072), AfterValidator(_certificates)]
PrivateKey = Annotated[Text, Field(max_length=16_384), AfterValidator(_private_key)]
Pin = Annotated[Text, AfterValidator(_pin)]


class TlsEntry(Entry):
    """PEM as text; not the names of files, which other processes, and who uses the API, need not have."""

    ca: Certificates | None = None
    """Certificates (PEM) of the only authorities that are trusted here; default: the system's."""
    client_certificate: Certificates | None = None
    """Our certificate (PEM), with those between it and its authority."""
    client_key: Annotated[PrivateKey | None, Field(validate_default=True)] = None
    """Its private key (PEM), not encrypted."""
    pinned: Annotated[tuple[Pin, ...], Field(strict=False, max_length=16)] = ()
    """`sha256/...` of the server's certificate or public key; one of them has to match."""

    @field_validator("client_key")
    @classmethod
    def _fits(cls, key: str | None, info: ValidationInfo) -> str | None:
        if "client_certificate" not in info.data:  # it is wrong itself
            return key
        certificate = info.data["client_certificate"]
        if (key is None) != (certificate is None):
            raise ValueError("client_certificate and client_key go together; give both or neither")
        if key is None or has_reference(key) or has_reference(certificate):
            return key
        if _public_part(key) != _public_key_of(_read_certificates(certificate)[0]):
            raise ValueError("does not fit client_certificate (of several certificates there, the first is ours)")
        return key


def check_https(url: str, tls: TlsEntry | None) -> str:
    """`url`, if `tls` is of any use for it. Raises ValueError."""
    if tls is not None and url.lower().startswith("http:"):
        raise ValueError("plain http has no TLS; write https, or leave tls out")
    return url


def tls_of(entry: TlsEntry | None) -> Tls | None:
    """What an entry without references stands for; None: nothing of its own."""
    if entry is None:
        return None
    pinned = tuple(map(_digest, entry.pinned))
    found = Tls(entry.ca, entry.client_certificate, entry.client_key, pinned)
    return None if found == Tls() else found


def _read_certificates(pem: str) -> "list[Certificate]":
    from cryptography import x509

    clean = clean_certificates(pem)
    try:
        return x509.load_pem_x509_certificates(clean.encode())
    except ValueError:
        raise ValueError(NO_CERTIFICATES) from None


def _public_part(pem: str) -> bytes:
    """What a private key has to have in common with its certificate."""
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_private_key

    clean = clean_private_key(pem)
    try:
        # whether its numbers are primes is its owner's affair: to find out takes a second at 4,096 bits
        key = load_pem_private_key(clean.encode(), None, unsafe_skip_rsa_key_validation=True)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise ValueError(NO_KEY) from None
    check_bits(getattr(key, "key_size", 0))
    return key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)


def _public_key_of(certificate: "Certificate") -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    return certificate.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)


def _digest(pin: str) -> bytes:
    match = _PIN.fullmatch(pin)
    try:
        if match is not None and match["base64"]:
            return base64.b64decode(match["base64"], validate=True)
    except binascii.Error:
        match = None
    if match is None:
        raise ValueError(
            "a pin is sha256/ and the SHA-256 of the server's certificate or public key, in base64 or as openssl "
            "prints it (openssl x509 -noout -fingerprint -sha256)"
        )
    return bytes.fromhex(match["hex"].replace(":", ""))
