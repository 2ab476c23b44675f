"""The moves of docs/moving.md, with its commands, while senders go on sending."""

import asyncio
import json
import re
import signal
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiokafka import AIOKafkaConsumer, TopicPartition

from tests.integration.production import Rig, Sent, messages
from tests.integration.test_production import assert_in_order
from tests.servers.process import RelayProcess

pytestmark = pytest.mark.kafka

PAGE = Path(__file__).parents[3] / "docs" / "moving.md"
ENDED = "nostatus"
"""The receiver that rejects."""


def commands(section: str) -> list[list[str]]:
    """The `relay` commands that the page has under a heading, in order."""
    text = PAGE.read_text().split(f"\n## {section}\n")[1].split("\n## ")[0]
    return [line.split() for line in re.findall(r"^ *relay (.*)$", text, re.MULTILINE)]


async def api_of(running: RelayProcess) -> str:
    line = await running.line_with("http://127.0.0.1:")
    found = re.search(r"http://127\.0\.0\.1:\d+", line)
    assert found is not None
    return found[0]


async def post(api: str, sent: list[Sent]) -> None:
    async with aiohttp.ClientSession(api) as session:
        for message in sent:
            headers = {"ce-id": message.message_id, "content-type": "application/json"}
            url = f"/v1/sources/{message.source}/messages?receiver={message.receiver}&type=push"
            async with session.post(url, data=message.payload, headers=headers) as response:
                assert response.status == 202, await response.text()


async def command(rig: Rig, *arguments: str, environ: dict[str, str] | None = None) -> tuple[int | None, str]:
    environ = rig.environ if environ is None else environ
    async with RelayProcess(*arguments, cwd=rig.cwd, environ=environ) as running:
        output = await running.finish()
    return running.returncode, output


def own(rig: Rig) -> dict[str, str]:
    """The environment of the embedded relay: it knows of no servers."""
    kept = ("CIRCLECI_SECRET", "RELAY_HOLD_MAX", "RELAY_ALLOW_PRIVATE_NETWORKS")
    return {name: value for name, value in rig.environ.items() if name in kept}


def quick(rig: Rig) -> None:
    """Failures are retried after seconds, and open no breaker."""
    path = rig.cwd / "receivers.yaml"
    file = json.loads(path.read_text())
    for entry in file["receivers"].values():
        entry |= {"retry": {"base": "2s", "cap": "2s", "max_attempts": 1000}, "breaker": {"failures": 1000}}
    path.write_text(json.dumps(file))


async def succeeded(rig: Rig, *arguments: str, environ: dict[str, str] | None = None) -> str:
    code, output = await command(rig, *arguments, environ=environ)
    assert code == 0, output
    return output


async def imported(rig: Rig, *arguments: str, environ: dict[str, str] | None = None) -> dict[str, Any]:
    output = await succeeded(rig, *arguments, "-o", "json", environ=environ)
    found: dict[str, Any] = json.loads(output[output.index("{") :])
    return found


async def with_a_backlog(rig: Rig) -> list[Sent]:
    """A stopped `relay dev` in `data`: of its messages the first are finished, others wait, are parked, or failed."""
    rig.environ["RELAY_HOLD_MAX"] = "1s"
    quick(rig)
    sent = messages(120)
    rig.sinks["later"].become("later", later_polls=9)
    async with RelayProcess(
        "dev", "--no-demo", "--port", "0", "--data-dir", "data", cwd=rig.cwd, environ=own(rig)
    ) as dev:
        api = await api_of(dev)
        await dev.line_with("Ready")
        await post(api, sent[:48])
        await rig.until(lambda: len(rig.answered()) >= 32 and len(rig.sinks["later"].received) >= 16)
        for name in ("circleci", ENDED):
            rig.sinks[name].become("fail", fail_status=501 if name == "circleci" else 400)
        await post(api, sent[48:])
        await rig.until(lambda: rig.sinks["circleci"].posts >= 48)
        await rig.until(lambda: rejected(rig) == set(ids(sent[48:], ENDED)))
        dev.signal(signal.SIGTERM)
        await dev.finish()
        assert dev.returncode == 0
    return sent


def ids(sent: list[Sent], *receivers: str) -> list[str]:
    return [message.message_id for message in sent if message.receiver in receivers]


