"""What the state's fake says to those who ask to begin an attempt."""

from collections.abc import Callable
from dataclasses import dataclass, field

from msgspec import structs

from relay.domain.numbering import NumberGap
from relay.state.attempts import (
    AlreadySettled,
    AmbiguousAttempt,
    BeginRequest,
    CallKind,
    Go,
    LookedUp,
    Stale,
    Verdict,
    Wait,
)
from relay.state.port import Counts
from relay.state.rows import Row, Stage
from tests.fakes.state_endpoint import FULL_WAIT_S, Endpoint
from tests.fakes.state_numbers import Numbers
from tests.fakes.state_rows import Rows, StoredRow

AHEAD_S = 1.0
MOST_EVENTS = 1_000
BACKLOG_WAIT_S = 1.0
LONGEST_UNKNOWN_WAIT_S = 1.0


@dataclass(frozen=True, slots=True)
class Beginning:
    """What one begin call asks of one lane and tag, at one moment.

    `lane`: its topic and partition. `keeps`: whether the lane holds a reference to a digest, of a generation or a later
    one; `parked`: how many polls and retries of an owner are parked there.
    """

    lane: str
    rows: Rows
    now: float
    doubt_until: float
    lost_at: float
    gap: bool
    end: int | None
    """Of the lane, when the loss was noticed; None: it is not known."""
    keeps: Callable[[bytes, int], bool]
    first: Callable[[bytes], int | None]
    """Where a queue begins."""
    parked: Callable[[str], Counts]
    undecided: set[bytes] = field(default_factory=set)
    """Order keys of what was asked for earlier in the call, and not begun."""
    paid: list[float] = field(default_factory=list)
    """The slot of the request that the next ask may share; empty before anything of it has begun."""

    def verdict(self, ask: BeginRequest) -> Verdict:
        verdict = self._verdict(ask)
        if ask.queue is not None and not isinstance(verdict, Go):
            self.undecided.add(ask.queue)
        return verdict

    def _verdict(self, ask: BeginRequest) -> Verdict:
        if not ask.rides:
            self.paid.clear()
        elif ask.queue in self.undecided:
            return Wait(0.0, "settling")
        row = self.rows.load(ask.row.digest, self.now)
        if ask.unseen and (found := self._looked_up(ask, row)) is not None:
            return LookedUp(found)
        if row is not None and row.generation > ask.generation:
            return Stale(row.generation)
        if row is None or row.generation < ask.generation:
            row = StoredRow(ask.generation)
        elif not self._may_lack_rows():
            ask = structs.replace(ask, attempts=row.attempts)
        return self._post(ask, row) if ask.kind is CallKind.POST else self._poll(ask, row)

    def _may_lack_rows(self) -> bool:
        return self.now < self.doubt_until or self.gap

    def _looked_up(self, ask: BeginRequest, row: StoredRow | None) -> Row | None:
        """What intake says of a row that is not to be begun without anybody having looked at it; None: it may be."""
        digest = ask.row.digest
        if row is not None and row.generation == ask.generation and ask.token in (row.token, row.poll_token):
            return None
        kept = self.keeps(digest, ask.generation)
        behind = None if ask.queue is None else self.first(ask.queue)
        known = row if row is not None and row.generation >= ask.generation else None
        unclear = ask.queue in self.undecided or self._may_lack_rows()
        if known is None and not (kept or behind is not None or digest in self.rows.intents or unclear):
            return None
        return self.rows.show(digest, known, self.now, kept=kept, behind=behind)

    def _already_settled(self, ask: BeginRequest, row: StoredRow) -> AlreadySettled:
        digest = ask.row.digest
        return AlreadySettled(self.rows.show(digest, row, self.now, kept=self.keeps(digest, ask.generation)))

    def _post(self, ask: BeginRequest, row: StoredRow) -> Verdict:
        if row.stage >= Stage.ACCEPTED:
            return self._already_settled(ask, row)
        if row.token == ask.token:
            self.paid[:] = [row.slot]
            return self._started(ask, row)
        if ask.token in row.settled:
            return Wait(0.0, "settling")
        self.rows.count_absence(self.now)
        endpoint = self.rows.endpoint(ask.row.owner)
        hindrance = self._unresolved(ask, row) or self._paused(endpoint)
        if hindrance is not None:
            return hindrance
        hindrance = endpoint.hindrance(self.now, ask.token, ask.limits, ask.open_s) or self._crowded(ask, row)
        if hindrance is not None:
            return hindrance
        if self.paid:
            if ask.paced:
                endpoint.slot = max(endpoint.slot, self.paid[0], self.now) + ask.limits.interval_s
            return self._begun(ask, row, self.paid[0])
        slot = self.now
        if ask.limits.interval_s > 0:
            farthest = self.now + AHEAD_S + ask.limits.interval_s * (MOST_EVENTS if ask.paced else 1)
            endpoint.slot = min(endpoint.slot, farthest)  # one farther ahead is of a longer interval
            slot = max(self.now, endpoint.slot, self._first_slot(ask))
        if slot - self.now > AHEAD_S:
            return Wait(slot - self.now - AHEAD_S, "rate")
        unknown_s = self._unknown_in_flight(ask)
        if unknown_s > 0:
            return Wait(min(unknown_s, LONGEST_UNKNOWN_WAIT_S), "max_in_flight")
        if not endpoint.take_place(self.now, self.lane, ask.token, ask.limits):
            return Wait(FULL_WAIT_S, "max_in_flight")
        _reserve(endpoint, slot, self.now, ask)
        self.paid.append(slot)
        return self._begun(ask, row, slot)

    def _begun(self, ask: BeginRequest, row: StoredRow, slot: float) -> Go:
        if ask.room is not None:
            self.rows.room(ask.row.owner).add(ask.row.digest)
        return self._go(ask, row, slot)

    def _go(self, ask: BeginRequest, row: StoredRow, slot: float) -> Go:
        row.before = (row.stage, row.began)
        row.stage, row.token, row.began, row.slot, row.due_at = Stage.SENDING, ask.token, self.now, slot, 0.0
        row.attempts = max(row.attempts, ask.attempts) + 1
        if ask.number is not None:
            self.rows.give_number(row, ask.row.owner, ask.number, lost=self.now < self.doubt_until)
        self.rows.store(ask.row.digest, row, self.now)
        return self._started(ask, row)

    def _started(self, ask: BeginRequest, row: StoredRow) -> Go:
        gaps: tuple[NumberGap, ...] = ()
        if row.number is not None:
            row.named = 0
            if not ask.rides:
                gaps, row.named = self.rows.numbers.setdefault(row.owner, Numbers()).carried(row.number)
            self.rows.store(ask.row.digest, row, self.now)
        return Go(row.attempts, max(0.0, row.slot - self.now), row.number, gaps)

    def _may_be_lost(self, ask: BeginRequest) -> bool:
        if self.now >= self.doubt_until:
            return False
        if self.gap:
            return ask.ask_first or ask.recorded_ms is not None
        before = ask.recorded_ms is not None and ask.recorded_ms < self.lost_at * 1000
        return before or (ask.ask_first and not self._is_newer_than_loss(ask))

    def _is_newer_than_loss(self, ask: BeginRequest) -> bool:
        return self.end is not None and ask.offset is not None and ask.offset >= self.end

    def _unresolved(self, ask: BeginRequest, row: StoredRow) -> Verdict | None:
        began, attempts = row.began, row.attempts
        if row.stage is not Stage.SENDING:
            if row.stage is not Stage.NONE or not self._may_be_lost(ask):
                return None
            began, attempts = self.lost_at, ask.attempts
        left = began + ask.limits.settle_s - self.now
        if left > 0:
            return Wait(left, "settling")
        doubt = round(began * 1000)
        newer = row.stage is Stage.NONE and self._is_newer_than_loss(ask)
        return None if ask.resolved == doubt else AmbiguousAttempt(attempts, doubt, newer)

    def _crowded(self, ask: BeginRequest, row: StoredRow) -> Wait | None:
        if ask.room is None:
            return None
        reserved, parked = self.rows.room(ask.row.owner), self.parked(ask.row.owner)
        fresh = row.stage is Stage.NONE and row.polls == 0 and ask.attempts == 0
        no_answer = len(reserved) + parked.polls >= ask.room and ask.row.digest not in reserved
        no_retry = fresh and ask.room_to_retry is not None and parked.retries >= ask.room_to_retry
        in_doubt = self.now < self.doubt_until
        has_room = self.keeps(ask.row.digest, ask.generation)
        has_room |= in_doubt and ask.queue is not None and self.first(ask.queue) is not None
        if no_answer or (no_retry and not has_room):
            return Wait(BACKLOG_WAIT_S, "backlog", fresh and not in_doubt)
        return None

    def _unknown_in_flight(self, ask: BeginRequest) -> float:
        """Seconds for which POSTs that began before a loss, and are unknown now, may still be in flight."""
        probe_s, counted_since = ask.limits.probe_s, self.now - ask.counted_s
        lacking = ask.limits.max_in_flight is not None and self.now < self.doubt_until
        return self.lost_at + probe_s - self.now if lacking and counted_since > self.lost_at - probe_s else 0.0

    def _first_slot(self, ask: BeginRequest) -> float:
        """Behind all slots that were taken before a loss, up to `AHEAD_S` ahead, and may still be used after it."""
        return self.lost_at + AHEAD_S + ask.limits.interval_s if self.now < self.doubt_until else 0.0

    def _paused(self, endpoint: Endpoint) -> Wait | None:
        left = endpoint.paused_until - self.now
        if left <= 0:
            return None
        return Wait(left, "disabled" if endpoint.hold is not None and endpoint.hold.reason == "disabled" else "pause")

    def _poll(self, ask: BeginRequest, row: StoredRow) -> Verdict:
        if row.stage >= Stage.RESULT:
            return self._already_settled(ask, row)
        if row.poll_token != ask.token:
            hindrance = self._paused(self.rows.endpoint(ask.row.owner))
            if hindrance is not None:
                return hindrance
            row.polls, row.poll_token = row.polls + 1, ask.token
            self.rows.store(ask.row.digest, row, self.now)
        return Go(row.polls, 0.0)


def _reserve(endpoint: Endpoint, slot: float, now: float, ask: BeginRequest) -> None:
    if ask.limits.interval_s > 0:
        endpoint.slot = slot + ask.limits.interval_s
    endpoint.take_probe(now, ask.token, ask.limits)
