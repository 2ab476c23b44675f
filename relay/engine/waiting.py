"""Works that cannot go now: they wait in memory, in their order, or they are parked, and come back when they are due.
What becomes of each is the policy's decision. Pure."""

from collections.abc import Callable, Mapping, Sequence
from math import inf
from typing import Final

from relay.engine.commands import CallQueue
from relay.engine.ending import LaneExit
from relay.engine.parking import ROOM_S, Became, NotParked, Stored
from relay.engine.phases import Event, Phase, advance
from relay.engine.policy import Fate
from relay.engine.work import Dead, Later, Seen, W, Work, row_of
from relay.state.attempts import Change
from relay.state.rows import Due

NO_ROOM: Final = Dead("backlog_full", "as many of the receiver's messages wait for an answer, or for a retry, as may")
NO_ROOM_FOR_RESULT: Final = Dead(
    "callback_exhausted", "as many of the source's results wait for its callback as may, and others need the room"
)
STORED_S: Final = 1.0
"""How long whoever stored an outcome may take to publish it; if that takes longer, a second copy does no harm."""
CLOSED_S: Final = 1.0
"""An endpoint that is closed for longer than this is not only a matter of pace."""
RELIEVE_S: Final = 0.1
CONGESTED_S: Final = 1.0
"""A lane that is full for so long does not help itself by finishing what it has."""

_LEFT: Final = (Event.WITHDRAWN, Event.LOOKED_BEHIND)
"""A work has left its order key, or its place behind parked ones."""


Go = Callable[[W, Event, float], None]
"""Takes a work out of memory, or behind parked ones."""


