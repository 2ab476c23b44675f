"""Fixtures of these tests: production, as in the integration tests."""

from tests.integration.conftest import redis_server as redis_server
from tests.integration.conftest import rig as rig
