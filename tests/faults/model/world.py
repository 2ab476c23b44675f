"""What a small world of the model is: two messages of one source to one receiver that is promised their order.

Written so that equal situations are equal values: a log holds only what is not committed, what nobody can tell apart
has one name, and whose turn it is does not show.
"""

from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple, TypeVar

T = TypeVar("T")

Worker = Literal["from_sender", "to_receiver", "zombie", "to_sender"]
Flaw = Literal[
    "mark_before_produce",
    "delete_at_done",
    "skip_what_has_a_result",
    "no_watermark",
    "no_settling",
    "no_fence",
    "no_lease",
    "no_suspicion",
    "stale_proof",
]
"""`stale_proof`: that a receiver has never seen a message counts whatever was begun or forgotten since."""

MESSAGES: Final = (0, 1)
LOG_OF: Final = {"from_sender": "sent", "to_receiver": "hops", "to_sender": "answers"}

# What Redis knows of a message, a delivery or a callback. SENDING tells whose attempt it is: it can be taken back by
# that one only.
NOTHING: Final = "."
ARRIVED: Final = "a"
ENQUEUED: Final = "e"
SENDING_OWNER: Final = "r"
SENDING_ZOMBIE: Final = "z"
SENDING_DEAD: Final = "x"
RESULT: Final = "R"
PUBLISHED: Final = "P"
DONE: Final = "D"

SENDING: Final = frozenset((SENDING_OWNER, SENDING_ZOMBIE, SENDING_DEAD))
NOBODY: Final = "-"
"""Waits for the answer to a POST on the wire."""


@dataclass(frozen=True, slots=True)
class Rules:
    """What the relay keeps to. `asked`: the receiver has a status endpoint. `flaws`: what is left out or done wrong."""

    asked: bool = True
    flaws: frozenset[Flaw] = frozenset()

    def keep(self, flaw: Flaw) -> bool:
        return flaw not in self.flaws


class Faults(NamedTuple):
    """How many of each may still happen. `lost`: responses that never come, or come too late."""

    crashes: int = 0
    lost: int = 0
    dropped: int = 0
    flushes: int = 0
    resends: int = 0
    zombies: int = 0


class Work(NamedTuple):
    """A record in a worker's memory: its message, and what comes next."""

    message: int
    next: str


class World(NamedTuple):
    """Logs, workers, Redis, the wire and the outside.

    `hops` and `answers` are to_receiver and to_sender. A worker's works are those of the first records of its log;
    only the zombie, who can commit nothing, has works without a log. `fenced`: Redis knows that a newer owner than
    the zombie has the lane. `in_doubt`: Redis knows that its memory was lost. `wire`: for each message the POSTs under
    way, by who waits for the answer. `seen`: arrivals at the receiver, `back`: whether the sender has the answer.
    """

    sent: tuple[int, ...]
    hops: tuple[int, ...]
    answers: tuple[int, ...]
    from_sender: tuple[Work, ...]
    to_receiver: tuple[Work, ...]
    zombie: tuple[Work, ...]
    to_sender: tuple[Work, ...]
    messages: tuple[str, ...]
    deliveries: tuple[str, ...]
    callbacks: tuple[str, ...]
    fenced: bool
    in_doubt: bool
    wire: tuple[tuple[str, ...], ...]
    seen: tuple[int, ...]
    back: tuple[bool, ...]
    disordered: bool
    faults: Faults

    def works(self, worker: str) -> tuple[Work, ...]:
        found: tuple[Work, ...] = getattr(self, worker)
        return found

    def log(self, worker: str) -> tuple[int, ...]:
        """The log that a worker reads."""
        found: tuple[int, ...] = getattr(self, LOG_OF[worker])
        return found

    def working(self, worker: str, works: tuple[Work, ...], log: tuple[int, ...] | None = None) -> "World":
        """The same, but for this worker's memory; and for its log, where one is given."""
        changes: dict[str, Any] = {worker: works} if log is None else {worker: works, LOG_OF[worker]: log}
        return self._replace(**changes)

    @property
    def copies(self) -> int:
        """How often the receiver got what it had got before."""
        return sum(max(0, times - 1) for times in self.seen)


def beginning(
    faults: Faults, sent: tuple[int, ...] = (), hops: tuple[int, ...] = (), answers: tuple[int, ...] = ()
) -> World:
    """These records are on the logs, and nothing else has happened."""
    each = len(MESSAGES)
    return World(
        sent=sent,
        hops=hops,
        answers=answers,
        from_sender=(),
        to_receiver=(),
        zombie=(),
        to_sender=(),
        messages=(NOTHING,) * each,
        deliveries=(NOTHING,) * each,
        callbacks=(NOTHING,) * each,
        fenced=True,
        in_doubt=False,
        wire=((),) * each,
        seen=(0,) * each,
        back=(False,) * each,
        disordered=False,
        faults=faults,
    )


def changed(each: tuple[T, ...], message: int, value: T) -> tuple[T, ...]:
    return (*each[:message], value, *each[message + 1 :])
