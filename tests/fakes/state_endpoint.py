"""An endpoint in the memory of the state's fake: its rate, pause and breaker."""

import math
from dataclasses import dataclass, field, replace
from typing import Literal

from relay.domain.hold import Hold
from relay.domain.receiver import BreakerPolicy
from relay.state.attempts import Limits, PingDue, Wait
from relay.state.port import EndpointHealth
from relay.state.read_model import Openings
from tests.fakes.breaker import Breaker, Closed, HalfOpen, Open, ask, record

REMEMBERED_S = 7 * 86_400.0
PROBE_WAIT_S = 1.0
FULL_WAIT_S = 0.1
GIVEN_UP_S = 0.3
TURN_S = 1.0


@dataclass(slots=True)
class Place:
    """Of a lane in the line for a place in flight. `since`: when it began to wait; None: it is in its turn."""

    since: float | None = None
    asked_at: float = 0.0
    turn_until: float = -math.inf


@dataclass(slots=True)
class Endpoint:
    """Rate, pause and breaker of an endpoint, and its requests in flight. `probe`: token of the probe in flight;
    `early_at`: when a probe was allowed early, because the endpoint was up otherwise. `decided_at`: when it was held or
    resumed last. `in_flight`: tokens, each until its POST can no longer arrive. `line`: lanes that wait."""

    slot: float = 0.0
    paused_until: float = 0.0
    hold: Hold | None = None
    decided_at: float = -math.inf
    breaker: Breaker = Closed()
    probe: bytes | None = None
    early_at: float = -math.inf
    in_flight: dict[bytes, float] = field(default_factory=dict)
    line: dict[str, Place] = field(default_factory=dict)

    def take_place(self, now: float, lane: str, token: bytes, limits: Limits) -> bool:
        """Whether there is a place in flight for `lane`, which has it then."""
        if limits.max_in_flight is None:
            return True
        self.in_flight = {each: until for each, until in self.in_flight.items() if until > now}
        self._tidy(now)
        own = self.line.get(lane, Place())
        others = [(each.since, name) for name, each in self.line.items() if each.since is not None and name != lane]
        ahead = sum(own.since is None or other < (own.since, lane) for other in others)
        in_turn = own.turn_until > now
        if limits.max_in_flight - len(self.in_flight) <= (0 if in_turn else ahead):
            self.line[lane] = Place(now if own.since is None else own.since, now, own.turn_until)
            return False
        self.in_flight[token] = now + limits.probe_s
        self.line.pop(lane, None)
        if others:
            self.line[lane] = Place(turn_until=own.turn_until if in_turn else now + TURN_S)
        return True

    def _tidy(self, now: float) -> None:
        for name, each in list(self.line.items()):
            if each.since is not None and now - each.asked_at > GIVEN_UP_S:
                each.since = None
            if each.since is None and each.turn_until <= now:
                del self.line[name]

    def keep(self, hold: Hold, now: float) -> None:
        self.hold, self.paused_until, self.decided_at = hold, math.inf, now

    def decided(self, now: float) -> float:
        return self.decided_at if now - self.decided_at <= REMEMBERED_S else 0.0

    def was_resumed(self, since: float, now: float) -> bool:
        """If it is not held; and the clock was not set back after that."""
        return since < self.decided(now) <= now

    def resume(self, now: float) -> None:
        self.hold, self.paused_until, self.decided_at = None, 0.0, now
        self.breaker, self.probe, self.early_at = Closed(), None, -math.inf

    def probe_soon(self, now: float) -> None:
        if isinstance(self.breaker, Open):
            self.breaker = replace(self.breaker, until=min(self.breaker.until, now))

    def is_up(self, now: float, policy: BreakerPolicy) -> None:
        """It answered a GET, or called us."""
        is_waiting = isinstance(self.breaker, Open) and now < self.breaker.until
        if is_waiting and self._is_offline(now, policy) and now - self.early_at >= policy.offline.ping_every:
            self.probe_soon(now)
            self.early_at = now

    def hindrance(self, now: float, token: bytes, limits: Limits, open_s: float) -> Wait | PingDue | None:
        """What the breaker says to an attempt of a lane; None: it may go, and is the probe where one is needed."""
        outage = self.breaker.outage
        is_new = self.probe is None and outage is not None and outage.last < now - open_s
        if is_new and self._is_offline(now, limits.breaker):
            self.probe_soon(now)
        after, verdict = ask(self.breaker, now, limits.breaker, limits.probe_s)
        if verdict == "go" or isinstance(self.breaker, Closed):
            return None
        down_for_s, since = self.breaker.outage.age_s(now), self.breaker.outage.since
        offline = self._is_offline(now, limits.breaker)
        if isinstance(verdict, float):
            if offline and self.probe == token:
                return PingDue(down_for_s, since)
            return Wait(min(verdict, PROBE_WAIT_S) if self.probe else verdict, "offline" if offline else "breaker")
        if verdict == "ping":
            self.breaker = after
            self.probe = token
            return PingDue(down_for_s, since)
        return None

    def take_probe(self, now: float, token: bytes, limits: Limits) -> None:
        if not isinstance(self.breaker, Closed):
            self.breaker, _ = ask(self.breaker, now, limits.breaker, limits.probe_s)
            self.probe = token

    def _is_offline(self, now: float, policy: BreakerPolicy) -> bool:
        outage = self.breaker.outage
        return outage is not None and outage.age_s(now) >= policy.offline.after

    def record(self, now: float, token: bytes, healthy: bool | None, policy: BreakerPolicy) -> None:
        is_probe = token != b"" and self.probe == token
        if token == b"" and healthy:
            self.probe_soon(now)
        self.breaker = record(self.breaker, now, policy, healthy, is_probe)
        if is_probe:
            self.probe = None
        if isinstance(self.breaker, Closed):
            self.early_at = -math.inf

    @property
    def opening(self) -> float:
        """The later, the longer lanes wait for its breaker; 0: not at all."""
        match self.breaker:
            case Open(until, _):
                return until
            case HalfOpen():
                return 1.0
            case Closed():
                return 0.0

    def openings(self, now: float) -> Openings:
        probe_in_s = 0.0
        match self.breaker:
            case Open(until, _):
                probe_in_s = until - now
            case HalfOpen(until, _):
                probe_in_s = until - now
            case Closed():
                pass
        return Openings(max(0.0, self.slot - now), max(0.0, probe_in_s))

    def postpone(self, seconds: float) -> None:
        """Its outage began so much later."""
        if self.breaker.outage is not None:
            outage = replace(self.breaker.outage, since=self.breaker.outage.since + seconds)
            self.breaker = replace(self.breaker, outage=outage)

    def health(self, now: float) -> EndpointHealth:
        state: Literal["closed", "open", "half_open"] = "half_open"
        match self.breaker:
            case Closed(outage):
                state = "closed"
            case Open(until, outage):
                state = "open" if now < until else "half_open"
            case HalfOpen(_, outage):
                pass
        return EndpointHealth(
            state,
            max(0.0, self.paused_until - now),
            outage.run if outage else 0,
            outage.age_s(now) if outage else 0.0,
            self.hold,
        )
