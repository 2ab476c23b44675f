"""The rows of one hash tag, in plain Python, and what outcomes and marks make of them: for the fake state."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from relay.domain.numbering import Numbering
from relay.state.attempts import Change, NumberRequest, Settlement
from relay.state.read_model import RowDetails
from relay.state.rows import Mark, Result, Row, Stage
from tests.fakes.state_endpoint import Endpoint
from tests.fakes.state_numbers import Numbers

STUB_S = 60.0
ABSENT_S = 6.0
REMEMBERED = 4
_TARGETS = {Change.ACCEPTED: Stage.ACCEPTED, Change.RESULT: Stage.RESULT}

_WAITS = (Stage.NONE, Stage.ACCEPTED, Stage.AWAITING, Stage.PUBLISHED)

Free = Callable[[bytes, int], None]
"""Takes the digest and the generation of a row."""


@dataclass(slots=True)
class StoredRow:
    """A row, with fields that the port does not show. `began` and `slot` belong to `token`, the attempt in flight."""

    generation: int
    stage: Stage = Stage.NONE
    attempts: int = 0
    polls: int = 0
    due_at: float = 0.0
    last_status: int | None = None
    reason: str | None = None
    detail: str | None = None
    at: tuple[int, int] | None = None
    code: int = 0
    result: Result | None = None
    token: bytes | None = None
    began: float = 0.0
    slot: float = 0.0
    before: tuple[Stage, float] = (Stage.NONE, 0.0)
    unheard: float = 0.0
    """When the last attempt began that had no response and was followed by a retry."""
    poll_token: bytes | None = None
    settled: tuple[bytes, ...] = ()
    expires: float = math.inf
    number: int | None = None
    owner: str = ""
    """Of its number."""
    named: int = 0
    """The newest gap that its requests have carried."""

    def shown(
        self, now: float, *, park_intent: bool, kept: bool, behind: int | None, numbering: Numbering | None = None
    ) -> Row:
        if self.stage is Stage.NONE:
            return Row(park_intent=park_intent, kept=kept, behind=behind)
        return Row(
            stage=self.stage,
            generation=self.generation,
            attempts=self.attempts,
            polls=self.polls,
            due_in_s=max(0.0, self.due_at - now),
            last_status=self.last_status,
            reason=self.reason,
            park_intent=park_intent,
            kept=kept,
            behind=behind,
            at=self.at,
            code=self.code,
            result=self.result,
            number=self.number,
            numbering=numbering,
        )

    def watched(self, now: float, row: Row) -> RowDetails:
        timed = self.stage in (Stage.ENQUEUED, Stage.SENDING, Stage.AWAITING) and self.began > 0
        under_way = self.token is not None
        return RowDetails(
            row,
            max(0.0, now - self.began) if timed else None,
            under_way,
            max(0.0, self.slot - now) if under_way else 0.0,
            self.detail if self.stage is not Stage.NONE else None,
        )


@dataclass(slots=True)
class Rows:
    """Rows and endpoints of one tag. `doubt_until`, `lost_at`: see `State.ready`."""

    window_s: float
    active: dict[bytes, StoredRow] = field(default_factory=dict)
    finished: dict[bytes, StoredRow] = field(default_factory=dict)
    intents: dict[bytes, set[tuple[str, int]]] = field(default_factory=dict)
    """The lanes that have written, or may write, parked copies."""
    reserved: dict[str, set[bytes]] = field(default_factory=dict)
    """By owner: deliveries that wait, or may wait, for an answer, and are not parked."""
    endpoints: dict[str, Endpoint] = field(default_factory=dict)
    numbers: dict[str, Numbers] = field(default_factory=dict)
    there_at: float = math.inf
    """When a process made attempts last; inf: no process has reported any yet."""
    counted_at: float = -math.inf

    def count_absence(self, now: float) -> None:
        """Outages do not continue while no process makes attempts."""
        if now - self.there_at > ABSENT_S:
            gap_s = now - max(self.there_at, self.counted_at)
            self.counted_at = now
            for endpoint in self.endpoints.values():
                endpoint.postpone(gap_s)

    def endpoint(self, owner: str) -> Endpoint:
        return self.endpoints.setdefault(owner, Endpoint())

    def load(self, digest: bytes, now: float) -> StoredRow | None:
        for table in (self.active, self.finished):
            row = table.get(digest)
            if row is not None and row.expires > now:
                return replace(row)
        return None

    def store(self, digest: bytes, row: StoredRow, now: float) -> None:
        stub = row.stage is Stage.NONE and row.polls == 0
        row.expires = now + STUB_S if stub else finished_until(now, self.window_s)
        self.active[digest] = row

    def give_number(self, row: StoredRow, owner: str, ask: NumberRequest, *, lost: bool) -> bool:
        """Whether it is a new one. `lost`: see `Numbers.give`."""
        if row.number is not None:
            return False
        row.number, is_new = self.numbers.setdefault(owner, Numbers()).give(ask, lost=lost)
        row.owner = owner
        return is_new

    def end_number(self, row: StoredRow, reason: str | None) -> None:
        if row.number is not None:
            self.numbers.setdefault(row.owner, Numbers()).end(row.number, reason, row.named)

    def room(self, owner: str) -> set[bytes]:
        return self.reserved.setdefault(owner, set())

    def keep(self, digest: bytes, row: StoredRow, now: float) -> None:
        """As a finished row, until the end of the second half window after the present one."""
        self.finished[digest] = StoredRow(
            generation=row.generation,
            stage=row.stage,
            attempts=min(row.attempts, 255),
            last_status=row.last_status,
            at=row.at,
            code=row.code,
            expires=finished_until(now, self.window_s),
        )
        self.active.pop(digest, None)

    def show(
        self, digest: bytes, row: StoredRow | None, now: float, *, kept: bool = False, behind: int | None = None
    ) -> Row:
        stored, numbering = row or StoredRow(0), None
        if stored.number is not None and stored.stage in (Stage.ACCEPTED, Stage.RESULT):
            numbering = self.numbers.setdefault(stored.owner, Numbers()).shown()
        return stored.shown(now, park_intent=digest in self.intents, kept=kept, behind=behind, numbering=numbering)

    def watched(self, digest: bytes, now: float) -> RowDetails:
        stored = self.load(digest, now) or StoredRow(0)
        return stored.watched(now, self.show(digest, stored, now))


def finished_until(now: float, window_s: float) -> float:
    """When a row that changed at `now` is forgotten: after 1 to 1.5 windows."""
    half = window_s / 2
    return (now // half + 3) * half


def settle(
    rows: Rows,
    one: Settlement,
    now: float,
    free: Free,
    *,
    lost: bool,
    rebuilding: bool,
    lost_at: float = 0.0,
) -> Row | None:
    """Write one outcome. Returns the row as it is now, or None if the attempt in flight was settled with this outcome.
    `free`: its parked record need not wait any longer. `lost`: an attempt may have been lost. `rebuilding`: a missing
    row may be read back from the log. `lost_at`: when a missing row may have been lost, with an attempt; 0: it
    cannot."""
    digest, token = one.row.digest, one.token
    row = rows.load(digest, now)
    finished = row is not None and row.stage >= Stage.DONE
    first = not token or row is None or not (finished or token in row.settled)
    rows.count_absence(now)
    _take_health(rows.endpoint(one.row.owner), one, now, first=first)
    rows.endpoint(one.row.owner).in_flight.pop(token, None)
    mine = row if row is not None and row.generation >= one.generation else StoredRow(one.generation)
    current = token != b"" and mine.token == token
    waits_until = _failure_waits_until(mine, one, lost_at, current=current)
    changed = mine.generation == one.generation and _apply(mine, one, now, lost=lost, rebuilding=rebuilding)
    if changed and waits_until > now:
        mine.due_at = waits_until
    if changed:
        _give_room_back(rows.room(one.row.owner), digest, mine)
    if changed and mine.stage is Stage.RESULT and not token:
        free(digest, mine.generation)
    ended = changed and one.change in _TARGETS and _end_number(rows, mine, one, lost=lost_at > 0)
    told = changed and current and digest not in rows.intents and not ended and waits_until <= now
    if first and token and (changed or mine is row or one.healthy is not None or one.pause_s):
        mine.settled = (*mine.settled, token)[-REMEMBERED:]
        changed = True
    if changed:
        rows.store(digest, mine, now)
    return None if told else rows.show(digest, mine, now)


def _failure_waits_until(row: StoredRow, one: Settlement, lost_at: float, *, current: bool) -> float:
    if one.change is not Change.RESULT or not one.reason or not one.settle_s or row.stage >= Stage.ACCEPTED:
        return 0.0
    is_out = row.stage is Stage.SENDING and (one.may_arrive or not current)
    return max(row.began if is_out else row.unheard, lost_at) + one.settle_s


def _end_number(rows: Rows, row: StoredRow, one: Settlement, *, lost: bool) -> bool:
    """Whether it has one."""
    is_new = one.number is not None and rows.give_number(row, one.row.owner, one.number, lost=lost)
    may_be_missing = is_new or (row.generation > 0 and not one.token)
    rows.end_number(row, one.reason or ("delivered" if may_be_missing else None))
    return row.number is not None


def _take_health(endpoint: Endpoint, one: Settlement, now: float, *, first: bool) -> None:
    if first or (endpoint.probe is not None and endpoint.probe == one.token):
        if one.up:
            endpoint.is_up(now, one.breaker)
        else:
            endpoint.record(now, one.token, one.healthy, one.breaker)
        if one.pause_s > 0:
            endpoint.paused_until = max(endpoint.paused_until, now + one.pause_s)


def _give_room_back(reserved: set[bytes], digest: bytes, row: StoredRow) -> None:
    if row.stage is Stage.ACCEPTED:
        reserved.add(digest)
    elif row.stage not in (Stage.SENDING, Stage.AWAITING):
        reserved.discard(digest)


def _apply(row: StoredRow, one: Settlement, now: float, *, lost: bool, rebuilding: bool) -> bool:
    if one.change is Change.STEP:
        if row.stage is Stage.AWAITING:
            row.reason = one.reason
        return row.stage is Stage.AWAITING
    current = one.token != b"" and row.token == one.token
    target = _TARGETS.get(one.change)
    if target is not None:
        begun = row.stage or row.attempts or row.polls
        if target <= row.stage or (one.unsent_ms is not None and (begun or lost)):
            return False
        if not one.token and one.reason and not begun and rebuilding:
            return False
        row.stage, row.result = target, one.result
        row.last_status, row.reason, row.detail, row.due_at = (
            one.last_status,
            one.reason,
            one.reason and one.detail,
            0.0,
        )
        if one.token:
            taken_back = 1 if current and not one.counted else 0
            row.attempts = max(row.attempts - taken_back, 1 if one.counted else 0)
    elif not current:
        return False
    elif one.change is Change.RELEASED:
        _fall_back(row)
    else:
        row.stage = Stage.ENQUEUED if one.change is Change.RETRY else Stage.SENDING
        row.unheard = row.began if one.may_arrive else row.unheard
        row.attempts -= 0 if one.counted else 1
        row.last_status, row.reason = one.last_status, one.reason
        row.detail = one.reason and one.detail
        row.due_at = now + one.due_in_s if one.due_in_s > 0 else 0.0
    row.token = None
    return True


def _fall_back(row: StoredRow) -> None:
    row.attempts -= 1
    row.stage, row.began = row.before
    if row.stage is Stage.NONE and (row.attempts + row.polls > 0 or row.number is not None):
        row.stage = Stage.ENQUEUED


def mark(rows: Rows, one: Mark, now: float, free: Free) -> None:
    """Raise a row after its hop record was acknowledged. `free`: its parked record need not wait any longer."""
    digest = one.row.digest
    row = rows.load(digest, now)
    if row is None or row.generation < one.generation:
        row = StoredRow(one.generation)
    if row.generation > one.generation or row.stage >= one.stage:
        return
    if row.stage < Stage.RESULT and one.stage >= Stage.PUBLISHED:
        free(digest, one.generation)
    rows.end_number(row, "poison" if one.stage is Stage.FAILED else None)
    row.number = None
    row.stage, row.result, row.token, row.due_at = one.stage, None, None, 0.0
    row.began = now if one.stage is Stage.AWAITING else 0.0
    if one.stage >= Stage.PUBLISHED:
        rows.room(one.row.owner).discard(digest)
    if one.stage is Stage.FAILED or (one.at is not None and one.stage >= Stage.PUBLISHED):
        row.at = one.at
    if one.stage < Stage.DONE:
        rows.store(digest, row, now)
        return
    row.code = one.code
    rows.keep(digest, row, now)


def remember(rows: Rows, one: Mark, now: float, free: Free, lost_at: float) -> None:
    """Mark a row that nothing more is known of than that it waits for such an end, or than an attempt of before
    `lost_at`. `free`: as in `mark`."""
    row = rows.load(one.row.digest, now)
    if row is None or row.generation < one.generation or row.stage in _WAITS or _is_of_before(row, lost_at):
        mark(rows, one, now, free)


def _is_of_before(row: StoredRow, lost_at: float) -> bool:
    return row.stage < Stage.ACCEPTED and row.began < lost_at
