"""Works that cannot go on now: they wait in memory, in their order, or they are parked, and return when they are due.
The policy decides which. Pure."""

from collections.abc import Callable, Sequence
from math import inf
from typing import Any, Final

from relay.engine.commands import CallQueue
from relay.engine.completion import over, resume
from relay.engine.decision import Later
from relay.engine.lane import RELIEVE_S, Lane
from relay.engine.parked_index import DueQuery, DueReply, NotParked, ParkResult
from relay.engine.phases import Event, Phase, advance
from relay.engine.policy import Fate
from relay.engine.quarantine import Arrived
from relay.engine.window_shares import WindowShares
from relay.engine.work import W, Work, row_of
from relay.log.port import AT_ONCE, size_of
from relay.state.attempts import Change
from relay.state.rows import Due

CLOSED_S: Final = 1.0
"""An endpoint that is closed for longer does not only keep its pace."""
EARLY_S: Final = 10.0
"""How long parked records of a former owner wait for the records before them."""
CONGESTED_S: Final = 1.0
"""A lane that is full for so long, or was until so long ago, does not recover by finishing its works."""
TURNED_OVER: Final = 8
"""Parked records of an endpoint that is down which make room for others at each look. Reading one costs more than
keeping it."""
TOKEN_BYTES: Final = 8

_LEFT: Final = (Event.WITHDRAWN, Event.LOOKED_BEHIND)
"""A work has left its order key, or its place behind parked ones."""

Go = Callable[[Lane[W], W, Event, float], None]
"""Takes a work out of the lane's order: it is parked, or waits behind parked ones."""


# --- in memory --------------------------------------------------------------------------------------------------


def add(lane: Lane[W], work: W, event: Event, now: float) -> None:
    """Wait in the lane's order, behind earlier works of its order key."""
    advance(work, event, Phase.WAITING)
    lane.order.add(work, now)


def again(lane: Lane[W], work: W, event: Event, due: float, now: float) -> None:
    """Begin again at `due`, as nothing was learned about the work. It keeps its turn."""
    if lane.left:
        return
    if work.batch is not None and work.queue in work.batch.parked:
        leave_line(lane, work, event, park, now)
    else:
        advance(work, event, Phase.WAITING)
        lane.order.hold(work, due, now)


def again_without_seat(lane: Lane[W], work: W, event: Event, due: float, now: float) -> None:
    """As `again`, and free its seat."""
    lane.seats.leave(work)
    again(lane, work, event, due, now)


def later(lane: Lane[W], work: W, event: Event, decision: Later, now: float) -> None:
    """The step returned Later and the row has it, or the work was not begun."""
    if lane.left:
        return
    work.due = now + decision.due_in_s
    work.steps_aside = patience_left_s(work, now) <= 0
    steps_aside = may_step_aside(work, now)
    if steps_aside:
        work.steps_aside, work.out_of_order = False, True
        lane.order.step_aside(work, now)
    if (
        decision.park
        or (steps_aside and lane.policy.parks)  # another owner knows it from the copy alone
        or is_to_be_parked(lane, work, decision.due_in_s)
        or (work.parked_at is not None and lane.policy.parks and decision.due_in_s > 0)
        or (work.batch is not None and work.queue in work.batch.parked)
    ):
        leave_line(lane, work, event, park, now)
    else:
        advance(work, event, Phase.WAITING)
        work.held_for = "in_doubt" if decision.change is Change.DOUBT else "retry"
        lane.order.hold(work, work.due, now)


def resume_in_time(lane: Lane[W], work: W, event: Event, now: float) -> None:
    """Its outcome is stored. A failure waits while an attempt may still arrive: otherwise that would come after the
    next of its order key."""
    if work.queue is None or work.due <= now:
        resume(lane, work, event, now)
        return
    work.held_for = "settling"
    if work.taken:
        again_without_seat(lane, work, event, work.due, now)
    else:
        add(lane, work, event, now)


def leave_line(lane: Lane[W], work: W, event: Event, go: Go[W], now: float) -> None:
    """A head that was in flight waits elsewhere; the works behind it in its order key follow it, in order."""
    if work.batch is not None and work.queue is not None:
        work.batch.parked.add(work.queue)
    followers = lane.order.withdraw_followers(work)
    go(lane, work, event, now)
    for each in followers:
        go(lane, each, Event.WITHDRAWN, now)


def follow(lane: Lane[W], now: float) -> None:
    """Works whose order key has left while others of its last batch were in flight."""
    for work in lane.order.withdraw_stranded():
        queue_up(lane, work, Event.WITHDRAWN, now)


def is_to_be_parked(lane: Lane[W], work: W, wait_s: float) -> bool:
    """One that was never tried waits for a reason of its own, also where its endpoint is down."""
    return lane.policy.waiting(wait_s, down=lane.health.down and work.attempts > 0) is Fate.PARK


