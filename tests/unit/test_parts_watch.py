"""What /readyz says of the log and the state: also of one that is silent, before its client gives up."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import nullcontext

import pytest

from relay.domain.errors import LogUnavailable, SettingsHidden, StateRecovering
from relay.domain.topics import Topics, TopicSpec
from relay.log.port import TopicState
from relay.watch.readiness import SILENT_S, inspect_log, watch_part
from tests.fakes.log import MemoryBroker, MemoryLog
from tests.fakes.virtual_time import LoopClock, run_virtually

Trouble = dict[str, str | None]


async def _watched(look: Callable[[], Awaitable[object]], until_s: float) -> list[str | None]:
    """What was wrong with the log at each second."""
    trouble: Trouble = {}
    watching = asyncio.ensure_future(watch_part(trouble.__setitem__, LoopClock(), "log", 5.0, look))
    said = []
    for _ in range(round(until_s)):
        await asyncio.sleep(1)
        said.append(trouble.get("log"))
    watching.cancel()
    return said


def test_a_log_that_hangs_is_said_to_be_silent_until_it_answers() -> None:
    async def look() -> None:
        await asyncio.sleep(SILENT_S + 4)

    said = run_virtually(_watched(look, 10))
    assert said[1] is None
    assert said[3] == "it has not answered for 3 s"
    assert said[5] == "it has not answered for 3 s"
    assert said[8] is None


def test_a_log_that_is_away_says_why() -> None:
    async def look() -> None:
        raise LogUnavailable("no broker")

    assert run_virtually(_watched(look, 2))[1] == "no broker"


def test_a_state_that_recovers_is_not_counted_by_the_tags_that_were_asked_for() -> None:
    async def look() -> None:
        raise StateRecovering(frozenset({3}))

    said = run_virtually(_watched(look, 2))[1]
    assert said == "state is recovering: the relay restores it from the log first"


async def test_a_log_without_the_topic_of_new_messages_is_not_ready() -> None:
    log, topics = MemoryLog(MemoryBroker()), Topics("")
    await log.start()
    with pytest.raises(LogUnavailable, match="no topic from_sender; `relay topics apply` creates it"):
        await inspect_log(log, topics.from_sender)
    await log.create(topics.fixed(), topics.groups([]))
    await inspect_log(log, topics.from_sender)


@pytest.mark.parametrize(
    ("in_sync", "min_insync", "replication", "takes"),
    [((1,), 2, 3, False), ((1, 2), 2, 3, True), ((1,), 2, 1, True), ((), 2, 3, True), ((), None, None, True)],
)
async def test_a_log_whose_brokers_are_missing_is_not_ready(
    in_sync: tuple[int, ...],
    min_insync: int | None,
    replication: int | None,
    takes: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """While some partitions take records, it is: no process would serve those otherwise."""
    log, topics = MemoryLog(MemoryBroker()), Topics("")
    spec = TopicSpec(topics.from_sender, len(in_sync) or 1)
    state = TopicState(spec, replication, min_insync, 1, in_sync=in_sync)

    async def describe(names: Sequence[str]) -> dict[str, TopicState]:
        return dict.fromkeys(names, state)

    monkeypatch.setattr(log, "describe", describe)
    with nullcontext() if takes else pytest.raises(LogUnavailable, match="takes no records"):
        await inspect_log(log, topics.from_sender)


async def test_a_process_that_may_not_see_the_settings_of_topics_is_ready_while_the_log_answers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It delivers and accepts all the same; only a process that starts needs them."""
    log, topics = MemoryLog(broker := MemoryBroker()), Topics("")
    await log.start()
    await log.create(topics.fixed(), topics.groups([]))

    async def describe(_: Sequence[str]) -> dict[str, TopicState]:
        raise SettingsHidden("this user lacks the right on from_sender")

    monkeypatch.setattr(log, "describe", describe)
    await inspect_log(log, topics.from_sender)
    broker.available = False
    with pytest.raises(LogUnavailable):
        await inspect_log(log, topics.from_sender)
