"""The order of a lane: what may start now (order per key, caps per endpoint, waits), which records are of one delivery,
and how far the lane may be committed. Pure; times are monotonic seconds."""

import heapq
from collections import Counter, deque
from collections.abc import Callable, Iterator
from itertools import count, islice
from typing import Generic

from relay.engine.work import W, WaitFor

NO_TICKET = -1
LOOK_S = 10.0
"""How often all that is ready for an endpoint is looked at that keeps being closed: time passes."""


class Gate(Generic[W]):
    """The way to one endpoint: what is ready for it, how much is in flight, and until when it is closed, and why."""

    __slots__ = ("closed_for", "closed_until", "in_flight", "key", "looked_at", "ready")

    def __init__(self, key: str) -> None:
        self.key = key
        self.in_flight = 0
        self.closed_until = 0.0
        self.closed_for: WaitFor = "rate"
        self.looked_at = 0.0
        self.ready: deque[tuple[int, W]] = deque()


class Order(Generic[W]):
    """Works wait here, and leave it when they start; the head of an order key blocks the rest of its key.

    A work is added once, taken, and then either held (it waits again, still at the head of its key) or finished. Each
    wait has a ticket of its own: an entry whose ticket is not the work's is one that was withdrawn.
    """

    def __init__(self) -> None:
        self._keys: dict[bytes, deque[W]] = {}
        self._gates: dict[str, Gate[W]] = {}  # those with something ready or in flight, and closed ones
        self._open: dict[str, Gate[W]] = {}  # gates with something ready that are neither closed nor full
        self._held: list[tuple[float, int, W | Gate[W]]] = []
        self._unseen: deque[tuple[int, W]] = deque()  # ready for closed gates, and not looked at since
        self._tickets = count()
        self.waiting = 0
        """Works that were added or held and not taken."""

    def add(self, work: W, now: float) -> None:
        """Put `work` behind all earlier ones of its order key."""
        self.waiting += 1
        if work.queue is not None:
            line = self._keys.get(work.queue)
            if line is not None:
                line.append(work)
                return
            self._keys[work.queue] = deque((work,))
        self._wait(work, now)

    def take(self, now: float, limit: int) -> list[W]:
        """Up to `limit` works that may start now, fairly over the endpoints. They are in flight from here on."""
        self._release(now)
        taken: list[W] = []
        while self._open and len(taken) < limit:
            for gate in list(self._open.values()):
                work = self._next(gate, now)
                if work is not None:
                    taken.append(work)
                if len(taken) == limit:
                    break
        return taken

    def take_over(self, is_over: Callable[[W], bool], limit: int) -> list[W]:
        """As `take`, up to `limit` works that wait for a closed endpoint and are over: they need it no more.

        Each is looked at once when it gets there, and then every LOOK_S or so.
        """
        taken: list[W] = []
        while self._unseen and len(taken) < limit:
            ticket, work = self._unseen.popleft()
            if work.ticket == ticket and is_over(work):
                self._take(self._gates[work.gate], work)
                taken.append(work)
        return taken

    def hold(self, work: W, due: float, now: float) -> None:
        """A taken work did not end: it waits until `due`, at the head of its order key.

        One that may start again at once has lost no turn: it goes before what is ready for the same endpoint.
        """
        work.due = due
        self._leave_gate(work)
        self.waiting += 1
        self._wait(work, now, first=True)

    def close(self, key: str, until: float, why: WaitFor = "rate") -> None:
        """Nothing starts towards this endpoint before `until`."""
        gate = self._gate(key)
        if until > gate.closed_until:
            gate.closed_until, gate.closed_for = until, why
            heapq.heappush(self._held, (until, next(self._tickets), gate))
        self._open.pop(key, None)

    def reopen(self, key: str, now: float) -> None:
        """What is ready for this endpoint may start, although it was closed for longer."""
        gate = self._gates.get(key)
        if gate is not None and gate.closed_until > now:
            gate.closed_until = now
            heapq.heappush(self._held, (now, next(self._tickets), gate))

    def finish(self, work: W, now: float) -> None:
        """A taken work has ended: the next of its order key may start."""
        self._leave_gate(work)
        if work.queue is not None:
            self._advance(work.queue, now)

    def step_aside(self, work: W, now: float) -> None:
        """A head that is in flight leaves its order key, and stays in flight: the next of the key may start."""
        if work.queue is not None:
            self._advance(work.queue, now)
            work.queue = None

    def behind(self, work: W) -> int:
        """How many wait behind a head, of those in memory."""
        return 0 if work.queue is None else len(self._keys.get(work.queue, (work,))) - 1

    def withdraw(self, work: W) -> list[W]:
        """Take out the whole order key of a waiting head, in order; the head first. Nothing of it is in flight."""
        line = [work] if work.queue is None else list(self._keys.pop(work.queue))
        work.ticket = NO_TICKET
        self.waiting -= len(line)
        return line

    def withdraw_followers(self, work: W) -> list[W]:
        """As `withdraw`, for a head that is in flight: it stays out, the rest of its key comes back in order."""
        self._leave_gate(work)
        if work.queue is None:
            return []
        line = list(self._keys.pop(work.queue))[1:]
        self.waiting -= len(line)
        return line

    def withdraw_longest(self, enough: int) -> list[W]:
        """Take out what waits behind heads in flight, in order per key, and was not parked before: the longest lines
        first, until there are `enough` works or more."""
        keys = [key for key, line in self._keys.items() if len(line) > 1 and line[0].taken]
        keys.sort(key=lambda key: len(self._keys[key]), reverse=True)
        out: list[W] = []
        for key in keys:
            if len(out) >= enough:
                break
            head, *followers = self._keys[key]
            out += [work for work in followers if work.parked_at is None]
            self._keys[key] = deque((head, *(work for work in followers if work.parked_at is not None)))
        self.waiting -= len(out)
        return out

    def heads(self, limit: int) -> list[tuple[W, int]]:
        """The first of each order key that others wait behind, and how many do; up to `limit` of them, those of the
        oldest keys."""
        if not self._keys:
            return []
        return list(islice(((line[0], len(line) - 1) for line in self._keys.values() if len(line) > 1), limit))

    def held(self) -> list[W]:
        """Heads that wait for their time."""
        return [item for _, ticket, item in self._held if not isinstance(item, Gate) and item.ticket == ticket]

    def stuck(self, now: float) -> list[W]:
        """Heads that are ready for an endpoint which is closed, or has as much in flight as it may."""
        return [
            work
            for gate in self._gates.values()
            if gate.closed_until > now or (gate.ready and gate.in_flight >= _cap(gate.ready[0][1]))
            for ticket, work in gate.ready
            if work.ticket == ticket
        ]

    def waits(self, now: float) -> Counter[WaitFor]:
        """How many wait, by what for: as many in all as `waiting` says. It looks at every head."""
        found = Counter(work.held_for for work in self.held())
        for gate in self._gates.values():
            if not gate.ready:
                continue
            ready = sum(work.ticket == ticket for ticket, work in gate.ready)
            is_full = gate.in_flight >= _cap(gate.ready[0][1])
            found[gate.closed_for if gate.closed_until > now else "max_in_flight" if is_full else "turn"] += ready
        found["order"] = self.waiting - found.total()
        return found

    def is_closed(self, key: str, now: float) -> bool:
        gate = self._gates.get(key)
        return gate is not None and gate.closed_until > now

    def closed_for(self, why: WaitFor, now: float, limit: int) -> list[str]:
        """Up to `limit` endpoints that are closed for that."""
        closed = (gate.key for gate in self._gates.values() if gate.closed_until > now and gate.closed_for == why)
        return list(islice(closed, limit))

    def next_due(self) -> float | None:
        """When something that waits may be taken; None if nothing waits for a time."""
        return self._held[0][0] if self._held else None

    def _gate(self, key: str) -> Gate[W]:
        gate = self._gates.get(key)
        if gate is None:
            gate = self._gates[key] = Gate(key)
        return gate

    def _wait(self, work: W, now: float, *, first: bool = False) -> None:
        work.ticket = next(self._tickets)
        if work.due > now:
            heapq.heappush(self._held, (work.due, work.ticket, work))
        else:
            self._ready(work, now, first=first)

    def _ready(self, work: W, now: float, *, first: bool = False) -> None:
        gate = self._gate(work.gate)
        if first:
            gate.ready.appendleft((work.ticket, work))
        else:
            gate.ready.append((work.ticket, work))
        if gate.closed_until <= now:
            self._open[gate.key] = gate
        else:
            self._unseen.append((work.ticket, work))

    def _release(self, now: float) -> None:
        """What has waited long enough is ready, or open."""
        while self._held and self._held[0][0] <= now:
            _, ticket, item = heapq.heappop(self._held)
            if not isinstance(item, Gate):
                if item.ticket == ticket:
                    self._ready(item, now)
            elif item.closed_until <= now:
                item.closed_until = 0.0
                if now - item.looked_at >= LOOK_S:
                    item.looked_at = now
                    self._unseen += item.ready
                if item.ready:
                    self._open[item.key] = item
                self._drop_if_idle(item)

    def _next(self, gate: Gate[W], now: float) -> W | None:
        """Take what is first ready for `gate`; None if nothing may start: then it is not open any more."""
        work = _first(gate)
        if work is None or gate.closed_until > now or gate.in_flight >= _cap(work):
            del self._open[gate.key]
            self._drop_if_idle(gate)
            return None
        gate.ready.popleft()
        self._take(gate, work)
        return work

    def _take(self, gate: Gate[W], work: W) -> None:
        work.ticket = NO_TICKET
        work.taken = True
        gate.in_flight += 1
        self.waiting -= 1

    def _leave_gate(self, work: W) -> None:
        work.taken = False
        gate = self._gates[work.gate]
        gate.in_flight -= 1
        if gate.ready:
            self._open[gate.key] = gate
        self._drop_if_idle(gate)

    def _drop_if_idle(self, gate: Gate[W]) -> None:
        """Millions of endpoints may pass through a shared lane."""
        if not (gate.ready or gate.in_flight or gate.closed_until) and self._gates.get(gate.key) is gate:
            del self._gates[gate.key]

    def _advance(self, key: bytes, now: float) -> None:
        line = self._keys[key]
        line.popleft()
        if line:
            self._wait(line[0], now)
        else:
            del self._keys[key]


