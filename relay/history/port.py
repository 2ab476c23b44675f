"""The history port: searchable messages, deliveries and attempts, all derived from the log.

Any method may raise HistoryUnavailable; then it can be repeated. Pages are newest first, and their cursors are stable
while newer records arrive. In texts, NUL and lone surrogates, which databases reject, are stored as U+FFFD.
"""

import base64
import binascii
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Final, Generic, Literal, NamedTuple, Protocol, TypeVar

import msgspec
from msgspec import Struct

from relay.domain.attempt import Attempt, AttemptKind
from relay.domain.coordinate import Coordinate
from relay.domain.erasure import Erasure
from relay.domain.identity import DeliveryId, MessageId, base64url
from relay.domain.json_pointer import pointer_steps, value_at
from relay.domain.receiver import NO_LIFE, Life
from relay.domain.state import Status, StoredState
from relay.log.port import TopicPartition

T = TypeVar("T")

By = Literal["minute", "hour"]

WITHOUT: Final = frozenset({None, "arrived", "queued", "done", "discarded"})
"""Statuses and states for which a message without a known delivery is found: it has one that is not known yet, or no
receiver."""


class ArrivalFact(Struct, frozen=True, gc=False):
    """A message as it arrived on `from_sender`, at `at`. `received_at`: the log's time, Unix seconds. `headers`: the
    forwarded headers and CloudEvents attributes, by lower-case names, if bodies are stored; `body`: its stored first
    bytes. `receivers`: those that it names, each of which is a delivery. If an id arrives several times, the first
    arrival counts, with the receivers of all."""

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
    """The end of a delivery: its record on `to_sender`, or on `failed_messages`. `happened_at`: Unix seconds.

    `status`: `response_received_from_receiver`; `response_delivered_to_sender` if a consumer of the source's own reads
    it; or `failed` with a `reason`, also if the sender's callback failed. `attempts`: POSTs to the receiver. The
    receiver is empty if the message was never routed. `life`: of the receiver's name, if known. `number`: of the
    delivery, where those of its receiver are numbered.
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
    number: int | None = None


class FactBatch(Struct, frozen=True):
    """The facts in a batch of records. `attempts` are identified by their coordinates."""

    arrivals: Sequence[ArrivalFact] = ()
    attempts: Sequence[tuple[Coordinate, Attempt]] = ()
    endings: Sequence[EndingFact] = ()


@dataclass(frozen=True, slots=True)
class Visible:
    """The part of the history that a client may see; everything if both are None. `sources`: patterns as in scopes, of
    which everything is visible. Of other sources, only what concerns one of `receivers` is visible: messages with a
    delivery to it, without their other deliveries, and attempts at it, but no callbacks. If only one is None, nothing
    is visible by it. `lives`: current lives of `receivers`, without empty ones; former lives of a name are not
    visible."""

    sources: Collection[str] | None = None
    receivers: Collection[str] | None = None
    lives: Mapping[str, Life] = field(default_factory=dict)

    def life(self, receiver: str) -> Life:
        return self.lives.get(receiver, NO_LIFE)


@dataclass(frozen=True, slots=True)
class SourceSet:
    """These sources, or all others if `excluded`."""

    names: Collection[str] = ()
    excluded: bool = True


@dataclass(frozen=True, slots=True)
class MessageQuery:
    """A query for messages; a None does not restrict. `since` (inclusive), `until` (exclusive): Unix seconds of the
    arrival.

    `event_type`: exact, or with a trailing `*`. `id_prefix`: of the message_id or the webhook id. `header`: a name and
    its value; `payload`: a JSON pointer and the text of its value (a string as it is, `true`, a number without
    exponent); both only if bodies are stored. `status`, `state`, `reason`, `receiver`: at least one visible delivery
    matches all of them, or the message has no known delivery and may be so (`WITHOUT`): the history does not know
    whether it has a receiver. Answered ones are found for `done`, too: it does not know whether an answer was wanted. A
    delivery is `queued` and `retrying` if it had POSTs, none of which counts as an attempt. `answered_by`: the sources
    whose answered deliveries are in `state`, which matters for `returning` and `delivered`: the history does not know
    where a source's results are sent.
    """

    visible: Visible = field(default_factory=Visible)
    source_id: str | None = None
    receiver: str | None = None
    status: Status | None = None
    state: StoredState | None = None
    answered_by: SourceSet = field(default_factory=SourceSet)
    reason: str | None = None
    event_type: str | None = None
    since: float | None = None
    until: float | None = None
    id_prefix: str | None = None
    header: tuple[str, str] | None = None
    payload: tuple[str, str] | None = None


@dataclass(frozen=True, slots=True)
class AttemptQuery:
    """A query for attempts; a None does not restrict. `failed`: only failed (True) or only successful (False) ones.
    `since` (inclusive), `until` (exclusive): Unix seconds of their begin. `at`: the one with this partition and offset.
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


