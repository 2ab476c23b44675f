"""Receivers in the shared lane: found by name, of which the newest record counts, and few of which are in memory."""

import asyncio
import json
import tracemalloc
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relay.config.receivers_file import ReceiversFile, parse_receivers_file
from relay.control import shared_index, shared_receivers
from relay.control.apply import Diff, apply_file
from relay.control.records import EntryRecord
from relay.control.registry import Registry
from relay.control.shared_index import lacks, record_header
from relay.domain.control_key import encode_value
from relay.domain.errors import InvalidRecord, LogUnavailable
from relay.domain.filters import UNDECIDED
from relay.domain.own_events import feed, hearers
from relay.domain.route import LaneRoute
from relay.domain.topics import Topics
from relay.log.port import Coordinate, NewRecord, Record, TopicPartition
from tests.expecting import present
from tests.fakes.log import MemoryBroker, MemoryLog

TOPICS = Topics()
CONFIG = TOPICS.receiver_config
Values = Mapping[str, bytes | None]


def entry(*, lane: str = "shared", **fields: object) -> bytes:
    return EntryRecord("api", {"post_endpoint": "https://ci.example/", "lane": lane, **fields}).encode()


class _Log(MemoryLog):
    """Counts its calls. `breaks`: cuts the follower off when it is set; `up`: it can start again."""

    def __init__(self, broker: MemoryBroker) -> None:
        super().__init__(broker)
        self.broker = broker
        self.starts: list[int | None] = []
        self.breaks = asyncio.Event()
        self.up = asyncio.Event()
        self.up.set()

    async def follow(self, topic: str, *, start: int | None = None) -> AsyncIterator[Record | None]:
        self.starts.append(start)
        await self.up.wait()
        async for record in super().follow(topic, start=start):
            yield record
            if self.breaks.is_set():
                self.breaks.clear()
                raise LogUnavailable("cut off")

    async def say(self, values: Values) -> list[Coordinate]:
        return await self.append([NewRecord(CONFIG, key.encode(), value) for key, value in values.items()])


@pytest.fixture
async def log() -> _Log:
    found = _Log(MemoryBroker())
    await found.start()
    await found.create(TOPICS.fixed(), {})
    return found


@asynccontextmanager
async def following(log: _Log, environ: Mapping[str, str] | None = None) -> AsyncIterator[Registry]:
    registry = Registry(TOPICS, environ or {})
    task = asyncio.create_task(_follow(registry, log))
    await registry.ready.wait()
    try:
        yield registry
    finally:
        task.cancel()
        await asyncio.wait([task])


async def _follow(registry: Registry, log: _Log) -> None:
    while True:
        try:
            await registry.follow(log)
        except LogUnavailable:
            await asyncio.sleep(0)


async def until(met: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not met():  # noqa: ASYNC110  a registry announces changes, and not each of its facts
            await asyncio.sleep(0)


def timeout_of(registry: Registry, name: str) -> float | None:
    found = registry.receiver(name)
    return None if found is None else found.post.timeout


async def test_one_in_the_shared_lane_is_found_by_its_name(log: _Log) -> None:
    await log.say({"own": entry(lane="dedicated"), "many": entry(timeout=3)})
    async with following(log) as registry:
        assert list(registry.receivers()) == ["own"]
        assert timeout_of(registry, "many") == 3
        assert registry.wanted_lane("many") == ("shared", 1)
        assert registry.receiver("nobody") is None
        assert (len(registry.shared), registry.refused, registry.refusal("many")) == (1, 0, None)
        await log.say({"many": entry(timeout=4), "more": entry(timeout=5)})
        await until(lambda: timeout_of(registry, "more") == 5)
        assert timeout_of(registry, "many") == 4
        await log.say({"many": None})
        await until(lambda: registry.receiver("many") is None)
        assert list(registry.shared.index.all_names()) == ["more"]


class _Uncompacted(_Log):
    """Yields older records of a key too, as Kafka does for a while."""

    async def follow(self, topic: str, *, start: int | None = None) -> AsyncIterator[Record | None]:
        for record in self.broker.records(topic):
            yield record
        yield None
        await asyncio.Event().wait()


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ([entry(timeout=1), entry(timeout=2)], 2),
        ([entry(timeout=1), None], None),
        ([entry(timeout=1), None, entry(timeout=3)], 3),
        ([entry(timeout=1), entry(lane="dedicated", timeout=2)], 2),
        ([entry(lane="dedicated", timeout=1), entry(timeout=2)], 2),
        ([entry(lane="dedicated", timeout=1), entry(timeout=2), None], None),
    ],
)
async def test_of_each_name_the_newest_record_counts(said: Sequence[bytes | None], expected: float | None) -> None:
    log = _Uncompacted(MemoryBroker())
    await log.start()
    await log.create(TOPICS.fixed(), {})
    for value in said:
        await log.say({"ci": value, "other": entry()})
    async with following(log) as registry:
        assert timeout_of(registry, "ci") == expected
        found = registry.receiver("ci")
        assert list(registry.receivers()) == (["ci"] if found and found.lane == "dedicated" else [])
        shared_ones = {"other"} | ({"ci"} if found and found.lane == "shared" else set())
        assert set(registry.shared.index.all_names()) == shared_ones


