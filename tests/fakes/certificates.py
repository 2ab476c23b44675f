"""Certificates for tests: an authority, certificates that it signs, and invalid ones."""

import base64
import hashlib
import ssl
import tempfile
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cached_property
from ipaddress import ip_address

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)

LOOPBACK = "127.0.0.1"


@dataclass(frozen=True)
class Issued:
    """A certificate with its key, and `issuer` None for one that has signed itself."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey

    @cached_property
    def pem(self) -> str:
        return self.certificate.public_bytes(Encoding.PEM).decode()

    @cached_property
    def key_pem(self) -> str:
        return self.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()

    @cached_property
    def encrypted_key_pem(self) -> str:
        return self.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"pass")).decode()

    @cached_property
    def pin_of_key(self) -> str:
        key = self.key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
        return "sha256/" + base64.b64encode(hashlib.sha256(key).digest()).decode()

    @cached_property
    def fingerprint(self) -> str:
        """As `openssl x509 -fingerprint -sha256` prints it."""
        return self.certificate.fingerprint(hashes.SHA256()).hex(":").upper()

    def server_context(self, clients: "Issued | None" = None) -> ssl.SSLContext:
        """For a server with this certificate. `clients`: the authority that has to vouch for who comes."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        with tempfile.NamedTemporaryFile("w") as file:
            file.write(self.pem + self.key_pem)
            file.flush()
            context.load_cert_chain(file.name)
        if clients is not None:
            context.verify_mode = ssl.CERT_REQUIRED
            context.load_verify_locations(cadata=clients.pem)
        return context


def authority(name: str = "authority") -> Issued:
    return _issued(name, None, days=2)


def issued(by: Issued, name: str = LOOPBACK, *, days: int = 2, address: str | None = None) -> Issued:
    """For the server at `address`, or else at the address `name`, or for a client. `days` below 0: it ended then."""
    return _issued(name, by, days, address=address)


def too_long(by: Issued) -> Issued:
    """With a sound RSA key of 12,222 bits: its primes are two of Mersenne's, as to find others takes minutes."""
    p, q, e = 2**9_941 - 1, 2**2_281 - 1, 65_537
    d = pow(e, -1, (p - 1) * (q - 1))
    parts = rsa.rsa_crt_dmp1(d, p), rsa.rsa_crt_dmq1(d, q), rsa.rsa_crt_iqmp(p, q)
    numbers = rsa.RSAPrivateNumbers(p, q, d, *parts, rsa.RSAPublicNumbers(e, p * q))
    return _issued("too-long.example", by, 2, numbers.private_key(unsafe_skip_rsa_key_validation=True))


def _issued(
    name: str, by: Issued | None, days: int, own: rsa.RSAPrivateKey | None = None, address: str | None = None
) -> Issued:
    key, now = own or ec.generate_private_key(ec.SECP256R1()), datetime.now(UTC)
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject if by is None else by.certificate.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=9))
        .not_valid_after(now + timedelta(days=days))
        .add_extension(x509.BasicConstraints(ca=by is None, path_length=None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )
    if by is None:
        usage = x509.KeyUsage(False, False, False, False, False, True, True, False, False)  # Python 3.13 demands it
        builder = builder.add_extension(usage, critical=True)
    else:
        issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(by.key.public_key())
        builder = builder.add_extension(issuer, critical=False)
        address = address or name
        alternative = x509.IPAddress(ip_address(address)) if address == LOOPBACK else x509.DNSName(address)
        builder = builder.add_extension(x509.SubjectAlternativeName([alternative]), critical=False)
    return Issued(builder.sign(key if by is None else by.key, hashes.SHA256()), key)
