"""Fixtures for all tests."""

import secrets

import pytest

from tests.servers.kafka import kafka_broker as kafka_broker


@pytest.fixture
def unique_prefix() -> str:
    """A topic prefix of the test's own, so that one broker and one Redis serve a whole session."""
    return f"t{secrets.token_hex(4)}."