def rejected(rig: Rig) -> set[str]:
    return {a.headers["relay-message-id"] for a in rig.callback.received if a.headers["relay-outcome"] == "failed"}


def taken(rig: Rig) -> list[Any]:
    return [a for sink in rig.sinks.values() for a in sink.received if a.status in (200, 202)]


async def test_a_relay_moves_from_its_own_engine_to_kafka(rig: Rig) -> None:
    *first, api, export, take_in, run = commands("From relay dev to Kafka and Redis")
    sent = await with_a_backlog(rig)
    before = rig.answered()
    for arguments in first:
        await succeeded(rig, *arguments)
    new = messages(24, start=len(sent))
    async with rig.relay(*api) as intake:
        await post(await api_of(intake), new)
        await succeeded(rig, *export, environ=own(rig))
        found = await imported(rig, *take_in)
        assert found["finished"]["messages"] == len(sent) + 1  # and the probe of `relay dev`
        assert found["records"]["failed_messages"] == len(rejected(rig))
        assert found["records"]["to_receiver"] == len(ids(sent[48:], "circleci"))
        assert found["records"]["pending"] == len(set(ids(sent, "later")) - before) > 0
        assert (await imported(rig, *take_in))["again"]
    async with rig.relay(*run) as running:
        await comes_round(rig, running, sent, new)


async def comes_round(rig: Rig, running: RelayProcess, sent: list[Sent], new: list[Sent]) -> None:
    """Each arrives once, in order, and not again when it is sent again; dead letters are listed, and no result is sent
    twice."""
    for name, sink in rig.sinks.items():
        sink.become("later" if name == "later" else "answer", later_polls=1)
    gone = rejected(rig)
    everything = {message.message_id for message in (*sent, *new)} - gone
    await rig.until(lambda: rig.answered() >= everything)
    last = messages(24, start=200)
    await rig.produce([*sent, *last])
    everything |= {message.message_id for message in last}
    await rig.until(lambda: rig.answered() >= everything)
    letters = await rig.dead_letters(await api_of(running), len(gone))
    assert {letter["message_id"] for letter in letters} == gone
    found = taken(rig)
    assert Counter(a.message_id for a in found) == dict.fromkeys(everything, 1)
    for name in rig.sinks:
        assert_in_order([a for a in found if a in rig.sinks[name].received])
    told = Counter((a.headers["relay-message-id"], a.headers["relay-outcome"]) for a in rig.callback.received)
    assert set(told.values()) == {1}


async def test_a_relay_moves_from_one_kafka_to_another(rig: Rig) -> None:
    """To other topics of the same broker, and to other keys of the same Redis."""
    *first, api, export, take_in, run = commands("From one Kafka to another")
    rig.environ["RELAY_HOLD_MAX"] = "1s"
    quick(rig)
    former = rig.environ.pop("RELAY_TOPIC_PREFIX")
    for name, prefix in (("old", former), ("new", f"{former}new.")):
        (rig.cwd / f"{name}.yaml").write_text(json.dumps({"topic_prefix": prefix}))
    sent = messages(96)
    async with rig.relay("run", "--config", "old.yaml") as running:
        await running.line_with('"started"')
        await rig.produce(sent[:24])
        await rig.until(lambda: len(rig.answered()) == 24)
        rig.sinks["circleci"].become("fail", fail_status=501)
        await rig.produce(sent[24:])
        await rig.until(lambda: rig.sinks["circleci"].posts >= 40)
        running.signal(signal.SIGTERM)
        await running.finish()
    for arguments in first:
        await succeeded(rig, *arguments)
    new = messages(24, start=len(sent))
    async with rig.relay(*api) as intake:
        await post(await api_of(intake), new)
        await succeeded(rig, *export)
        assert (await imported(rig, *take_in))["records"]["to_receiver"] >= len(ids(sent[24:], "circleci"))
    rig.topic = f"{former}new.from_sender"
    async with rig.relay(*run) as running:
        await comes_round(rig, running, sent, new)


