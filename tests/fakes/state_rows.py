"""The rows and endpoints of one hash tag, in plain Python: what the Redis scripts do, for the fake state."""

import math
from collections.abc import Container
from dataclasses import dataclass, field, replace
from typing import Literal

from relay.domain.receiver import BreakerPolicy
from relay.state.port import (
    Ambiguous,
    BeginAsk,
    Change,
    EndpointHealth,
    Go,
    Have,
    Kind,
    Limits,
    Mark,
    Result,
    Row,
    Settlement,
    Stage,
    Stale,
    Verdict,
    Wait,
)

STUB_S = 60.0
AHEAD_S = 1.0
PROBE_WAIT_S = 1.0
REMEMBERED = 4
_TARGETS = {Change.ACCEPTED: Stage.ACCEPTED, Change.RESULT: Stage.RESULT}


@dataclass(slots=True)
class Endpoint:
    """Rate, pause and breaker. `opened_until`: None while closed; once past, one probe at a time goes through."""

    slot: float = 0.0
    paused_until: float = 0.0
    failures: int = 0
    since: float = 0.0
    opened_until: float | None = None
    probe: bytes | None = None
    probe_until: float = 0.0

    def close(self) -> None:
        self.failures, self.opened_until, self.probe = 0, None, None

    def breaker_wait(self, now: float) -> float:
        if self.opened_until is None:
            return 0.0
        if self.probe is None:
            return self.opened_until - now
        return min(self.probe_until - now, PROBE_WAIT_S)

    def record(self, now: float, token: bytes, healthy: bool | None, policy: BreakerPolicy) -> None:
        if self.opened_until is not None:
            if token and self.probe == token:
                self.probe = None
                if healthy:
                    self.close()
                elif healthy is False:
                    self.opened_until = now + policy.open_for
        elif healthy:
            self.close()
        elif healthy is False:
            fresh = self.failures == 0 or now - self.since > policy.window
            self.failures, self.since = (1, now) if fresh else (self.failures + 1, self.since)
            if self.failures >= policy.failures:
                self.opened_until = now + policy.open_for

    def health(self, now: float) -> EndpointHealth:
        state: Literal["closed", "open", "half_open"] = "closed"
        if self.opened_until is not None:
            state = "open" if now < self.opened_until else "half_open"
        return EndpointHealth(state, max(0.0, self.paused_until - now), self.failures)


@dataclass(slots=True)
class StoredRow:
    """A row, with what the port does not show. `began` and `slot` belong to `token`, the attempt under way."""

    generation: int
    stage: Stage = Stage.NONE
    attempts: int = 0
    polls: int = 0
    due_at: float = 0.0
    last_status: int | None = None
    reason: str | None = None
    at: tuple[int, int] | None = None
    code: int = 0
    result: Result | None = None
    token: bytes | None = None
    began: float = 0.0
    slot: float = 0.0
    before: tuple[Stage, float] = (Stage.NONE, 0.0)
    poll_token: bytes | None = None
    settled: tuple[bytes, ...] = ()
    expires: float = math.inf

    def shown(self, now: float, *, park_intent: bool, kept: bool, behind: bool) -> Row:
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
        )


@dataclass(slots=True)
class Rows:
    """Rows and endpoints of one tag. `doubt_until`, `lost_at`: see `State.ready`."""

    window_s: float
    active: dict[bytes, StoredRow] = field(default_factory=dict)
    finished: dict[bytes, StoredRow] = field(default_factory=dict)
    intents: set[bytes] = field(default_factory=set)
    endpoints: dict[str, Endpoint] = field(default_factory=dict)

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
        self, digest: bytes, row: StoredRow | None, now: float, *, kept: bool = False, behind: bool = False
    ) -> Row:
        stored = row or StoredRow(0)
        return stored.shown(now, park_intent=digest in self.intents, kept=kept, behind=behind)


