"""Checks messages that have times and keys of their own. Pure."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from relay.domain.reasons import REPLACED
from relay.domain.timing import Timing
from tests.faults.harness.history import Counterexample, History, Key, Sent

EARLY_S: Final = 0.25
"""Maximum difference between the relay's clock, which it shares with Redis, and the receivers'."""
LATE_S: Final = 30.0
"""Delay of an attempt that waits for its slot of a rate limit, or whose process is stopped right before the POST."""
_FORGETS: Final = re.compile("redis|flushall|replica", re.IGNORECASE)


def timing_of(sent: Sequence[Sent]) -> Timing:
    return sent[0].timing or Timing() if sent else Timing()


def has_own_time(sent: Sequence[Sent]) -> bool:
    """Whether it has left the order of its source."""
    timing = timing_of(sent)
    return bool(timing.deliver_at or timing.window)


def may_die_of(sent: Sequence[Sent]) -> frozenset[str]:
    """The reasons that the message itself allows, whatever its receiver."""
    timing = timing_of(sent)
    return frozenset([*([REPLACED] if timing.key else []), *(["expired"] if timing.deadline else [])])


def untimely(history: History, sent: Mapping[Key, Sequence[Sent]]) -> Iterator[Counterexample]:
    """Arrivals before the message was due, or long after its deadline. Replays have neither."""
    for arrival in history.arrivals:
        timing, key = timing_of(sent.get(arrival.key, ())), arrival.key
        if arrival.generation == 0 and arrival.at < timing.deliver_at - EARLY_S:
            yield Counterexample("untimely", (key,), f"{key}: {timing.deliver_at - arrival.at:.2f} s before it was due")
        if arrival.generation == 0 and timing.deadline and arrival.at > timing.deadline + LATE_S:
            yield Counterexample("untimely", (key,), f"{key}: {arrival.at - timing.deadline:.0f} s after its deadline")


def wrongly_replaced(history: History, sent: Mapping[Key, Sequence[Sent]]) -> Iterator[Counterexample]:
    """Messages that were replaced by one that is not a newer one of their key, or after they were sent, unless Redis
    had lost that."""
    forgets = any(_FORGETS.search(fault.what) for fault in history.faults)
    sent_once = {each.key for each in history.arrivals if each.generation == 0 and each.processed}
    for died in history.died:
        if died.reason != REPLACED:
            continue
        key, newer = died.key, Key(died.source, died.replaced_by, died.receiver)
        if not _is_newer(sent.get(newer, ()), sent.get(key, ())):
            yield Counterexample("misreplaced", (key, newer), f"{key}: replaced by {newer}, which is not newer")
        elif key in sent_once and not forgets:
            yield Counterexample("misreplaced", (key, newer), f"{key}: was sent, and replaced by {died.replaced_by}")


def _is_newer(newer: Sequence[Sent], older: Sequence[Sent]) -> bool:
    one, other = timing_of(newer), timing_of(older)
    same = one.key == other.key != "" and bool(one.window) == bool(other.window)
    return bool(newer and older) and same and newer[0].number > older[0].number