class Waiting(LaneExit[W]):
    """Who waits where."""

    _relieved_at = -RELIEVE_S

    # in memory

    def _again(self, work: W, event: Event, due: float, now: float) -> None:
        """Begin again at `due`; nothing was learned about the work itself. It keeps its turn."""
        if not self.left:
            advance(work, event, Phase.WAITING)
            self._order.hold(work, due, now)

    def _later(self, work: W, event: Event, later: Later, now: float) -> None:
        """The step said Later, and its row knows; or it was not begun."""
        if self.left:
            return
        work.due = now + later.due_in_s
        if not work.out_of_order and patience_left_s(work, now) <= 0:
            work.out_of_order = True
            self._order.step_aside(work, now)
        if self._is_to_be_parked(later.due_in_s) or (work.parked_at is not None and self._policy.parks):
            self._leave_line(work, event, self._park, now)
        else:
            advance(work, event, Phase.WAITING)
            work.held_for = "in_doubt" if later.change is Change.DOUBT else "retry"
            self._order.hold(work, work.due, now)

    def _leave_line(self, work: W, event: Event, go: Go[W], now: float) -> None:
        """A head that was in flight waits elsewhere; what is behind it in its order key goes with it, in order."""
        followers = self._order.withdraw_followers(work)
        go(work, event, now)
        for each in followers:
            go(each, Event.WITHDRAWN, now)

    def _place(self, work: W, seen: Seen, event: Event, now: float) -> None:
        """It goes where it belongs by what is known of it: it was looked up, or its begin has found that out."""
        if seen is Seen.FINISHED:
            self._known(work, event, now)
        elif work.end is not None:
            self._publish(work, event, work.end, now)
        elif seen is Seen.RESUME and work.result is not None:
            self._resume(work, event, now)
        elif (go := self._way_off(work, seen, now)) is not None:
            if work.taken:
                self._leave_line(work, event, go, now)
            else:
                go(work, event, now)
        elif work.taken:
            self._again(work, event, work.due, now)
        else:
            self._add(work, event, now)

    def _way_off(self, work: W, seen: Seen, now: float) -> Go[W] | None:
        """Where it has to go that may not wait in the lane's order. A head that was in flight waits for nobody but
        those that are parked for sure: who else is on the way there is behind it."""
        if work.parked_at is not None:
            if work.taken or not self._keys.moves_before(work):
                return None
            work.due = max(work.due, now + ROOM_S)
            return self._park
        if seen is Seen.BEHIND:
            self._keys.known(work.queue, row_of(work).owner)
            return self._queue_up
        if not work.taken and self._keys.blocks(work.queue):
            return self._queue_up
        return self._park if self._is_to_be_parked(work.due - now) else None

    def _add(self, work: W, event: Event, now: float) -> None:
        advance(work, event, Phase.WAITING)
        self._order.add(work, now)

    def _is_to_be_parked(self, wait_s: float) -> bool:
        return self._policy.waiting(wait_s, down=self._standing.down) is Fate.PARK

    # parked

    def _park(self, work: W, event: Event, now: float) -> None:
        """It is neither in flight nor in the lane's order. Works of one key: in order."""
        if work.parked_at is None and self._keys.has_behind(work.queue):
            self._wait_behind(work, event, now)
        elif work.unseen or (event in _LEFT and work.parked_at is None and self._keys.looks_up_before(work)):
            # An unseen one may be finished, and would leave a copy that no process removes. What is behind it in its
            # order key takes the same way, or it would be parked, and due, before it.
            work.unseen = False
            advance(work, event, Phase.READ)
            self._keys.look_up(work)
            self._asks.put(CallQueue.LOOK_UP, work)
        else:
            advance(work, event, Phase.PARKING)
            self._keys.going(work)
            self._asks.put(CallQueue.PARK, work)

    def _queue_up(self, work: W, event: Event, now: float) -> None:
        """Behind parked ones of its order key."""
        if self._policy.behind_parked(down=self._standing.down) is Fate.PARK:
            self._park(work, event, now)
        else:
            self._wait_behind(work, event, now)

    def _wait_behind(self, work: W, event: Event, now: float) -> None:
        advance(work, event, Phase.BEHIND)
        self._keys.wait_behind(work, now)

    def _parked(self, works: Sequence[W], became: Sequence[Became], now: float) -> None:
        for work, what in zip(works, became, strict=True):
            if not isinstance(what, NotParked):
                self._keys.known(work.queue, row_of(work).owner)
        for work in works:
            self._keys.gone(work)
        refused: dict[bytes, NotParked] = {}
        for work, what in zip(works, became, strict=True):
            if what is Stored.PARKED:
                # The next of its order key is due where it has stepped aside.
                self._due.expect(row_of(work).owner, 0.0 if work.out_of_order else work.due)
                advance(work, Event.PARKED, Phase.OVER)
                self._over(work, now)
            elif isinstance(what, NotParked):
                self._no_room(work, what, now)
                if work.queue is not None and work.end is None:
                    refused[work.queue] = what
            elif isinstance(what, Dead):  # the intent is marked
                work.owes_tombstone = True
                self._publish(work, Event.NOT_PARKED, what, now)
            else:  # whoever stored its outcome is about to publish it: only if not, that is to be done here
                work.due = now + STORED_S
                self._add(work, Event.NOT_PARKED, now)
        if refused:
            self._refuse_followers(refused, now)

    def _refuse_followers(self, refused: Mapping[bytes, NotParked], now: float) -> None:
        """There may be room by the time that they would be parked, before the refused ones of their order keys."""
        for work in self._asks.withdraw(CallQueue.PARK, lambda work: work.parked_at is None and work.queue in refused):
            self._keys.gone(work)
            self._no_room(work, refused[work.queue], now)

    def _no_room(self, work: W, what: NotParked, now: float) -> None:
        if self._policy.no_room_to_park(over_all=what.over_all, full=self.full) is Fate.BURY:
            self._publish(work, Event.NOT_PARKED, NO_ROOM if self._policy.capped else NO_ROOM_FOR_RESULT, now)
            return
        self._keys.refused(now)
        if self._keys.has_parked(work.queue) or self._keys.has_behind(work.queue):
            self._wait_behind(work, Event.NOT_PARKED, now)
        else:
            self._add(work, Event.NOT_PARKED, now)

    # behind parked ones

    def _look_behind(self, now: float) -> None:
        if now >= self._keys.next_look(still=self._still()) and not self._asks.busy([CallQueue.LOOK_BEHIND]):
            firsts = self._keys.firsts(now)
            for work in firsts.values():
                self._asks.put(CallQueue.LOOK_BEHIND, work)

    def _looked_behind(self, works: Sequence[W], emptied: Sequence[bool], now: float) -> None:
        """Forget order keys that turn out to have nothing parked: then even without room their works can go on."""
        for work, nothing_parked in zip(works, emptied, strict=True):
            if nothing_parked and work.queue is not None:
                self._keys.emptied(work.queue)
        if self._asks.busy([CallQueue.LOOK_BEHIND]):
            return  # the others of the same look
        still = self._still()
        for work in self._keys.take_behind(now):
            if not still:
                self._park(work, Event.LOOKED_BEHIND, now)
            elif self._keys.blocks(work.queue):
                self._wait_behind(work, Event.LOOKED_BEHIND, now)
            else:  # its endpoint is closed, but it may grow too old
                self._add(work, Event.LOOKED_BEHIND, now)

    # at the bound

    def _still(self) -> bool:
        return self._policy.stands_still(down=self._standing.down)

    def relieve(self, now: float, *, shut: bool) -> None:
        """At the bound: what waits is parked, so that the rest can go on. `shut`: the whole process sends nothing, so
        that what waits had better stay where it is."""
        if not self._policy.parks or now - self._relieved_at < RELIEVE_S or not self._keys.has_room(now):
            return
        self._relieved_at = now
        if self._still() or shut:
            return
        stuck = [work for work in self._order.held() if work.due > now + CLOSED_S]
        if self._policy.clears_the_way:
            stuck += self._in_the_way(now)
        for work in stuck:
            if work.parked_at is None:
                self._park_all(self._order.withdraw(work), now)
        if self._full_since is None:
            self._full_since = now
        if self._policy.clears_the_way and now - self._full_since >= CONGESTED_S:
            enough = min(self._bounds.window, len(self._watermark) + 1) // 2 - self._asks.waiting(CallQueue.PARK)
            self._park_all(self._order.withdraw_longest(enough), now)

    def _park_all(self, works: Sequence[W], now: float) -> None:
        for work in works:
            self._park(work, Event.WITHDRAWN, now)

    def _in_the_way(self, now: float) -> list[W]:
        """What waits for endpoints that take nothing now. Those that only have their pace keep the first of it at hand:
        what is parked comes back in its own time, and they would have nothing to do until then."""
        stuck = self._order.stuck(now)
        paced = [work for work in stuck if not self._order.is_closed(work.gate, now + CLOSED_S)]
        kept = {id(work) for work in paced[: self._bounds.window // 2]}
        return [work for work in stuck if id(work) not in kept]

    # due ones

    def _would_wait(self, due: Due, now: float) -> bool:
        """It would only wait in memory, where others of the lane want to come through: it is left to its lease."""
        return self._policy.clears_the_way and self._order.is_closed(due.row.owner, now + CLOSED_S)

    def _put_down_stuck(self, now: float) -> None:
        """Became records that can only wait here are left to their leases: others are due, too."""
        if self._policy.clears_the_way:
            for work in self._order.stuck(now):
                if work.parked_at is not None:
                    for each in self._order.withdraw(work):
                        self._put_down(each, now)

    def _put_down(self, work: W, now: float) -> None:
        if work.parked_at is None:
            self._park(work, Event.WITHDRAWN, now)
        else:
            advance(work, Event.WITHDRAWN, Phase.OVER)
            self._over(work, now)


def patience_left_s(work: Work, now: float) -> float:
    """For how long a head may still hold up others of its order key; inf where it holds up none, or has not failed."""
    if work.queue is None or work.rules is None or work.failing_since is None:
        return inf
    return work.failing_since + work.rules.patience_s - now
