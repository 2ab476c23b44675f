"""A receivers file that a running process applies, also if the log fails in between."""

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path

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


def _watch(path: Path, registry: Registry, log: MemoryLog, plan: ProcessPlan) -> FileWatch:
    clock = SystemClock()
    retrier, settings = Retrier(clock, Observer()), Settings(receivers_file=path)
    return FileWatch(settings, plan, registry, log, MemoryState(), TOPICS, clock, owner="one", retrier=retrier)


@pytest.mark.parametrize("after", ["append", "end"])
async def test_what_was_applied_is_logged_once_though_the_log_fails_meanwhile(tmp_path: Path, after: str) -> None:
    path = tmp_path / "receivers.yaml"
    path.write_text(json.dumps({"receivers": {"ci": {"post_endpoint": "https://ci.example/"}}}))
    log, registry = _Failing(after), Registry(TOPICS, {})
    await log.start()
    await log.create(TOPICS.fixed(), {})
    following = asyncio.create_task(registry.follow(log))
    watch = _watch(path, registry, log, ProcessPlan())
    try:
        with capture_logs() as logged:
            with pytest.raises(LogUnavailable):
                await watch.apply()
            for _ in range(2):
                await watch.apply()
    finally:
        following.cancel()
    [applied] = [each for each in logged if each["event"] == "receivers_applied"]
    assert (applied["added"], applied["changed"], applied["removed"]) == (("ci",), (), ())


async def test_entries_that_relay_dev_adds_are_not_logged_as_a_file_that_was_applied(tmp_path: Path) -> None:
    own = parse_receivers_file(json.dumps({"receivers": {"demo": {"post_endpoint": "https://demo.example/"}}}), "own")
    log, registry = MemoryLog(MemoryBroker()), Registry(TOPICS, {})
    await log.start()
    await log.create(TOPICS.fixed(), {})
    following = asyncio.create_task(registry.follow(log))
    path = tmp_path / "receivers.yaml"
    plan = ProcessPlan(with_entries=lambda file: with_entries(file, own))
    watch = _watch(path, registry, log, plan)
    try:
        with capture_logs() as logged:
            await watch.apply()
            assert registry.receiver("demo") is not None
            assert logged == []
            path.write_text(json.dumps({"receivers": {"ci": {"post_endpoint": "https://ci.example/"}}}))
            await watch.apply()
            path.unlink()
            await watch.apply()
    finally:
        following.cancel()
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
    path = tmp_path / "receivers.yaml"
    path.write_text(json.dumps({"receivers": {"ci": {"post_endpoint": "https://ci.example/"}}}))
    broker, registry = MemoryBroker(), Registry(TOPICS, {})
    log, away = MemoryLog(broker), _Away(broker)
    await log.start()
    await log.create(TOPICS.fixed(), {})
    await away.start()
    watch = _watch(path, registry, away, ProcessPlan())
    await watch.read()
    watch.hangup.set()
    tasks = [asyncio.create_task(registry.follow(log)), asyncio.create_task(watch.run())]
    try:
        with capture_logs() as logged:
            async for _ in registry.changes():
                if registry.receiver("ci") is not None:
                    break
    finally:
        for task in tasks:
            task.cancel()
    assert away.fails == 0
    assert "receivers_file_refused" not in [each["event"] for each in logged]


async def test_an_entry_that_the_file_could_not_have_is_applied_once_it_is_deleted_over_the_api(tmp_path: Path) -> None:
    path = tmp_path / "receivers.yaml"
    path.write_text(json.dumps({"receivers": {"ci": {"post_endpoint": "https://filed.example/"}}}))
    log, registry = MemoryLog(MemoryBroker()), Registry(TOPICS, {})
    await log.start()
    await log.create(TOPICS.fixed(), {})
    made = EntryRecord(API, {"post_endpoint": "https://made.example/", "lane": "shared"})
    await log.append([NewRecord(TOPICS.receiver_config, b"ci", made.encode())])
    watch = _watch(path, registry, log, ProcessPlan())
    tasks = [asyncio.create_task(registry.follow(log))]
    try:
        await watch.apply()
        assert urls(registry) == ["https://made.example/"]
        tasks.append(asyncio.create_task(watch.run()))
        await log.append([NewRecord(TOPICS.receiver_config, b"ci", None)])
        async with asyncio.timeout(10):
            async for _ in registry.changes():
                if urls(registry) == ["https://filed.example/"]:
                    break
    finally:
        for task in tasks:
            task.cancel()


def urls(registry: Registry) -> list[str]:
    found = registry.receiver("ci")
    return [] if found is None else [found.post.url]


async def test_entries_that_the_log_has_lost_are_applied_again(tmp_path: Path) -> None:
    """Messages would be dead letters, as for receivers that never were, until some process starts."""
    path = tmp_path / "receivers.yaml"
    path.write_text(json.dumps({"receivers": {"ci": {"post_endpoint": "https://ci.example/"}}}))
    broker, registry = MemoryBroker(), Registry(TOPICS, {})
    log = MemoryLog(broker)
    await log.start()
    await log.create(TOPICS.fixed(), {})
    watch = _watch(path, registry, log, ProcessPlan())
    following = follow_registry(registry, log, Retrier(SystemClock(), Observer()))
    tasks = [asyncio.create_task(following)]
    try:
        await watch.apply()
        tasks.append(asyncio.create_task(watch.run()))
        broker.cut(Coordinate(TOPICS.receiver_config, 0, 0))
        async with asyncio.timeout(20):
            async for _ in registry.changes():
                if broker.records(TOPICS.receiver_config):
                    break
        assert urls(registry) == ["https://ci.example/"]
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
