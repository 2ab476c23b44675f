"""An endpoint in the memory of the state's fake: its rate, pause and breaker."""

import math
from dataclasses import dataclass, replace
from typing import Literal

from relay.domain.hold import Hold
from relay.domain.receiver import BreakerPolicy
from relay.state.attempts import Limits, Ping, Wait
from relay.state.onlooker import Openings
from relay.state.port import EndpointHealth
from tests.fakes.breaker import Breaker, Closed, HalfOpen, Open, ask, record

REMEMBERED_S = 7 * 86_400.0
PROBE_WAIT_S = 1.0


@dataclass(slots=True)
class Endpoint:
    """Rate, pause and breaker. `probe`: token of the one under way. `decided_at`: when it was held or resumed last."""

    slot: float = 0.0
    paused_until: float = 0.0
    hold: Hold | None = None
    decided_at: float = -math.inf
    breaker: Breaker = Closed()
    probe: bytes | None = None

    def keep(self, hold: Hold, now: float) -> None:
        self.hold, self.paused_until, self.decided_at = hold, math.inf, now

    def decided(self, now: float) -> float:
        return self.decided_at if now - self.decided_at <= REMEMBERED_S else 0.0

    def resume(self, now: float) -> None:
        self.hold, self.paused_until, self.decided_at = None, 0.0, now
        self.breaker, self.probe = Closed(), None

    def hindrance(self, now: float, token: bytes, limits: Limits) -> Wait | Ping | None:
        """What the breaker says to an attempt; None: it may go, and is the probe where one is needed."""
        after, verdict = ask(self.breaker, now, limits.breaker, limits.probe_s)
        if verdict == "go" or isinstance(self.breaker, Closed):
            return None
        down_for_s, since = self.breaker.outage.age_s(now), self.breaker.outage.since
        offline = down_for_s >= limits.breaker.offline.after
        if isinstance(verdict, float):
            if offline and self.probe == token:
                return Ping(down_for_s, since)
            return Wait(min(verdict, PROBE_WAIT_S) if self.probe else verdict, "offline" if offline else "breaker")
        if verdict == "ping":
            self.breaker, self.probe = after, token
            return Ping(down_for_s, since)
        return None

    def take_probe(self, now: float, token: bytes, limits: Limits) -> None:
        if not isinstance(self.breaker, Closed):
            self.breaker, _ = ask(self.breaker, now, limits.breaker, limits.probe_s)
            self.probe = token

    def record(self, now: float, token: bytes, healthy: bool | None, policy: BreakerPolicy) -> None:
        is_probe = token != b"" and self.probe == token
        self.breaker = record(self.breaker, now, policy, healthy, is_probe)
        if is_probe:
            self.probe = None

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
