"""The registry follows the topic, and a receivers file is applied to it: in which order, and with which errors."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import cast

import pytest
import yaml

from relay.config.receivers_file import ReceiversFile, parse_receivers_file
from relay.config.redacted_entry import FieldChange
from relay.control.apply import ApplyPreview, Diff, apply_file, awaited, preview_file, refusal_of
from relay.control.records import EntryRecord
from relay.control.registry import Registry
from relay.domain.api_key import Key, Secret, encode_key
from relay.domain.control_key import encode_value
from relay.domain.erasure import Erasure
from relay.domain.errors import LogUnavailable, UserError
from relay.domain.event_type import EventTypeEntry
from relay.domain.hold import Hold, encode_hold
from relay.domain.receiver import Source
from relay.domain.recipients import receiver_name
from relay.domain.replay_job import ReplayOrder, Selection
from relay.domain.route import Cut, LaneRoute
from relay.domain.session import SessionEnd
from relay.domain.topics import Topics, TopicSpec
from relay.log.port import Coordinate, Log, NewRecord, Record, TopicPartition, TopicState
from tests.expecting import present
from tests.fakes.log import MemoryBroker, MemoryLog

TOPICS = Topics("t-")
CONFIG = TOPICS.receiver_config


class _TopicLog:
    """Topics of one partition, and what was asked of them in `calls`."""

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.specs: dict[str, TopicSpec] = {}
        self.groups: dict[str, str] = {}
        self.calls: list[str] = []
        self._more = asyncio.Condition()

    async def create(self, specs: Sequence[TopicSpec], groups: Mapping[str, str]) -> list[str]:
        new = [spec for spec in specs if spec.name not in self.specs]
        self.specs |= {spec.name: spec for spec in new}
        self.groups |= groups
        self.calls += [f"create {spec.name}" for spec in new]
        return [spec.name for spec in new]

    async def describe(self, topics: Sequence[str]) -> dict[str, TopicState]:
        return {name: TopicState(self.specs[name], None, None, 1_000_000) for name in topics if name in self.specs}

    async def append(self, records: Sequence[NewRecord]) -> list[Coordinate]:
        async with self._more:
            for new in records:
                assert new.topic in self.specs
                self.records.append(Record(new.topic, 0, len(self.records), new.key, new.value, new.headers, 0))
                self.calls.append(f"append {(new.key or b'').decode(errors='replace')}")
            self._more.notify_all()
        return [record.coordinate for record in self.records[-len(records) :]]

    async def snapshot(self, topic: str, partition: int) -> list[Record]:
        assert topic in self.specs
        newest = {record.key: record for record in self.records if record.topic == topic}
        return [record for record in newest.values() if record.value is not None]

    async def ends(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        return {at: len(self.records) for at in partitions}

    async def scan(self, topic: str, partition: int, *, start: int, end: int) -> AsyncIterator[Sequence[Record]]:
        self.calls.append(f"scan {start} to {end}")
        yield self.records[start:end]

    async def follow(self, topic: str) -> AsyncIterator[Record | None]:
        end = len(self.records)
        for position in range(end):
            yield self.records[position]
        yield None
        position = end
        while True:
            async with self._more:
                await self._more.wait_for(lambda: len(self.records) > position)  # noqa: B023 - awaited right here
            yield self.records[position]
            position += 1

    def as_log(self) -> Log:
        return cast(Log, self)

    async def apply(self, file: ReceiversFile, *, prune: bool = False) -> Diff:
        return await apply_file(self.as_log(), file, TOPICS, prune=prune)

    async def preview(self, file: ReceiversFile, *, prune: bool = False) -> ApplyPreview:
        return await preview_file(self.as_log(), file, TOPICS, prune=prune)

    async def declare(self, key: str, value: bytes | None) -> None:
        await self.create([TopicSpec(CONFIG, 1, "compact", None)], {})
        await self.append([NewRecord(CONFIG, key.encode(), value)])


@pytest.fixture
def log() -> _TopicLog:
    return _TopicLog()


@asynccontextmanager
async def _following(registry: Registry, log: _TopicLog) -> AsyncIterator[AsyncIterator[int]]:
    """The registry's changes, while it follows `log`; the first has been taken."""
    task = asyncio.create_task(registry.follow(log.as_log()))
    changes = registry.changes()
    await anext(changes)
    try:
        yield changes
    finally:
        task.cancel()
        await asyncio.wait([task])


