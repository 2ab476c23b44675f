"""Fixtures of the contract tests: the kinds of event loop that they run on, and a TLS certificate."""

import asyncio
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

LoopFactory = Callable[[], asyncio.AbstractEventLoop]

ONE_LOOP: Mapping[str, LoopFactory] = {"asyncio": asyncio.new_event_loop}


def pytest_asyncio_loop_factories(item: pytest.Item) -> Mapping[str, LoopFactory]:
    """A test class with an attribute `loops` has its tests run once on each of them."""
    cls = item.cls if isinstance(item, pytest.Function) else None
    loops: Mapping[str, LoopFactory] = getattr(cls, "loops", ONE_LOOP)
    return loops


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A self-signed certificate for 127.0.0.1; its key lies beside it, as `.key`."""
    path = tmp_path_factory.mktemp("tls") / "server.pem"
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2"
    subject = ["-subj", "/CN=test", "-addext", "subjectAltName=IP:127.0.0.1"]
    files = ["-keyout", str(path.with_suffix(".key")), "-out", str(path)]
    subprocess.run([*command.split(), *subject, *files], check=True, capture_output=True)
    return path