@dataclass(frozen=True, slots=True)
class CountQuery:
    """A query for counts by minute or hour; a None does not restrict. `since` (inclusive), `until` (exclusive): Unix
    seconds of the spans' begins."""

    by: By
    since: float
    until: float
    visible: Visible = field(default_factory=Visible)
    receiver: str | None = None
    source_id: str | None = None


class DeliveryFound(Struct, frozen=True, gc=False):
    """A delivery with the progress of its newest generation. `attempts`: those that count. `reason`,
    `detail`: why it, or its last attempt, failed. `updated_at`: Unix seconds. `life`: of the receiver's name, which is
    unknown until the first attempt or the end."""

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
    """A message with its known deliveries."""

    arrival: ArrivalFact
    deliveries: tuple[DeliveryFound, ...]


class AttemptFound(Struct, frozen=True, gc=False):
    """An attempt, and the place of its record, which identifies it."""

    at: Coordinate
    attempt: Attempt


class HistoryPage(Struct, Generic[T], frozen=True):
    """`cursor`: for the next page; None for the last one. A page with a cursor may have fewer items than requested, or
    none: a search by header or payload examines a limited number of messages per page, and a search by receivers skips
    records of former lives."""

    items: list[T]
    cursor: str | None


class SpanCount(Struct, frozen=True, gc=False):
    """The POSTs to one receiver for one source in the minute or hour that begins at `at` (Unix seconds). `counts`: as
    in `relay.domain.statistics.Counted`."""

    at: float
    receiver: str
    source_id: str
    counts: tuple[int, ...]


class Size(NamedTuple):
    """Size of a store. `bytes`: None if unknown."""

    messages: int
    deliveries: int
    attempts: int
    bytes: int | None


class HistoryReader(Protocol):
    """Queries of the history."""

    async def messages(
        self, query: MessageQuery, *, limit: int, cursor: str | None = None
    ) -> HistoryPage[MessageFound]:
        """Newest arrival first. Of bodies, at least the first bytes are there, for a preview. Raises ValueError for an
        invalid cursor."""
        ...

    async def message(self, message: MessageId) -> MessageFound | None:
        """A message with all its deliveries; the caller has to check their visibility."""
        ...

    async def numbered(self, receiver: str, visible: Visible, *, after: int, limit: int) -> list[tuple[int, MessageId]]:
        """The messages of a receiver's numbers above `after`, lowest first. A message may have two, of which it has the
        higher one here."""
        ...

    async def attempts(
        self, query: AttemptQuery, *, limit: int, cursor: str | None = None
    ) -> HistoryPage[AttemptFound]:
        """Newest begin first. Raises ValueError for an invalid cursor."""
        ...

    async def counted(self, query: CountQuery, *, most: int) -> list[SpanCount]:
        """Counts of spans, oldest first, at most `most`, without empty ones."""
        ...

    async def next_offsets(self) -> dict[TopicPartition, int]:
        """The offset of the next record to write, for each partition with written records."""
        ...