async def test_few_are_in_memory(log: _Log, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_receivers, "READY_KEPT", 100)
    names = [f"r-{number}" for number in range(20_000)]
    await log.say({name: entry(sources=[f"s-{name}"], event_types=["*"]) for name in names})
    tracemalloc.start()
    async with following(log) as registry:
        for name in names[:1_000]:
            assert registry.receiver(name) is not None
            assert registry.subscribers(f"s-{name}", "push") == (name,)
        grown, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert grown < 100 * len(names)
        assert len(registry.shared) == len(names)


async def test_one_that_cannot_be_used_here_leaves_the_former_one_in_force(log: _Log) -> None:
    await log.say({"ci": entry(timeout=1, secret="${THERE}"), "new": entry(secret="${ABSENT}")})
    async with following(log, {"THERE": "a secret long enough"}) as registry:
        new = registry.receiver("new")
        assert (registry.refused, new is not None and new.unusable) == (1, registry.refusal("new"))
        assert "the environment variable ABSENT is not set" in (registry.refusal("new") or "")
        for bad in (entry(timeout=2, secret="${ABSENT}"), entry(timeout=3, secret="${ABSENT}"), b"?"):
            await log.say({"ci": bad, "new": None, "last": entry(timeout=bad == b"?" or 9)})
            await until(lambda: registry.refusal("ci") is not None and registry.receiver("last") is not None)
            assert timeout_of(registry, "ci") == 1
        await log.say({"ci": entry(timeout=4)})
        await until(lambda: timeout_of(registry, "ci") == 4)
        assert (registry.refused, registry.refusal("ci")) == (0, None)


async def test_those_that_cannot_be_used_here_are_known_and_the_lanes_hear_of_each(log: _Log) -> None:
    await log.say({"ci": entry(secret="${THERE}"), "other": entry(secret="${ABSENT}"), "fine": entry()})
    await log.say({"own": entry(lane="dedicated", secret="${ABSENT}")})
    async with following(log, {"THERE": "a secret long enough"}) as registry:
        lanes = registry.lane_changes()
        await anext(lanes)
        assert registry.unusable_in_shared(9) == ["other"]
        await log.say({"ci": entry(secret="${ABSENT}")})
        await anext(lanes)
        assert registry.unusable_in_shared(9) == ["other"], "a former entry is in force"
        await log.say({"new": entry(secret="${ABSENT}")})
        await anext(lanes)
        assert sorted(registry.unusable_in_shared(9)) == ["new", "other"]
        assert len(registry.unusable_in_shared(1)) == 1
        await log.say({"other": entry(), "new": None})
        await until(lambda: registry.unusable_in_shared(9) == [])
        await anext(lanes)


async def test_what_only_a_full_check_finds_is_said_when_it_is_asked_for(log: _Log) -> None:
    await log.say({"ci": entry(timeout=1)})
    async with following(log) as registry:
        changes = registry.changes()
        await anext(changes)
        for timeout in (0, -1):  # two in a row, with no look-up in between
            await log.say({"ci": entry(timeout=timeout)})
            await anext(changes)
        assert timeout_of(registry, "ci") == 1
        assert registry.refused == 1
        assert "receivers.ci.timeout" in (registry.refusal("ci") or "")


async def test_a_route_keeps_a_receiver_in_memory_with_the_lane_that_is_in_force(log: _Log) -> None:
    await log.say({"ci": entry(timeout=1)})
    async with following(log) as registry:
        lanes = registry.lane_changes()
        await anext(lanes)
        await log.say({"route:ci": encode_value(LaneRoute(lane="shared")), "ci": entry(lane="dedicated", timeout=2)})
        await until(lambda: timeout_of(registry, "ci") == 2)
        await anext(lanes)
        assert registry.receivers()["ci"].lane == "shared"
        assert registry.wanted_lane("ci") == ("dedicated", 1)
        assert len(registry.shared) == 0
    async with following(log) as registry:
        assert registry.receivers()["ci"].lane == "shared"


