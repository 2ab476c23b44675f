"""Fixtures of these tests: production, as in the integration tests, and a database for the history."""

from collections.abc import Iterator

import pytest

from tests.integration.conftest import redis_server as redis_server
from tests.integration.conftest import rig as rig
from tests.servers.postgres import PostgresServer


@pytest.fixture
def database() -> Iterator[PostgresServer]:
    server = PostgresServer()
    server.start()
    yield server
    server.stop()
