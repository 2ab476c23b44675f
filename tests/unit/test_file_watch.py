"""A receivers file that a running process applies, also if the log fails in between."""

import asyncio
import json
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from relay.clock import SystemClock
from relay.config.plan import ProcessPlan
from relay.config.receivers_file import parse_receivers_file
from relay.config.settings import Settings
from relay.control.apply import API
from relay.control.records import EntryRecord
from relay.control.registry import Registry
from relay.domain.errors import LogUnavailable
from relay.domain.topics import Topics
from relay.embedded.relay import with_entries
from relay.engine.observer import Observer
from relay.engine.supervision import Retrier
from relay.log.port import Coordinate, NewRecord, TopicPartition
from relay.watch.registry import FileWatch, follow_registry
from tests.fakes.log import MemoryBroker, MemoryLog
from tests.fakes.state import MemoryState

TOPICS = Topics("t-")
URL = "https://ci.example/"


class Watching:
    """A process that follows the topic, and watches a receivers file. `applies_to`: another log of that broker."""

    def __init__(
        self,
        folder: Path,
        log: MemoryLog,
        *,
        url: str | None = URL,
        applies_to: MemoryLog | None = None,
        plan: ProcessPlan | None = None,
    ) -> None:
        clock = SystemClock()
        self.log, self.file, self.registry = log, folder / "receivers.yaml", Registry(TOPICS, {})
        if url is not None:
            self.write(url)
        self._retrier, settings = Retrier(clock, Observer()), Settings(receivers_file=self.file)
        self.watch = FileWatch(
            settings, plan or ProcessPlan(), self.registry, applies_to or log, MemoryState(), TOPICS, clock,
            owner="one", retrier=self._retrier,
        )  # fmt: skip
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> "Watching":
        await self.log.start()
        await self.log.create(TOPICS.fixed(), {})
        self.begin(follow_registry(self.registry, self.log, self._retrier))
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.wait(self._tasks)

    def begin(self, work: Coroutine[Any, Any, None]) -> None:
        self._tasks.append(asyncio.create_task(work))

    def write(self, url: str) -> None:
        """The file has the one receiver `ci`."""
        self.file.write_text(json.dumps({"receivers": {"ci": {"post_endpoint": url}}}))

    def urls(self) -> list[str]:
        found = self.registry.receiver("ci")
        return [] if found is None else [found.post.url]

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(20):
            async for _ in self.registry.changes():
                if condition():
                    break


class _Failing(MemoryLog):
    """The reply to the append of an entry is lost once, or the end of the topic cannot be read once after it."""

    def __init__(self, after: str) -> None:
        super().__init__(MemoryBroker())
        self._after = after
        self._fails = False

    async def append(self, records: Sequence[NewRecord]) -> list[Coordinate]:
        at = await super().append(records)
        if any(record.key == b"ci" for record in records):
            if self._after == "append":
                raise LogUnavailable("the reply is lost")
            self._fails = True
        return at

    async def ends(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        if self._fails:
            self._fails = False
            raise LogUnavailable("not now")
        return await super().ends(partitions)


@pytest.mark.parametrize("after", ["append", "end"])
async def test_what_was_applied_is_logged_once_though_the_log_fails_meanwhile(tmp_path: Path, after: str) -> None:
    async with Watching(tmp_path, _Failing(after)) as one:
        with capture_logs() as logged:
            with pytest.raises(LogUnavailable):
                await one.watch.apply()
            for _ in range(2):
                await one.watch.apply()
    [applied] = [each for each in logged if each["event"] == "receivers_applied"]
    assert (applied["added"], applied["changed"], applied["removed"]) == (("ci",), (), ())


async def test_entries_that_relay_dev_adds_are_not_logged_as_a_file_that_was_applied(tmp_path: Path) -> None:
    own = parse_receivers_file(json.dumps({"receivers": {"demo": {"post_endpoint": "https://demo.example/"}}}), "own")
    plan = ProcessPlan(with_entries=lambda file: with_entries(file, own))
    async with Watching(tmp_path, MemoryLog(MemoryBroker()), url=None, plan=plan) as one:
        with capture_logs() as logged:
            await one.watch.apply()
            assert one.registry.receiver("demo") is not None
            assert logged == []
            one.write(URL)
            await one.watch.apply()
            one.file.unlink()
            await one.watch.apply()
    told = [(each["event"], each["added"], each["removed"]) for each in logged]
    assert told == [("receivers_applied", ("ci",), ()), ("receivers_applied", (), ("ci",))]


class _Away(MemoryLog):
    """Unavailable at first."""

    fails = 2

    async def ends(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        if self.fails:
            self.fails -= 1
            raise LogUnavailable("not now")
        return await super().ends(partitions)


async def test_a_reload_while_the_log_is_away_is_repeated_and_is_no_mistake_of_the_file(tmp_path: Path) -> None:
    broker = MemoryBroker()
    away = _Away(broker)
    await away.start()
    async with Watching(tmp_path, MemoryLog(broker), applies_to=away) as one:
        await one.watch.read()
        one.watch.hangup.set()
        with capture_logs() as logged:
            one.begin(one.watch.run())
            await one.until(lambda: one.urls() == [URL])
    assert away.fails == 0
    assert "receivers_file_refused" not in [each["event"] for each in logged]


async def test_an_entry_that_the_file_could_not_have_is_applied_once_it_is_deleted_over_the_api(tmp_path: Path) -> None:
    made = EntryRecord(API, {"post_endpoint": "https://made.example/", "lane": "shared"})
    async with Watching(tmp_path, MemoryLog(MemoryBroker())) as one:
        await one.log.append([NewRecord(TOPICS.receiver_config, b"ci", made.encode())])
        await one.watch.apply()
        assert one.urls() == ["https://made.example/"]
        one.begin(one.watch.run())
        await one.log.append([NewRecord(TOPICS.receiver_config, b"ci", None)])
        await one.until(lambda: one.urls() == [URL])


async def test_entries_that_the_log_has_lost_are_applied_again(tmp_path: Path) -> None:
    """Messages would be dead letters, as for receivers that never were, until some process starts."""
    broker = MemoryBroker()
    async with Watching(tmp_path, MemoryLog(broker)) as one:
        await one.watch.apply()
        one.begin(one.watch.run())
        broker.cut(Coordinate(TOPICS.receiver_config, 0, 0))
        await one.until(lambda: bool(broker.records(TOPICS.receiver_config)))
        assert one.urls() == [URL]
