"""The history port: messages, deliveries and attempts as they are searched. All of it is derived from the log.

Any method may raise HistoryUnavailable; then it can be repeated. What a page of results leaves out follows behind its
cursor: newest first, and stable while newer things come in. Texts that no database takes come back as they could be
kept: NUL and lone surrogates as U+FFFD.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, Literal, NamedTuple, Protocol, TypeVar

from msgspec import Struct

from relay.domain.attempt import Attempt, AttemptKind
from relay.domain.coordinate import Coordinate
from relay.domain.identity import DeliveryId, MessageId
from relay.domain.life import NO_LIFE, Life
from relay.domain.progress import Status
from relay.log.port import TopicPartition

T = TypeVar("T")

By = Literal["minute", "hour"]


class ArrivalFact(Struct, frozen=True, gc=False):
    """A message as it came to `from_sender`, at `at`. `received_at`: Unix seconds, the log's. `headers`: the message's
    own and its CloudEvents attributes, by their names in lower case, where bodies are kept; `body`: as many of its
    first bytes as are kept. `receivers`: those that it names, whose deliveries are known by that. Of an id that came
    more than once the first counts, with the receivers of all."""

    message: MessageId
    at: Coordinate
    received_at: float
    event_type: str | None
    content_type: str | None
    size: int
    headers: Mapping[str, str] = {}
    body: bytes | None = None
    receivers: tuple[str, ...] = ()


class EndingFact(Struct, frozen=True, gc=False):
    """What became of a delivery: its record on `to_sender`, or on `failed_messages`. `happened_at`: Unix seconds.

    `status`: `response_received_from_receiver`; `response_delivered_to_sender` where it was left for a consumer of the
    source's own; or `failed`, then with its `reason`, also where it was the sender's callback that failed. `attempts`:
    POSTs to the receiver. `receiver` of what was never routed: empty. `life`: of the receiver's name, if it is known.
    """

    delivery: DeliveryId
    generation: int
    at: Coordinate
    happened_at: float
    status: Status
    attempts: int
    last_status: int | None
    reason: str | None = None
    detail: str | None = None
    life: str = ""


class FactBatch(Struct, frozen=True):
    """What some records say. `attempts` with the coordinate that tells one from another."""

    arrivals: Sequence[ArrivalFact] = ()
    attempts: Sequence[tuple[Coordinate, Attempt]] = ()
    endings: Sequence[EndingFact] = ()


@dataclass(frozen=True, slots=True)
class Visible:
    """Of whom something may be shown. Both None: of all. `sources`: patterns as scopes have them. What is about one of
    `sources` is shown, and of the rest what is about one of `receivers`: a message with a delivery to one, without its
    other deliveries, and attempts at it, but no callback. A None beside names stands for none of that kind. `lives`: of
    the names of `receivers`, those that are not empty: of former lives of a name nothing is shown."""

    sources: Collection[str] | None = None
    receivers: Collection[str] | None = None
    lives: Mapping[str, Life] = field(default_factory=dict)

    def life(self, receiver: str) -> Life:
        return self.lives.get(receiver, NO_LIFE)


@dataclass(frozen=True, slots=True)
class MessageQuery:
    """Which messages. What is None narrows nothing. `since` (included), `until` (not): Unix seconds of the arrival.

    `event_type`: exact, or with a trailing `*`. `id_prefix`: how the message_id begins, or the webhook id. `header`: a
    name and its value; `payload`: a JSON pointer and the text of what is there (a string as it is, `true`, a number
    without exponent); both only where bodies are kept. `status`, `reason`, `receiver`: at least one delivery that may
    be shown is all of that; a message of which no delivery is known yet is `arrived`.
    """

    visible: Visible = field(default_factory=Visible)
    source_id: str | None = None
    receiver: str | None = None
    status: Status | None = None
    reason: str | None = None
    event_type: str | None = None
    since: float | None = None
    until: float | None = None
    id_prefix: str | None = None
    header: tuple[str, str] | None = None
    payload: tuple[str, str] | None = None


@dataclass(frozen=True, slots=True)
class AttemptQuery:
    """Which attempts. `kinds` None: all. `failed`: those that did not end well (True), or that did (False). `since`
    (included), `until` (not): Unix seconds of their begin. `at`: the one whose record has this partition and offset.
    `behind`: of this partition only those with a larger offset."""

    visible: Visible = field(default_factory=Visible)
    message: MessageId | None = None
    receiver: str | None = None
    kinds: Collection[AttemptKind] | None = None
    failed: bool | None = None
    since: float | None = None
    until: float | None = None
    at: tuple[int, int] | None = None
    behind: tuple[int, int] | None = None


class DeliveryFound(Struct, frozen=True, gc=False):
    """A delivery, as far as the newest of its generations has come. `reason`, `detail`: why it failed, or why its last
    attempt did. `updated_at`: Unix seconds. `life`: of the receiver's name, if it is known: until it is tried, or ends,
    it is not."""

    receiver: str
    status: Status
    generation: int
    attempts: int
    last_status: int | None
    reason: str | None
    detail: str | None
    updated_at: float
    life: str = ""


class MessageFound(Struct, frozen=True, gc=False):
    """A message with those of its deliveries that anything is known of."""

    arrival: ArrivalFact
    deliveries: tuple[DeliveryFound, ...]


class AttemptFound(Struct, frozen=True, gc=False):
    """An attempt, and the place of its record, which names it."""

    at: Coordinate
    attempt: Attempt


class HistoryPage(Struct, Generic[T], frozen=True):
    """`cursor`: what the next page is asked for with; None: this was the last one. A search by header or payload looks
    at so many messages for a page and no more, and one about receivers at what their names had in former lives: it may
    then hold fewer than asked for, or none, and have a cursor."""

    items: list[T]
    cursor: str | None


class SpanCount(Struct, frozen=True, gc=False):
    """The POSTs to one receiver for one source within the minute, or the hour, that begins at `at` (Unix seconds).
    `counts`: what `relay.domain.statistics.Counted` holds."""

    at: float
    receiver: str
    source_id: str
    counts: tuple[int, ...]


class Size(NamedTuple):
    """Of what a store holds. `bytes` None: not known."""

    messages: int
    deliveries: int
    attempts: int
    bytes: int | None


class HistoryReader(Protocol):
    """What is asked of it."""

    async def messages(
        self, query: MessageQuery, *, limit: int, cursor: str | None = None
    ) -> HistoryPage[MessageFound]:
        """Newest arrival first. Raises ValueError for a cursor that is none."""
        ...

    async def message(self, message: MessageId) -> MessageFound | None:
        """With all its deliveries: what may be shown is the caller's business."""
        ...

    async def attempts(
        self, query: AttemptQuery, *, limit: int, cursor: str | None = None
    ) -> HistoryPage[AttemptFound]:
        """Newest begin first. Raises ValueError for a cursor that is none."""
        ...

    async def counted(
        self,
        by: By,
        *,
        since: float,
        until: float,
        visible: Visible,
        receiver: str | None = None,
        source_id: str | None = None,
        most: int,
    ) -> list[SpanCount]:
        """Oldest first, `most` at most; what nothing happened in is left out. `since`: included, `until`: not."""
        ...

    async def next_offsets(self) -> dict[TopicPartition, int]:
        """Of each partition that something was taken from: the offset of the record to take next."""
        ...


