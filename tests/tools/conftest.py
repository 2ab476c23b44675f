"""Fixtures of these tests, shared with the integration tests: production servers with receivers."""

from tests.integration.conftest import redis_server as redis_server
from tests.integration.conftest import rig as rig
