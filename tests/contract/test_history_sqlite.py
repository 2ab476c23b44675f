"""The history contract on SQLite; and files that are missing, replaced, shared or of another release."""

import asyncio
import os
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path

import pytest
import pytest_asyncio

from relay.config.private_directory import private_directory
from relay.domain.errors import HistoryMoved, HistoryUnavailable
from relay.domain.identity import MessageId
from relay.domain.statistics import Counted
from relay.history.port import AttemptQuery, CountQuery, FactBatch, Visible
from relay.history.sqlite import VERSION, SqliteHistory
from tests.contract.history_contract import HistoryContract, everything
from tests.contract.history_facts import FROM, NOON, arrival, attempt, put


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "history.db"


@asynccontextmanager
async def opened(path: Path) -> AsyncIterator[SqliteHistory]:
    history = SqliteHistory(path)
    await history.start()
    yield history
    await history.close()


class TestSqliteHistory(HistoryContract):
    @pytest_asyncio.fixture
    async def history(self, path: Path) -> AsyncIterator[SqliteHistory]:
        async with opened(path) as history:
            yield history


async def test_what_was_written_is_there_after_a_restart(path: Path) -> None:
    async with opened(path) as one:
        await put(one, arrival(1, receivers=("ci",)), attempt("m-1", offset=0))
        before = await everything(one)

    async with opened(path) as other:
        assert await everything(other) == before


async def test_what_is_no_database_says_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "history.db"
    path.write_bytes(b"rubbish " * 1000)
    history = SqliteHistory(path)

    with pytest.raises(HistoryUnavailable, match="remove the file"):
        await history.start()
    await history.close()


async def test_a_name_of_a_table_that_is_no_text_any_more_is_damage_too(tmp_path: Path) -> None:
    path = tmp_path / "history.db"
    async with opened(path):
        pass
    path.write_bytes(path.read_bytes().replace(b"tablemessages", b"tablemess\x88ges"))

    other = SqliteHistory(path)
    for call in (other.start, other.next_offsets, other.size):
        with pytest.raises(HistoryUnavailable, match="remove the file"):
            await call()
    assert str(path) not in open_files()
    await other.close()


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE messages SET event_type = CAST(x'88' AS TEXT)",
        "UPDATE messages SET headers = x'7b88'",
        "UPDATE attempts SET value = x'7b88'",
    ],
)
async def test_a_value_that_is_damaged_makes_it_unavailable_and_says_what_to_do(path: Path, damage: str) -> None:
    async with opened(path) as history:
        await put(history, arrival(1, headers={"a": "b"}, body=b"{}"), attempt("m-1", offset=0))
        with closing(sqlite3.connect(path)) as database, database:
            database.execute(damage)

        with pytest.raises(HistoryUnavailable, match=r"damaged.*rebuil"):
            await everything(history)


def open_files() -> list[str]:
    return [os.path.realpath(f"/proc/self/fd/{number}") for number in os.listdir("/proc/self/fd")]


async def test_a_directory_that_is_not_there_makes_it_unavailable(tmp_path: Path) -> None:
    history = SqliteHistory(tmp_path / "none" / "history.db")

    with pytest.raises(HistoryUnavailable, match="unable to open"):
        await history.start()
    await history.close()


@pytest.mark.parametrize("replaced", [False, True])
async def test_a_file_that_is_removed_while_it_is_open_is_created_again(tmp_path: Path, *, replaced: bool) -> None:
    path = tmp_path / "history.db"
    writer, reader = SqliteHistory(path), SqliteHistory(path)
    await writer.start()
    await put(writer, arrival(1))
    assert await reader.message(MessageId("shop", "m-1")) is not None
    path.rename(path.with_name("old.db"))
    if replaced:
        path.touch()

    with pytest.raises(HistoryUnavailable, match="no such table"):
        await writer.write(FactBatch([arrival(2)]), {FROM: 3}, {FROM: 2})
    await writer.start()
    assert await writer.next_offsets() == await reader.next_offsets() == {}
    with pytest.raises(HistoryMoved):
        await writer.write(FactBatch([arrival(2)]), {FROM: 3}, {FROM: 2})
    await put(writer, arrival(1))

    assert await reader.message(MessageId("shop", "m-1")) is not None
    for each in (writer, reader):
        await each.close()
    with closing(sqlite3.connect(path)) as database:
        assert database.execute("SELECT message_id FROM messages").fetchall() == [("m-1",)]