async def test_a_removed_one_is_gone_when_its_entry_is(log: _Log) -> None:
    await log.say({"ci": entry(answer_deadline=7)})
    async with following(log) as registry:
        await log.say({"removed:ci": entry(answer_deadline=7)})
        await log.say({"other": entry()})
        await until(lambda: registry.receiver("other") is not None)
        assert (registry.gone(), registry.removed("ci")) == (frozenset(), None)
        await log.say({"ci": None})
        await until(lambda: registry.gone() == {"ci"})
        last = present(registry.removed("ci"))
        assert (last.answer_deadline, registry.receiver("ci")) == (7, None)
        assert registry.left_lanes() == frozenset()
        await log.say({"ci": entry()})
        await until(lambda: not registry.gone())


async def test_nobody_hears_of_lanes_because_of_the_shared_one(log: _Log) -> None:
    async with following(log) as registry:
        changes, lanes = registry.changes(), registry.lane_changes()
        await anext(changes)
        seen = await anext(lanes)
        for value in (entry(), entry(timeout=2), None):
            await log.say({"many": value})
            await anext(changes)
        await log.say({"own": entry(lane="dedicated")})
        assert await anext(lanes) == seen + 1
        assert list(registry.receivers()) == ["own"]


# subscriptions

PATTERNS = st.sampled_from(["a", "ab", "a*", "ab*", "b", "*"])
TEXTS = st.sampled_from(["a", "ab", "abc", "b", "c", "a*"])
SUBSCRIBED = st.tuples(st.lists(PATTERNS, min_size=1, max_size=3), st.lists(PATTERNS, min_size=1, max_size=3))


@settings(max_examples=30, deadline=None)
@given(
    before=st.dictionaries(st.sampled_from("pqrs"), SUBSCRIBED),
    after=st.dictionaries(st.sampled_from("pqrs"), st.none() | SUBSCRIBED),
    source=TEXTS,
    event_type=TEXTS,
    lists=st.sampled_from([0, 1, 32]),
)
async def test_subscribers_are_those_that_a_naive_matcher_finds(
    before: Mapping[str, tuple[list[str], list[str]]],
    after: Mapping[str, tuple[list[str], list[str]] | None],
    source: str,
    event_type: str,
    lists: int,
) -> None:
    log = _Log(MemoryBroker())
    await log.start()
    await log.create(TOPICS.fixed(), {})
    await log.say({name: entry(sources=each[0], event_types=each[1]) for name, each in before.items()})
    with patch.object(shared_index, "LISTS_KEPT", lists):
        async with following(log) as registry:
            assert registry.subscribers(source, event_type) == _naive(before, source, event_type)
            await log.say({name: each and entry(sources=each[0], event_types=each[1]) for name, each in after.items()})
            await log.say({"last": entry()})
            await until(lambda: registry.receiver("last") is not None)
            now = {name: each for name, each in {**before, **after}.items() if each}
            assert registry.subscribers(source, event_type) == _naive(now, source, event_type)


def _naive(there: Mapping[str, tuple[list[str], list[str]]], source: str, event_type: str) -> tuple[str, ...]:
    return tuple(sorted(name for name, (s, t) in there.items() if _any(s, source) and _any(t, event_type)))


def _any(patterns: Iterable[str], text: str) -> bool:
    return any(text == each or (each.endswith("*") and text.startswith(each[:-1])) for each in patterns)


async def test_who_is_off_is_no_subscriber_but_who_lacks_a_secret_here_is_and_a_pattern_may_be_a_reference(
    log: _Log,
) -> None:
    wants: dict[str, Any] = {"sources": ["a"], "event_types": ["*"]}
    await log.say(
        {
            "own": entry(lane="dedicated", **wants),
            "many": entry(**wants),
            "off": entry(**wants, enabled=False),
            "refused": entry(**wants, secret="${ABSENT}"),
            "by-reference": entry(sources=["${WHO}"], event_types=["*"]),
        }
    )
    async with following(log, {"WHO": "a"}) as registry:
        assert registry.subscribers("a", None) == ("by-reference", "many", "own", "refused")


