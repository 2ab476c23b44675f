"""The history beside real Kafka: in a file and in PostgreSQL, built anew, and with a database that goes away."""

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final

import pytest

from tests.integration.history_rows import Rows, counted, of_file, of_server, posts
from tests.integration.production import Rig, messages
from tests.servers.postgres import PostgresServer
from tests.servers.process import RelayProcess

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(600)]

MESSAGES: Final = 48
PATIENCE_S: Final = 240.0
"""Each look at the history is a process, which takes many seconds on a loaded machine."""
LOOK_S: Final = 1.0
OVER: Final = 3
"""As the rows have it: the answer is back at the sender."""


async def command(rig: Rig, *arguments: str) -> tuple[int | None, str]:
    async with rig.relay(*arguments) as process:
        output = await process.finish()
    return process.returncode, output


async def until_all_is_told(rig: Rig, count: int) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while True:
            code, output = await command(rig, "history", "status", "-o", "json")
            assert code == 0, output
            told: dict[str, Any] = json.loads(output)
            behind = sum(topic["behind"] for topic in told["topics"])
            if (told["messages"], behind) == (count, 0) and told["attempts"] >= 2 * count:
                assert all(topic["lost"] == 0 for topic in told["topics"])
                return
            await asyncio.sleep(LOOK_S)  # each look is a process, and there is no event to wait for


async def until_all_is_over(rig: Rig, rows: Callable[[], Awaitable[Rows]], count: int) -> Rows:
    """Including the callbacks of all."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            await until_all_is_told(rig, count)
            found = await rows()
            if [row[4] for row in found["deliveries"]] == [OVER] * count:
                return found


async def rebuilt_is_the_same(rig: Rig, rows: Callable[[], Awaitable[Rows]], count: int) -> None:
    before = await until_all_is_over(rig, rows, count)
    assert counted(before) == 2 * (posts(before).total(),)
    assert {at[:2]: number for at, number in posts(before).items()} == {
        (arrival.message_id, name): 1 for name, sink in rig.sinks.items() for arrival in sink.received
    }
    code, output = await command(rig, "history", "rebuild", "--yes", "-o", "json")
    assert (code, json.loads(output)) == (0, {"cleared": True})
    assert await until_all_is_over(rig, rows, count) == before


async def test_a_file_beside_relay_run_is_built_anew_the_same(rig: Rig, tmp_path: Path) -> None:
    file = tmp_path / "history.db"
    rig.environ["RELAY_HISTORY_URL"] = f"sqlite://{file}"
    rig.environ["RELAY_HISTORY_BODIES"] = "1000"

    async def rows() -> Rows:
        return of_file(file)

    async with rig.relay("run", "--processes", "1") as running:
        await running.line_with('"started"')
        await rig.produce(messages(MESSAGES))
        await rig.until(lambda: len(rig.answered()) == MESSAGES)
        await rebuilt_is_the_same(rig, rows, MESSAGES)


async def test_deliveries_go_on_without_postgresql_and_its_worker_catches_up(
    rig: Rig, database: PostgresServer
) -> None:
    sent, later = messages(MESSAGES), messages(MESSAGES, start=MESSAGES)
    rig.environ["RELAY_HISTORY_URL"] = database.url
    others = "api,from-sender,to-receiver,from-receiver-async,to-sender,failed-messages"
    async with (
        rig.relay("run", "--processes", "1", "--roles", others) as running,
        rig.relay("worker", "history") as worker,
    ):
        await running.line_with('"started"')
        await rig.produce(sent)
        await until_all_is_told(rig, MESSAGES)
        database.kill()
        await rig.produce(later)
        await rig.until(lambda: len(rig.answered()) == 2 * MESSAGES)
        waiting = await worker.line_with('"history"')
        assert "Traceback" not in waiting
        code, output = await command(rig, "history", "status")
        assert (code, len(output.splitlines())) == (1, 1), output
        await asyncio.to_thread(database.start)
        await rebuilt_is_the_same(rig, lambda: of_server(database.url), 2 * MESSAGES)
        assert (running.returncode, worker.returncode) == (None, None)


WRONG: Final = ("mysql://user:secret-word@host/database", "sqlite://history.db", "postgresql://", "history.db")


@pytest.mark.parametrize(
    ("words", "url"), [(("worker", "history"), WRONG[0]), *((("history", "status"), url) for url in WRONG)]
)
async def test_a_wrong_url_is_one_clear_line(words: tuple[str, ...], url: str, tmp_path: Path) -> None:
    async with RelayProcess(*words, cwd=tmp_path, environ={"RELAY_HISTORY_URL": url}) as process:
        output = await process.finish()
    assert process.returncode in (1, 2)
    assert "RELAY_HISTORY_URL" in output
    assert ("secret-word" in output, "Traceback" in output, len(output.splitlines())) == (False, False, 1), output


WITHOUT_ASYNCPG: Final = "import sys; sys.modules['asyncpg'] = None; from relay.__main__ import main; main()"


async def test_without_asyncpg_it_is_said_what_to_install(tmp_path: Path) -> None:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", WITHOUT_ASYNCPG, "worker", "history"),
        cwd=tmp_path,
        env={"RELAY_HISTORY_URL": "postgresql://relay@localhost/relay"},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output, _ = await process.communicate()
    assert process.returncode == 2
    assert b"pip install 'webhook-relay[postgres]'" in output
    assert output.count(b"\n") == 1