@asynccontextmanager
async def _followed(log: _TopicLog) -> AsyncIterator[Registry]:
    registry = Registry(TOPICS, {})
    async with _following(registry, log):
        yield registry


def _file(text: str) -> ReceiversFile:
    return parse_receivers_file(text)


def _one(**fields: object) -> ReceiversFile:
    return _file(yaml.safe_dump({"receivers": {"ci": {"post_endpoint": "https://ci.example/", **fields}}}))


async def test_what_a_file_declares_is_in_force_in_every_process(log: _TopicLog) -> None:
    file = _file(
        """
        sources: {github: {callback: kafka}, "*": {answers: none}}
        receivers: {ci: {post_endpoint: "https://ci.example/", secret: "${S}", sources: [a], event_types: ["*"]}}
        """
    )
    await log.apply(file)
    registry = Registry(TOPICS, {"S": "s-1"})
    async with _following(registry, log):
        ci = present(registry.receiver("ci"))
        assert ci.post.signing.secrets == ("s-1",)
        assert registry.receivers() == {"ci": ci}
        assert registry.source("github") == Source("github", kafka=True)
        assert registry.source("other") == Source("other", answers="none")
        assert registry.source("relay") == Source("relay", answers="none", failures=False), "none of `*`"
        assert registry.subscribers("a", "push") == ("ci",)
        assert registry.problems == {}
    assert b"s-1" not in b"".join(record.value or b"" for record in log.records)


@pytest.mark.parametrize("lane", ["dedicated", "shared"])
async def test_an_entry_does_not_take_the_place_of_an_origin(log: _TopicLog, lane: str) -> None:
    name = receiver_name("https://once.example")
    file = _file(f'receivers: {{{name}: {{post_endpoint: "https://ci.example/", signature: none, lane: {lane}}}}}')
    await log.apply(file)
    registry = Registry(TOPICS, {}, origins=["https://once.example"])
    async with _following(registry, log):
        assert registry.is_declared(name)
        assert present(registry.receiver(name)).is_origin


async def test_an_empty_topic_is_ready_at_once(log: _TopicLog) -> None:
    async with _followed(log) as registry:
        assert registry.receivers() == {}
        assert registry.receiver("ci") is None
        assert registry.source("github") == Source("github")


async def test_a_change_is_announced_and_in_force(log: _TopicLog) -> None:
    registry = Registry(TOPICS, {})
    async with _following(registry, log) as changes:
        await log.apply(_one(timeout=3, sources=["a"], event_types=["b"]))
        await anext(changes)
        assert _timeout(registry) == 3
        assert registry.subscribers("a", "b") == ("ci",)
        await log.apply(_one(timeout=4))
        await anext(changes)
        assert _timeout(registry) == 4
        assert registry.subscribers("a", "b") == ()
        await log.apply(_file("receivers: {}"), prune=True)
        await anext(changes)
        assert registry.receiver("ci") is None


def _timeout(registry: Registry) -> float:
    return present(registry.receiver("ci")).post.timeout


async def test_an_entry_that_cannot_be_used_here_leaves_the_former_one_in_force(log: _TopicLog) -> None:
    registry = Registry(TOPICS, {})
    async with _following(registry, log) as changes:
        await log.apply(_one(timeout=3))
        await anext(changes)
        await log.apply(_one(timeout=4, secret="${ABSENT}"))
        await anext(changes)
        assert _timeout(registry) == 3
        assert registry.problems == {
            "ci": "receiver_config: receivers.ci.secret: the environment variable ABSENT is not set,"
            " or RELAY_SECRETS_FROM does not allow it"
        }
        await log.apply(_one(timeout=5))
        await anext(changes)
        assert _timeout(registry) == 5
        assert registry.problems == {}


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        (b"not JSON", "receiver_config: a record that is not JSON with declared_by and entry"),
        (b"[]", "receiver_config: a record that is not JSON with declared_by and entry"),
        (b"[" * 100_000, "receiver_config: a record that is not JSON with declared_by and entry"),
        (EntryRecord("api", {"new_field": 1, "post_endpoint": "https://ci.example/"}).encode(), "receiver_config: "
         "receivers.ci.new_field: unknown field; known: "),
    ],
)  # fmt: skip
async def test_a_record_nobody_understands_stops_nothing(log: _TopicLog, value: bytes, problem: str) -> None:
    await log.declare("ci", value)
    await log.declare("other", EntryRecord("api", {"post_endpoint": "https://other.example/"}).encode())
    async with _followed(log) as registry:
        assert [name for name, each in registry.receivers().items() if each.unusable is None] == ["other"]
        assert list(registry.problems) == ["ci"]
        assert registry.problems["ci"].startswith(problem)