@pytest.mark.parametrize("lane", ["shared", "dedicated"])
@pytest.mark.parametrize(
    ("fields", "subscribed", "undecided"),
    [
        ({"sources": ["a"], "event_types": ["*"], "secret": "${ABSENT}"}, {"a"}, False),
        ({"sources": ["a"], "event_types": ["*"], "of_a_newer_release": 1}, {"a"}, False),
        ({"sources": ["${ABSENT}"], "event_types": ["*"]}, {"a", "b"}, True),
        ({"sources": ["a"], "event_types": ["${ABSENT}"]}, {"a", "b"}, True),
        ({"sources": ["a"], "event_types": ["*"], "filter": {"of_a_newer_release": 1}}, {"a"}, True),
        ({"sources": {"of_a_newer_release": 1}, "event_types": ["*"]}, {"a", "b"}, True),
    ],
)
async def test_what_cannot_be_used_here_is_routed_to_all_the_same(
    log: _Log, lane: str, fields: dict[str, Any], subscribed: set[str], undecided: bool
) -> None:
    await log.say({"ci": entry(lane=lane, **fields)})
    async with following(log) as registry:
        assert {source for source in ("a", "b") if registry.subscribers(source, None) == ("ci",)} == subscribed
        known = present(registry.receiver("ci"))
        assert known.unusable == registry.refusal("ci")
        assert (known.lane, known.filter is UNDECIDED) == (lane, undecided)


async def test_who_has_a_filter_is_known_wherever_it_is_kept_and_as_it_changes(log: _Log) -> None:
    wants: dict[str, Any] = {"sources": ["a"], "event_types": ["*"]}
    narrow = {**wants, "filter": {"pointer": "/a", "exact": 1}}
    await log.say({"own": entry(lane="dedicated", **narrow), "many": entry(**narrow), "plain": entry(**wants)})
    async with following(log) as registry:
        assert registry.subscribers("a", "b") == ("many", "own", "plain")
        assert registry.filtered("a", "b") == {"many", "own"}
        await log.say({"own": entry(lane="dedicated", **wants), "plain": entry(**narrow)})
        await until(lambda: registry.filtered("a", "b") == {"many", "plain"})


async def test_a_message_that_too_many_subscribe_to_is_a_mistake(log: _Log) -> None:
    await log.say({f"r-{number}": entry(sources=["*"], event_types=["*"]) for number in range(1_001)})
    async with following(log) as registry:
        with pytest.raises(InvalidRecord, match="1001 receivers subscribe to this; 1000 are allowed"):
            registry.subscribers("a", "push")
        await log.say({"r-7": None})
        await until(lambda: registry.receiver("r-7") is None)
        assert len(registry.subscribers("a", "push")) == 1_000


async def test_who_subscribes_by_several_patterns_counts_once(log: _Log, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_index, "LISTS_KEPT", 0)
    patterns = ["push", "pus*", "*"]
    await log.say({f"all-{number}": entry(sources=["a"], event_types=patterns) for number in range(400)})
    await log.say({f"one-{number}": entry(sources=["a"], event_types=[patterns[number % 3]]) for number in range(300)})
    async with following(log) as registry:
        assert len(registry.subscribers("a", "push")) == 700


# breaks


async def test_after_a_break_it_goes_on_where_it_was(log: _Log) -> None:
    await log.say({"a": entry(), "b": entry()})
    async with following(log) as registry:
        await log.say({"c": entry()})
        await until(lambda: registry.receiver("c") is not None)
        log.breaks.set()
        await log.say({"c": None, "d": entry()})
        await until(lambda: registry.receiver("d") is not None)
        assert registry.receiver("c") is None
        assert (log.starts[0], len(log.starts)) == (None, 2)
        assert log.starts[1] in (3, 4)


async def test_where_the_log_cannot_tell_what_came_since_it_is_read_anew(log: _Log) -> None:
    await log.say({"a": entry(), "b": entry(), "own": entry(lane="dedicated")})
    async with following(log) as registry:
        log.breaks.set()
        log.up.clear()
        await log.say({"c": entry()})
        await until(lambda: len(log.starts) == 2)
        log._broker = MemoryBroker()  # the topic was made anew
        await log.create(TOPICS.fixed(), {})
        await log.say({"d": entry()})
        assert set(registry.shared.index.all_names()) >= {"a", "b"}
        log.up.set()
        await until(lambda: set(registry.shared.index.all_names()) == {"d"})
        assert registry.receivers() == {}
        assert log.starts[-1] is None


