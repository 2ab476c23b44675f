"""Fixtures for all tests."""

import os
import secrets

import pytest
import structlog
from hypothesis import HealthCheck, settings

from relay.telemetry.logging import marked_stack
from tests.servers.templates import keep_compiled

pytest_plugins = [
    "tests.file_order",
    "tests.file_times",
    "tests.startup_heap",
    "tests.servers.shared",
    "tests.servers.kafka",
]

# Each TLS context of each process loads the authorities of the system, or of the file that the environment names, which
# costs 30 ms of CPU. No test needs them.
os.environ["SSL_CERT_FILE"] = os.devnull

keep_compiled()

# How fast a machine draws and runs examples says nothing about the code: no deadlines, no health check of speed. The
# other two are about fixtures and classes that several examples share, which ours do on purpose.
settings.register_profile(
    "relay",
    deadline=None,
    suppress_health_check=[
        HealthCheck.too_slow,
        HealthCheck.function_scoped_fixture,
        HealthCheck.differing_executors,
    ],
)
settings.load_profile("relay")

# A traceback of rich's, with the locals of each frame, costs as much as the whole story that a process dies in. A loop
# that was blocked, as on a busy machine, is logged with a list of calls, of which the renderer could make no text.
structlog.configure(
    processors=[
        *structlog.get_config()["processors"][:-1],
        marked_stack,
        structlog.dev.ConsoleRenderer(colors=False, exception_formatter=structlog.dev.plain_traceback),
    ]
)


def pytest_configure(config: pytest.Config) -> None:
    """With `-n` and `-q`, pytest ends without a word if a file does not exist."""
    for given in config.args:
        if not (config.invocation_params.dir / given.partition("::")[0]).exists():
            raise pytest.UsageError(f"file or directory not found: {given}")


@pytest.fixture
def unique_prefix() -> str:
    """A topic prefix of the test's own, so that one broker and one Redis serve a whole session."""
    return f"t{secrets.token_hex(4)}."
