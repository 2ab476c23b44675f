"""Test of the benchmark on its own servers: the relay and the plain pipeline in turn, with the cost of a message."""

import asyncio
import json
import os
import sys
from pathlib import Path

import pytest

from bench.kafka_parts import Unsuitable, jars
from tests.servers.kafka import unavailable

pytestmark = pytest.mark.kafka

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
async def test_both_systems_deliver_all_and_the_report_says_what_a_message_took(tmp_path: Path) -> None:
    if "RELAY_TEST_KAFKA" in os.environ:
        pytest.skip("RELAY_TEST_KAFKA: no other broker is started")
    try:
        jars()
    except Unsuitable as reason:
        unavailable(str(reason))
    asked = ("--quick", "--against", "plain", "--rates", "50", "--seconds", "2", "--processes", "1")
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "relay", "bench", *asked, "--foreign-load", "1", "--out", str(tmp_path)),
        cwd=ROOT,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output = (await process.communicate())[0].decode()
    assert process.returncode == 0, output
    fixed = json.loads((tmp_path / "report.json").read_text())["cases"][0]["fixed"]
    assert [each["rate"] for each in fixed] == [50]
    for name, phase in [(name, fixed[0][name]) for name in ("plain", "relay")]:
        assert phase["counts"]["sent"] == 100
        assert (phase["counts"]["lost"], phase["counts"]["duplicated"]) == (0, 0)
        assert all(phase["usage"]["cpu_us"][group] > 0 for group in (name, "kafka", "foreign load"))
        took = phase["traffic"]
        assert took["kafka"]["fetch"] > 0
        assert took["kafka"]["produce"] > 0
        assert took["wakeups"][name] > 0
        assert (took["scripts"] > 0) == (took["trips"] > 0.5) == (name == "relay")
    assert "| plain |" in (tmp_path / "report.md").read_text()
