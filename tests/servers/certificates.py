"""A certificate authority of a test, and the certificates that it issues, in files as servers read them."""

from pathlib import Path

from tests.fakes.certificates import LOOPBACK, authority, issued


class Authority:
    """`file`: its own certificate, PEM."""

    def __init__(self, directory: Path) -> None:
        self._directory, self._own = directory, authority("test authority")
        self.file = directory / "ca.pem"
        self.file.write_text(self._own.pem)

    def issue(self, name: str) -> Path:
        """Key and certificate of a server on 127.0.0.1, or of a client, in one PEM file."""
        one, file = issued(self._own, name, address=LOOPBACK), self._directory / f"{name}.pem"
        file.write_text(one.key_pem + one.pem)
        return file
