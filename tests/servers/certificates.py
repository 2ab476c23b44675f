"""A certificate authority of a test, and the certificates that it issues."""

from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, EllipticCurvePrivateKey, generate_private_key
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID


class Authority:
    """`file`: its own certificate, PEM."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._key = generate_private_key(SECP256R1())
        self._name = _named("test authority")
        self.file = directory / "ca.pem"
        about = self._about(self._name, self._key)
        about = about.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        about = about.add_extension(x509.SubjectKeyIdentifier.from_public_key(self._key.public_key()), critical=False)
        usage = x509.KeyUsage(False, False, False, False, False, True, True, False, False)
        about = about.add_extension(usage, critical=True)
        self.file.write_bytes(about.sign(self._key, SHA256()).public_bytes(Encoding.PEM))

    def issue(self, name: str) -> Path:
        """Key and certificate of a server on 127.0.0.1, or of a client, in one PEM file."""
        key = generate_private_key(SECP256R1())
        about = self._about(_named(name), key)
        address = x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))])
        about = about.add_extension(address, critical=False)
        issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        about = about.add_extension(issuer, critical=False)
        file = self._directory / f"{name}.pem"
        file.write_bytes(
            key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
            + about.sign(self._key, SHA256()).public_bytes(Encoding.PEM)
        )
        return file

    def _about(self, subject: x509.Name, key: EllipticCurvePrivateKey) -> x509.CertificateBuilder:
        now = datetime.now(UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(hours=1))
            .not_valid_after(now + timedelta(days=2))
        )


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
