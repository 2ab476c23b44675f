"""Checks of the state: clock, server, recovery, served lanes, parked records and dead letters."""

import asyncio
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from relay.checks.context import Check, CheckContext, LaneTopic
from relay.clock import OFF_S, SharedClock
from relay.domain.coordinate import Coordinate
from relay.domain.diagnosis import Checked, error, fine, skipped, warning
from relay.domain.errors import StateRecovering, StateUnavailable, UserError
from relay.domain.sliced import sliced
from relay.domain.times import format_duration
from relay.log.port import TopicPartition
from relay.state.port import Counts, State
from relay.state.read_model import UNSERVED_S, FailedEntry, Served
from relay.state.rows import TAGS, RowKey, tag_of
from relay.telemetry.observer import is_many

_TODO: Final = "set the clocks of all machines by NTP: timedatectl set-ntp true"


@Check("clock", needs=("state",))
async def inspect_clock_of_state(case: CheckContext) -> list[Checked]:
    """This machine's clock, compared with that of Redis."""
    shared = SharedClock(case.clock, await case.state())
    await shared.measure()
    return [judge_clock(shared.ahead_s)]


def judge_clock(ahead_s: float) -> Checked:
    """`ahead_s`: how far this machine's clock is ahead of the state's."""
    way = "ahead of" if ahead_s > 0 else "behind"
    if abs(ahead_s) <= OFF_S:
        return fine("clock", f"{abs(ahead_s):.1f} s {way} that of Redis")
    what = f"this machine's clock is {abs(ahead_s):.0f} s {way} that of Redis: receivers may refuse signatures"
    return error("clock", what, _TODO)


@Check("clock", limit_s=12.0, needs=("log",))
async def inspect_clock_of_log(case: CheckContext) -> list[Checked]:
    """Kafka does not report its time; but its newest record was appended before now."""
    log, topic = await case.log(), case.topics.from_sender
    there = await log.describe([topic])
    if topic not in there or there[topic].sender_timed:
        return []
    partitions = [TopicPartition(topic, number) for number in range(there[topic].spec.partitions)]
    last = [Coordinate(*at, end - 1) for at, end in (await log.ends(partitions)).items() if end]
    records = await log.read([(at, None) for at in last])
    newest_ms = max((record.timestamp_ms for record in records if record is not None), default=0)
    return judge_newest(newest_ms / 1000 - case.clock.wall())


def judge_newest(ahead_s: float) -> list[Checked]:
    """`ahead_s`: how far our clock is ahead of the newest record's time; below 0 it proves nothing."""
    if ahead_s <= OFF_S:
        return []
    what = f"this machine's clock is {ahead_s:.0f} s or more behind that of Kafka, by the time of its newest record"
    return [error("clock", what, _TODO)]


LATELY_S: Final = 3_600.0
MOST_LETTERS: Final = 1_000
_LOOKED_AT: Final = 2_000
"""Receivers with dead letters, of any age, at most."""
_AT_ONCE: Final = 200
_RECEIVERS: Final = 50
"""Receivers with dead letters of the last hour that are counted, at most."""
_CONFIG: Final = re.compile(r"`((?:appendonly|maxmemory-policy) [^`]+)`")
_RUNNING_ALL: Final = "relay run"


@Check("state", per_receiver=True, if_away="start Redis, or correct RELAY_REDIS_URL")
async def inspect_state(case: CheckContext) -> list[Checked]:
    """Whether Redis answers, and its settings, rights and free memory."""
    state = await case.state()
    try:
        await state.start()  # it is open already; this checks what forbids a start
    except UserError as wrong:
        return [error("state", str(wrong), command_for(str(wrong)))]
    if (refusal := await _refusal_of_writes(state)) is not None:
        return [error("state", refusal, command_for(refusal))]
    found = [warning("state", problem, command_for(problem)) for problem in await state.problems()]
    return [fine("state", await state.about()), *found]


def command_for(problem: str) -> str | None:
    """The command that fixes it, if there is one."""
    if (setting := _CONFIG.search(problem)) is not None:
        return f"redis-cli CONFIG SET {setting[1]}, and the same in redis.conf"
    if "reached maxmemory" in problem:
        return "raise maxmemory, or free memory: see RELAY_DEDUP_WINDOW"
    return "relay rights" if "relay rights" in problem else None


