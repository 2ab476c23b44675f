"""Checks of the clocks: this machine's, compared with those of Redis and Kafka."""

from typing import Final

from relay.checks.context import CheckContext
from relay.checks.registry import Check
from relay.clock.shared import OFF_S, SharedClock
from relay.domain.coordinate import Coordinate
from relay.domain.diagnosis import Checked, error, fine
from relay.log.port import TopicPartition

_TODO: Final = "set the clocks of all machines by NTP: timedatectl set-ntp true"


@Check("clock", needs=("state",))
async def look_at_clock_of_state(case: CheckContext) -> list[Checked]:
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
async def look_at_clock_of_log(case: CheckContext) -> list[Checked]:
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
