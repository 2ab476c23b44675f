"""Detects local resource exhaustion: failures of requests that are the process's own fault, and its pauses. Pure.

Missing descriptors, memory, local ports or network are local failures and do not count as attempts. Some failures look
the same whether the local network or one receiver's host is down. They count as local only if every recent request
failed this way, to at least two receivers and two hosts, so that a single receiver can never stop the others.
"""

from typing import Final, Literal
from urllib.parse import urlsplit

from relay.domain.exchange import Exchange, NoResponse

LATELY_S: Final = 10.0
"""Seconds for which a result counts as recent, and without a local failure after which the shortage is over."""
FIRST_PAUSE_S: Final = 0.25
LONGEST_PAUSE_S: Final = 5.0
HOLD_S: Final = 1.0
"""Pause of a single endpoint after a local failure, if the whole process need not pause."""
_MOST_SUSPECTS: Final = 64

_OF_THE_PROCESS: Final = frozenset({"no_resources"})
"""Kinds of NoResponse that affect every request."""
_OURS: Final = frozenset({"no_local_address", "no_proxy"})
"""Always local failures, but requests to other endpoints may succeed."""
_PERHAPS_OURS: Final = frozenset({"unreachable", "dns_silent"})
_UNTRIED: Final = frozenset({"blocked", "invalid_url", "invalid_header", "failed", "no_token"})
"""Nothing was sent, so these say nothing about the network."""

Gate = Literal["open", "ajar", "shut"]
"""`ajar`: after a pause, a single request probes whether the others may follow."""


class Shortage:
    """State for all requests of a process. Times are monotonic seconds."""

    def __init__(self) -> None:
        self._well_at = float("-inf")
        self._suspects: dict[str, tuple[str, float]] = {}  # party -> host, when
        self._hit_at = float("-inf")
        self._pause_s = 0.0
        self._shut_until = float("-inf")
        self._ajar_until = float("-inf")
        self.since: float | None = None
        """When the current shortage began; None if there is none."""

    def is_ours(self, party: str, url: str, exchange: Exchange, now: float) -> bool:
        """Whether `exchange` failed because of a local fault; the process may then pause.

        `party`: the owner of the endpoint. Every exchange has to be reported, because the decision depends on others.
        """
        if isinstance(exchange, NoResponse) and not exchange.sent:
            kind = exchange.kind
            if kind in _OF_THE_PROCESS:
                self._hit(now)
                self._pause(now)
                return True
            if kind in _OURS or kind in _PERHAPS_OURS:
                self._suspect(party, url, now)
                everything = self._is_everything(now)
                if everything:
                    self._pause(now)
                if everything or kind in _OURS:
                    self._hit(now)
                    return True
                return False
            if kind in _UNTRIED:
                return False
        self._well_at = now  # a request left this machine, so the network is up
        if self._suspects:
            self._suspects.clear()
        if now >= self._shut_until:
            self._pause_s = 0.0
            self._ajar_until = now
        return False

    def gate(self, now: float) -> Gate:
        """Whether requests may be sent now."""
        if now < self._shut_until:
            return "shut"
        return "ajar" if now < self._ajar_until else "open"

    def changes_in(self, now: float) -> float:
        """Seconds until the gate opens further; 0 if it is open."""
        until = self._shut_until if now < self._shut_until else self._ajar_until
        return max(0.0, until - now)

    def over(self, now: float) -> float | None:
        """Duration of a shortage that has ended, returned once; None if there is none, or if it continues."""
        if self.since is None or now - self._hit_at < LATELY_S or self.gate(now) != "open":
            return None
        lasted_s, self.since = self._hit_at - self.since, None
        return lasted_s

    def _hit(self, now: float) -> None:
        self._hit_at = now
        if self.since is None:
            self.since = now

    def _suspect(self, party: str, url: str, now: float) -> None:
        self._suspects.pop(party, None)
        self._suspects[party] = urlsplit(url).hostname or "", now
        if len(self._suspects) > _MOST_SUSPECTS:
            del self._suspects[next(iter(self._suspects))]

    def _is_everything(self, now: float) -> bool:
        if now - self._well_at < LATELY_S:
            return False
        hosts = [host for host, at in self._suspects.values() if now - at < LATELY_S]
        return len(hosts) > 1 and len(set(hosts)) > 1

    def _pause(self, now: float) -> None:
        """Begins a pause. Requests in flight may fail during a pause and do not extend it."""
        if now >= self._shut_until:
            self._pause_s = min(LONGEST_PAUSE_S, max(FIRST_PAUSE_S, 2 * self._pause_s))
            self._shut_until = now + self._pause_s
            self._ajar_until = self._shut_until + self._pause_s
