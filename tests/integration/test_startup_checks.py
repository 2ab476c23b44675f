"""Tests of `relay run` on a real cluster: what it refuses or logs at start, and how it replaces a broken consumer."""

import asyncio
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from relay.clock import SystemClock
from relay.config.plan import ProcessPlan
from relay.config.setting_layers import load_settings
from relay.domain.topics import Topics
from relay.log.kafka.consumer import KafkaConsumer
from relay.log.kafka.log import KafkaLog
from relay.run.composition import kafka_log, redis_state
from relay.run.process import RelayProcess
from tests.integration.production import SECRETS, Rig, messages
from tests.servers.kafka import alter_topic

pytestmark = pytest.mark.kafka
SLOW = pytest.mark.slow  # the judgement of each is in tests/unit/test_topic_checks.py


async def alter(rig: Rig, topic: str, **configs: str) -> None:
    environ = rig.environ
    await alter_topic(environ["RELAY_KAFKA_BOOTSTRAP_SERVERS"], environ["RELAY_TOPIC_PREFIX"] + topic, **configs)


async def output_of(rig: Rig, *arguments: str) -> tuple[int | None, str]:
    """Exit code and output of a command."""
    async with rig.relay(*arguments) as running:
        output = await running.finish()
    return running.returncode, output


async def described(rig: Rig) -> tuple[int | None, dict[str, list[dict[str, str]]]]:
    """Exit code of `relay topics describe`, and the problems by topic."""
    code, output = await output_of(rig, "topics", "describe", "-o", "json")
    prefix = rig.environ["RELAY_TOPIC_PREFIX"]
    return code, {row["topic"].removeprefix(prefix): row["problems"] for row in json.loads(output)}


async def test_one_broker_is_a_risk_but_no_refusal(rig: Rig) -> None:
    code, problems = await described(rig)
    assert code == 0
    assert {problem["grade"] for of_topic in problems.values() for problem in of_topic} <= {"warn"}
    assert {"to_receiver_circleci", "pending_from_receiver_later"} <= problems.keys()


async def test_numbers_of_topics_are_numbers_in_json(rig: Rig) -> None:
    rig.environ["RELAY_TOPIC_PREFIX"] += "other-"
    _, output = await output_of(rig, "topics", "describe", "-o", "json")
    assert {row["partitions"] for row in json.loads(output)} == {None}, "none exists"
    await output_of(rig, "topics", "apply")
    code, output = await output_of(rig, "topics", "describe", "-o", "json")
    assert code == 0
    name = rig.environ["RELAY_TOPIC_PREFIX"] + "from_sender"
    [row] = [row for row in json.loads(output) if row["topic"] == name]
    assert {name: row[name] for name in row if name not in ("topic", "problems")} == {
        "partitions": 10,
        "cleanup": "delete",
        "retention_s": 604_800,
        "replication": 1,
        "min_insync": 1,
    }


@pytest.mark.parametrize(
    ("topic", "configs", "words"),
    [
        ("from_sender", {"cleanup_policy": "compact,delete"}, "cleanup.policy is compact,delete"),
        pytest.param("to_sender", {"retention_bytes": "1000000"}, "retention.bytes is 1000000", marks=SLOW),
        pytest.param(
            "parked_messages", {"cleanup_policy": "delete"}, "set cleanup.policy=compact", marks=pytest.mark.slow
        ),
        ("failed_messages", {"max_message_bytes": "1000"}, "blocks its partition"),
        pytest.param(
            "to_receiver_later", {"cleanup_policy": "compact"}, "set cleanup.policy=delete", marks=pytest.mark.slow
        ),
    ],
)
async def test_a_topic_that_would_lose_messages_is_refused(
    rig: Rig, topic: str, configs: Mapping[str, str], words: str
) -> None:
    await alter(rig, topic, **configs)
    code, output = await output_of(rig, "run", "--processes", "1")
    assert code == 2
    [refusal] = [line for line in output.splitlines() if line.startswith("error: ")]
    assert refusal.startswith(f"error: topic {rig.environ['RELAY_TOPIC_PREFIX']}{topic}: ")
    assert words in refusal
    assert "Traceback" not in output
    code, problems = await described(rig)
    assert code == 1
    assert [problem["grade"] for problem in problems[topic] if words in problem["problem"]] == ["refuse"]