class History(HistoryReader, Protocol):
    """A store. `start` connects and makes or moves up its tables, and is repeatable; where a newer version has made
    them it raises HistoryUnavailable, and leaves them as they are. `close` releases everything in bounded time."""

    async def start(self) -> None: ...

    async def write(
        self, batch: FactBatch, next_offsets: Mapping[TopicPartition, int], first: Mapping[TopicPartition, int]
    ) -> None:
        """All of it, and how far it goes, or nothing of it. Repeatable: what is before the offsets that it has is left
        out, whoever wrote it. `first`: where the batch begins, of each of its partitions. Raises HistoryMoved where it
        has less than that: it was cleared, or is a copy of before."""
        ...

    async def skip(self, next_offsets: Mapping[TopicPartition, int]) -> None:
        """Go on from there: what was before is gone from the log. Nothing moves back."""
        ...

    async def size(self) -> Size:
        """About: where counting takes long, the server's own estimate."""
        ...

    async def prune(self, before: float) -> int:
        """Drop what happened before the day (UTC) of this moment (Unix seconds), and tell how many messages that were.
        Days are dropped as a whole."""
        ...

    async def clear(self) -> None:
        """Drop everything, also how far it goes: it is to be built anew from the log."""
        ...

    async def close(self) -> None: ...
