"""Test of docs/tutorial-green-check.md: its steps work with a Buildbot and the emulated GitHub."""

import os
import signal
from contextlib import suppress
from pathlib import Path

import pytest

from bench.kafka_parts import free_ports
from tests.documents import ROOT, fences
from tests.e2e.buildbot import ENVIRONMENT, INSTALLED
from tests.page_shell import Served, follow

PAGE = ROOT / "docs" / "tutorial-green-check.md"


@pytest.mark.slow
@pytest.mark.skipif(not INSTALLED, reason="no Buildbot: make e2e")
@pytest.mark.timeout(300)
async def test_the_tutorial_can_be_followed(tmp_path: Path) -> None:
    api, github, ci = free_ports(3)
    moved = {"127.0.0.1:8010": f"127.0.0.1:{ci}", "tcp:8010": f"tcp:{ci}"}
    served = Served(f"http://127.0.0.1:{api}", f"http://127.0.0.1:{github}", moved)
    (tmp_path / "buildbot").symlink_to(ENVIRONMENT)
    chosen = [fence for fence in fences(PAGE) if fence.mark is not None and fence.mark.what == "run"]
    try:
        await follow(chosen, served, tmp_path, {"RELAY_API_PORT": str(api), "PORT": str(github)}, timeout_s=200)
    finally:
        stop_buildbot(tmp_path / "ci")


def stop_buildbot(folder: Path) -> None:
    """Kill the Buildbot if the page failed before it stopped it."""
    with suppress(FileNotFoundError, ProcessLookupError):
        os.kill(int((folder / "twistd.pid").read_text()), signal.SIGKILL)