async def test_topics_that_leave_the_time_to_senders_are_said(rig: Rig) -> None:
    await alter(rig, "to_sender", message_timestamp_type="CreateTime")
    async with rig.relay("run", "--processes", "1") as running:
        told = json.loads(await running.line_with("senders' clocks decide when a message is too old"))
    assert (told["event"], told["level"]) == ("topic_problem", "warning")
    assert told["topics"] == [f"{rig.environ['RELAY_TOPIC_PREFIX']}to_sender"]
    code, problems = await described(rig)
    assert code == 0
    said_of = {topic for topic, of_topic in problems.items() if any("CreateTime" in one["problem"] for one in of_topic)}
    assert said_of == {"to_sender"}


async def test_missing_topics_are_described_with_exit_code_1(rig: Rig) -> None:
    rig.environ["RELAY_TOPIC_PREFIX"] = "nothing-has-this-prefix."
    code, output = await output_of(rig, "topics", "describe")
    assert code == 1
    assert "is missing; run `relay topics apply`" in output


async def test_a_wait_that_is_too_long_for_the_retention_is_said(rig: Rig) -> None:
    path = rig.cwd / "receivers.yaml"
    file = json.loads(path.read_text())
    file["receivers"]["later"]["retry"] = {"max_age": "4d"}
    path.write_text(json.dumps(file))
    async with rig.relay("run", "--processes", "1") as running:
        await running.line_with('"started"')
        told = [json.loads(line) for line in running.lines if "later may wait 4.04 d" in line]
    [line] = told
    assert (line["event"], line["level"]) == ("topic_problem", "warning")
    prefix = rig.environ["RELAY_TOPIC_PREFIX"]
    assert line["topics"] == [f"{prefix}pending_from_receiver_later", f"{prefix}to_receiver_later"]
    code, problems = await described(rig)
    assert code == 0
    assert any("later may wait" in problem["problem"] for problem in problems["to_receiver_later"])


async def test_a_group_without_offsets_is_an_alarm_and_begins_with_the_oldest_record(rig: Rig) -> None:
    settings = load_settings({}, rig.environ | {"RELAY_TOPIC_PREFIX": "without-" + rig.environ["RELAY_TOPIC_PREFIX"]})
    rig.environ["RELAY_TOPIC_PREFIX"] = settings.topic_prefix
    topics = Topics(settings.topic_prefix)
    groups = topics.fixed_groups()
    log = kafka_log(settings)
    await log.start()
    await log.create(topics.fixed(), {topic: groups[topic] for topic in groups if topic != topics.to_sender})
    await log.close()
    code, problems = await described(rig)
    assert code == 1
    assert "has no committed offset" in problems["to_sender"][-1]["problem"]

    async with rig.relay("run", "--processes", "1") as running:
        rig.topic = topics.from_sender
        await rig.produce(messages(40))
        missing = json.loads(await running.line_with('"offset_missing"'))
        assert (missing["level"], missing["service"]) == ("error", "to-sender")
        assert topics.to_sender in missing["error"]
        await rig.until(lambda: len(rig.answered()) >= 40)
    assert set(rig.arrivals().values()) == {1}
    assert len([line for line in running.lines if '"offset_missing"' in line]) == 1
    _, problems = await described(rig)
    assert not any("offset" in problem["problem"] for problem in problems["to_sender"])