async def test_a_copy_of_before_takes_the_place_of_one_in_use(path: Path) -> None:
    copy = path.with_name("copy.db")
    one, other = SqliteHistory(path), SqliteHistory(path)
    await one.start()
    await put(one, *(arrival(number) for number in range(1, 100)))
    with closing(sqlite3.connect(path)) as database, closing(sqlite3.connect(copy)) as target:
        database.backup(target)
    for number in range(100, 500):  # the write-ahead log has these
        await put(one, arrival(number))
    for each in (one, other):
        assert await each.message(MessageId("shop", "m-499")) is not None

    copy.rename(path)
    for each in (one, other):
        assert await each.next_offsets() == {FROM: 100}
        await each.start()
    for each, number in ((one, 100), (other, 101), (one, 102)):
        await put(each, arrival(number))
        for reader in (one, other):
            assert await reader.message(MessageId("shop", f"m-{number}")) is not None
    await one.close()
    await put(other, arrival(103))
    await other.close()
    with closing(sqlite3.connect(path)) as database:
        assert database.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        assert database.execute("SELECT count(*) FROM messages").fetchone() == (103,)


async def test_it_may_be_in_the_directory_that_a_relay_has_locked() -> None:
    with private_directory() as directory:
        async with asyncio.timeout(60), opened(directory / "history.db"):
            pass


async def test_two_processes_may_use_one_file(path: Path) -> None:
    async with opened(path) as one, opened(path) as other:
        await put(one, arrival(1))
        await put(other, arrival(2))

        assert await one.message(MessageId("shop", "m-2")) is not None
        assert await other.message(MessageId("shop", "m-1")) is not None


async def test_a_file_without_numbers_gets_them(path: Path) -> None:
    async with opened(path) as history:
        with closing(sqlite3.connect(path)) as database:
            database.executescript("DROP INDEX deliveries_number; ALTER TABLE deliveries DROP COLUMN number")
        with pytest.raises(HistoryUnavailable, match="number"):
            await history.numbered("ci", Visible(), after=0, limit=9)
        await history.start()
        await put(history, attempt("m-1", offset=0, number=7))
        assert await history.numbered("ci", Visible(), after=0, limit=9) == [(7, MessageId("shop", "m-1"))]


async def test_what_a_newer_release_has_made_is_left_as_it_is(path: Path) -> None:
    async with opened(path) as history:
        await put(history, arrival(1, receivers=("ci",)))
    with closing(sqlite3.connect(path)) as database:
        database.execute(f"PRAGMA user_version = {VERSION + 1}")

    older = SqliteHistory(path)
    with pytest.raises(HistoryUnavailable, match=f"version {VERSION + 1}, this one reads {VERSION}"):
        await older.start()
    with pytest.raises(HistoryUnavailable, match="a newer release"):
        await older.next_offsets()
    await older.close()
    with closing(sqlite3.connect(path)) as database:
        assert database.execute("SELECT message_id FROM messages").fetchall() == [("m-1",)]


async def test_what_the_release_before_lives_has_made_is_moved_up(path: Path) -> None:
    async with opened(path) as history:
        await put(history, arrival(1, receivers=("ci",)), attempt("m-1", offset=0))
    with closing(sqlite3.connect(path, isolation_level=None)) as database:
        for table in ("deliveries", "attempts"):
            database.execute(f"ALTER TABLE {table} DROP COLUMN life")
        database.execute("CREATE TABLE former AS SELECT * FROM counts")
        database.execute("ALTER TABLE former DROP COLUMN life")
        database.execute("DROP TABLE counts")
        database.execute("ALTER TABLE former RENAME TO counts")
        database.execute("PRAGMA user_version = 1")

    async with opened(path) as newer:
        await put(newer, attempt("m-1", offset=1, life="new"))
        await newer.start()

        assert [each.attempt.life for each in (await newer.attempts(AttemptQuery(), limit=9)).items] == ["new", ""]
        [hour] = await newer.counted(CountQuery("hour", NOON, NOON + 3_600), most=9)
        assert Counted(hour.counts).attempts == 2
