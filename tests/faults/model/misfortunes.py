"""What may befall the world of the model: the wire, and the faults, as far as there are any left."""

from collections.abc import Iterator
from typing import Final, NamedTuple

from tests.faults.model.steps import orphaned, uncommitted
from tests.faults.model.world import (
    LOG_OF,
    MESSAGES,
    NOBODY,
    NOTHING,
    SENDING_OWNER,
    SENDING_ZOMBIE,
    Rules,
    Work,
    World,
    changed,
)

WAITS: Final = {SENDING_OWNER: "to_receiver", SENDING_ZOMBIE: "zombie"}


class Event(NamedTuple):
    """`progress`: it comes by itself in the end; a fault need not."""

    what: str
    after: World
    progress: bool


def events(w: World, rules: Rules) -> Iterator[Event]:
    """Everything that can happen now without any worker's doing."""
    for m in MESSAGES:
        for who in dict.fromkeys(w.wire[m]):
            yield from _on_the_wire(w, m, who)
    left = w.faults
    if left.crashes:
        spent = w._replace(faults=left._replace(crashes=left.crashes - 1))
        yield from (Event(f"crash of {name}", after, False) for name, after in _crashes(w, spent, rules))
    if left.flushes and (w.messages, w.deliveries, w.callbacks) != ((NOTHING,) * len(MESSAGES),) * 3:
        yield Event("flush", _flushed(w._replace(faults=left._replace(flushes=left.flushes - 1)), rules), False)
    if left.resends:
        spent = w._replace(faults=left._replace(resends=left.resends - 1))
        yield from (Event(f"{m} is sent again", spent._replace(sent=(*w.sent, m)), False) for m in MESSAGES)
    if left.zombies and w.hops and not w.zombie:
        spent = w._replace(faults=left._replace(zombies=left.zombies - 1))
        yield from (
            Event("zombie", _deposed(spent, rest, rules), False) for rest in uncommitted(w, "to_receiver", rules)
        )


def _on_the_wire(w: World, m: int, who: str) -> Iterator[Event]:
    """A POST arrives and is answered; or the answer is lost; or the POST is; or whoever waits gives up first."""
    left = w.faults
    gone = _off_the_wire(w, m, who)
    arrived = _arrived(gone, m)
    yield Event(f"{m} arrives", _told(arrived, m, who, "settle"), True)
    if left.lost and who != NOBODY:
        spent = left._replace(lost=left.lost - 1)
        yield Event(
            f"{m} arrives, its answer is lost", _told(arrived, m, who, "no answer")._replace(faults=spent), False
        )
        waiting = w._replace(wire=changed(w.wire, m, tuple(sorted((*gone.wire[m], NOBODY)))))
        yield Event(f"{m} takes too long", _told(waiting, m, who, "no answer")._replace(faults=spent), False)
    if left.dropped:
        spent = left._replace(dropped=left.dropped - 1)
        yield Event(f"{m} is dropped", _told(gone, m, who, "no answer")._replace(faults=spent), False)


def _off_the_wire(w: World, m: int, who: str) -> World:
    posts = list(w.wire[m])
    posts.remove(who)
    return w._replace(wire=changed(w.wire, m, tuple(posts)))


def _arrived(w: World, m: int) -> World:
    overtaken = any(w.seen[before] == 0 for before in range(m))
    return w._replace(seen=changed(w.seen, m, w.seen[m] + 1), disordered=w.disordered or overtaken)


def _told(w: World, m: int, who: str, then: str) -> World:
    """Whoever waits for this answer goes on."""
    if who == NOBODY:
        return w
    name = WAITS[who]
    return w.working(name, tuple(Work(m, then) if work == (m, "wait") else work for work in w.works(name)))


def _crashes(w: World, spent: World, rules: Rules) -> Iterator[tuple[str, World]]:
    """The worker's memory is gone; what it has not committed is read again."""
    for name in LOG_OF:
        if w.works(name):
            for rest in uncommitted(w, name, rules):
                after = spent.working(name, (), rest)
                yield name, orphaned(after, SENDING_OWNER) if name == "to_receiver" else after
    if w.zombie:
        yield "the zombie", orphaned(spent._replace(zombie=(), fenced=True), SENDING_ZOMBIE)


def _flushed(w: World, rules: Rules) -> World:
    """Redis has lost everything, knows it, and has recovered; meanwhile every call to it waited."""
    nothing = (NOTHING,) * len(MESSAGES)
    w = w._replace(
        messages=nothing,
        deliveries=nothing,
        callbacks=nothing,
        fenced=not w.zombie,
        in_doubt=True,
    )
    return w._replace(to_receiver=_asked_anew(w.to_receiver, rules), zombie=_asked_anew(w.zombie, rules))


def _deposed(w: World, rest: tuple[int, ...], rules: Rules) -> World:
    """The owner freezes until another one has its lane, and then goes on with all that it has read."""
    unread = tuple(Work(m, "read") for m in w.hops[len(w.to_receiver) :])
    works = (*(work for work in w.to_receiver if work.next != "done"), *unread)
    w = w._replace(to_receiver=(), hops=rest)
    return orphaned(w._replace(zombie=works, fenced=False), SENDING_OWNER, SENDING_ZOMBIE) if works else w


def _asked_anew(works: tuple[Work, ...], rules: Rules) -> tuple[Work, ...]:
    """What a receiver said about an attempt before the loss is no proof any more: a later one may be forgotten."""
    if not rules.keep("stale_proof"):
        return works
    return tuple(Work(m, "begin") if pc.startswith(("ask", "take over")) else Work(m, pc) for m, pc in works)