def patience_left_s(work: Work, now: float) -> float:
    """How long a head may still block others of its order key; inf if it blocks none, or has not failed."""
    if work.queue is None or work.rules is None or work.failing_since is None:
        return inf
    return work.failing_since + work.rules.patience_s - now


def may_step_aside(work: Work, now: float) -> bool:
    return work.steps_aside and now >= work.may_arrive_until


# --- parked -----------------------------------------------------------------------------------------------------


def park(lane: Lane[W], work: W, event: Event, now: float) -> None:
    """`work` is neither in flight nor in the lane's order. Works of one order key are parked in order."""
    if work.parked_at is None and lane.parked_keys.has_behind(work.queue):
        wait_behind(lane, work, event, now)
    elif work.unseen or (event in _LEFT and work.parked_at is None and lane.parked_keys.looks_up_before(work)):
        # An unseen one may be finished, and would leave a copy that no process removes. The works behind it in its
        # order key are looked up, too, or they would be parked, and due, before it.
        work.unseen, work.leaves = False, True
        advance(work, event, Phase.READ)
        lane.parked_keys.look_up(work)
        lane.calls.put(CallQueue.LOOK_UP, work)
    else:
        advance(work, event, Phase.PARKING)
        lane.parked_keys.going(work)
        lane.calls.put(CallQueue.PARK, work)


def queue_up(lane: Lane[W], work: W, event: Event, now: float) -> None:
    """Wait behind parked records of its order key. One of these that was taken up, and so came behind it in the
    lane's order, is taken up again before it."""
    if work.parked_at is not None:
        _release(lane, (work,), now)
    elif lane.policy.behind_parked(down=lane.health.down) is Fate.PARK:
        park(lane, work, event, now)
    else:
        wait_behind(lane, work, event, now)


def wait_behind(lane: Lane[W], work: W, event: Event, now: float) -> None:
    advance(work, event, Phase.BEHIND)
    lane.parked_keys.wait_behind(work, now)


def note_parked(lane: Lane[W], works: Sequence[W], results: Sequence[ParkResult]) -> None:
    """The order keys of all works of a call, before any of them goes on."""
    for work, result in zip(works, results, strict=True):
        if not isinstance(result, NotParked):
            lane.parked_keys.known(work.queue, row_of(work).owner)
    for work in works:
        lane.parked_keys.gone(work)
    if lane.calls.in_flight(CallQueue.LOOK_UP):
        lane.parked_keys.meanwhile.update([work.queue for work in works if work.queue is not None])


def parked(lane: Lane[W], work: W, _result: ParkResult, now: float) -> None:
    # The next work of its order key is due if this one has stepped aside.
    lane.due_index.expect(row_of(work).owner, 0.0 if work.out_of_order else work.due)
    advance(work, Event.PARKED, Phase.OVER)
    over(lane, work, now)


# --- behind parked ones -----------------------------------------------------------------------------------------


def look_behind(lane: Lane[W], now: float) -> None:
    if now >= lane.parked_keys.next_check(blocked=lane.is_blocked) and CallQueue.LOOK_BEHIND not in lane.calls.busy:
        for work in lane.parked_keys.firsts(now).values():
            lane.calls.put(CallQueue.LOOK_BEHIND, work)


def forget_emptied(lane: Lane[W], works: Sequence[W], emptied: Sequence[bool]) -> None:
    """Forget order keys that have no parked records: then their works can go on even without room."""
    for work, nothing_parked in zip(works, emptied, strict=True):
        if nothing_parked and work.queue is not None:
            lane.parked_keys.emptied(work.queue)


def looked_behind(lane: Lane[W], work: W, blocked: bool, now: float) -> None:
    """`blocked`: the lane took in nothing when this was checked."""
    if not blocked:
        park(lane, work, Event.LOOKED_BEHIND, now)
    elif lane.parked_keys.blocks(work.queue):
        wait_behind(lane, work, Event.LOOKED_BEHIND, now)
    else:  # its endpoint is closed, but it may grow too old
        add(lane, work, Event.LOOKED_BEHIND, now)


# --- at the bound -----------------------------------------------------------------------------------------------


