"""The history contract on a real PostgreSQL server; its partitions by day, and outages of the server."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress

import asyncpg
import pytest
import pytest_asyncio

from relay.domain.errors import HistoryMoved, HistoryUnavailable
from relay.domain.identity import MessageId
from relay.domain.statistics import Counted
from relay.domain.topics import DAY_S
from relay.history.port import AttemptQuery, CountQuery, FactBatch, MessageQuery, Visible
from relay.history.postgres import _MAKING, PostgresHistory
from relay.history.postgres_tables import HAS_NUMBERS, SCHEMA, VERSION
from tests.contract.history_contract import HistoryContract, everything, names
from tests.contract.history_facts import FROM, NOON, arrival, attempt, ending, put
from tests.contract.raw_server import Server, not_accepting
from tests.servers.postgres import PostgresServer


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    server = PostgresServer()
    server.start()
    yield server
    server.stop()


@pytest_asyncio.fixture
async def history(server: PostgresServer) -> AsyncIterator[PostgresHistory]:
    history = PostgresHistory(server.url, lambda: NOON)
    await history.start()
    await history.clear()
    yield history
    await history.close()


@pytest_asyncio.fixture
async def other(server: PostgresServer) -> AsyncIterator[PostgresHistory]:
    """Of another process or release on the same tables; not started."""
    other = PostgresHistory(server.url, lambda: NOON)
    yield other
    await other.close()


class TestPostgresHistory(HistoryContract):
    @pytest_asyncio.fixture
    async def history(self, history: PostgresHistory) -> PostgresHistory:
        return history


async def test_a_message_and_its_attempt_that_two_workers_write_at_once_find_each_other(
    history: PostgresHistory, other: PostgresHistory
) -> None:
    await asyncio.gather(
        put(history, *(arrival(number) for number in range(200))),
        put(other, *(attempt(f"m-{number}", offset=number) for number in range(200))),
    )
    assert len((await history.messages(MessageQuery(receiver="ci"), limit=300)).items) == 200
    assert await names(history, status="arrived") == []


async def partitions(history: PostgresHistory) -> list[str]:
    async with history._reader() as reader:
        rows = await reader.fetch(
            "SELECT inhrelid::regclass::text FROM pg_inherits i JOIN pg_class c ON c.oid = inhrelid"
            " WHERE c.relkind = 'r'"
        )
    return sorted(row[0] for row in rows)


async def test_a_day_has_a_partition_that_retention_drops(history: PostgresHistory) -> None:
    await history.prune(NOON + 9 * DAY_S)
    beside = await partitions(history)
    today = int(NOON // DAY_S)

    await put(history, arrival(1), attempt("m-1", offset=0), arrival(2, at=DAY_S))
    assert set(await partitions(history)) - set(beside) == {
        f"messages_{today}",
        f"messages_{today + 1}",
        f"attempts_{today}",
    }

    assert await history.prune(NOON + DAY_S) == 1
    assert set(await partitions(history)) - set(beside) == {f"messages_{today + 1}"}
    assert await names(history) == ["m-2"]


async def test_an_id_that_comes_again_on_another_day_is_one_message(history: PostgresHistory) -> None:
    await put(history, arrival(1, at=DAY_S, name="m", receivers=("ci",)))
    await put(history, arrival(2, at=-DAY_S, name="m", receivers=("ci",)))

    assert (
        await names(history) == await names(history, receiver="ci") == await names(history, status="arrived") == ["m"]
    )
    assert await names(history, receiver="ci", until=NOON) == ["m"]
    assert await names(history, since=NOON) == []


async def test_two_writers_of_the_same_records_write_them_once(
    history: PostgresHistory, other: PostgresHistory
) -> None:
    facts = [arrival(number, receivers=("ci",)) for number in range(50)]
    tried = [attempt(f"m-{number}", offset=number) for number in range(50)]
    ends = [ending(f"m-{number}", offset=number) for number in range(50)]

    await asyncio.gather(
        *(put(one, *facts[:end], *tried[:end], *ends[:end]) for one in (history, other) for end in (10, 30, 50))
    )

    assert (await history.size())[:3] == (50, 50, 50)
    assert len((await history.attempts(AttemptQuery(), limit=100)).items) == 50
    [span] = await history.counted(CountQuery("hour", 0, NOON + 1), most=9)
    assert sum(span.counts) == 100  # each by its outcome and by its time


async def test_a_server_that_went_away_and_came_back_is_used_again() -> None:
    server = PostgresServer(durable=True)
    server.start()
    history = PostgresHistory(server.url, lambda: NOON)
    try:
        await history.start()
        await put(history, arrival(1))
        before = await everything(history)
        server.kill()
        for _ in range(2):
            with pytest.raises(HistoryUnavailable):
                await put(history, arrival(2))
            with pytest.raises(HistoryUnavailable):
                await history.next_offsets()

        server.start()

        again = await everything(history)
        assert again["messages"] in (before["messages"], [])  # its last moment may be lost, with its positions
        await put(history, arrival(2))
        assert "m-2" in await names(history)
    finally:
        await history.close()
        server.stop()


async def test_a_schema_that_is_dropped_while_it_is_in_use_is_created_again(history: PostgresHistory) -> None:
    await put(history, arrival(1))
    async with history._reader() as reader:
        await reader.execute(f"DROP SCHEMA {SCHEMA} CASCADE")

    with pytest.raises(HistoryUnavailable, match="does not exist"):
        await history.next_offsets()
    await history.start()
    assert await history.next_offsets() == {}
    with pytest.raises(HistoryMoved):
        await history.write(FactBatch([arrival(2)]), {FROM: 3}, {FROM: 2})
    await put(history, arrival(1))

    assert await names(history) == ["m-1"]
    assert f"messages_{int(NOON // DAY_S)}" in await partitions(history)


async def test_another_process_that_dropped_the_schema_takes_no_days_away(
    history: PostgresHistory, other: PostgresHistory
) -> None:
    await put(other, arrival(1))
    async with history._reader() as reader:
        await reader.execute(f"DROP SCHEMA {SCHEMA} CASCADE")
    await history.start()

    for _ in range(2):  # the first finds that its rows are gone
        with pytest.raises(HistoryMoved):
            await other.write(FactBatch([arrival(2)]), {FROM: 3}, {FROM: 2})
    await put(other, arrival(1))

    assert f"messages_{int(NOON // DAY_S)}" in await partitions(history)


async def test_a_migration_may_take_longer_than_a_write(
    server: PostgresServer, history: PostgresHistory, monkeypatch: pytest.MonkeyPatch, other: PostgresHistory
) -> None:
    monkeypatch.setattr("relay.history.postgres.WRITE_S", 0.5)
    await put(history, arrival(1, receivers=("ci",)), attempt("m-1", offset=0))
    async with history._connection() as writer:
        await writer.execute("DROP INDEX deliveries_number; ALTER TABLE deliveries DROP COLUMN number")
    async with history._connection() as writer, writer.transaction():
        await writer.execute("LOCK TABLE deliveries")  # as another statement that takes its time
        migrating = asyncio.ensure_future(other.start())
        async with asyncio.timeout(20), history._reader() as reader:
            while not migrating.done() and not await reader.fetchval(_WAITING):  # noqa: ASYNC110 - of the server
                await asyncio.sleep(0.05)
    await migrating
    await put(other, attempt("m-1", offset=1, number=7))
    assert await other.numbered("ci", Visible(), after=0, limit=9) == [(7, MessageId("shop", "m-1"))]


async def test_an_index_is_built_while_others_read_and_write(
    server: PostgresServer, history: PostgresHistory, other: PostgresHistory
) -> None:
    another = PostgresHistory(server.url, lambda: NOON)
    async with history._connection() as writer:
        await writer.execute("DROP INDEX deliveries_number")
    async with history._reader() as reader:
        async with history._reader() as slow, slow.transaction():
            await slow.execute("LOCK TABLE deliveries IN ROW EXCLUSIVE MODE")  # as one that writes for long
            building = asyncio.ensure_future(other.start())
            async with asyncio.timeout(20):
                while not building.done() and not await reader.fetchval(_WAITING):  # noqa: ASYNC110 - of the server
                    await asyncio.sleep(0.05)
                await another.start()
                await put(another, arrival(1, receivers=("ci",)), attempt("m-1", offset=1, number=7))
            assert await names(another) == ["m-1"]
            assert not building.done()
        await building
        assert await reader.fetchval(HAS_NUMBERS)
        # as after a process that was killed
        await reader.execute("UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'deliveries_number'::regclass")
        await another.start()
        assert await reader.fetchval(HAS_NUMBERS)
    await another.close()


async def test_a_process_that_finds_another_one_migrating_says_so(
    history: PostgresHistory, monkeypatch: pytest.MonkeyPatch, other: PostgresHistory
) -> None:
    monkeypatch.setattr("relay.history.postgres.WRITE_S", 0.5)
    async with history._connection() as writer, writer.transaction():
        await writer.execute("SELECT pg_advisory_xact_lock($1)", _MAKING)
        with pytest.raises(HistoryUnavailable, match="another process is preparing its tables"):
            await other.start()
    await other.start()


_WAITING = (
    "SELECT count(*) > 0 FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
    " AND clock_timestamp() - query_start > interval '1 s'"
)


async def test_a_wrong_address_makes_it_unavailable() -> None:
    history = PostgresHistory("postgresql://relay:secret@127.0.0.1:1/none")

    with pytest.raises(HistoryUnavailable) as failed:
        await history.start()

    assert "secret" not in str(failed.value)
    await history.close()


async def test_limits_of_the_user_cut_off_no_migration(server: PostgresServer, history: PostgresHistory) -> None:
    """Hosted servers often have a `statement_timeout`; a migration that it ends would begin again without end."""
    async with history._connection() as writer:
        await writer.execute("CREATE ROLE hurried LOGIN SUPERUSER")
        await writer.execute(
            "ALTER ROLE hurried SET statement_timeout = '1ms'; ALTER ROLE hurried SET lock_timeout = 1"
        )
    hurried = PostgresHistory(server.url.replace("relay@", "hurried@"), lambda: NOON)
    async with hurried._connection() as writer:
        await writer.execute("SELECT pg_sleep(0.01)")
    await hurried.close()


async def test_a_database_that_cannot_store_every_character_is_refused_before_there_are_tables(
    server: PostgresServer, history: PostgresHistory
) -> None:
    """The first id with other characters would stop the history for good."""
    async with history._connection() as writer:
        await writer.execute("CREATE DATABASE latin ENCODING 'LATIN1' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0")
    latin = PostgresHistory(server.url.replace("/postgres?", "/latin?"), lambda: NOON)
    with pytest.raises(HistoryUnavailable, match=r"encoding LATIN1.*; create it with ENCODING 'UTF8'"):
        await latin.start()
    await latin.close()


async def test_errors_are_one_line(server: PostgresServer, history: PostgresHistory) -> None:
    async with history._connection() as writer:
        await writer.execute("CREATE DATABASE empty")
    empty = PostgresHistory(server.url.replace("/postgres?", "/empty?"), lambda: NOON)
    with pytest.raises(HistoryUnavailable, match="does not exist; `relay worker history` creates the tables"):
        await empty.next_offsets()
    await empty.close()
    with pytest.raises(HistoryUnavailable, match="division by zero") as detailed:
        async with history._connection() as writer:
            await writer.execute("DO $$ BEGIN RAISE 'division by zero' USING DETAIL = 'by 0', HINT = 'do not'; END $$")
    assert "\n" not in str(detailed.value)


async def test_the_first_failure_is_said_and_not_the_end_of_what_it_broke(history: PostgresHistory) -> None:
    """A transaction cannot be left, and a connection not be returned, once the server has closed it."""
    with pytest.raises(HistoryUnavailable, match="terminating connection due to administrator command"):
        async with history._connection() as writer, writer.transaction():
            await writer.execute("SELECT pg_terminate_backend(pg_backend_pid())")


async def test_a_proxy_without_a_server_behind_it_is_said_to_close_the_connection() -> None:
    """As one in front of a group that has no primary at the moment."""

    async def close(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
        await reader.read(1)

    async with Server(close).running() as proxy:
        history = PostgresHistory(f"postgresql://relay@127.0.0.1:{proxy.port}/relay")
        with pytest.raises(HistoryUnavailable, match=r"PostgreSQL: the server has closed the connection$"):
            await history.start()
        await history.close()


async def test_a_server_that_does_not_answer_is_said_to_be_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("relay.history.postgres.CONNECT_S", 0.05)
    with not_accepting() as url:
        history = PostgresHistory(url.replace("http", "postgresql"))
        with pytest.raises(HistoryUnavailable, match="PostgreSQL: no answer in time"):
            await history.start()
        await history.close()


async def test_what_a_newer_release_has_made_is_left_as_it_is(history: PostgresHistory, other: PostgresHistory) -> None:
    await put(history, arrival(1, receivers=("ci",)))
    before = await everything(history)
    async with history._connection() as writer:
        await writer.execute("UPDATE version SET number = $1", VERSION + 1)
    try:
        with pytest.raises(HistoryUnavailable, match=f"version {VERSION + 1}, this one reads {VERSION}"):
            await other.start()
        with pytest.raises(HistoryUnavailable, match="a newer release"):
            await other.next_offsets()
    finally:
        async with history._connection() as writer:
            await writer.execute("UPDATE version SET number = $1", VERSION)
    assert await everything(history) == before


async def test_what_the_release_before_lives_has_made_is_moved_up(
    history: PostgresHistory, other: PostgresHistory
) -> None:
    await put(history, arrival(1, receivers=("ci",)), attempt("m-1", offset=0))
    async with history._connection() as writer:
        await writer.execute(
            "ALTER TABLE deliveries DROP COLUMN life; ALTER TABLE attempts DROP COLUMN life;"
            "ALTER TABLE counts DROP COLUMN life, ADD PRIMARY KEY (span, begins_at, receiver, source_id);"
            "UPDATE version SET number = 1"
        )
    await other.start()
    await put(other, attempt("m-1", offset=1, life="new"))
    await other.start()
    found = (await other.attempts(AttemptQuery(), limit=9)).items
    [hour] = await other.counted(CountQuery("hour", NOON, NOON + 3_600), most=9)

    assert [each.attempt.life for each in found] == ["new", ""]
    assert Counted(hour.counts).attempts == 2


async def test_a_connection_that_the_server_ends_at_any_moment_makes_it_unavailable(
    server: PostgresServer, history: PostgresHistory
) -> None:
    """As a fail-over or an administrator does."""

    operator = await asyncpg.connect(server.url)
    is_over = False

    async def end_all() -> None:
        while not is_over:
            await operator.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE 'relay history%'"
            )

    ending = asyncio.create_task(end_all())
    for _ in range(150):
        for call in (history.start, history.next_offsets):
            with suppress(HistoryUnavailable):
                await call()
    is_over = True
    await ending
    await operator.close()
    await history.start()
    await put(history, arrival(1))
    assert "m-1" in await names(history)
