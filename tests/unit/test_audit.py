"""Lines of the audit: bounded, read back as written, and put on their topic when the log takes them."""

import asyncio
from typing import Any

import msgspec
import pytest
from structlog.testing import capture_logs

from relay.api.audit import MOST_WAITING, AuditTrail
from relay.domain.audit import MOST_ITEMS, MOST_TEXT, AuditLine, bounded, decode_line, encode_line
from relay.domain.errors import InvalidRecord
from relay.domain.topics import Topics
from tests.fakes.log import MemoryBroker, MemoryLog, opened_log

TOPICS = Topics("t-")


def line(id: str = "1", **changes: Any) -> AuditLine:
    usual = AuditLine(id, "2026-01-01T00:00:00.000Z", "key:k", None, "receiver.paused", "ci", None, "done", 200)
    return msgspec.structs.replace(usual, **changes)


def test_a_line_is_bounded_whatever_is_told() -> None:
    facts: dict[str, Any] = {f"fact-{n}": "x" * 10_000 for n in range(100)}
    facts["fact-0"] = ["y" * 10_000] * 100
    long = bounded(line(who_name="n" * 10_000, whom="w" * 10_000, facts=facts))
    assert len(encode_line(long)) < 16_384
    assert (len(long.facts), len(long.whom), long.whom[-1]) == (MOST_ITEMS, MOST_TEXT, "…")
    shown = long.facts["fact-0"]
    assert isinstance(shown, list)
    assert shown[-1] == "and 80 more"
    assert bounded(line(facts={"a": 1, "b": ["c"]})) == line(facts={"a": 1, "b": ["c"]})


def test_a_line_is_read_as_it_was_written() -> None:
    written = line(remote="10.0.0.1", facts={"scopes": ["admin"], "overlap_s": 1.5})
    assert decode_line(encode_line(written)) == written
    assert b'"from":"10.0.0.1"' in encode_line(written)
    for value in (None, b"", b"\xff", b"[]", b'{"id": "1"}', b'{"newer":' * 100_000):
        with pytest.raises(InvalidRecord):
            decode_line(value)


async def opened() -> tuple[MemoryBroker, MemoryLog]:
    broker = MemoryBroker()
    return broker, await opened_log(broker, TOPICS.fixed())


def on_topic(broker: MemoryBroker) -> list[str]:
    return [decode_line(record.value).id for record in broker.records(TOPICS.audit)]


async def test_a_line_is_on_its_topic_when_it_has_been_kept() -> None:
    broker, log = await opened()
    trail = AuditTrail(log, TOPICS.audit)
    await trail.start()
    async with asyncio.TaskGroup() as tasks:
        for n in range(5):
            tasks.create_task(trail.keep(line(str(n))))
    assert on_topic(broker) == ["0", "1", "2", "3", "4"]
    await trail.close()


async def test_while_the_log_is_away_a_line_is_logged_and_follows_in_its_order() -> None:
    broker, log = await opened()
    trail = AuditTrail(log, TOPICS.audit, patience_s=0.01, again_s=0.001)
    await trail.start()
    broker.available = False
    with capture_logs() as logged:
        await trail.keep(line("1"))
        await trail.keep(line("2"), wait=False)
    assert on_topic(broker) == []
    assert [(each["event"], each["line"]) for each in logged] == [
        *(("audit", "1"), ("audit_line_late", "1"), ("audit", "2")),
    ]
    broker.available = True
    await trail.keep(line("3"))
    assert on_topic(broker) == ["1", "2", "3"]
    await trail.close()


async def test_a_server_that_stops_while_the_log_is_away_says_how_many_lines_it_has_left() -> None:
    broker, log = await opened()
    trail = AuditTrail(log, TOPICS.audit, patience_s=0.01, again_s=0.001)
    await trail.start()
    broker.available = False
    await trail.keep(line(), wait=False)
    with capture_logs() as logged:
        await trail.close()
    assert [(each["event"], each["lines"]) for each in logged] == [("audit_lines_not_on_the_log", 1)]
    assert on_topic(broker) == []


async def test_no_more_than_so_many_lines_wait_for_the_log() -> None:
    _, log = await opened()
    trail = AuditTrail(log, TOPICS.audit)  # the writer does not run
    with capture_logs() as logged:
        for n in range(MOST_WAITING + 1):
            await trail.keep(line(str(n)), wait=False)
    assert [each["line"] for each in logged if each["event"] == "audit_line_not_on_the_log"] == [str(MOST_WAITING)]