def _first(gate: Gate[W]) -> W | None:
    """What is first ready; withdrawn ones before it are dropped."""
    while gate.ready:
        ticket, work = gate.ready[0]
        if work.ticket == ticket:
            return work
        gate.ready.popleft()
    return None


def _cap(work: W) -> int:
    return work.rules.max_in_flight if work.rules is not None else 1_000_000


Identity = tuple[bytes, int]


class Twins(Generic[W]):
    """Works in this lane's memory, by delivery and generation: of one delivery none ever run at once, the later ones
    wait, and end with the first. Works without a row are nobody's twins."""

    def __init__(self) -> None:
        self._here: dict[Identity, tuple[W, list[W]]] = {}

    def __iter__(self) -> Iterator[W]:
        """The works that others would wait for."""
        return (work for work, _ in self._here.values())

    def has(self, work: W) -> bool:
        """Whether a record of the same delivery is here."""
        return _identity(work) in self._here

    def join(self, work: W) -> bool:
        """Whether `work` has to wait for an earlier record of the same delivery, and ends when that one leaves."""
        identity = _identity(work)
        if identity is None:
            return False
        if identity in self._here:
            first, others = self._here[identity]
            if first is not work:
                others.append(work)
            return first is not work
        self._here[identity] = (work, [])
        return False

    def leave(self, work: W) -> list[W]:
        """`work` has ended, or is parked for sure: so have those that waited for it, which are returned."""
        identity = _identity(work)
        if identity is None or identity not in self._here or self._here[identity][0] is not work:
            return []
        return self._here.pop(identity)[1]


def _identity(work: W) -> Identity | None:
    return None if work.row is None else (work.row.digest, work.generation)


class Watermark:
    """Which offset to commit, given which records are finished. Offsets are added in growing order, gaps allowed."""

    def __init__(self) -> None:
        # With their sizes. Insertion order is offset order, so the first key is the lowest.
        self._unfinished: dict[int, int] = {}
        self._seen_next: int | None = None

    def add(self, offset: int, size: int = 0) -> None:
        self._unfinished[offset] = size
        self._seen_next = offset + 1

    def done(self, offset: int) -> int:
        """Its size. Raises KeyError when `offset` is not unfinished: a record must be finished exactly once."""
        return self._unfinished.pop(offset)

    def __len__(self) -> int:
        """Unfinished records."""
        return len(self._unfinished)

    @property
    def head(self) -> int | None:
        """The lowest unfinished offset."""
        return next(iter(self._unfinished), None)

    @property
    def next_offset(self) -> int | None:
        """The offset to commit: every record before it is finished. None before the first record."""
        head = self.head
        return self._seen_next if head is None else head

    @property
    def span(self) -> int:
        """Offsets between the watermark and the newest record."""
        head = self.head
        return 0 if head is None or self._seen_next is None else self._seen_next - head
