"""Tests of the transport's TLS context: CA files that cannot be read."""

from pathlib import Path

import pytest

from relay.delivery.tls import client_context
from relay.domain.errors import UserError


def test_a_ca_file_that_cannot_be_read_is_the_users_mistake(tmp_path: Path) -> None:
    nonsense = tmp_path / "ca.pem"
    nonsense.write_text("nonsense")
    for path in (nonsense, tmp_path / "absent.pem"):
        with pytest.raises(UserError, match=path.name):
            client_context(str(path))