async def test_a_process_may_ping_what_is_offline_more_often(log: _TopicLog) -> None:
    entries: dict[str, dict[str, object]] = {
        "usual": {"post_endpoint": "https://ci.example/"},
        "often": {"post_endpoint": "https://ci.example/", "offline": {"ping_every": 1}},
        "many": {"post_endpoint": "https://ci.example/", "lane": "shared"},
        "source:s": {"callback": {"url": "https://sender.example/"}},
    }
    for key, entry in entries.items():
        await log.declare(key, EntryRecord("api", entry).encode())
    registry = Registry(TOPICS, {}, ping_every=2.0)
    async with _following(registry, log):
        posts = [one.post for name in ("usual", "often", "many") if (one := registry.receiver(name)) is not None]
        callback = present(registry.source("s").callback)
        assert [each.breaker.offline.ping_every for each in (*posts, callback)] == [2.0, 1.0, 2.0, 2.0]


async def test_records_without_a_key_are_passed_over(log: _TopicLog) -> None:
    await log.create([TopicSpec(CONFIG, 1)], {})
    await log.append([NewRecord(CONFIG, None, b"x"), NewRecord(CONFIG, b"\xff", b"x")])
    async with _followed(log) as registry:
        assert registry.problems == {}


async def test_a_secret_written_out_is_found_in_the_file_and_not_on_the_log(log: _TopicLog) -> None:
    file = _one(secret="hunter2")
    await log.apply(file)
    assert b"hunter2" not in b"".join(record.value or b"" for record in log.records)
    registry = Registry(TOPICS, {})
    async with _following(registry, log) as changes:
        assert "literal in a receivers file" in registry.problems["ci"]
        registry.learn(file)
        await anext(changes)
        assert present(registry.receiver("ci")).post.signing.secrets == ("hunter2",)
        assert registry.problems == {}


async def test_following_again_forgets_what_went_away_in_between(log: _TopicLog) -> None:
    await log.apply(_one())
    await log.declare("event-type:build.finished", encode_value(EventTypeEntry("a build")))
    await log.declare("erasure:e1", encode_value(Erasure("e1", 1.0, source_id="github")))
    await log.declare("replay:j1", encode_value(ReplayOrder("j1", "replay", Selection(), 1.0, (), (), None)))
    await log.declare("key:k1", encode_key(Key("k1", "", frozenset(), 1.0, "a", None, (Secret("d" * 64, 1.0),))))
    await log.declare("session-end:s1", encode_value(SessionEnd(1)))
    registry = Registry(TOPICS, {})

    class Broken(_TopicLog):
        async def follow(self, topic: str) -> AsyncIterator[Record | None]:
            for record in log.records:
                yield record
            yield None
            raise LogUnavailable("gone")

    with pytest.raises(LogUnavailable):
        await registry.follow(Broken().as_log())
    assert registry.receiver("ci") is not None
    assert registry.event_types.names() == ["build.finished"]
    assert [erasure.id for erasure in registry.erasures.all()] == ["e1"]
    assert [job.order.id for job in registry.jobs.all()] == ["j1"]
    assert ([key.id for key in registry.keys.all()], list(registry.keys.ended)) == (["k1"], ["s1"])
    compacted = _TopicLog()  # the tombstones were compacted away as well
    changes = registry.changes()
    before = await anext(changes)
    async with _following(registry, compacted):
        while await anext(changes) == before:
            pass
        assert registry.receiver("ci") is None
        assert not registry.event_types.names()
        assert not registry.erasures.all()
        assert not registry.jobs.all()
        assert not registry.keys.all()
        assert not registry.keys.ended
        assert registry.keys.closed


async def test_applying_again_changes_nothing(log: _TopicLog) -> None:
    file = _file("sources: {a: {}}\nreceivers: {ci: {post_endpoint: 'https://ci.example/', timeout: 1h}}")
    first = await log.apply(file)
    assert first == Diff(added=("ci", "source:a"))
    count = len(log.records)
    same = _file("receivers: {ci: {timeout: 3600, post_endpoint: 'https://ci.example/'}}\nsources: {a: {}}")
    assert not await log.apply(same)
    assert len(log.records) == count