async def test_a_history_that_begins_later_begins_with_the_oldest_attempt(rig: Rig) -> None:
    settings = load_settings({}, rig.environ)
    log = kafka_log(settings)
    await log.start()
    found = await log.backlogs(Topics(settings.topic_prefix).informational_groups())
    await log.close()
    assert [(each.group, each.committed) for each in found] == 10 * [(f"{settings.topic_prefix}relay.history", 0)]


async def test_without_the_topic_of_attempts_all_else_goes_on(rig: Rig) -> None:
    settings = load_settings({}, rig.environ | {"RELAY_TOPIC_PREFIX": "untold-" + rig.environ["RELAY_TOPIC_PREFIX"]})
    rig.environ["RELAY_TOPIC_PREFIX"] = settings.topic_prefix
    topics = Topics(settings.topic_prefix)
    log = kafka_log(settings)
    await log.start()
    specs = [spec for spec in topics.fixed() if spec.name != topics.delivery_attempts]
    await log.create(specs, topics.fixed_groups())
    await log.close()
    async with rig.relay("run", "--processes", "1") as running:
        problem = json.loads(await running.line_with("is missing; run `relay topics apply`"))
        assert (problem["level"], problem["topics"]) == ("warning", [topics.delivery_attempts])
        rig.topic = topics.from_sender
        await rig.produce(messages(40))
        untold = json.loads(await running.line_with('"attempts_untold"'))
        assert (untold["why"], topics.delivery_attempts in untold["problem"]) == ("log", True)
        await rig.until(lambda: len(rig.answered()) >= 40)
    assert set(rig.arrivals().values()) == {1}


async def test_an_emptied_receivers_file_changes_nothing(rig: Rig) -> None:
    sent = messages(24)
    async with rig.relay("run", "--processes", "1") as running:
        await running.line_with('"started"')
        (rig.cwd / "receivers.yaml").write_text("")
        refused = json.loads(await running.line_with('"receivers_file_refused"'))
        assert "would remove all 3 that are in effect" in refused["error"]
        await rig.produce(sent)
        await rig.until(lambda: len(rig.arrivals()) >= len(sent))
    code, output = await output_of(rig, "run", "--processes", "1")
    assert code == 2
    assert "relay receivers apply --prune" in output


async def test_a_cluster_that_is_away_is_said_in_one_line(tmp_path: Path, rig: Rig) -> None:
    rig.environ["RELAY_KAFKA_BOOTSTRAP_SERVERS"] = "127.0.0.1:9"
    code, output = await output_of(rig, "topics", "apply")
    assert code == 1
    [line] = output.splitlines()
    assert line.startswith("error: ")
    assert "127.0.0.1:9" in line


async def test_a_consumer_that_breaks_is_replaced_in_the_running_process(rig: Rig) -> None:
    settings = load_settings({"receivers_file": rig.cwd / "receivers.yaml"}, rig.environ)
    log, state = kafka_log(settings), redis_state(settings)
    relay = RelayProcess(
        settings, log, state, ProcessPlan(), {**os.environ, "CIRCLECI_SECRET": SECRETS["circleci"]}, SystemClock()
    )
    stop, started = asyncio.Event(), asyncio.Event()
    sent = messages(60)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(relay.run(stop, started.set))
        await started.wait()
        await rig.produce(sent[:30])
        await rig.until(lambda: len(rig.arrivals()) >= 30)
        broken = consumers(log)
        assert len(broken) == 5
        for consumer in broken:
            consumer._member._coordinator._coordination_task.cancel()
        await rig.produce(sent[30:])
        await rig.until(lambda: len(rig.answered()) >= len(sent))
        assert set(rig.arrivals().values()) == {1}
        assert b'relay_services_restarted_total{reason="consumer_broken"}' in relay.metrics.render()
        stop.set()


def consumers(log: KafkaLog) -> list[Any]:
    """Those that are members of their groups."""
    found: list[KafkaConsumer] = list(log._consumers)
    return [consumer for consumer in found if consumer._maintaining is not None]
