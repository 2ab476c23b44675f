"""Several processes of `relay run`: one API and one set of metrics for all, and an end and a new start for each."""

import asyncio
import json
import os
import shlex
import shutil
import signal
import socket
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families

from bench.kafka_parts import free_ports
from relay.config.private_directory import private_directory
from tests.integration.production import Rig, messages
from tests.servers.process import RelayProcess

NOWHERE = {"RELAY_KAFKA_BOOTSTRAP_SERVERS": "127.0.0.1:9", "RELAY_REDIS_URL": "redis://127.0.0.1:9/0"}
TIMEOUT_S = 60.0
Found = dict[str, list[tuple[dict[str, str], float]]]


class Group:
    """A running `relay run --processes N`, seen from outside."""

    def __init__(self, parent: RelayProcess, port: int, session: aiohttp.ClientSession) -> None:
        self.parent = parent
        self.url = f"http://127.0.0.1:{port}"
        self._session = session

    async def metrics(self) -> Found:
        async with self._session.get(self.url + "/metrics") as response:
            families = text_string_to_metric_families(await response.text())
        return {
            sample.name: [(each.labels, each.value) for each in family.samples if each.name == sample.name]
            for family in families
            for sample in family.samples
        }

    async def until_all_answer(self, count: int) -> Found:
        """Their metrics, once all have been heard."""
        async with asyncio.timeout(TIMEOUT_S):
            while True:
                try:
                    found = await self.metrics()
                    if len(found["process_start_time_seconds"]) == count:
                        return found
                except aiohttp.ClientError:  # the API is not up yet, or its process has just been killed
                    pass
                await asyncio.sleep(0.1)  # a port has no event to wait for

    async def until_ready(self) -> str:
        """What /readyz says, once it is well: parts are looked at now and then, and a look may have been too early."""
        said = ""
        try:
            async with asyncio.timeout(TIMEOUT_S), aiohttp.ClientSession() as session:
                while True:
                    async with session.get(f"{self.url}/readyz?verbose") as response:
                        said = await response.text()
                        if response.status == 200:
                            return said
                    await asyncio.sleep(0.1)  # as above
        except TimeoutError:
            raise AssertionError(said) from None

    def pids(self) -> set[int]:
        children = Path(f"/proc/{self.parent.pid}/task/{self.parent.pid}/children")
        return {int(pid) for pid in children.read_text().split()}

    def directory(self) -> Path:
        """Of its sockets, as the command line of the supervisor has it."""
        words = Path(f"/proc/{self.parent.pid}/cmdline").read_bytes().split(b"\0")
        return Path(json.loads(words[-2])["directory"])


@asynccontextmanager
async def group(count: int, cwd: Path, environ: dict[str, str]) -> AsyncIterator[Group]:
    (port,) = free_ports(1)
    environ = environ | {"RELAY_API_PORT": str(port)}
    # Each request is a connection of its own: the system picks another process for each.
    connector = aiohttp.TCPConnector(force_close=True)
    async with (
        RelayProcess("run", "--processes", str(count), cwd=cwd, environ=environ) as parent,
        aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=20)) as session,
    ):
        yield Group(parent, port, session)


async def test_whichever_is_asked_answers_for_all_and_all_end_with_the_parent(tmp_path: Path) -> None:
    async with group(3, tmp_path, NOWHERE) as running:
        for _ in range(6):
            found = await running.until_all_answer(3)
            assert {labels["process"] for labels, _ in found["process_start_time_seconds"]} == {"0", "1", "2"}
            assert found["relay_processes_silent"] == [({}, 0)]
            assert [value for _, value in found["relay_build_info"]] == [1]
        directory = running.directory()
        assert directory.stat().st_mode & 0o777 == 0o700
        # beside the metrics that each has read of the others
        assert {path.name for path in directory.iterdir() if not path.suffix.startswith(".seen")} == {
            "0.sock",
            "1.sock",
            "2.sock",
            "processes",
            "session_secret",
        }
        running.parent.signal(signal.SIGINT)
        output = await running.parent.finish()
    assert running.parent.returncode == 0
    lines = [json.loads(line) for line in output.splitlines()]
    assert [line["count"] for line in lines if line["event"] == "processes_start"] == [3]
    assert {line["process"] for line in lines if line["event"] == "stopped"} == {0, 1, 2}
    assert not directory.exists()


