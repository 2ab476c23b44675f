"""Tests of the Buildbot that the other tests here use: the results of its builds, which survive a restart."""

import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from bench.kafka_parts import free_ports
from tests.e2e.buildbot import CANCELLED, FAILURE, INSTALLED, SUCCESS, Buildbot, running_buildbot

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not INSTALLED, reason="no Buildbot: make e2e")]


@pytest_asyncio.fixture
async def buildbot(tmp_path: Path) -> AsyncIterator[Buildbot]:
    [port] = free_ports(1)
    async with running_buildbot(tmp_path / "ci", port) as running:
        yield running


async def test_a_build_ends_as_its_commit_says(buildbot: Buildbot) -> None:
    good, bad = await buildbot.force(branch="main", revision="7f"), await buildbot.force(branch="main", revision="8f")
    assert (await buildbot.result(good), await buildbot.result(bad)) == (SUCCESS, FAILURE)


@pytest.mark.parametrize(
    ("how", "possible"),
    [(signal.SIGTERM, {SUCCESS, CANCELLED}), (signal.SIGKILL, {SUCCESS})],
    ids=["SIGTERM", "SIGKILL"],
)
async def test_every_build_ends_after_a_restart(buildbot: Buildbot, how: signal.Signals, possible: set[int]) -> None:
    builds = [await buildbot.force(branch="main", revision=str(number), seconds="1") for number in range(6)]
    await buildbot.stop(how)
    await buildbot.start()
    assert {await buildbot.result(build) for build in builds} <= possible