async def _refusal_of_writes(state: State) -> str | None:
    """Why the server refuses writes although it answers; None if it takes them."""
    try:
        await state.lease("doctor", "doctor", 1.0)
    except StateUnavailable as refusal:
        return str(refusal)
    return None


# --- recovery -----------------------------------------------------------------------------------------------------


@Check("recovery", needs=("state",))
async def inspect_recovery(case: CheckContext) -> list[Checked]:
    """Whether the state is complete."""
    state = await case.state()
    replies = await state.peek([RowKey(f"r:{name}", b"doctor" * 2) for name in _name_of_each_tag()])
    away = [reply for reply in replies if isinstance(reply, StateUnavailable)]
    if away:
        raise away[0]
    return [judge_recovery(sum(isinstance(reply, StateRecovering) for reply in replies))]


def judge_recovery(lacking: int) -> Checked:
    if not lacking:
        return fine("recovery", "the state is complete")
    what = f"the state is incomplete for {lacking} of {TAGS} hash tags: it was lost, or never existed"
    return warning("recovery", what, f"a running relay restores it from the log; if none runs: {_RUNNING_ALL}")


def _name_of_each_tag() -> list[str]:
    """A receiver's name for each hash tag, existing or not."""
    found: dict[int, str] = {}
    number = 0
    while len(found) < TAGS:
        found.setdefault(tag_of(f"r:{number}"), str(number))
        number += 1
    return list(found.values())


# --- served lanes ----------------------------------------------------------------------------------------


class Unserved(NamedTuple):
    """A topic with so many partitions that no process serves. `ago_s`: since one of them was last served; None:
    never. `unread`: records in them."""

    lane: LaneTopic
    partitions: int
    ago_s: float | None
    unread: int


@Check("lanes", per_receiver=True, limit_s=15.0, needs=("log", "state"))
async def inspect_lanes(case: CheckContext) -> list[Checked]:
    """For each partition that has to be read, when a process last reported that it serves it. While the log is
    unavailable no process serves any, and without writes none can report it."""
    state, known = await case.state(), await case.known()
    if await _refusal_of_writes(state) is not None:
        return [skipped("lanes", "the state refuses writes, so no process can report what it serves")]
    lanes = case.lanes(known)
    if not lanes:
        return [skipped("lanes", "there is no receiver to check")]
    places = [TopicPartition(lane.topic, number) for lane in lanes for number in range(lane.partitions)]
    signs = dict(zip(places, await state.heartbeats(places), strict=True))
    unread: dict[TopicPartition, int] = {}
    if left := [lane for lane in lanes if _left(lane, signs)]:
        log = await case.log()
        backlogs = await log.backlogs({lane.topic: case.topics.group(lane.role) for lane in left})
        unread = {each.partition: each.unread for each in backlogs}
    return judge_lanes(lanes, signs, unread, embedded=case.embedded)


def judge_lanes(
    lanes: Sequence[LaneTopic],
    signs: Mapping[TopicPartition, Served | None],
    unread: Mapping[TopicPartition, int],
    *,
    embedded: bool = False,
) -> list[Checked]:
    """A line for each topic with partitions that no process serves; one for all if no partition is served."""
    found = [unserved for lane in lanes if (unserved := _unserved(lane, signs, unread)) is not None]
    if not found:
        return [fine("lanes", f"all {len(signs):,} partitions of {len(lanes):,} topics are served")]
    if sum(each.partitions for each in found) == len(signs) and len(lanes) > 2:
        return [_of_all(found, embedded=embedded)]
    return [_of_topic(each, embedded=embedded) for each in found]


def _left(lane: LaneTopic, signs: Mapping[TopicPartition, Served | None]) -> list[TopicPartition]:
    """The partitions that no process serves."""
    places = [TopicPartition(lane.topic, number) for number in range(lane.partitions)]
    return [place for place in places if (sign := signs[place]) is None or sign.ago_s > UNSERVED_S]


def _unserved(
    lane: LaneTopic, signs: Mapping[TopicPartition, Served | None], unread: Mapping[TopicPartition, int]
) -> Unserved | None:
    left = _left(lane, signs)
    if not left:
        return None
    ages = [sign.ago_s for place in left if (sign := signs[place]) is not None]
    return Unserved(lane, len(left), min(ages, default=None), sum(unread.get(place, 0) for place in left))


