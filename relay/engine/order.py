"""Order of a lane: which works may start now (order per key, caps per endpoint, waits), and which records are of one
delivery. Pure; times are monotonic seconds."""

import heapq
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count, islice
from math import inf
from operator import itemgetter
from typing import Generic

from relay.domain.receiver import BatchPolicy
from relay.engine.batch import Filling, filled
from relay.engine.order_lines import NO_TICKET, OrderLines
from relay.engine.window_shares import WindowShares
from relay.engine.work import SharedRequest, W, WaitFor

LOOK_S = 10.0
"""Interval at which all works that are ready for a closed endpoint are checked again, as time passes."""


@dataclass(slots=True, eq=False)
class EndpointQueue(Generic[W]):
    """One endpoint: the works that are ready for it, how many are in flight, until when it is closed, and why."""

    key: str
    in_flight: int = 0
    closed_until: float = 0.0
    closed_for: WaitFor = "rate"
    looked_at: float = 0.0
    ready: deque[tuple[int, W]] = field(default_factory=deque)
    filling: Filling | None = None
    """The next batch, once it may go."""
    lingers_until: float = inf
    """When the next batch goes although it is not full."""

    def is_closed(self, now: float) -> bool:
        return self.closed_until > now

    @property
    def is_full(self) -> bool:
        """It has as many requests in flight as allowed."""
        return bool(self.ready) and self.in_flight >= _cap(self.ready[0][1])

    def in_line(self) -> list[W]:
        """The works of `ready` that were not withdrawn."""
        return [work for ticket, work in self.ready if work.ticket == ticket]

    def waits_for(self, now: float) -> WaitFor:
        """What keeps the works of `ready` from starting."""
        return self.closed_for if self.is_closed(now) else "max_in_flight" if self.is_full else "turn"

    def fill(self, policy: BatchPolicy, lines: Mapping[bytes, Sequence[W]], now: float) -> bool:
        """Whether the next batch may go, which `filling` then has; otherwise `lingers_until` is set."""
        self.filling = filled(policy, self.ready, lines, now)
        if self.filling.may_go or now >= self.lingers_until:
            self.lingers_until = inf
            return True
        self.filling, self.lingers_until = None, min(self.lingers_until, now + policy.linger)
        return False


