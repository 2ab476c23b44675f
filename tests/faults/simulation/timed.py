"""Invariants of messages with times and keys of their own. Each check yields violations.

None is sent before it is due, and no attempt begins after its deadline. Of unsent messages with the same key, an older
one may end as replaced by a newer one, which it names; the newest never does.
"""

from collections import defaultdict
from collections.abc import Container, Iterator

from msgspec import structs

from relay.domain.dead_letter import identity_of, parse_dead_letter
from relay.domain.message import Message
from relay.domain.reasons import CANCELLED, DISCARDED, REPLACED, replaced_by
from relay.domain.receiver import Receiver
from relay.domain.timing import Timing
from relay.log.port import Record
from tests.fakes.world import World
from tests.faults.simulation.outside import Wire
from tests.faults.simulation.story import Delivery, Story, value_at

LATE_S = 16.0
"""An attempt may wait for its slot of a rate, and the machine may stand still right before its POST."""
_EXPIRED = "expired"
NO_ROOM = "backlog_full"
EARLY = frozenset({NO_ROOM, REPLACED, _EXPIRED, CANCELLED, DISCARDED, "rejected"})


def wrong_times(wire: Wire, story: Story) -> Iterator[str]:
    firsts = story.firsts
    for at, path, message in wire.begun:
        one = firsts.get(message)
        timing = None if one is None else one.timing
        if timing is None:
            continue
        if at < timing.deliver_at:
            yield f"time: {message} was sent to {path} {timing.deliver_at - at:g} s before it was due"
        if timing.deadline and at > timing.deadline + LATE_S:
            yield f"time: {message} was sent to {path} {at - timing.deadline:g} s after its deadline"


def wrong_letters(world: World, wire: Wire, story: Story) -> Iterator[str]:
    """Of the dead letters of what was replaced or has expired."""
    firsts, arrived = story.firsts, _arrived(wire)
    for (message, receiver), letter in _letters(world):
        one, dead, known = firsts[message], parse_dead_letter(letter.headers), world.known.receivers()[receiver]
        timing = one.timing or Timing()
        if dead.reason == _EXPIRED:
            if not timing.deadline:
                yield f"time: {message} for {receiver} has expired, and has no deadline"
            elif not (dead.attempts or known.coalesce or story.brokers_turned) and dead.first_failed_ms < int(
                timing.deadline * 1000
            ):  # one that was tried, or waits for newer ones, is given up as soon as its next attempt would be too late
                yield f"time: {message} for {receiver} has expired before its deadline"
            continue
        newer = replaced_by(dead.reason, dead.detail)
        if not _is_newer(firsts.get(newer or ""), one, known, resent=bool(story.losses)):
            yield f"key: {message} for {receiver} was replaced by {newer}, which is no newer one of its key"
        if (message, receiver) in arrived and not story.losses:
            yield f"key: {message} was sent to {receiver}, and replaced by {newer}"


def wrong_windows(wire: Wire, story: Story) -> Iterator[str]:
    """Where nothing was in the way: of those that were sent together, and had to wait together, one arrived at most."""
    if story.faults or story.interrupted:
        return
    arrived = _arrived(wire)
    for together in story.together:
        by_receiver: dict[str, list[str]] = defaultdict(list)
        for message in together:
            for receiver in story.firsts[message].receivers or ():
                if (message, receiver) in arrived:
                    by_receiver[receiver].append(message)
        for receiver, messages in by_receiver.items():
            if len(messages) > 1:
                yield f"key: {messages} of one key were all sent to {receiver}"


def ended_early(world: World) -> set[Delivery]:
    """What was replaced, has expired, or was withdrawn or refused: so it depends on the moment how it ends."""
    return {delivery for delivery, _ in _letters(world, EARLY)}


def untimed(one: Message) -> Message:
    """The message as it ends if nothing is in its way."""
    return one if one.timing is None else structs.replace(one, timing=Timing(one.timing.deliver_at))


def _is_newer(newer: Message | None, older: Message, receiver: Receiver, *, resent: bool) -> bool:
    """`resent`: an id that was sent again may count as newer than it is."""
    if newer is None or receiver.name not in (newer.receivers or ()) or newer.source_id != older.source_id:
        return False
    key = _key(older, receiver)
    return key is not None and key == _key(newer, receiver) and (resent or _number(newer) > _number(older))


def _key(one: Message, receiver: Receiver) -> tuple[str, bool | str] | None:
    """Its own key, or else the value that its receiver coalesces by."""
    timing, coalesce = one.timing or Timing(), receiver.coalesce
    if timing.key:
        return timing.key, bool(timing.window)
    value = None if coalesce is None else value_at(one.payload, coalesce.key)
    return None if value is None else (value, "of the payload")


def _number(one: Message) -> int:
    return int(one.message_id.rpartition("-")[2])


def _arrived(wire: Wire) -> set[Delivery]:
    """In their first lives."""
    return {
        (headers["ce-id"], path.removeprefix("/"))
        for path, headers, _ in wire.deliveries()
        if headers["relay-generation"] == "0"
    }


def _letters(world: World, reasons: Container[str] = (REPLACED, _EXPIRED)) -> Iterator[tuple[Delivery, Record]]:
    for letter in world.broker.written(world.topics.failed_messages):
        if parse_dead_letter(letter.headers).reason in reasons:
            receiver, _, message = identity_of(letter.value, letter.headers)
            yield (message or "", receiver or ""), letter