def _of_topic(unserved: Unserved, *, embedded: bool) -> Checked:
    lane = unserved.lane
    since = "ever" if unserved.ago_s is None else f"for {format_duration(round(unserved.ago_s))}"
    count = f"{unserved.partitions} of {lane.partitions}"
    what = f"no process has served {count} partitions {since}; unread in them: {unserved.unread}"
    severity = warning if unserved.unread == 0 else error
    only = "" if lane.receiver is None else f" --receiver {lane.receiver}"
    todo = "restart relay dev" if embedded else f"relay worker {lane.role}{only}"
    return severity("lanes", what, todo, lane.topic)


def _of_all(found: Sequence[Unserved], *, embedded: bool) -> Checked:
    ages = [each.ago_s for each in found if each.ago_s is not None]
    since = f", for {format_duration(round(min(ages)))}" if ages else ", and none ever has"
    unread = sum(each.unread for each in found)
    what = (
        f"no process serves any of {sum(each.partitions for each in found)} partitions{since}: no relay runs"
        f"; unread in them: {unread}"
    )
    return error("lanes", what, "relay dev" if embedded else _RUNNING_ALL)


# --- parked records and dead letters --------------------------------------------------------------------------


@Check("parked", per_receiver=True, limit_s=15.0, needs=("state",))
async def inspect_parked(case: CheckContext) -> list[Checked]:
    """The records that wait for their next attempt, compared with the limits."""
    state, known, settings = await case.state(), await case.known(), case.settings
    names = list(known.receivers)
    counts = dict(zip(names, await state.parked([f"r:{name}" for name in names]), strict=True))
    counted = {name: each for name, each in counts.items() if isinstance(each, Counts)}
    found = [*judge_parked_of(counted, settings.parked_per_receiver)]
    if case.receiver is None:
        found = [judge_parked(await state.parked_total(), settings.parked_total), *found]
    return found or [fine("parked", f"{sum(map(sum, counted.values())):,} records wait for their next attempt")]


def judge_parked(total: Counts, cap: int) -> Checked:
    count = sum(total)
    text = f"{count:,} of {cap:,} records that may be parked in all"
    todo = "relay receivers list --state offline; or raise RELAY_PARKED_TOTAL"
    if count >= cap:
        return error("parked", f"{text}: records that would be parked are not read", todo)
    return warning("parked", text, todo) if is_many(count, cap) else fine("parked", text)


def judge_parked_of(counts: Mapping[str, Counts], cap: int) -> list[Checked]:
    """Receivers with many."""
    found = []
    for name, count in counts.items():
        if is_many(sum(count), cap):
            text = f"{sum(count):,} of {cap:,} records that may be parked for one receiver"
            severity = error if sum(count) >= cap else warning
            todo = f"relay receivers health {name}; or raise RELAY_PARKED_PER_RECEIVER"
            found.append(severity("parked", text, todo, name))
    return found


@Check("dead-letters", per_receiver=True, needs=("state",))
async def inspect_letters(case: CheckContext) -> list[Checked]:
    """The dead letters of the last hour."""
    state, since = await case.state(), case.clock.time() - LATELY_S
    names = [case.receiver] if case.receiver is not None else await state.failed_receivers()
    recent = list[str]()
    for some in sliced(names[:_LOOKED_AT], _AT_ONCE):
        newest = await asyncio.gather(*(state.failed(name, limit=1) for name in some))
        recent += [name for name, found in zip(some, newest, strict=True) if found and found[0].failed_at >= since]
    lately: dict[str, list[FailedEntry]] = {}
    for name in recent[:_RECEIVERS]:
        letters = await state.failed(name, limit=MOST_LETTERS)
        lately[name] = [each for each in letters if each.failed_at >= since]
    return judge_letters(lately)


def judge_letters(found: Mapping[str, Sequence[FailedEntry]]) -> list[Checked]:
    """`found`: by receiver, dead letters of the last hour."""
    if not found:
        return [fine("dead-letters", "none within the last hour")]
    judged = []
    for name, letters in found.items():
        reasons = Counter(each.reason for each in letters).most_common()
        many = " or more" if len(letters) >= MOST_LETTERS else ""
        listed = ", ".join(f"{count} {reason}" for reason, count in reasons)
        todo = f"relay failed list --receiver {name}"
        judged.append(warning("dead-letters", f"{len(letters)}{many} within the last hour: {listed}", todo, name))
    return judged
