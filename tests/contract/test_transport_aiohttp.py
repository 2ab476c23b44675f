"""The transport contract, kept by aiohttp."""

import subprocess
from pathlib import Path

import pytest

from relay.delivery.aiohttp_transport import AiohttpTransport
from relay.delivery.guard import AddressGuard
from relay.delivery.port import Transport
from relay.domain.errors import UserError
from tests.contract.transport_contract import TransportContract


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A self-signed certificate for 127.0.0.1; its key lies beside it, as `.key`."""
    path = tmp_path_factory.mktemp("tls") / "server.pem"
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2"
    subject = ["-subj", "/CN=test", "-addext", "subjectAltName=IP:127.0.0.1"]
    files = ["-keyout", str(path.with_suffix(".key")), "-out", str(path)]
    subprocess.run([*command.split(), *subject, *files], check=True, capture_output=True)
    return path


class TestAiohttpTransport(TransportContract):
    def make(self, guard: AddressGuard, *, body_cap: int, ca_file: str | None) -> Transport:
        return AiohttpTransport(guard, body_cap=body_cap, ca_file=ca_file)


def test_a_ca_file_that_cannot_be_read_is_the_users_mistake(tmp_path: Path) -> None:
    nonsense = tmp_path / "ca.pem"
    nonsense.write_text("nonsense")
    for path in (nonsense, tmp_path / "absent.pem"):
        with pytest.raises(UserError, match=path.name):
            AiohttpTransport(AddressGuard(), ca_file=str(path))
