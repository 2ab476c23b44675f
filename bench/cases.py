"""The cases: the base, and variants that each change one thing."""

from dataclasses import dataclass, replace
from typing import Final, Literal


@dataclass(frozen=True, slots=True)
class Case:
    """A workload, and the behaviour of its receivers.

    `payload`: bytes. `latency_s`: of each answer. `failing`: share of answers that are a 503, whose `Retry-After` is
    `retry_after_s`: it pauses the whole receiver, so that above 0 a case measures little but the pauses. `round_trip`:
    receivers answer with a body, sources have a callback, and a message has arrived when its result is back. `answer`:
    bytes of that body, 0: as few as identify the message. `hold`: no request is answered until one process of the relay
    has all requests in flight that it can have; there is a receiver for each, as half of a process's room is kept for
    those that have none in flight. `batch`: most messages in a POST; 0: each has its own.
    """

    name: str
    about: str
    sources: int = 64
    receivers: int = 16
    lane: Literal["dedicated", "shared"] = "dedicated"
    ordering: Literal["source", "none"] = "source"
    payload: int = 1024
    latency_s: float = 0.0
    failing: float = 0.0
    retry_after_s: int = 0
    max_in_flight: int = 32
    round_trip: bool = False
    answer: int = 0
    hold: bool = False
    batch: int = 0

    @property
    def allowed(self) -> float | None:
        """Deliveries a second that the caps allow by Little's law: in flight / latency. None without a latency."""
        posts = self.receivers * self.max_in_flight / self.latency_s if self.latency_s else None
        return posts and posts * (self.batch or 1)

    def with_receivers(self, count: int) -> "Case":
        """This case with so many receivers."""
        about = f"{self.about}; but {count:,} receivers"
        return replace(self, name=f"{self.name}, {count:,} receivers", about=about, receivers=count)


BASE: Final = Case("base", "64 sources, 16 receivers with lanes of their own, 1 kB, receivers answer at once")

_HELD: Final = Case(
    "in-flight",
    "as many unanswered requests as one process can have, each to another receiver of the shared lane",
    sources=1,
    lane="shared",
    ordering="none",
    hold=True,
)

CASES: Final = {
    case.name: case
    for case in (
        BASE,
        replace(BASE, name="sources-10000", about="10,000 sources", sources=10_000),
        replace(BASE, name="receivers-1", about="one receiver", receivers=1),
        replace(BASE, name="receivers-100", about="100 receivers with lanes of their own", receivers=100),
        replace(BASE, name="receivers-1000", about="1,000 receivers in the shared lane", receivers=1000, lane="shared"),
        replace(BASE, name="payload-8k", about="8 kB payloads", payload=8192),
        replace(BASE, name="latency-50ms", about="receivers take 50 ms to answer", latency_s=0.05),
        replace(BASE, name="latency-1s", about="receivers take 1 s to answer", latency_s=1.0),
        replace(BASE, name="failing-10", about="every tenth answer is a 503 with Retry-After: 0", failing=0.1),
        replace(BASE, name="unordered", about="no order promised (ordering: none)", ordering="none"),
        replace(
            BASE,
            name="batch",
            about="one receiver that takes 50 ms to answer, and up to 100 messages in a POST",
            receivers=1,
            latency_s=0.05,
            batch=100,
        ),
        replace(BASE, name="round-trip", about="the receiver's answer, back at the sender's callback", round_trip=True),
        _HELD,
        replace(_HELD, name="in-flight-8k", about=f"{_HELD.about}, 8 kB payloads", payload=8192),
    )
}
