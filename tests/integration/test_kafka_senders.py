"""Tests of docs/kafka-senders.md and the Kafka part of docs/tutorial-github-to-ci.md on a real Kafka: the produced
messages are delivered and answered."""

import json
import shutil
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from bench.kafka_parts import free_ports, jars
from relay.sink import Sink
from tests.documents import ROOT, Fence, fences
from tests.integration.production import Rig
from tests.page_shell import TIMEOUT_S, Served, follow, run

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(TIMEOUT_S + 60)]

PAGE = ROOT / "docs" / "kafka-senders.md"
TUTORIAL = ROOT / "docs" / "tutorial-github-to-ci.md"
HERE = "tests/integration/test_kafka_senders.py"
SEND = "relay send --kafka --wait 1 --source github --receiver ci --id late body"
PAYLOAD = b'{"ref": "refs/heads/main"}'


def chosen(page: Path) -> list[Fence]:
    """The fences that can be run on this machine, whose tools may be missing."""
    missing = [tool for tool in ("kcat", "java") if shutil.which(tool) is None]
    of_here = [each for each in fences(page) if each.mark is not None and each.mark.value == HERE]
    return [each for each in of_here if not any(f"{tool} -" in each.text for tool in missing)]


def ids(chosen: Sequence[Fence]) -> set[str]:
    texts = "".join(each.text for each in chosen)
    tools = ("relay", "kcat", "python", "java")
    return {f"{tool}-{number}" for tool in tools for number in (1, 2) if f"{tool}-{number}" in texts}


@dataclass(frozen=True)
class CiRig:
    """A relay on Kafka, with a receiver `ci`. `environ`: for commands beside it."""

    rig: Rig
    ci: Sink
    served: Served
    environ: dict[str, str]

    async def until_answered(self, message_ids: set[str]) -> None:
        await self.rig.until(lambda: self.rig.answered() >= message_ids)

    def bodies(self) -> dict[str, bytes]:
        return {arrival.message_id: arrival.body for arrival in self.ci.received}


@pytest.fixture
async def running(rig: Rig) -> AsyncIterator[CiRig]:
    ci = rig.sinks["circleci"]
    entries = {
        "sources": {"github": {"callback": {"url": rig.callback.url}}},
        "receivers": {"ci": {"post_endpoint": ci.url, "sources": ["github"], "event_types": ["push"]}},
    }
    (rig.cwd / "receivers.yaml").write_text(json.dumps(entries))
    rig.environ["RELAY_API_PORT"] = str(free_ports(1)[0])
    async with rig.relay("topics", "apply") as applying:
        await applying.finish()
    broker, prefix = rig.environ["RELAY_KAFKA_BOOTSTRAP_SERVERS"], rig.environ["RELAY_TOPIC_PREFIX"]
    moved = {"localhost:9092": broker, "from_sender": f"{prefix}from_sender", "lib/*": f"{jars()}/*"}
    api = f"http://127.0.0.1:{rig.environ['RELAY_API_PORT']}"
    async with rig.relay("run", "--processes", "1") as relay:
        await relay.line_with('"started"')
        yield CiRig(rig, ci, Served(api, ci.url, moved), rig.environ | {"RELAY_API_URL": api})


async def test_what_the_page_produces_is_delivered_unchanged_and_answered(running: CiRig, tmp_path: Path) -> None:
    folder = tmp_path / "page"
    folder.mkdir()
    fences = chosen(PAGE)
    await follow(fences, running.served, folder, running.environ)
    assert {"relay-1", "relay-2", "python-1", "python-2"} <= ids(fences)
    await running.until_answered(ids(fences))
    bodies = running.bodies()
    assert set(bodies) == ids(fences)
    assert {body.rstrip(b"\n") for body in bodies.values()} == {PAYLOAD}


async def test_the_tutorial_s_sender_goes_by_kafka(running: CiRig, tmp_path: Path) -> None:
    folder = tmp_path / "page"
    folder.mkdir()
    (folder / "push.json").write_bytes(PAYLOAD)
    await follow(chosen(TUTORIAL), running.served, folder, running.environ)
    assert running.bodies() == {"d-4": PAYLOAD}


async def relay(arguments: str, running: CiRig, folder: Path, **environ: str) -> tuple[int, str]:
    return await run(f"relay {arguments}", folder, running.environ | environ, TIMEOUT_S)


async def test_the_command_prints_where_the_log_has_the_record(running: CiRig, tmp_path: Path) -> None:
    (tmp_path / "body").write_bytes(b"a,b")
    send = "send --kafka --source github --type push --content-type text/csv --header 'x-team: core' --id csv body"
    code, printed = await relay(f"{send} -o json", running, tmp_path)
    assert code == 0, printed
    found = json.loads(printed)
    assert (found["source_id"], found["message_id"]) == ("github", "csv")
    assert found["at"]["topic"] == running.environ["RELAY_TOPIC_PREFIX"] + "from_sender"
    await running.until_answered({"csv"})
    code, printed = await relay("status github csv -o json", running, tmp_path)
    assert json.loads(printed)["at"] == found["at"]
    assert running.bodies() == {"csv": b"a,b"}


async def test_a_dead_letter_ends_the_wait(running: CiRig, tmp_path: Path) -> None:
    (tmp_path / "body").write_bytes(PAYLOAD)
    send = "send --kafka --wait 30 --source github --receiver nowhere --id lost body"
    code, printed = await relay(send, running, tmp_path)
    assert code == 1
    assert "unknown_receiver" in printed


async def test_a_relay_on_another_kafka_is_noticed(running: CiRig, tmp_path: Path) -> None:
    (tmp_path / "body").write_bytes(PAYLOAD)
    other = running.environ | {"RELAY_TOPIC_PREFIX": running.environ["RELAY_TOPIC_PREFIX"] + "silent-"}
    code, printed = await run("relay topics apply", tmp_path, other, TIMEOUT_S)
    assert code == 0, printed
    code, printed = await run(SEND, tmp_path, other, TIMEOUT_S)
    assert code == 1
    assert "does that relay read this Kafka?" in printed


async def test_an_error_is_one_line(rig: Rig, tmp_path: Path) -> None:
    (tmp_path / "body").write_bytes(PAYLOAD)
    for environ, fault in (
        ({"RELAY_KAFKA_BOOTSTRAP_SERVERS": "127.0.0.1:1"}, "no broker answers at 127.0.0.1:1"),
        ({"RELAY_TOPIC_PREFIX": "other-"}, "other-from_sender"),
        ({"RELAY_API_URL": "http://127.0.0.1:1"}, "127.0.0.1:1"),
    ):
        code, printed = await run(SEND, tmp_path, rig.environ | environ, TIMEOUT_S)
        assert code == 1
        *_, error = printed.splitlines()
        assert error.startswith("error: ")
        assert fault in error
        assert "Traceback" not in printed
