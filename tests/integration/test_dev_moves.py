"""Test of a receiver that gets more partitions on the embedded log while the relay runs."""

import json
from pathlib import Path
from typing import Any

import pytest

from relay.sink import Sink
from tests.integration.test_demo import relay
from tests.servers.http import started
from tests.servers.process import RelayProcess, relay_dev

SOURCES = ("a", "b")
"""Whose messages take other partitions of three than of one."""


def _write(directory: Path, sink: Sink, **fields: Any) -> None:
    entry = {"post_endpoint": sink.url, "retry": {"base": 1, "cap": 1, "max_attempts": 1000}, **fields}
    (directory / "receivers.yaml").write_text(json.dumps({"receivers": {"ci": entry}}))


@pytest.mark.slow
async def test_a_receiver_gets_more_partitions_while_its_messages_wait(tmp_path: Path) -> None:
    sink = Sink("fail", fail_status=501)
    async with started(sink):
        _write(tmp_path, sink)
        async with relay_dev(tmp_path) as dev:
            await _send(dev, "first")
            await sink.wait_for(len(SOURCES))
            _write(tmp_path, sink, partitions=3)
            await dev.line_with("move_begun")
            await _send(dev, "second")
            sink.become("answer")
            await dev.line_with("move_ended")
            await dev.line_with("move_ended")
            await _send(dev, "third")
            while len(taken := [each for each in sink.received if each.status == 200]) < 3 * len(SOURCES):
                await sink.wait_for(len(sink.received) + 1)
    for source in SOURCES:
        own = [each.message_id for each in taken if each.source_id == source]
        assert own == [f"{name}-{source}" for name in ("first", "second", "third")]


async def _send(dev: RelayProcess, name: str) -> None:
    for source in SOURCES:
        send = ("send", "--source", source, "--receiver", "ci", "--id", f"{name}-{source}", "-")
        code, output = await relay(dev, *send, stdin=b"{}")
        assert code == 0, output