async def test_without_a_number_there_is_one_and_nobody_misses_those_that_may_come(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    environ = NOWHERE | {"RELAY_API_PORT": str(port)}
    async with RelayProcess("run", cwd=tmp_path, environ=environ) as parent, aiohttp.ClientSession() as session:
        found = await Group(parent, port, session).until_all_answer(1)
        assert found.get("relay_processes_silent", [({}, 0)]) == [({}, 0)]
        parent.signal(signal.SIGTERM)
        output = await parent.finish()
    assert parent.returncode == 0
    assert output.count('"stopped"') == 1


async def test_one_that_dies_is_started_again(tmp_path: Path) -> None:
    async with group(2, tmp_path, NOWHERE) as running:
        await running.until_all_answer(2)
        before = running.pids()
        victim = min(before)
        os.kill(victim, signal.SIGKILL)
        ended = json.loads(await running.parent.line_with('"process_ended"'))
        assert ended["code"] == -signal.SIGKILL
        # the parent has seen its end, so only a new one can make two
        await running.until_all_answer(2)
        after = running.pids()
        assert (len(after), victim in after, len(before & after)) == (2, False, 1)


async def test_one_that_dies_is_started_again_without_their_directory(tmp_path: Path) -> None:
    """A cleaner of temporary files removed it. It failed at each start, and monitoring was answered with a 500."""
    async with group(2, tmp_path, NOWHERE) as running:
        await running.until_all_answer(2)
        shutil.rmtree(running.directory())
        victim = min(running.pids())
        os.kill(victim, signal.SIGKILL)
        await running.parent.line_with('"group_directory_gone"')
        assert await running.metrics()
        running.parent.signal(signal.SIGTERM)
        output = await running.parent.finish()
    assert running.parent.returncode == 0
    assert output.count('"stopped"') == 2
    assert "Traceback" not in output


async def test_they_do_not_outlive_a_parent_that_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with group(2, tmp_path, NOWHERE) as running:
        await running.until_all_answer(2)
        directory = running.directory()
        monkeypatch.setattr(tempfile, "tempdir", str(directory.parent))
        with private_directory():
            assert directory.exists()
        running.parent.signal(signal.SIGKILL)
        output = await running.parent.finish()  # the end of the output that they share
        assert output.count('"stopped"') == 2
        while directory.exists():  # the lock ends a moment after the output
            with private_directory():
                await asyncio.sleep(0)


@pytest.mark.parametrize("closed", ["2>&-", ">&-", "<&- >&- 2>&-"])
async def test_standard_streams_may_be_closed(tmp_path: Path, closed: str) -> None:
    (port,) = free_ports(1)
    command = f"exec {shlex.quote(sys.executable)} -m relay run --processes 1 {closed}"
    environ = os.environ | NOWHERE | {"RELAY_API_PORT": str(port)}
    process = await asyncio.create_subprocess_exec("sh", "-c", command, cwd=tmp_path, env=environ)
    try:
        async with asyncio.timeout(TIMEOUT_S), aiohttp.ClientSession() as session:
            while process.returncode is None:
                with suppress(aiohttp.ClientError):
                    async with session.get(f"http://127.0.0.1:{port}/livez") as response:
                        if response.status == 200:
                            break
                await asyncio.sleep(0.1)  # a port has no event to wait for
        with suppress(ProcessLookupError):
            process.terminate()
        assert await process.wait() == 0
    finally:
        with suppress(ProcessLookupError):
            process.kill()


async def test_what_none_of_them_can_run_with_ends_all(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        environ = NOWHERE | {"RELAY_API_PORT": str(taken.getsockname()[1])}
        async with RelayProcess("run", "--processes", "2", cwd=tmp_path, environ=environ) as parent:
            output = await parent.finish()
    assert parent.returncode == 2
    assert "cannot listen on 127.0.0.1" in output
    assert "Traceback" not in output


async def test_another_installation_does_not_get_a_share_of_the_port(tmp_path: Path) -> None:
    async with group(1, tmp_path, NOWHERE) as running:
        await running.until_all_answer(1)
        port = {"RELAY_API_PORT": running.url.rsplit(":", 1)[1]}
        staging = NOWHERE | port | {"RELAY_TOPIC_PREFIX": "staging."}
        async with RelayProcess("run", "--processes", "1", cwd=tmp_path, environ=staging) as other:
            output = await other.finish()
        assert other.returncode == 2
        assert "in use by another installation of the relay" in output
        async with RelayProcess("run", "--processes", "1", cwd=tmp_path, environ=NOWHERE | port) as same:
            await same.line_with('"waiting"')  # it listens, and waits for a broker
            assert same.returncode is None


@pytest.mark.kafka
async def test_they_share_the_work_and_tell_its_sum(rig: Rig) -> None:
    sent = messages(300)
    async with group(2, rig.cwd, rig.environ) as running:
        await running.parent.lines_with('"started"', 2)
        await rig.produce(sent)
        await rig.until(lambda: rig.answered() >= {message.message_id for message in sent})
        assert set(rig.arrivals().values()) == {1}
        found = await running.until_all_answer(2)
        ((_, received),) = found["relay_messages_received_total"]
        assert received >= 300  # what changes hands while the group settles is received again, and answered once
        answers = sum(value for _, value in found["relay_answers_total"])
        assert answers == 300
        said = await running.until_ready()
        assert said.count("[+]process-") == 1

        (rig.cwd / "receivers.yaml").write_text("receivers: [nonsense]")
        await running.parent.lines_with('"receivers_file_refused"', 2)  # each has seen that it was changed
        running.parent.signal(signal.SIGHUP)
        await running.parent.lines_with('"receivers_file_refused"', 4)  # and each has looked again