def relieve(lane: Lane[W], now: float, *, paused: bool) -> None:
    """At the bound: works that wait are parked, so that others can go on. `paused`: the whole process sends nothing, so
    that they had better stay in memory."""
    policy = lane.policy
    if not policy.parks or now - lane.relieved_at < RELIEVE_S or not lane.parked_keys.has_room(now):
        return
    lane.relieved_at = now
    if lane.is_blocked or paused:
        return
    if lane.full_since is None:
        lane.full_since = now
    congested = policy.isolates_endpoints and (now - lane.full_since >= CONGESTED_S or now < lane.congested_until)
    if congested:
        lane.congested_until = now + CONGESTED_S
    stuck = [work for work in lane.order.held() if work.due > now + CLOSED_S and work.result is None]
    if lane.order.shares is not None:
        stuck += _in_the_way(lane, lane.order.shares, now, congested=congested)
    parked = congested and lane.memory.full  # ones that were taken up are in no window, but in the memory
    for work in stuck:
        if parked or work.parked_at is None:
            _release(lane, lane.order.withdraw(work), now)
    if congested:
        enough = min(lane.bounds.window, lane.unfinished + 1) // 2 - lane.calls.waiting(CallQueue.PARK)
        _release(lane, lane.order.withdraw_longest(enough), now)


def _in_the_way(lane: Lane[W], shares: WindowShares, now: float, *, congested: bool) -> list[W]:
    """Works for endpoints that accept nothing now. The first ones for endpoints that only keep their pace stay in
    memory, in half of the window, or of its free part; before others those that were parked: these return in their
    own time, and such an endpoint would be idle until then."""
    works, size = (shares.free, shares.free_size) if congested else (lane.bounds.window, lane.memory.most)
    stuck = lane.order.stuck(now)
    paced = [work for work in stuck if not lane.order.is_closed(work.endpoint_id, now + CLOSED_S)]
    paced.sort(key=lambda work: work.parked_at is None)
    kept: set[int] = set()
    for work in paced[: max(0, works // 2)]:
        size -= 2 * size_of(work.record)
        if size < 0:
            break
        kept.add(id(work))
    return [work for work in stuck if id(work) not in kept]


# --- due records ------------------------------------------------------------------------------------------------


def take_due(lane: Lane[W], now: float) -> None:
    """Ask for parked records that are due."""
    if lane.due_index.full:
        _release_stuck(lane, now)
    asked = lane.due_index.next_query(lane.setup.random(TOKEN_BYTES), now)
    if asked is not None:
        lane.calls.put(CallQueue.TAKE_DUE, asked)


def wanted(lane: Lane[Any], taken: Sequence[Due], now: float) -> Sequence[Due]:
    """References that were taken, and whose copies are to be read. The others are left to their leases: works of an
    endpoint that is closed would only wait in memory, in the way of others of the lane. A few of these are read
    nevertheless, chosen by chance: they may be over, and their endpoint may be closed for days."""
    new = [due for due in taken if lane.due_index.is_new(due)]
    if not lane.policy.isolates_endpoints:
        return new
    closed = [due for due in new if lane.order.is_closed(due.row.owner, now + CLOSED_S)]
    if len(closed) <= AT_ONCE:
        return new
    first = int.from_bytes(lane.setup.random(TOKEN_BYTES), "big") % len(closed)
    left = {due.row for due in (closed[first:] + closed[:first])[AT_ONCE:]}
    return [due for due in new if due.row not in left]


def took_due(lane: Lane[Any], asked: DueQuery, took: DueReply, now: float) -> None:
    lane.due_index.looked(asked, took, now)
    for owner in took.promoted:
        lane.due_index.expect(owner, 0.0)
    for copy in took.copies:
        size = size_of(copy.record)
        lane.due_index.lease(copy.row.digest, size)
        lane.memory.take(size)
    lane.early += took.copies


def follow_records(lane: Lane[Any], now: float) -> None:
    """Parked records that were taken arrive behind the records before them. Those may be gone from the log, so they
    wait for a limited time."""
    read_to = lane.setup.start if lane.watermark.seen_next is None else lane.watermark.seen_next
    if now >= lane.opened_at + EARLY_S:
        read_to = inf
    copies, lane.early = lane.early, []
    for copy in copies:
        if copy.queue is None or copy.record.offset < read_to:
            lane.arrived.append(Arrived(copy.record, copy))
        else:
            lane.early.append(copy)


def _release_stuck(lane: Lane[W], now: float) -> None:
    """Parked records that can only wait here are left to their leases, as others are due, too. If the lane has one
    endpoint, and that is down, these are a few at a time: the others may be over, and it may be down for days."""
    if not (lane.policy.isolates_endpoints or lane.is_blocked):
        return
    stuck = [work for work in lane.order.stuck(now) if work.parked_at is not None]
    if lane.is_blocked:
        stuck = [work for work in stuck if not lane.order.lines.behind(work)][:TURNED_OVER]
    for work in stuck:
        _release(lane, lane.order.withdraw(work), now)


def _release(lane: Lane[W], works: Sequence[W], now: float) -> None:
    """Works that were withdrawn from the lane's order leave the memory: those that are not parked yet are parked."""
    for work in works:
        if work.parked_at is None:
            park(lane, work, Event.WITHDRAWN, now)
        else:
            advance(work, Event.WITHDRAWN, Phase.OVER)
            over(lane, work, now)