class History(HistoryReader, Protocol):
    """A history store. `start` connects and creates or migrates its tables, and is repeatable; if a newer version has
    created them, it raises HistoryUnavailable without changes. `close` releases everything in bounded time."""

    async def start(self) -> None: ...

    async def write(
        self, batch: FactBatch, next_offsets: Mapping[TopicPartition, int], first: Mapping[TopicPartition, int]
    ) -> None:
        """Write the batch and the next offsets atomically. Repeatable: records before the stored offsets are skipped,
        also if another process wrote them. `first`: first offset of the batch in each of its partitions. Raises
        HistoryMoved if the store has less than that, because it was cleared or restored from a backup."""
        ...

    async def skip(self, next_offsets: Mapping[TopicPartition, int]) -> None:
        """Advance to these offsets, because earlier records no longer exist on the log. Offsets never decrease."""
        ...

    async def rewind(self, next_offsets: Mapping[TopicPartition, int]) -> None:
        """Set the offsets back to these, because the log has other records from there on than those written."""
        ...

    async def size(self) -> Size:
        """Approximate size: the server's estimate if counting is slow."""
        ...

    async def prune(self, before: float) -> int:
        """Drop all days (UTC) before that of `before` (Unix seconds), each as a whole. Returns the number of dropped
        messages."""
        ...

    async def erase(self, erasure: Erasure) -> int:
        """Delete the payloads and headers of messages that it covers, and their attempts. Of the messages to a receiver
        those that other receivers got, too, keep them. Repeatable. Returns the number of changed messages."""
        ...

    async def clear(self) -> None:
        """Drop everything, including the offsets, so that it is rebuilt from the log."""
        ...

    async def close(self) -> None: ...


# --- cursors --------------------------------------------------------------------------------------------------------


C = TypeVar("C", bound=tuple[Any, ...])

LARGEST: Final = 2**62
"""Databases have 64-bit integers."""


class AfterMessage(NamedTuple):
    """Pages are ordered from newest to oldest; messages that arrived at the same time by their ids."""

    received_at: float
    source_id: str
    message_id: str


class AfterAttempt(NamedTuple):
    """Attempts that began at the same time are ordered by the place of their records."""

    started_at: float
    partition: int
    offset: int


def write_cursor(place: AfterMessage | AfterAttempt) -> str:
    return base64url(msgspec.json.encode(tuple(place)))


def read_cursor(text: str | None, kind: type[C]) -> C | None:
    """The place in a cursor; None for None. Raises ValueError."""
    if text is None:
        return None
    try:
        found: C = msgspec.json.decode(base64.b64decode(text + "=" * (-len(text) % 4), b"-_", validate=True), type=kind)
    except (binascii.Error, msgspec.DecodeError, UnicodeError, ValueError) as error:
        raise ValueError("not a cursor of this list") from error
    if any("\0" in part if isinstance(part, str) else abs(part) >= LARGEST for part in found):
        raise ValueError("not a cursor of this list")
    return found


# --- texts of records and of searches -----------------------------------------------------------------------------

REPLACEMENT: Final = "\ufffd"
_LONGEST_EXPONENT: Final = 400
"""Numbers with more digits are not searched for."""


def clean(text: str) -> str:
    """`text` with NUL and lone surrogates replaced, which databases reject."""
    if text.isascii():
        return text.replace("\0", REPLACEMENT) if "\0" in text else text
    return "".join(REPLACEMENT if char == "\0" or "\ud800" <= char <= "\udfff" else char for char in text)


def has_header(headers: Mapping[str, str], name: str, value: str) -> bool:
    return headers.get(name.lower()) == value


def payload_has(body: bytes | None, pointer: str, value: str) -> bool:
    """Whether the text at `pointer` in this JSON is `value`. A body that is not JSON, or is cut, has no values."""
    if not body:
        return False
    try:
        found = value_at(json.loads(body, parse_float=Decimal), pointer_steps(pointer))
    except (ValueError, LookupError, RecursionError):
        return False
    return _text_of(found) == value


def _text_of(value: object) -> str | None:
    match value:
        case str():
            return value
        case bool():
            return "true" if value else "false"
        case int():
            return str(value)
        case Decimal() if abs(value.adjusted()) < _LONGEST_EXPONENT:
            return format(value, "f")
        case _:
            return None