def finished_until(now: float, window_s: float) -> float:
    """When a row that changed at `now` is forgotten: after 1 to 1.5 windows."""
    half = window_s / 2
    return (now // half + 3) * half


@dataclass(frozen=True, slots=True)
class Beginning:
    """One begin call, at one moment. `kept`: digests that the lane holds parked references to."""

    rows: Rows
    now: float
    doubt_until: float
    lost_at: float
    kept: Container[bytes]

    def verdict(self, ask: BeginAsk) -> Verdict:
        row = self.rows.load(ask.row.digest, self.now)
        if row is not None and row.generation > ask.generation:
            return Stale(row.generation)
        if row is None or row.generation < ask.generation:
            row = StoredRow(ask.generation)
        return self._post(ask, row) if ask.kind is Kind.POST else self._poll(ask, row)

    def _have(self, ask: BeginAsk, row: StoredRow) -> Have:
        digest = ask.row.digest
        return Have(self.rows.show(digest, row, self.now, kept=digest in self.kept))

    def _post(self, ask: BeginAsk, row: StoredRow) -> Verdict:
        if row.stage >= Stage.ACCEPTED:
            return self._have(ask, row)
        if row.token == ask.token:
            return Go(row.attempts, max(0.0, row.slot - self.now))
        if ask.token in row.settled:
            return Wait(0.0, "settling")
        endpoint = self.rows.endpoint(ask.row.owner)
        hindrance = self._unresolved(ask, row) or self._paused(endpoint)
        if hindrance is not None:
            return hindrance
        wait_s = endpoint.breaker_wait(self.now)
        if wait_s > 0:
            return Wait(wait_s, "breaker")
        slot = max(self.now, endpoint.slot) if ask.limits.interval_s > 0 else self.now
        if slot - self.now > AHEAD_S:
            return Wait(slot - self.now - AHEAD_S, "rate")
        _reserve(endpoint, slot, self.now, ask.token, ask.limits)
        return self._go(ask, row, slot)

    def _go(self, ask: BeginAsk, row: StoredRow, slot: float) -> Go:
        row.before = (row.stage, row.began)
        row.stage, row.token, row.began, row.slot, row.due_at = Stage.SENDING, ask.token, self.now, slot, 0.0
        row.attempts = max(row.attempts, ask.attempts) + 1
        self.rows.store(ask.row.digest, row, self.now)
        return Go(row.attempts, slot - self.now)

    def _unresolved(self, ask: BeginAsk, row: StoredRow) -> Verdict | None:
        began, attempts = row.began, row.attempts
        if row.stage is not Stage.SENDING:
            if row.stage is not Stage.NONE or not ask.ask_first or self.now >= self.doubt_until:
                return None
            began, attempts = self.lost_at, ask.attempts
        left = began + ask.limits.settle_s - self.now
        if left > 0:
            return Wait(left, "settling")
        return None if ask.takeover else Ambiguous(attempts)

    def _paused(self, endpoint: Endpoint) -> Wait | None:
        left = endpoint.paused_until - self.now
        return Wait(left, "pause") if left > 0 else None

    def _poll(self, ask: BeginAsk, row: StoredRow) -> Verdict:
        if row.stage >= Stage.RESULT:
            return self._have(ask, row)
        if row.poll_token != ask.token:
            hindrance = self._paused(self.rows.endpoint(ask.row.owner))
            if hindrance is not None:
                return hindrance
            row.polls, row.poll_token = row.polls + 1, ask.token
            self.rows.store(ask.row.digest, row, self.now)
        return Go(row.polls, 0.0)


def _reserve(endpoint: Endpoint, slot: float, now: float, token: bytes, limits: Limits) -> None:
    if limits.interval_s > 0:
        endpoint.slot = slot + limits.interval_s
    if endpoint.opened_until is not None:
        endpoint.probe, endpoint.probe_until = token, now + limits.probe_s


def settle(rows: Rows, one: Settlement, now: float) -> Row | None:
    """Write one outcome; the row as it now is, None where the attempt under way was settled as told."""
    digest, token = one.row.digest, one.token
    row = rows.load(digest, now)
    finished = row is not None and row.stage >= Stage.DONE
    first = not token or row is None or not (finished or token in row.settled)
    _take_health(rows.endpoint(one.row.owner), one, now, first=first)
    mine = row if row is not None and row.generation >= one.generation else StoredRow(one.generation)
    current = token != b"" and mine.token == token
    changed = mine.generation == one.generation and _apply(mine, one, now)
    told = changed and current and digest not in rows.intents
    if first and token and (changed or mine is row or one.healthy is not None or one.pause_s):
        mine.settled = (*mine.settled, token)[-REMEMBERED:]
        changed = True
    if changed:
        rows.store(digest, mine, now)
    return None if told else rows.show(digest, mine, now)


def _take_health(endpoint: Endpoint, one: Settlement, now: float, *, first: bool) -> None:
    if first or (endpoint.probe is not None and endpoint.probe == one.token):
        endpoint.record(now, one.token, one.healthy, one.breaker)
        if one.pause_s > 0:
            endpoint.paused_until = max(endpoint.paused_until, now + one.pause_s)


def _apply(row: StoredRow, one: Settlement, now: float) -> bool:
    current = one.token != b"" and row.token == one.token
    target = _TARGETS.get(one.change)
    if target is not None:
        if target <= row.stage:
            return False
        row.stage, row.result = target, one.result
        row.last_status, row.reason, row.due_at = one.last_status, one.reason, 0.0
        if one.token:
            taken_back = 1 if current and not one.counted else 0
            row.attempts = max(row.attempts - taken_back, 1 if one.counted else 0)
    elif not current:
        return False
    elif one.change is Change.RELEASED:
        _fall_back(row)
    else:
        row.stage = Stage.ENQUEUED if one.change is Change.RETRY else Stage.SENDING
        row.attempts -= 0 if one.counted else 1
        row.last_status, row.reason = one.last_status, one.reason
        row.due_at = now + one.due_in_s if one.due_in_s > 0 else 0.0
    row.token = None
    return True


def _fall_back(row: StoredRow) -> None:
    row.attempts -= 1
    row.stage, row.began = row.before
    if row.stage is Stage.NONE and row.attempts + row.polls > 0:
        row.stage = Stage.ENQUEUED


def mark(rows: Rows, one: Mark, now: float) -> None:
    """Raise a row after its hop record was acknowledged."""
    digest = one.row.digest
    row = rows.load(digest, now)
    if row is None or row.generation < one.generation:
        row = StoredRow(one.generation)
    if row.generation > one.generation or row.stage >= one.stage:
        return
    row.stage, row.result, row.token, row.due_at = one.stage, None, None, 0.0
    if one.stage is Stage.FAILED or (one.at is not None and one.stage >= Stage.PUBLISHED):
        row.at = one.at
    if one.stage < Stage.DONE:
        rows.store(digest, row, now)
        return
    row.code = one.code
    rows.keep(digest, row, now)