async def test_the_difference_is_added_changed_and_removed(log: _TopicLog) -> None:
    await log.apply(_file("sources: {a: {}, b: {}}"))
    second = _file("sources: {b: {failures: false}, c: {}}")
    expected = Diff(added=("source:c",), changed=("source:b",), removed=("source:a",))
    assert (await log.preview(second)).diff == expected
    assert await log.apply(second) == expected
    assert log.records[-1].key == b"source:a"
    assert log.records[-1].value is None


async def test_a_preview_tells_what_of_an_entry_would_change(log: _TopicLog) -> None:
    await log.apply(_one(timeout=3, secret="old-secret-12345"))
    count = len(log.records)
    second = _one(timeout=4, secret="new-secret-12345")
    fields = (await log.preview(second)).fields
    assert fields == {"ci": [FieldChange("secret", None, None, secret=True), FieldChange("timeout", 3.0, 4.0)]}
    assert len(log.records) == count


async def test_a_preview_says_that_an_emptied_file_would_be_refused(log: _TopicLog) -> None:
    await log.apply(_one())
    preview = await log.preview(_file(""))
    assert preview.diff.removed == ("ci",)
    assert "would remove all 1" in present(preview.refusal)
    assert (await log.preview(_file(""), prune=True)).refusal is None


async def test_a_preview_works_before_there_is_a_topic(log: _TopicLog) -> None:
    assert (await log.preview(_one())).diff == Diff(added=("ci",))
    assert log.calls == []


async def test_what_the_api_declared_stays_and_the_file_cannot_declare_it_too(log: _TopicLog) -> None:
    theirs = EntryRecord("api", {"post_endpoint": "https://ci.example/"}).encode()
    await log.declare("ci", theirs)
    await log.declare("theirs", theirs)
    await log.declare("broken", b"?")
    log.calls.clear()
    diff = await log.apply(_one(), prune=True)
    assert (diff, bool(diff)) == (Diff(refused=("ci",)), False)
    assert log.calls == []
    assert refusal_of("ci") == (
        "ci was registered over the API and stays as it is; delete it there first, or use another name"
    )


async def test_the_file_wins_over_what_nobody_can_read(log: _TopicLog) -> None:
    await log.declare("ci", b"?")
    assert await log.apply(_one()) == Diff(changed=("ci",))


async def test_topics_are_there_before_anybody_hears_of_their_receiver(log: _TopicLog) -> None:
    await log.apply(_one(partitions=3))
    assert log.calls == [
        "create t-receiver_config",
        "create t-to_receiver_ci",
        "create t-pending_from_receiver_ci",
        "append ci",
    ]
    assert log.groups == {
        "t-to_receiver_ci": "t-relay.to-receiver",
        "t-pending_from_receiver_ci": "t-relay.from-receiver-async",
    }
    specs = TOPICS.lane_specs("ci", 3)
    assert [log.specs[spec.name] for spec in specs] == list(specs)


async def test_a_receiver_in_the_shared_lane_has_no_topics(log: _TopicLog) -> None:
    await log.apply(_one(lane="shared"))
    assert log.calls == ["create t-receiver_config", "append ci"]


async def test_more_partitions_are_left_to_the_move(log: _TopicLog) -> None:
    await log.apply(_one())
    assert await log.apply(_one(partitions=4)) == Diff(changed=("ci",))
    assert log.calls[-2:] == ["append route:ci", "append ci"]
    async with _followed(log) as registry:
        assert registry.receivers()["ci"].partitions == 1
        assert registry.wanted_lane("ci") == ("dedicated", 4)
    assert list(await awaited(log.as_log(), TOPICS)) == ["ci"]
    count = len(log.records)
    assert not await log.apply(_one(partitions=4))
    assert len(log.records) == count
    await log.apply(_one())  # it has not begun to move yet
    assert await awaited(log.as_log(), TOPICS) == {}


async def test_a_new_receiver_whose_topics_are_left_from_a_smaller_one_gets_its_partitions_by_a_move(
    log: _TopicLog,
) -> None:
    await log.create(TOPICS.lane_specs("ci", 1), {})
    await log.apply(_one(partitions=2))
    async with _followed(log) as registry:
        assert registry.receivers()["ci"].partitions == 1