class Order(Generic[W]):
    """Works wait here, and leave when they start; the head of an order key blocks the others of its key.

    A work is added once, taken, and then either held (it waits again, still at the head of its key) or finished. Each
    wait has a ticket of its own: an entry whose ticket is not the work's is one that was withdrawn. Only those that
    share a request with the head of their key are taken with it; held ones of them wait behind it again.

    `shares`: of the endpoints of a lane of many. None: one endpoint may have all of its works in flight.
    """

    def __init__(self, shares: WindowShares | None = None) -> None:
        self.shares = shares
        self.lines: OrderLines[W] = OrderLines()
        self._endpoints: dict[str, EndpointQueue[W]] = {}  # those with something ready or in flight, and closed ones
        self.open: dict[str, EndpointQueue[W]] = {}
        """Those with something ready that are neither closed nor full: `take` finds something only if there are some,
        or if the first of `timed` is due."""
        self.timed: list[tuple[float, int, W | EndpointQueue[W]]] = []
        """Heap of works and closed endpoints that wait for a time, with their tickets."""
        self.unseen: deque[tuple[int, W]] = deque()
        """Works, with their tickets, that became ready for closed endpoints and were not checked since."""
        self._tickets = count()
        self.waiting = 0
        """Works that were added or held and not taken."""
        self.has_batches = False
        """Works were taken that share a request."""

    def add(self, work: W, now: float) -> None:
        """Put `work` behind all earlier ones of its order key."""
        self.waiting += 1
        if work.queue is None or self.lines.join(work.queue, work):
            self._wait(work, now)
        elif work.rules is not None and work.rules.batch is not None:
            self._may_be_full(work.endpoint_id)

    def take(self, now: float, limit: int) -> list[W]:
        """Up to `limit` works that may start now, fairly over the endpoints. They are in flight afterwards."""
        if self.timed and self.timed[0][0] <= now:
            self._release(now)
        taken: list[W] = []
        while self.open and len(taken) < limit:
            for endpoint in list(self.open.values()):
                work = self._next(endpoint, now)
                if endpoint.filling is not None:
                    taken += self._take_batch(endpoint, endpoint.filling)
                elif work is not None:
                    taken.append(work)
                if len(taken) >= limit:
                    break
        return taken

    def take_over(self, is_over: Callable[[W], bool], limit: int) -> list[W]:
        """As `take`, for up to `limit` works that wait for a closed endpoint and are over: they do not need it.

        Each is checked once when it starts to wait there, and then about every LOOK_S.
        """
        taken: list[W] = []
        while self.unseen and len(taken) < limit:
            ticket, work = self.unseen.popleft()
            if work.ticket == ticket and is_over(work):
                self._take(self._endpoints[work.endpoint_id], work)
                taken.append(work)
        return taken

    def hold(self, work: W, due: float, now: float) -> None:
        """A taken work did not end: it waits until `due`, at the head of its order key.

        If it may start again at once, it keeps its turn: it goes before works that are ready for the same endpoint.
        """
        work.due = due
        self._leave_gate(work)
        self.waiting += 1
        if work.queue is None or self.lines.by_key[work.queue][0] is work:
            self._wait(work, now, first=True)

    def close(self, key: str, until: float, why: WaitFor = "rate") -> None:
        """Nothing starts towards this endpoint before `until`."""
        endpoint = self._endpoints.setdefault(key, EndpointQueue(key))
        if until > endpoint.closed_until:
            endpoint.closed_until, endpoint.closed_for = until, why
            heapq.heappush(self.timed, (until, next(self._tickets), endpoint))
        self.open.pop(key, None)

    def reopen(self, key: str, now: float) -> None:
        """Works that are ready for this endpoint may start, although it was closed for longer."""
        endpoint = self._endpoints.get(key)
        if endpoint is not None and endpoint.closed_until > now:
            endpoint.closed_until = now
            heapq.heappush(self.timed, (now, next(self._tickets), endpoint))

    def finish(self, work: W, now: float) -> None:
        """A taken work has ended: the next of its order key may start."""
        self._leave_gate(work)
        if work.queue is not None and (head := self.lines.leave(work.queue, work)) is not None:
            self._wait(head, now)

    def step_aside(self, work: W, now: float) -> None:
        """A head that is in flight leaves its order key, and stays in flight: the next of the key may start."""
        if work.queue is not None and (head := self.lines.leave(work.queue, work)) is not None:
            self._wait(head, now)
        work.queue = None

    def withdraw(self, work: W) -> list[W]:
        """Take out the whole order key of a waiting head, in order; the head first. Nothing if some of its batch are in
        flight, which come right behind it."""
        if work.queue is not None and self.lines.in_flight(work.queue):
            return []
        work.ticket = NO_TICKET
        out = [work] if work.queue is None else self.lines.take_out(work.queue)
        self.waiting -= len(out)
        return out

    def withdraw_followers(self, work: W) -> list[W]:
        """As `withdraw`, for a head that is in flight: it stays out; the others of its key are returned in order, or
        are `lines.stranded` later."""
        self._leave_gate(work)
        out = [] if work.queue is None else self.lines.part(work.queue, work)
        self.waiting -= len(out)
        return out

    def withdraw_stranded(self) -> list[W]:
        """Take out works that follow others of their order key, in order per key."""
        out, self.lines.stranded = self.lines.stranded, []
        self.waiting -= len(out)
        return out

    def withdraw_longest(self, enough: int) -> list[W]:
        """Take out works as `OrderLines.take_out_longest` finds them."""
        out = self.lines.take_out_longest(enough)
        self.waiting -= len(out)
        return out

    def held(self) -> list[W]:
        """Heads that wait for their time."""
        return [item for _, ticket, item in self.timed if not isinstance(item, EndpointQueue) and item.ticket == ticket]

    def stuck(self, now: float) -> list[W]:
        """Heads that are ready for an endpoint that is closed, or has as many requests in flight as allowed, or its
        share of works in flight: the first ones of all endpoints, then the second ones, and so on."""
        stuck = (
            one for one in self._endpoints.values() if one.is_closed(now) or one.is_full or self._has_its_share(one)
        )
        in_turns = sorted((enumerated for one in stuck for enumerated in enumerate(one.in_line())), key=itemgetter(0))
        return [work for _, work in in_turns]

    def waits(self, now: float) -> Counter[WaitFor]:
        """Number of works by what they wait for; the total is `waiting`. Checks every head."""
        found = Counter(work.held_for for work in self.held())
        for endpoint in self._endpoints.values():
            if endpoint.ready:
                found[endpoint.waits_for(now)] += len(endpoint.in_line())
        found["order"] = self.waiting - found.total()
        return found

    def is_closed(self, key: str, now: float) -> bool:
        endpoint = self._endpoints.get(key)
        return endpoint is not None and endpoint.is_closed(now)

    def closed_for(self, why: WaitFor, now: float, limit: int) -> list[str]:
        """Up to `limit` endpoints that are closed for this reason."""
        closed = (one.key for one in self._endpoints.values() if one.is_closed(now) and one.closed_for == why)
        return list(islice(closed, limit))

    def next_due(self) -> float | None:
        """When something that waits may be taken; None if nothing waits for a time."""
        return self.timed[0][0] if self.timed else None

    def _wait(self, work: W, now: float, *, first: bool = False) -> None:
        work.ticket = ticket = next(self._tickets)
        if work.due > now:
            heapq.heappush(self.timed, (work.due, ticket, work))
            return
        endpoint = self._endpoints.get(work.endpoint_id)
        if endpoint is None:
            endpoint = self._endpoints[work.endpoint_id] = EndpointQueue(work.endpoint_id)
        if first:
            endpoint.ready.appendleft((ticket, work))
        else:
            endpoint.ready.append((ticket, work))
        if endpoint.closed_until <= now:
            self.open[endpoint.key] = endpoint
        else:
            self.unseen.append((ticket, work))

    def _release(self, now: float) -> None:
        """Works that have waited long enough become ready, and endpoints open."""
        while self.timed and self.timed[0][0] <= now:
            _, ticket, item = heapq.heappop(self.timed)
            if not isinstance(item, EndpointQueue):
                if item.ticket == ticket:
                    self._wait(item, now)
            elif item.closed_until <= now:
                item.closed_until = 0.0
                if now - item.looked_at >= LOOK_S:
                    item.looked_at = now
                    self.unseen += item.ready
                if item.ready:
                    self.open[item.key] = item
                self._drop_if_idle(item)

    def _next(self, endpoint: EndpointQueue[W], now: float) -> W | None:
        """Take the first work that is ready for `endpoint`. None if nothing may start: then it is no longer open."""
        ready = endpoint.ready
        while ready and ready[0][1].ticket != ready[0][0]:
            ready.popleft()  # it was withdrawn
        if ready and endpoint.closed_until <= now:
            work = ready[0][1]
            rules = work.rules
            if rules is None or (
                (self.shares is None or self.shares.may_take(work))
                and endpoint.in_flight < rules.max_in_flight
                and (rules.batch is None or self._has_batch(endpoint, rules.batch, now))
            ):
                ready.popleft()
                if not ready:
                    del self.open[endpoint.key]
                self._take(endpoint, work)
                return work
        del self.open[endpoint.key]
        self._drop_if_idle(endpoint)
        return None

    def _take(self, endpoint: EndpointQueue[W], work: W) -> None:
        work.ticket = NO_TICKET
        work.taken = True
        endpoint.in_flight += 1
        self.waiting -= 1
        if self.shares is not None:
            self.shares.take(work)

    def _may_be_full(self, key: str) -> None:
        """A work was added that may go with the batch that lingers."""
        endpoint = self._endpoints.get(key)
        if endpoint is not None and endpoint.lingers_until < inf:
            self.open[key] = endpoint

    def _has_batch(self, endpoint: EndpointQueue[W], policy: BatchPolicy, now: float) -> bool:
        """Whether the next batch may go; otherwise `timed` has the time until which it waits for more."""
        lingers_until = endpoint.lingers_until
        may_go = endpoint.fill(policy, self.lines.by_key, now)
        if endpoint.lingers_until < lingers_until:
            heapq.heappush(self.timed, (endpoint.lingers_until, next(self._tickets), endpoint))
        return may_go

    def _take_batch(self, endpoint: EndpointQueue[W], filling: Filling) -> list[W]:
        """Its first work was taken; the others go with it, and take no place of their own."""
        endpoint.filling, self.has_batches = None, True
        works = filling.works
        batch = SharedRequest(len(works))
        for work in works:
            work.batch, work.ticket, work.taken = batch, NO_TICKET, True
        if self.shares is not None:
            for work in works[1:]:
                self.shares.take(work)
        self.waiting -= len(works) - 1
        return works

    def _leave_gate(self, work: W) -> None:
        work.taken = False
        endpoint = self._endpoints[work.endpoint_id]
        if self.shares is not None:
            self._reopen(self.shares.leave(work))
        if (batch := work.batch) is not None:
            work.batch = None
            batch.in_flight -= 1
            if batch.in_flight:
                return
        endpoint.in_flight -= 1
        if endpoint.ready:
            self.open[endpoint.key] = endpoint
        elif not endpoint.in_flight:
            self._drop_if_idle(endpoint)

    def _has_its_share(self, endpoint: EndpointQueue[W]) -> bool:
        return bool(endpoint.ready) and self.shares is not None and self.shares.was_refused(endpoint.ready[0][1])

    def _reopen(self, endpoints: Sequence[str]) -> None:
        """They may have another work in flight now."""
        for key in endpoints:
            endpoint = self._endpoints.get(key)
            if endpoint is not None and endpoint.ready:
                self.open[key] = endpoint

    def _drop_if_idle(self, endpoint: EndpointQueue[W]) -> None:
        """Millions of endpoints may pass through a shared lane."""
        is_idle = not (endpoint.ready or endpoint.in_flight or endpoint.closed_until)
        if is_idle and self._endpoints.get(endpoint.key) is endpoint:
            del self._endpoints[endpoint.key]


def _cap(work: W) -> int:
    return work.rules.max_in_flight if work.rules is not None else 1_000_000