async def test_a_receiver_changes_its_lane_and_gets_more_partitions(rig: Rig) -> None:
    [move] = commands("Between a lane of its own and the shared one")
    grow, describe = commands("More partitions")
    sink = rig.sinks["circleci"]
    sent = [each for each in messages(480) if each.receiver == "circleci"]
    async with rig.relay("run", "--processes", "1") as running:
        await running.line_with('"started"')
        changes: list[dict[str, object]] = [{"lane": "shared"}, {"lane": "dedicated"}, {"partitions": 3}]
        for number, change in enumerate(changes):
            await rig.produce(sent[number * 40 : number * 40 + 20])
            declare(rig, change)
            await succeeded(rig, *(move if "lane" in change else grow))
            await rig.produce(sent[number * 40 + 20 : number * 40 + 40])
        everything = {message.message_id for message in sent[:120]}
        await rig.until(lambda: rig.answered() >= everything)
        described = json.loads(await succeeded(rig, *describe, "-o", "json"))
    [topic] = [each for each in described if each["topic"].endswith("to_receiver_circleci")]
    assert int(topic["partitions"]) == 3
    assert Counter(a.message_id for a in sink.received) == dict.fromkeys(everything, 1)
    assert_in_order(sink.received)


def declare(rig: Rig, change: dict[str, object]) -> None:
    path = rig.cwd / "receivers.yaml"
    file = json.loads(path.read_text())
    file["receivers"]["circleci"] |= change
    path.write_text(json.dumps(file))


async def test_an_import_that_is_killed_goes_on_where_it_was(rig: Rig) -> None:
    """With SIGKILL, when it has appended some, and has not been given the rest."""
    sent = await with_a_backlog(rig)
    waiting = set(ids(sent, "later")) - rig.answered()
    await succeeded(rig, "export", "--data-dir", "data", "moved.jsonl", environ=own(rig))
    await succeeded(rig, "receivers", "apply")
    lines = (rig.cwd / "moved.jsonl").read_bytes().splitlines(keepends=True)
    cut = next(n for n, line in enumerate(lines) if b'"topic":"to_receiver"' in line) + 5
    killed = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "relay", "import", "-"),
        cwd=rig.cwd,
        env={"PATH": "", "PYTHONPATH": str(Path(__file__).parents[3])} | rig.environ,
        stdin=asyncio.subprocess.PIPE,
    )
    assert killed.stdin is not None
    killed.stdin.write(b"".join(lines[:cut]))
    prefix = rig.environ["RELAY_TOPIC_PREFIX"]
    await until_appended(rig, f"{prefix}pending_from_receiver_later")
    killed.kill()
    await killed.wait()
    killed.stdin.close()
    while True:
        code, output = await command(rig, "import", "moved.jsonl", "-o", "json")
        if "another `relay import` is running" not in output:
            break
        await asyncio.sleep(1)  # until the lease of the dead process ends, which no event reports
    assert code == 0, output
    found = json.loads(output[output.index("{") :])
    assert found["records_before"] >= len(waiting) > 0
    for topic, left in (("to_receiver_circleci", ids(sent[48:], "circleci")), ("pending_from_receiver_later", waiting)):
        assert await ends(rig, prefix + topic) == len(left)


async def until_appended(rig: Rig, topic: str) -> None:
    async with asyncio.timeout(30):
        while not await ends(rig, topic):  # noqa: ASYNC110 - a topic has no event to wait for
            await asyncio.sleep(0.2)


async def ends(rig: Rig, topic: str) -> int:
    consumer = AIOKafkaConsumer(topic, bootstrap_servers=rig.environ["RELAY_KAFKA_BOOTSTRAP_SERVERS"])
    await consumer.start()
    try:
        return sum((await consumer.end_offsets([TopicPartition(topic, 0)])).values())
    finally:
        await consumer.stop()


async def test_what_is_running_is_neither_exported_nor_imported_into(rig: Rig) -> None:
    async with rig.relay("run", "--processes", "1") as running:
        await running.line_with('"started"')
        code, output = await command(rig, "export", "moved.jsonl")
        assert (code, output.strip().splitlines()[-1]) == (
            2,
            "error: workers of this relay are running: stop them first (its API may continue to accept messages)",
        )
    (rig.cwd / "half.jsonl").write_text('{"line":"begin","format":9,"id":"x","made_at":0,"version":"1"}\n')
    code, output = await command(rig, "import", "half.jsonl")
    assert (code, "not an export that this version reads" in output) == (2, True), output