@pytest.mark.parametrize(("before", "after"), [("dedicated", "shared"), ("shared", "dedicated")])
async def test_another_lane_in_the_file_leaves_the_one_in_force_to_the_move(
    log: _TopicLog, before: str, after: str
) -> None:
    await log.apply(_one(lane=before))
    assert await log.apply(_one(lane=after)) == Diff(changed=("ci",))
    assert log.calls[-2:] == ["append route:ci", "append ci"]
    async with _followed(log) as registry:
        assert registry.receivers()["ci"].lane == before
        assert registry.wanted_lane("ci") == (after, 1)
        await log.apply(_one(lane=before))  # it has not begun to move yet
    assert not await log.apply(_one(lane=before))


async def test_a_removed_receiver_leaves_its_last_settings(log: _TopicLog) -> None:
    await log.apply(_one(answer_deadline=7, secret="${ABSENT}"))
    await log.apply(_file("receivers: {}"), prune=True)
    assert log.calls[-2:] == ["append removed:ci", "append ci"]
    async with _followed(log) as registry:
        assert registry.receiver("ci") is None
        last = present(registry.removed("ci"))
        assert (last.answer_deadline, last.lane, last.post.signing.secrets) == (7, "dedicated", ())
        assert registry.left_lanes() == registry.gone() == {"ci"}
    await log.apply(_one())
    async with _followed(log) as again:
        assert again.receiver("ci") is not None
        assert again.removed("ci") is None


async def test_fewer_partitions_are_refused(log: _TopicLog) -> None:
    await log.apply(_one(partitions=4))
    with pytest.raises(UserError) as caught:
        await log.apply(_one())
    assert str(caught.value).splitlines() == [
        f"receivers.yaml: receivers.ci.partitions: topic {topic} has 4 partitions, the file says 1, and none can be "
        "removed: write partitions: 4, or lane: shared"
        for topic in ("t-to_receiver_ci", "t-pending_from_receiver_ci")
    ]
    assert len(log.records) == 1


async def test_who_comes_back_while_something_is_left_begins_a_life_of_its_own(log: _TopicLog) -> None:
    """The process that sees it off may be about to say that nothing is left."""
    await log.apply(_one())
    await log.apply(_file("receivers: {}"), prune=True)
    await log.apply(_one(lane="shared"))
    await log.declare("route:ci", encode_value(LaneRoute()))
    async with _followed(log) as registry:
        assert registry.receivers()["ci"].lane == "dedicated"
        assert "ci" in registry.lanes.outdated


@pytest.mark.parametrize("emptied", ["", "# all gone", "sources: {a: {}}", "receivers: {}"])
async def test_a_file_that_has_lost_its_receivers_is_refused_whole(log: _TopicLog, emptied: str) -> None:
    await log.apply(_one())
    before = list(log.calls)
    with pytest.raises(
        UserError, match=r"has no receivers, which would remove all 1 .*; if .* run `relay receivers apply --prune`"
    ):
        await log.apply(_file(emptied))
    assert log.calls == before
    removing = await log.apply(_file("receivers: {}"), prune=True)
    assert removing.removed == ("ci",)
    assert not await log.apply(_file(""))  # no receiver is left to lose


async def test_a_hold_is_none_of_the_registrys_business_nor_of_the_files(log: _TopicLog) -> None:
    held = encode_hold(Hold("paused", 5.0, "moving house"))
    await log.apply(_one())
    await log.declare("hold:r:ci", held)
    registry = Registry(TOPICS, {})
    async with _following(registry, log) as changes:
        assert list(registry.receivers()) == ["ci"]
        for file in (_one(timeout=3), _file("receivers: {}"), _one()):
            foreseen = await log.preview(file)
            assert await log.apply(file, prune=True) == foreseen.diff
            await anext(changes)
        assert registry.problems == {}
    newest = {record.key: record.value for record in log.records}
    assert newest[b"hold:r:ci"] == held


# moves


async def test_who_catches_up_reads_what_it_has_not_seen_and_nothing_else(log: _TopicLog) -> None:
    """A sender's stray marker makes a process catch up, and so does each look at a move."""
    await log.apply(_one())
    async with _followed(log) as registry:
        log.calls.clear()
        await registry.catch_up()
        assert log.calls == []
    await log.declare(
        "route:ci", encode_value(LaneRoute(1, "shared", moving=True, token="t"))
    )  # no process follows it any more
    await log.declare("ci", b"?")
    count = len(log.records)
    log.calls.clear()
    for _ in range(3):
        await registry.catch_up()
    assert log.calls == [f"scan {count - 2} to {count}"]
    assert registry.lanes.all()["ci"].moving
    assert registry.problems == {}  # entries are none of its business


