"""Warnings about unread records that retention will delete, and about groups that cannot continue: which process looks,
when, and its messages."""

import asyncio
import io
import json
from typing import Any

import pytest

from relay.domain.topics import DAY_S
from relay.log.port import NewRecord, TopicPartition
from relay.telemetry.logging import configure
from relay.watch.lag import BACKLOG_LOOK_S, LEASE_S, BacklogWatch
from tests.fakes.two_processes import TwoProcesses
from tests.fakes.virtual_time import virtually

TOPIC = "to_receiver_ci"
PLACE = TopicPartition(TOPIC, 0)
GROUP = "relay.to-receiver"


class Rig(TwoProcesses):
    """Their watches, and what they log."""

    def __init__(self) -> None:
        super().__init__("ci")
        self.watches = [
            BacklogWatch(
                self.log, self.state, self.topics, lambda: self.names, self.clock, metrics, owner=f"process-{index}"
            )
            for index, metrics in enumerate(self.metrics)
        ]
        self._out = io.StringIO()
        configure("json", stream=self._out)

    def said(self) -> list[dict[str, Any]]:
        lines = [json.loads(line) for line in self._out.getvalue().splitlines()]
        self._out.seek(0)
        self._out.truncate()
        return lines

    def count(self, problem: str, process: int = 0) -> float | None:
        return self.value("relay_backlog_problem_partitions", process=process, problem=problem)


@virtually
async def test_what_is_half_way_to_its_deletion_is_said() -> None:
    rig = await Rig().started()
    await rig.append()
    await rig.clock.sleep(3.4 * DAY_S)
    await rig.append()
    await rig.watches[0].look()
    assert (rig.said(), rig.count("old")) == ([], 0)
    await rig.clock.sleep(0.2 * DAY_S)
    await rig.watches[0].look()
    [line] = rig.said()
    assert line["event"] == "unread_records_old"
    assert (line["group"], line["topic"], line["partitions"]) == (GROUP, TOPIC, [0])
    assert (line["age_s"], line["retention_s"]) == (pytest.approx(3.6 * DAY_S), 7 * DAY_S)
    assert rig.count("old") == 1
    rig.broker.offsets[GROUP, PLACE] = 1  # the old one is done, the younger one is not
    await rig.watches[0].look()
    assert (rig.said(), rig.count("old")) == ([], 0)


@virtually
async def test_groups_that_cannot_go_on_are_said() -> None:
    rig = await Rig().started()
    del rig.broker.offsets[GROUP, PLACE]
    await rig.watches[0].look()
    [line] = rig.said()
    assert line["topics"] == [TOPIC]
    assert f"{GROUP} has no committed offset (partition 0)" in line["problem"]
    assert (rig.count("missing_offset"), rig.count("lost")) == (1, 0)

    rig.broker.offsets[GROUP, PLACE] = 0
    for _ in range(3):
        await rig.append()
    rig.broker[PLACE].first = 2
    await rig.watches[0].look()
    [line] = rig.said()
    assert "unread are lost" in line["problem"]
    assert (rig.count("missing_offset"), rig.count("lost"), rig.count("old")) == (0, 1, 0)


@virtually
async def test_one_process_looks_and_another_one_when_that_is_gone() -> None:
    rig = await Rig().started()
    del rig.broker.offsets[GROUP, PLACE]
    first = asyncio.create_task(rig.watches[0].run())
    await rig.clock.sleep(1)
    second = asyncio.create_task(rig.watches[1].run())
    await rig.clock.sleep(2 * BACKLOG_LOOK_S)
    assert (rig.count("missing_offset", 0), rig.count("missing_offset", 1)) == (1, 0)
    assert len(rig.said()) == 3
    first.cancel()
    await rig.clock.sleep(LEASE_S + 2 * BACKLOG_LOOK_S)
    assert rig.count("missing_offset", 1) == 1
    second.cancel()


@virtually
async def test_while_the_log_is_away_nothing_is_said_and_it_goes_on_after() -> None:
    rig = await Rig().started()
    del rig.broker.offsets[GROUP, PLACE]
    rig.broker.available = False
    running = asyncio.create_task(rig.watches[0].run())
    await rig.clock.sleep(1)
    assert (rig.said(), rig.count("missing_offset")) == ([], 0)
    rig.broker.available = True
    await rig.clock.sleep(BACKLOG_LOOK_S)
    assert (len(rig.said()), rig.count("missing_offset")) == (1, 1)
    running.cancel()


@virtually
async def test_a_transaction_that_is_open_at_two_looks_in_a_row_is_said() -> None:
    rig = await Rig().started()
    one, two = rig.broker.transaction(), rig.broker.transaction()
    await one.append([NewRecord(TOPIC, b"k", b"v")])
    await rig.watches[0].look()
    assert (rig.said(), rig.count("open_transaction")) == ([], 0)
    await rig.append()
    await rig.watches[0].look()
    [line] = rig.said()
    assert (line["event"], line["topic"], line["offset"], line["records"]) == ("transaction_open", TOPIC, 0, 2)
    assert (rig.count("open_transaction"), rig.count("old"), rig.count("lost")) == (1, 0, 0)
    await two.append([NewRecord(TOPIC, b"k", b"v")])
    await one.commit()
    await rig.watches[0].look()
    assert (rig.said(), rig.count("open_transaction")) == ([], 0), "another one is open now"
