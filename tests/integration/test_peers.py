"""Tests of monitoring requests to one process, which includes its peers; one that hangs or is gone delays nothing."""

import asyncio
import socket
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import pytest
from prometheus_client.parser import text_string_to_metric_families

from relay.api import peers
from relay.api.peers import GroupProcess, Peers, leave_counts, leave_counts_of_killed
from relay.api.server import ApiServer
from relay.config.process_count import begin
from relay.domain.errors import UserError
from relay.telemetry.metrics import Metrics
from tests.integration.api_rig import Rig, running_api


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes that answer do so within a second only on a machine that is not busy."""
    monkeypatch.setattr(peers, "PATIENCE_S", 30.0)


@pytest.fixture
def directory() -> Iterator[Path]:
    """A directory with a short path, as sockets need."""
    with tempfile.TemporaryDirectory(prefix="relay-") as name:
        yield Path(name)


def counted(messages: int) -> Metrics:
    metrics = Metrics("1")
    metrics.messages_received_total.inc(messages)
    return metrics


@asynccontextmanager
async def first_of(count: int, directory: Path) -> AsyncIterator[Rig]:
    group = Peers(GroupProcess(0, count, directory))
    begin(directory, count)
    async with running_api(metrics=counted(3).render, peers=group) as rig:
        yield rig


@asynccontextmanager
async def sibling(rig: Rig, socket: Path, messages: int, trouble: dict[str, str | None]) -> AsyncIterator[None]:
    context = replace(rig.context, peers=None, metrics_text=counted(messages).render, ready=lambda: trouble)
    server = ApiServer(context, health_only=True)
    await server.start_private(socket)
    try:
        yield
    finally:
        await server.stop()


@asynccontextmanager
async def hanging(socket: Path) -> AsyncIterator[asyncio.Event]:
    """A server that accepts connections and never responds. Yields an event: a client has connected."""
    asked, over = asyncio.Event(), asyncio.Event()

    async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.set()
        await over.wait()
        writer.close()

    server = await asyncio.start_unix_server(hang, socket)
    try:
        yield asked
    finally:
        over.set()
        server.close()
        await server.wait_closed()


async def value(rig: Rig, name: str) -> float:
    reply = await rig.get("/metrics")
    assert reply.status == 200
    families = text_string_to_metric_families(reply.text)
    return next(sample.value for family in families for sample in family.samples if sample.name == name)


async def test_metrics_are_those_of_all(directory: Path) -> None:
    async with (
        first_of(3, directory) as rig,
        sibling(rig, directory / "1.sock", 20, {}),
        sibling(rig, directory / "2.sock", 100, {}),
    ):
        assert await value(rig, "relay_messages_received_total") == 123
        assert await value(rig, "relay_processes_silent") == 0


async def test_one_that_hangs_is_left_out_and_counted(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "PATIENCE_S", 2.0)
    async with (
        first_of(4, directory) as rig,
        sibling(rig, directory / "1.sock", 20, {}),
        hanging(directory / "2.sock") as asked,  # and 3 is not there at all
    ):
        assert await value(rig, "relay_messages_received_total") == 23
        assert await value(rig, "relay_processes_silent") == 2
        assert asked.is_set()
        assert (await rig.get("/livez")).text == "ok"


async def test_the_sums_do_not_fall_while_one_hangs_or_after_it_was_killed(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A counter that falls has been reset for Prometheus, so that all it had is an increase."""
    killed = GroupProcess(1, 2, directory)
    async with first_of(2, directory) as rig:
        async with sibling(rig, killed.socket, 20, {}):
            assert await value(rig, "relay_messages_received_total") == 23
        async with hanging(killed.socket):
            with monkeypatch.context() as impatient:
                impatient.setattr(peers, "PATIENCE_S", 0.2)
                assert await value(rig, "relay_messages_received_total") == 23
                assert await value(rig, "relay_processes_silent") == 1
        killed.socket.unlink(missing_ok=True)
        leave_counts_of_killed(killed)  # as its next life begins
        async with sibling(rig, killed.socket, 1, {}):
            assert await value(rig, "relay_messages_received_total") == 24
        leave_counts(killed, counted(1).render())
        assert await value(rig, "relay_messages_received_total") == 24
        leave_counts_of_killed(killed)
        assert await value(rig, "relay_messages_received_total") == 24


async def test_one_that_leaves_counts_to_its_end_and_after_it(directory: Path) -> None:
    async with first_of(3, directory) as rig, sibling(rig, directory / "1.sock", 20, {}):
        async with sibling(rig, directory / "2.sock", 100, {"stop": "it stops"}):
            begin(directory, 2)
            assert await value(rig, "relay_messages_received_total") == 123
            assert (await rig.get("/readyz")).text == "ok"
        leave_counts(GroupProcess(2, 3, directory), counted(100).render())
        assert await value(rig, "relay_messages_received_total") == 123
        assert await value(rig, "relay_processes_silent") == 0
        begin(directory, 3)
        async with sibling(rig, directory / "2.sock", 1_000, {}):
            assert await value(rig, "relay_messages_received_total") == 1_123
        leave_counts(GroupProcess(2, 3, directory), counted(1_000).render())
        begin(directory, 2)
        assert await value(rig, "relay_messages_received_total") == 1_123
        reply = await rig.get("/metrics")
        assert "relay_memory_budget_bytes 0.0" in reply.text  # a gauge of one that has ended says nothing


async def test_all_are_ready_or_none(directory: Path) -> None:
    trouble: dict[str, str | None] = {"log": None}
    async with first_of(2, directory) as rig:
        reply = await rig.get("/readyz")
        assert reply.status == 503
        assert "[-]process-1 failed: does not answer" in reply.text.splitlines()
        async with sibling(rig, directory / "1.sock", 0, trouble):
            assert (await rig.get("/readyz")).text == "ok"
            assert "[+]process-1 ok" in (await rig.get("/readyz?verbose")).text.splitlines()
            trouble["log"] = "no broker"
            reply = await rig.get("/readyz")
            assert reply.status == 503
            assert "[-]process-1 failed: log failed: no broker" in reply.text.splitlines()


async def test_one_that_fails_to_tell_is_not_ready_and_silent(directory: Path) -> None:
    def broken() -> NoReturn:
        raise RuntimeError

    async with first_of(2, directory) as rig:
        server = ApiServer(replace(rig.context, peers=None, metrics_text=broken, ready=broken), health_only=True)
        await server.start_private(directory / "1.sock")
        assert await value(rig, "relay_processes_silent") == 1
        reply = await rig.get("/readyz")
        assert (reply.status, "[-]process-1 failed: answers with status 500" in reply.text) == (503, True)
        await server.stop()


async def test_a_port_of_the_metrics_that_is_taken_is_named_as_such(directory: Path) -> None:
    async with first_of(1, directory) as rig:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            server = ApiServer(rig.context, health_only=True)
            with pytest.raises(UserError, match="RELAY_METRICS_PORT"):
                await server.start("127.0.0.1", taken.getsockname()[1])