async def test_a_record_that_was_deleted_while_it_was_read_again_does_not_come_back() -> None:
    class _SlowLog(_TopicLog):
        reads, goes_on = asyncio.Event(), asyncio.Event()

        async def scan(self, topic: str, partition: int, *, start: int, end: int) -> AsyncIterator[Sequence[Record]]:
            if not self.reads.is_set():
                self.reads.set()
                await self.goes_on.wait()
            yield self.records[start:end]

    log, registry = _SlowLog(), Registry(TOPICS, {})
    await log.apply(_one())
    async with _following(registry, log):
        end = len(log.records)
        log.records.append(Record(CONFIG, 0, end, b"removed:old", log.records[-1].value, (), 0))
        catching_up = asyncio.create_task(registry.catch_up())
        await log.reads.wait()
        await log.declare("removed:old", None)
        await registry.reach(end + 2)
        log.goes_on.set()
        await catching_up
        assert registry.gone() == frozenset()


async def test_a_record_that_was_deleted_while_the_topic_was_loaded_does_not_come_back() -> None:
    class _SlowLog(_TopicLog):
        waits, goes_on = asyncio.Event(), asyncio.Event()

        async def follow(self, topic: str) -> AsyncIterator[Record | None]:
            async for record in super().follow(topic):
                if record is None:
                    self.waits.set()
                    await self.goes_on.wait()
                yield record

    log, registry = _SlowLog(), Registry(TOPICS, {})
    log.goes_on.set()
    await log.apply(_one())
    log.waits.clear()
    log.goes_on.clear()
    await log.declare("removed:old", log.records[-1].value)
    await log.declare("removed:old", None)
    following = asyncio.create_task(registry.follow(log.as_log()))
    await log.waits.wait()
    await registry.catch_up()
    log.goes_on.set()
    await registry.ready.wait()
    following.cancel()
    assert registry.gone() == frozenset()
    assert registry.receiver("ci") is not None


async def test_the_end_of_an_earlier_move_does_not_drop_the_cut_of_the_next_one() -> None:
    log, registry = MemoryLog(MemoryBroker()), Registry(TOPICS, {})
    await log.start()
    await log.create(TOPICS.fixed(), {})
    following = asyncio.create_task(registry.follow(log))
    await registry.ready.wait()
    following.cancel()
    await asyncio.wait([following])
    cut = Cut("ci", 2, 0, 70)
    moves = [
        (b"route:ci", encode_value(LaneRoute(1, "shared"))),
        (cut.key.encode(), None),
        (b"route:ci", encode_value(LaneRoute(2, "dedicated", moving=True))),
    ]
    [*_, last] = await log.append([NewRecord(CONFIG, key, value) for key, value in moves])
    await registry.catch_up()
    registry.note(cut)  # the marker was read before the process follows the topic again
    following = asyncio.create_task(registry.follow(log))
    try:
        await registry.reach(last.offset + 1)
    finally:
        following.cancel()
    assert registry.cut("ci", 2, 0) == 70


async def test_a_topic_that_was_made_anew_is_read_from_its_beginning(log: _TopicLog) -> None:
    await log.apply(_one())
    await log.apply(_one(timeout=3))
    async with _followed(log) as registry:
        pass
    log.records.clear()
    await log.declare("route:ci", encode_value(LaneRoute(1, "shared", moving=True, token="t")))
    await registry.catch_up()
    assert registry.lanes.all()["ci"].moving


async def test_what_is_compacted_away_behind_all_that_is_left_need_not_be_waited_for() -> None:
    """The end of the topic is a tombstone, and who reads the topic from its beginning does not get to see it."""
    log, registry = MemoryLog(MemoryBroker()), Registry(TOPICS, {})
    await log.start()
    await log.create(TOPICS.fixed(), {})
    [*_, last] = await log.append([NewRecord(CONFIG, b"hold:r:ci", value) for value in (b"{}", None)])
    following = asyncio.create_task(registry.follow(log))
    try:
        async with asyncio.timeout(10):
            await registry.reach(last.offset + 1)
    finally:
        following.cancel()
