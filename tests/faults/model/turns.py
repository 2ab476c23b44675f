"""The owner of a lane: gives the core its turns, and carries out its commands, one call of a port at a time.

Stands for the pump. A reply is handled at once, because handling it late is no different from a next call that is late;
only the verdict of a begin is not, as time may pass before its POST. Some commands are carried out whole and at once:
reservations and works that run alone, as they only decide which records are suspects, and looks at an empty due index.
"""

from collections.abc import Coroutine
from functools import partial
from typing import Any, TypeVar

from relay.domain.errors import PartitionLost
from relay.domain.exchange import Exchange, Response
from relay.engine import attempt, core
from relay.engine.commands import STILL_COUNT, CallQueue, Command
from relay.engine.decision import Call
from relay.engine.policy import Bounds
from relay.engine.work import Work
from tests.faults.model.here import CALLS, REQUESTS, Died, NextCall, effects, finished
from tests.faults.model.world import Asked, Owner, Posted, UnderWay, World

T = TypeVar("T")

_TURNS = 100
"""More than any world needs: a lane that still has turns then never ends."""

YES = Response(200, {"content-type": "application/json"}, b"{}")
NEVER_SEEN = Response(404, {}, b"")


def turn(world: World, owner: Owner) -> None:
    """As long as there is something that can be done at once."""
    lane = owner.core
    for _ in range(_TURNS):
        core.take_turn(lane, world.now)
        ran = False
        while lane.to_run and not attempt.holds_back(lane):
            ran, work = True, lane.to_run.popleft()
            found = attempt.run_step(lane, work, world.now)
            if isinstance(found, Call):
                _ask(world, owner, work, found)
            else:
                core.decided(lane, work, found, world.now)
        commands = lane.calls.commands()
        whole = [command for command in commands if _is_at_once(world, command)]
        owner.under_way += [UnderWay(command) for command in commands if command not in whole]
        for command in whole:
            _carry_out_whole(world, owner, command)
        if lane.fenced_at is not None and not lane.left:
            core.stop(lane)
            leave(owner)
        if not (lane.has_more or ran or whole):
            return
    raise AssertionError("a lane that finds no end")


def leave(owner: Owner) -> None:
    """Its outcomes are still stored; its other calls in flight are not waited for."""
    core.leave(owner.core)
    owner.under_way = [each for each in owner.under_way if each.command.ask in STILL_COUNT]


def _is_at_once(world: World, command: Command) -> bool:
    if command.ask is CallQueue.TAKE_DUE:
        return not world.state.has_parked
    return command.ask in (CallQueue.RESERVE, CallQueue.ALONE)


def _carry_out_whole(world: World, owner: Owner, command: Command) -> None:
    lane = owner.core
    try:
        if command.ask is CallQueue.ALONE:
            reply = at_once(effects().run_alone(lane, command.items[0], partial(_ask, world, owner)))
        else:
            reply = at_once(_carried_out(owner, command))
    except PartitionLost:
        core.lost(lane, command, world.now)
    else:
        core.carried_out(lane, command, reply, world.now)


def at_once(call: Coroutine[Any, Any, T]) -> T:
    """All its calls, one after the other."""
    CALLS.begin([])
    return finished(call)


async def _carried_out(owner: Owner, command: Command) -> Any:
    return await effects().execute[command.ask](owner.core, command.items)


def carry_on(world: World, owner: Owner, number: int, *, times: int = 1, part: int | None = None) -> None:
    """Make the next call of a command in flight, with its immediate consequences. `times`, `part`: see `CALLS`."""
    each, lane = owner.under_way[number], owner.core
    CALLS.begin(each.known, 1, times, part)
    try:
        reply = finished(_carried_out(owner, each.command))
    except NextCall:
        return
    except Died:
        return
    except PartitionLost:
        del owner.under_way[number]
        core.lost(lane, each.command, world.now)
    else:
        del owner.under_way[number]
        if each.command.ask is CallQueue.BEGIN:
            owner.verdicts.append((each.command, reply))
            return
        core.carried_out(lane, each.command, reply, world.now)
    turn(world, owner)


def hear(world: World, owner: Owner, number: int) -> None:
    """Take up what a begin was answered."""
    command, reply = owner.verdicts.pop(number)
    core.carried_out(owner.core, command, reply, world.now)
    turn(world, owner)


def told(world: World, posted: Posted, outcome: Exchange) -> None:
    """The work that waits for this answer continues."""
    owner, asked = posted.by, posted.asked
    if owner is None or asked is None:
        return
    owner.asked.remove(asked)
    core.replied(owner.core, asked.work, asked.call, outcome, world.now)
    turn(world, owner)


def _ask(world: World, owner: Owner, work: Work, call: Call[Any]) -> None:
    """A GET is answered at once: who asks late has heard the verdict late. A POST is on its way from now on."""
    call.start(_nobody)
    request = REQUESTS.put.pop()
    if request.method == "GET":
        number = int(request.url.rsplit("-", 1)[1])
        core.replied(owner.core, work, call, YES if world.seen[number] else NEVER_SEEN, world.now)
        return
    headers = dict(request.headers)
    to_sender = "relay-message-id" in headers
    number = int(headers["relay-message-id" if to_sender else "ce-id"].rsplit("-", 1)[1])
    if not to_sender:
        world.posts(number)
    asked = Asked(work, call)
    owner.asked.append(asked)
    until = work.start_by - Bounds().start_within_s + (work.rules.limits.settle_s if work.rules is not None else 0.0)
    world.wire.append(Posted(number, until, to_sender, owner, asked))


def _nobody(_reply: object) -> None:
    return
