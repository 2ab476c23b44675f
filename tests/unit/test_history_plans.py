"""The page of messages at a million messages: each select of a page is served by an index, in the order of the page.

A plan is asserted instead of a time: one that scans or sorts a table takes seconds at that size, on any machine.
"""

import re
import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import pytest
import pytest_asyncio

from relay.history.port import AfterAttempt, AfterMessage, AttemptQuery, CountQuery, MessageQuery, Visible
from relay.history.select import Select
from relay.history.sql import (
    MessageSearch,
    attempt_selects,
    count_select,
    deliveries_of,
    ids_beginning,
    numbered_select,
)
from relay.history.sqlite import DIALECT, SqliteHistory

PAGE: Final = 51
AFTER: Final = AfterMessage(1_000.0, "shop", "m-1")
IN_A_RANGE: Final = {"since": 10.0, "until": 2_000.0}
OF_ONE: Final = Visible((), ["ci"])

QUERIES: Final[dict[str, dict[str, Any]]] = {
    "all": {},
    "of a source": {"source_id": "shop"},
    "to a receiver": {"receiver": "ci"},
    "failed": {"status": "failed"},
    "failed at a receiver": {"status": "failed", "receiver": "ci"},
    "arrived": {"status": "arrived"},
    "retrying": {"state": "retrying"},
    "failed for good": {"state": "failed"},
    "discarded in a range": {"state": "discarded", **IN_A_RANGE},
    "for a reason": {"reason": "rejected"},
    "of a type": {"event_type": "push"},
    "of any type": {"event_type": "*"},
    "with many ids of a prefix": {"id_prefix": "msg_"},
    "in a range": IN_A_RANGE,
    "failed in a range": {"status": "failed", **IN_A_RANGE},
    "of one receiver's owner": {"visible": OF_ONE},
    "failed of one receiver's owner": {"visible": OF_ONE, "status": "failed"},
}

ATTEMPT_QUERIES: Final = {
    "all": AttemptQuery(),
    "of a kind": AttemptQuery(kinds=frozenset({"post"})),
    "of a receiver": AttemptQuery(receiver="ci"),
    "failed of a receiver": AttemptQuery(receiver="ci", failed=True),
    "of one receiver's owner": AttemptQuery(visible=OF_ONE),
    "in a range": AttemptQuery(since=10.0, until=2_000.0),
}


@pytest_asyncio.fixture
async def database(tmp_path: Path) -> AsyncIterator[sqlite3.Connection]:
    history = SqliteHistory(tmp_path / "history.db")
    await history.start()
    await history.close()
    with closing(sqlite3.connect(tmp_path / "history.db")) as database:
        yield database


def plan(database: sqlite3.Connection, select: Select) -> list[str]:
    """The steps of SQLite's plan, the outermost loop first."""
    return [row[3] for row in database.execute(f"EXPLAIN QUERY PLAN {select.text}", select.values)]


BY_INDEX: Final = r" USING (COVERING )?INDEX| USING PRIMARY KEY|SCALAR SUBQUERY"
SAME_TIME: Final = r"RIGHT PART OF ORDER|LAST (\d )?TERMS? OF ORDER"
"""How SQLite, before 3.45 and since, says that it sorts only rows with the same time."""


def assert_by_index(steps: list[str]) -> None:
    """No step reads a table without an index, and none sorts more than rows with the same time of arrival."""
    for step in steps:
        assert re.search(f"{BY_INDEX}|{SAME_TIME}", step), step


@pytest.mark.parametrize("after", [None, AFTER], ids=["first page", "next page"])
@pytest.mark.parametrize("name", QUERIES)
def test_a_page_of_the_list_is_read_by_an_index_in_its_order(
    database: sqlite3.Connection, name: str, after: AfterMessage | None
) -> None:
    search = MessageSearch(DIALECT, MessageQuery(**QUERIES[name]), after, PAGE, body_bytes=256)
    for select in search.selects():
        steps = plan(database, select)
        assert_by_index(steps)
        assert re.search("INDEX (messages|deliveries)_[a-z]+", steps[0]), steps[0]  # one that has the time
        assert "substr(m.body, 1, 256)" in select.text
        assert select.text.endswith(f"LIMIT {PAGE}")


@pytest.mark.parametrize("after", [None, AfterAttempt(1_000.0, 0, 7)], ids=["first page", "next page"])
@pytest.mark.parametrize("query", ATTEMPT_QUERIES.values(), ids=ATTEMPT_QUERIES)
def test_a_page_of_attempts_is_read_by_an_index_in_its_order(
    database: sqlite3.Connection, query: AttemptQuery, after: AfterAttempt | None
) -> None:
    for select in attempt_selects(DIALECT, query, after, PAGE):
        steps = plan(database, select)
        assert re.search("INDEX attempts_(time|receiver|bad)", steps[0]), steps
        assert_by_index(steps)


def test_the_numbers_of_a_receiver_are_read_by_their_index(database: sqlite3.Connection) -> None:
    select = numbered_select(DIALECT, "ci", OF_ONE, 7, PAGE)
    assert plan(database, select) == ["SEARCH deliveries USING INDEX deliveries_number (receiver=? AND number>?)"]


def test_what_a_page_needs_besides_is_found_by_its_key(database: sqlite3.Connection) -> None:
    deliveries = plan(database, deliveries_of(DIALECT, [("shop", "m-1"), ("shop", "m-2")]))
    assert "SEARCH deliveries USING PRIMARY KEY (source_id=? AND message_id=?)" in deliveries
    by_id = plan(database, ids_beginning(DIALECT, "msg_", 10))
    assert {step for step in by_id if "messages" in step} == {
        "SEARCH messages USING INDEX messages_id (message_id>? AND message_id<?)",
        "SEARCH messages USING INDEX messages_webhook (webhook_id>? AND webhook_id<?)",
    }


def test_the_chart_reads_the_counts_of_its_range_alone(database: sqlite3.Connection) -> None:
    select = count_select(DIALECT, CountQuery("hour", 0.0, 86_400.0), 20_001)
    assert plan(database, select) == ["SEARCH counts USING PRIMARY KEY (span=? AND begins_at>? AND begins_at<?)"]
