"""Runs a small sample of the fault harness on real servers. `make faults` runs all of it."""

import os
from dataclasses import replace
from pathlib import Path

import pytest

from bench.kafka_parts import Unsuitable, jars
from tests.faults.harness.experiments import EXPERIMENTS
from tests.faults.harness.experiments.planted_bugs import HUNTS, hunt_down
from tests.faults.harness.servers import Servers
from tests.faults.harness.trial import Context, Judged, run_experiment
from tests.servers.kafka import unavailable

pytestmark = pytest.mark.kafka

LEAST = 0.001
"""A scale at which every experiment makes one trial."""
FOUR_KILLS = 0.008


@pytest.fixture
def context(tmp_path: Path) -> Context:
    if "RELAY_TEST_KAFKA" in os.environ:
        pytest.skip("RELAY_TEST_KAFKA: no other broker is started")
    try:
        jars()
    except Unsuitable as reason:
        unavailable(str(reason))
    return Context(LEAST, 1, tmp_path, print)


def broken_promises(outcome: Judged) -> list[str]:
    """All broken promises but those about durations, which depend on the machine."""
    return [problem for problem in outcome.exceeded if not problem.startswith("recovery")]


@pytest.mark.parametrize(("name", "scale"), [("E3", FOUR_KILLS), pytest.param("E9", LEAST, marks=pytest.mark.slow)])
async def test_promises_are_kept(context: Context, name: str, scale: float) -> None:
    """Processes are killed; Redis loses its memory."""
    outcome = await run_experiment(EXPERIMENTS[name], replace(context, scale=scale))
    assert broken_promises(outcome) == []
    assert outcome.messages > 100
    assert outcome.faults >= 1


@pytest.mark.slow
@pytest.mark.parametrize("bug", ["mark_before_produce", "keys_without_limits"])
async def test_a_planted_bug_is_caught(context: Context, bug: str) -> None:
    async with Servers() as servers:
        assert await hunt_down(servers, bug, HUNTS[bug], context)
