"""The history of a run: messages sent, arrivals, results, and faults.

Times are Unix seconds. Digests are SHA-256 in hexadecimal. Ids are decoded, not percent-encoded.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeVar

from relay.domain.timing import Timing


class Key(NamedTuple):
    """One message for one receiver."""

    source: str
    message_id: str
    receiver: str

    def __str__(self) -> str:
        return f"{self.source}/{self.message_id} for {self.receiver}"


@dataclass(frozen=True, slots=True)
class Sent:
    """One message for one receiver, as the load produced it. `number` grows per source; `digest`: of the payload;
    `acked`: whether Kafka acknowledged it. `callback`: where its result belongs. `allowed`: whether its source may name
    the receiver. `timing`: its own times, in Unix seconds, and its key. A message that is sent again has a second
    record."""

    at: float
    source: str
    message_id: str
    number: int
    receiver: str
    digest: str
    acked: bool
    callback: str = "callback"
    allowed: bool = True
    timing: Timing | None = None

    @property
    def key(self) -> Key:
        return Key(self.source, self.message_id, self.receiver)


@dataclass(frozen=True, slots=True)
class Arrival:
    """A POST at a receiver. `status`: of the response, None for none; `digest`: of its body. `processed`: whether the
    receiver processed it; not if it returned 429, 500 or 503, or if it hangs. `seen_late_s`: it arrived at most so long
    before `at`, when it was seen. `gaps`: ranges of numbers that it says not to arrive.
    """

    at: float
    receiver: str
    source: str
    message_id: str
    attempt: int
    generation: int
    sequence: int | None
    digest: str
    status: int | None
    processed: bool = True
    seen_late_s: float = 0.0
    gaps: tuple[tuple[int, int], ...] = ()

    @property
    def key(self) -> Key:
        return Key(self.source, self.message_id, self.receiver)


@dataclass(frozen=True, slots=True)
class Peak:
    """A new maximum of POSTs in flight at a receiver."""

    at: float
    receiver: str
    under_way: int


@dataclass(frozen=True, slots=True)
class Unheard:
    """The connection was closed before the response to this POST: the relay cannot know its outcome."""

    at: float
    receiver: str
    source: str
    message_id: str
    attempt: int
    generation: int

    @property
    def key(self) -> Key:
        return Key(self.source, self.message_id, self.receiver)


@dataclass(frozen=True, slots=True)
class Asked:
    """A status GET. `asked_for`: the last part of its path, a message id or webhook id."""

    at: float
    receiver: str
    asked_for: str
    status: int | None


@dataclass(frozen=True, slots=True)
class Ping:
    """A ping: the relay checks whether the receiver is available again."""

    at: float
    receiver: str
    status: int | None


@dataclass(frozen=True, slots=True)
class Returned:
    """A result at a sender's callback. `result_id`: its `webhook-id`; `digest`: of its body; `status`: of the response,
    None for none. `callback`: the name of the callback."""

    at: float
    result_id: str
    source: str
    message_id: str
    receiver: str
    outcome: str
    digest: str
    status: int | None = 200
    callback: str = "callback"

    @property
    def key(self) -> Key:
        return Key(self.source, self.message_id, self.receiver)


@dataclass(frozen=True, slots=True)
class Died:
    """A dead letter. Empty ids: the record had none that could be read; an empty `receiver`: it was not routed yet.
    `replaced_by`: id of the newer message, if that took its place."""

    reason: str
    source: str
    message_id: str
    receiver: str
    replaced_by: str = ""

    @property
    def key(self) -> Key:
        return Key(self.source, self.message_id, self.receiver)


@dataclass(frozen=True, slots=True)
class Fault:
    """An action of the harness, in words: "kill -9 relay-1". `heals`: it ended a fault, and does no harm."""

    at: float
    what: str
    heals: bool = False


Record = Sent | Arrival | Peak | Unheard | Asked | Ping | Returned | Died | Fault


@dataclass(frozen=True, slots=True)
class Counterexample:
    """A violation. `kind`: the field of `Verdict` that counts it. `messages`: those concerned; none if the whole run is
    stuck. `says`: a description."""

    kind: str
    messages: tuple[Key, ...]
    says: str


@dataclass(frozen=True, slots=True)
class Promise:
    """The guarantees for one receiver. `asked`: it has a status endpoint, so it gets each message once. `ordered`:
    messages of a source arrive in order. `in_doubt_per_fault`: copies allowed for each harmful fault, if it has no
    status endpoint. `deaths`: reasons for which its messages may become dead letters. `generations`: of a message; more
    than one with replays. `max_in_flight`: POSTs in flight; `rate_limit`: POSTs within any `window_s`. None: any
    number, or unknown to the receiver. `numbered`: its messages have numbers without holes.
    """

    asked: bool
    ordered: bool
    in_doubt_per_fault: int
    deaths: frozenset[str] = frozenset()
    generations: int = 1
    max_in_flight: int | None = None
    rate_limit: int | None = None
    window_s: float = 1.0
    numbered: bool = False


@dataclass(frozen=True, slots=True)
class History:
    """A whole run, each sequence in order of time. `unfinished`: consumer group -> records that it has not committed
    at the end; `parked`: messages that are parked at the end."""

    sent: tuple[Sent, ...]
    arrivals: tuple[Arrival, ...]
    returned: tuple[Returned, ...]
    died: tuple[Died, ...]
    faults: tuple[Fault, ...]
    unfinished: Mapping[str, int] = field(default_factory=dict)
    parked: int = 0
    unheard: tuple[Unheard, ...] = ()
    asked: tuple[Asked, ...] = ()
    peaks: tuple[Peak, ...] = ()

    @classmethod
    def of(cls, records: Iterable[Record], *, unfinished: Mapping[str, int], parked: int) -> "History":
        """The history of `records`, in any order, without pings: those of several ledgers can be chained."""
        every = list(records)
        return cls(
            sent=_in_order(every, Sent),
            arrivals=_in_order(every, Arrival),
            returned=_in_order(every, Returned),
            died=tuple(record for record in every if isinstance(record, Died)),
            faults=_in_order(every, Fault),
            unfinished=dict(unfinished),
            parked=parked,
            unheard=_in_order(every, Unheard),
            asked=_in_order(every, Asked),
            peaks=_in_order(every, Peak),
        )


_Timed = TypeVar("_Timed", Sent, Arrival, Returned, Fault, Unheard, Asked, Peak)


def _in_order(records: Iterable[Record], kind: type[_Timed]) -> tuple[_Timed, ...]:
    return tuple(sorted((each for each in records if isinstance(each, kind)), key=lambda each: each.at))


def digest_of(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()


NOTHING: Final = digest_of(b"")
"""The digest of an empty body, as of a failure notice and of a result without an answer."""


def answer_to(key: Key, digest: str) -> bytes:
    """The answer of a receiver to the message `key` whose payload has `digest`. It depends on the message alone, so the
    checker can compare the answer that the sender got."""
    return json.dumps({"done": True, "message": list(key), "digest": digest}, separators=(",", ":")).encode()