def test_a_glance_tells_what_a_full_check_would() -> None:
    seen = present(record_header(entry(sources=["a"], event_types=["b"], retry={"max_age": 60}, answer_deadline=5)))
    assert (seen.is_shared, seen.wait_s, seen.entry.sources) == (True, 65, ("a",))
    default = present(record_header(entry(lane="dedicated")))
    assert (default.is_shared, default.wait_s) == (False, 176_400)
    assert (
        record_header(b"?")
        is record_header(b"[]")
        is record_header(b'{"declared_by": "api", "entry": {"sources": 3}}')
        is None
    )


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        *[(b"", False), (b"${A}", False), (b"x${A}${B}", False), (b"${A}${C}", True), (b"${", True), (b"${A", True)],
        *[(b"${{ a.b }}", False), (b"${{ '${C}' }} ${A}", False), (b"${{ a }}${C}", True)],
    ],
)
def test_a_reference_to_what_is_not_there_is_seen(value: bytes, expected: bool) -> None:
    assert lacks(value, {b"A", b"B"}) == expected


# applied files


def _file(count: int, **fields: object) -> ReceiversFile:
    receivers = {f"f-{number}": {"post_endpoint": "https://ci.example/", "lane": "shared"} for number in range(count)}
    return parse_receivers_file(json.dumps({"receivers": {**receivers, **fields}}))


async def test_a_file_is_compared_with_what_the_registry_knows(log: _Log) -> None:
    former = EntryRecord("file", {"post_endpoint": "https://ci.example/", "lane": "shared", "timeout": 7}).encode()
    await log.say({"theirs": entry(), "f-0": former})
    async with following(log) as registry:
        first = await apply_file(log, _file(1_000), TOPICS, there=registry.topic())
        assert (len(first.added), first.changed, first.removed) == (999, ("f-0",), ())
        await _know_all(log, registry)
        assert not await apply_file(log, _file(1_000), TOPICS, there=registry.topic())
        own = {"post_endpoint": "https://ci.example/", "timeout": 3}
        diff = await apply_file(log, _file(999, own=own), TOPICS, there=registry.topic())
        assert diff == Diff(added=("own",), removed=("f-999",))
        await _know_all(log, registry)
        assert set(registry.topic().declared.by("file")) == {"own", *(f"f-{number}" for number in range(999))}
        assert set(registry.topic().declared) == {"own", "theirs", *(f"f-{number}" for number in range(999))}
        assert not await apply_file(log, _file(999, own=own), TOPICS)  # as read from the topic


async def _know_all(log: _Log, registry: Registry) -> None:
    [end] = (await log.ends([TopicPartition(CONFIG, 0)])).values()
    await registry.reach(end)


async def test_the_end_is_reached_also_where_nothing_is_left_before_it(log: _Log) -> None:
    """The last records may be compacted away, a tombstone with them."""
    await log.say({"a": entry()})
    async with following(log) as registry:
        async with asyncio.timeout(10):
            await registry.reach(1)
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(log, "scan", _nothing)
                await registry.reach(7)


async def _nothing(topic: str, partition: int, *, start: int, end: int) -> AsyncIterator[Sequence[Record]]:
    for _ in ():
        yield ()


async def test_what_is_applied_is_told_as_it_goes(log: _Log) -> None:
    told: list[int] = []
    await apply_file(log, _file(1_100), TOPICS, announced=told.append)
    assert told == [500, 1_000, 1_100]


async def test_our_own_source_has_to_be_named_and_each_owner_s_events_are_a_feed(log: _Log) -> None:
    many = {f"all-{number}": entry(sources=["*"], event_types=["*"]) for number in range(1_001)}
    ours: dict[str, Any] = {"sources": ["relay"], "event_types": ["receiver.*"]}
    watching = {
        "ops": entry(**ours),
        "own-ops": entry(lane="dedicated", **ours),
        "of-acme": entry(**ours, owner="acme"),
        "of-beta": entry(**ours, owner="beta"),
        "spy": entry(sources=[feed("acme")], event_types=["*"], owner="beta"),
        "ci": entry(owner="acme"),
    }
    await log.say(many | watching)
    async with following(log) as registry:
        assert hearers(registry, "receiver.gone", "ci") == ("of-acme", "ops", "own-ops")
        assert hearers(registry, "receiver.gone", "of-acme") == ("ops", "own-ops")
        assert hearers(registry, "message.failed", "ci") == ()
        await log.say({"of-acme": entry(**ours, owner="gamma")})
        await until(lambda: hearers(registry, "receiver.gone", "ci") == ("ops", "own-ops"))
