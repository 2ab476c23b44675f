"""Everything that can happen in a world: what its owners do, what the wire does, and the faults that are left.

A commit is no event of its own: it can only be noticed by who begins where it ends. So a new owner begins anywhere
between what surely was committed and the watermark of the one before.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from math import inf
from typing import Any, Final, NamedTuple

from relay.domain.exchange import Exchange, NoResponse, Response
from relay.engine.core import offer, stop
from relay.engine.holding import Holding
from relay.recovery.recovery_pass import Recovery
from tests.faults.model.here import HERE, OBSERVER, PATIENCE, SETTINGS, TOPICS, Role, client, effects, finished
from tests.faults.model.turns import YES, at_once, carry_on, hear, leave, told, turn
from tests.faults.model.world import Owner, Posted, World, sent

FORMER: Final = "former"
HOUR_S: Final = 3_600.0
LOST: Final = NoResponse("disconnected", "the response was lost", sent=True)
REJECTED: Final = Response(422, {}, b"")
REFUSED: Final = NoResponse("refused", "nobody listens", sent=False)


class Event(NamedTuple):
    """`progress`: it happens eventually; a fault need not."""

    do: str
    of: tuple[Any, ...]
    progress: bool = True

    def __str__(self) -> str:
        return " ".join(map(str, (self.do, *self.of)))


def events(world: World) -> list[Event]:
    """All of them; none changes the world that it is asked of."""
    found = [event for role, owner in world.owners.items() for event in _of_owner(world, role, owner)]
    if not found and not any(posted.by for posted in world.wire):
        found += _time(world)
    found += [Event("arrives", (number,)) for number in range(len(world.wire))]
    if world.former is not None:
        found += _of_former(world, world.former)
    if world.faults.replays and world.letters:
        found.append(Event("is replayed", ()))
    return found + list(_faults(world))


def after(world: World, *what: str) -> World:
    """The world in which this has happened, one after the other: the first event of each kind."""
    for do in what:
        happen(world, next(event for event in events(world) if event.do == do))
    return world


# --- progress without a fault -----------------------------------------------------------------------------------------


def _of_owner(world: World, role: Role, owner: Owner) -> Iterator[Event]:
    core, rest = owner.core, world.end(role) - owner.read
    if core.stopping:
        for committed in _commits(world, role):
            yield Event("leaves", (role, committed))
    elif rest and not core.full:
        yield from (Event("reads", (role, count)) for count in sorted({1, rest}))
    yield from _calls(role, owner)


def _of_former(world: World, owner: Owner) -> Iterator[Event]:
    if (owner.core.order.next_due() or inf) <= world.now:
        yield Event("wakes", (FORMER,))
    yield from _calls(FORMER, owner)


def _calls(who: str, owner: Owner) -> Iterator[Event]:
    for number, each in enumerate(owner.under_way):
        yield Event("carries on", (who, number, each.command.ask.value))
    for number in range(len(owner.verdicts)):
        yield Event("hears the verdict", (who, number))


def _time(world: World) -> list[Event]:
    """Advance the clock to the next moment at which anything of ours happens. An owner with a call in flight is quick;
    that of a former owner may take any time. Requests on the wire arrive before the check whether they still can."""
    waiting = [o.core for o in world.owners.values() if o.core.unfinished or world.state.has_parked]
    if world.former is not None and not world.former.busy:
        waiting.append(world.former.core)
    looks = world.state.has_parked  # else they look at a due index that has nothing
    next_at = min((core.wake_at if looks else core.order.next_due() or inf for core in waiting), default=inf)
    if world.is_at_rest or any(next_at >= posted.until for posted in world.wire):
        return []
    return [Event("time passes", (next_at - world.now,))] if world.now < next_at < inf else []


# --- what need not --------------------------------------------------------------------------------------------


def _faults(world: World) -> Iterator[Event]:
    left = world.faults
    for number, posted in enumerate(world.wire):
        if left.lost and posted.by is not None:
            yield Event("arrives, its answer is lost", (number,), False)
            yield Event("takes too long", (number,), False)
        if left.dropped:
            yield Event("is dropped", (number,), False)
        if left.refused and posted.by is not None:
            yield Event("is refused", (number,), False)
        if left.rejected and posted.by is not None:
            yield Event("is rejected", (number,), False)
    if left.crashes:
        yield from _crashes(world)
    if left.clocks and world.state.has_rows:
        yield Event("the state's clock is set back", (), False)
    if left.flushes and world.state.has_rows:
        yield Event("flush", (), False)
    if left.resends:
        yield from (Event("is sent again", (number,), False) for number in world.messages)
    if left.repeats:
        yield from _repeats(world)
    owner = world.owners.get("to_receiver")
    if world.former is None and owner is not None and (owner.busy or owner.core.unfinished):
        if left.zombies:
            for committed in _commits(world, "to_receiver"):
                yield Event("freezes", ("to_receiver", committed), False)
        if left.moves and not owner.core.stopping:
            yield Event("is to give its lane up", ("to_receiver",), False)


def _commits(world: World, role: Role) -> range:
    """What may be committed of its lane by now."""
    watermark = world.owners[role].core.next_offset
    return range(world.committed[role], (world.committed[role] if watermark is None else watermark) + 1)


def _crashes(world: World) -> Iterator[Event]:
    for role, owner in world.owners.items():
        if owner.busy or owner.read > world.committed[role]:
            for committed in _commits(world, role):
                yield Event("crash", (role, committed), False)
                for number, each in enumerate(owner.under_way):
                    for part in range(1, len(each.command.items)):
                        yield Event("crash", (role, committed, number, part), False)
    if world.former is not None:
        yield Event("crash", (FORMER, 0), False)


def _repeats(world: World) -> Iterator[Event]:
    for role, owner in world.owners.items():
        for number, each in enumerate(owner.under_way):
            yield Event("makes a call twice", (role, number, each.command.ask.value), False)


# --- what then is -----------------------------------------------------------------------------------------------


def happen(world: World, event: Event) -> None:
    """Let it happen in this world, which is the one that is being looked at."""
    fault = _SPENT.get(event.do)
    if fault is not None:
        world.faults = world.faults._replace(**{fault: getattr(world.faults, fault) - 1})
    _HAPPENS[event.do](world, *event.of)
    former = world.former
    if former is not None and not former.busy and (former.core.stopping or not former.core.unfinished):
        world.former = None  # its existence makes no difference any more


def _owner(world: World, who: str) -> Owner:
    owner = world.former if who == FORMER else world.owners[who]  # type: ignore[index]
    if owner is None:
        raise AssertionError(f"there is no {who}")
    return owner


def _reads(world: World, role: Role, count: int) -> None:
    owner = world.owners[role]
    records = world.records(role)[owner.read : owner.read + count]
    owner.read += count
    offer(owner.core, records, world.now)
    turn(world, owner)


def _leaves(world: World, role: Role, committed: int) -> None:
    """Its requests in flight may still end, while there is a new owner."""
    owner = world.owners[role]
    at_once(effects().hand_back(owner.core))
    at_once(effects().leave(owner.core))
    leave(owner)
    _succeeded(world, role, committed)


def _freezes(world: World, role: Role, committed: int) -> None:
    _succeeded(world, role, committed)


def _succeeded(world: World, role: Role, committed: int) -> None:
    owner = world.owners[role]
    world.former, world.committed[role] = owner, committed
    turn(world, world.open(role, owner.core.setup.lane.epoch + 1))


def _given_up(world: World, role: Role) -> None:
    owner = world.owners[role]
    stop(owner.core)
    turn(world, owner)


def _crash(world: World, who: str, committed: int, number: int | None = None, part: int = 0) -> None:
    """Its memory is gone; what it has not committed is read again. What it has posted is on its way all the same."""
    owner = _owner(world, who)
    if number is not None:
        carry_on(world, owner, number, part=part)
    for posted in world.wire:
        if posted.by is owner:
            posted.by = posted.asked = None
    if who == FORMER:
        world.former = None
        return
    role = owner.role
    world.committed[role] = committed
    turn(world, world.open(role, owner.core.setup.lane.epoch + 1))


def _arrives(world: World, number: int, answer: Exchange = YES) -> None:
    posted = world.wire.pop(number)
    _arrived(world, posted)
    told(world, posted, answer)


def _arrived(world: World, posted: Posted) -> None:
    m = posted.message
    if posted.to_sender:
        world.back[m] = True
    else:
        world.arrived(m)


def _takes_too_long(world: World, number: int) -> None:
    """It will arrive when no owner waits for the answer any longer."""
    posted = world.wire[number]
    world.wire[number] = replace(posted, by=None, asked=None)
    told(world, posted, LOST)


def _vanishes(world: World, number: int, answer: Exchange) -> None:
    told(world, world.wire.pop(number), answer)


def _flush(world: World) -> None:
    """The state has lost everything, knows it, and has recovered; meanwhile every call to it waited."""
    state, log = world.state, client()
    state.lose()
    holding = Holding(log, state, TOPICS.receiver_config)
    doubt_s = SETTINGS.dedup_window
    recovery = Recovery(
        log, state, TOPICS.parked(), HERE, OBSERVER, PATIENCE, owner="model", in_doubt_s=doubt_s, holding=holding
    )
    finished(recovery._pass(finished(state.lost()), everything=False))
    for owner in world.owners.values():
        turn(world, owner)


def _set_back(world: World) -> None:
    world.state.advance(-HOUR_S)
    for owner in world.owners.values():
        turn(world, owner)


def _time_passes(world: World, seconds: float) -> None:
    world.now += seconds
    for owner in world.owners.values():
        turn(world, owner)


_HAPPENS: Final[Mapping[str, Callable[..., None]]] = {
    "reads": _reads,
    "carries on": lambda world, who, number, _: carry_on(world, _owner(world, who), number),
    "hears the verdict": lambda world, who, number: hear(world, _owner(world, who), number),
    "wakes": lambda world, who: turn(world, _owner(world, who)),
    "leaves": _leaves,
    "time passes": _time_passes,
    "arrives": _arrives,
    "arrives, its answer is lost": partial(_arrives, answer=LOST),
    "takes too long": _takes_too_long,
    "is dropped": partial(_vanishes, answer=LOST),
    "is refused": partial(_vanishes, answer=REFUSED),
    "is rejected": partial(_vanishes, answer=REJECTED),
    "is replayed": World.replay,
    "crash": _crash,
    "makes a call twice": lambda world, who, number, _: carry_on(world, _owner(world, who), number, times=2),
    "flush": _flush,
    "the state's clock is set back": _set_back,
    "is sent again": lambda world, message: world.append(sent(world.cast, (message,))),
    "is to give its lane up": _given_up,
    "freezes": _freezes,
}
_SPENT: Final = {
    "arrives, its answer is lost": "lost",
    "takes too long": "lost",
    "is dropped": "dropped",
    "is refused": "refused",
    "is rejected": "rejected",
    "is replayed": "replays",
    "crash": "crashes",
    "makes a call twice": "repeats",
    "flush": "flushes",
    "the state's clock is set back": "clocks",
    "is sent again": "resends",
    "is to give its lane up": "moves",
    "freezes": "zombies",
}
"""Which of the faults that are left it costs."""
