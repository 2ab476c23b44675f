"""Rows of messages and deliveries in the state, their keys, the marks that raise their stages, and references to parked
records."""

import hashlib
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache
from typing import Final, Literal, NamedTuple

from msgspec import Struct

from relay.domain.coordinate import Coordinate
from relay.domain.identity import DeliveryId, MessageId, Progress, digest12
from relay.domain.numbering import Numbering

TAGS: Final = 64


class MessageStage(IntEnum):
    """Stages of a message up to its fan-out. ENQUEUED proves that all its hop records are acknowledged."""

    ACCEPTED = 1
    ARRIVED = 2
    ENQUEUED = 3


class Stage(IntEnum):
    """Stages of a delivery, and of a callback (which only uses NONE, SENDING, RESULT and DONE).

    NONE: no row, which is equivalent to ENQUEUED. ACCEPTED, RESULT: an outcome is stored, its hop record not yet
    acknowledged; AWAITING, PUBLISHED: it is acknowledged. DONE and FAILED are finished, and kept for `dedup_window`.
    """

    NONE = 0
    ENQUEUED = 2
    SENDING = 3
    ACCEPTED = 4
    AWAITING = 5
    RESULT = 6
    PUBLISHED = 7
    DONE = 8
    FAILED = 9


class RowKey(NamedTuple):
    """Key of a row: `owner`, `r:<receiver>` or `s:<source_id>`, determines the hash tag; `digest` has 12 bytes."""

    owner: str
    digest: bytes


@lru_cache(maxsize=65_536)  # it is called for every row
def tag_of(owner: str) -> int:
    """The hash tag, 0-63, of all data of `owner` (`r:<receiver>` or `s:<source_id>`)."""
    return hashlib.sha256(owner[2:].encode()).digest()[0] % TAGS


def delivery_row(delivery: DeliveryId) -> RowKey:
    """The row of a delivery, owned by its receiver."""
    return RowKey(f"r:{delivery.receiver}", digest12("d", *delivery))


def callback_row(
    delivery: DeliveryId, generation: int, *, failed: bool = False, progress: Progress | None = None
) -> RowKey:
    """The row of a callback, owned by its source; one per generation and kind."""
    kind = progress or ("f" if failed else "a")
    return RowKey(f"s:{delivery.source_id}", digest12("c", *delivery, str(generation), kind))


class Arrival(Struct, frozen=True, gc=False):
    """A message that arrived: what its row is made of. `digest`: 6 bytes over payload, receivers and type. `partition`,
    `offset`: its place on `from_sender`. `excluded`: it was routed to no receiver without being a failure."""

    id: MessageId
    digest: bytes
    partition: int
    offset: int
    stage: MessageStage = MessageStage.ARRIVED
    excluded: bool = False


class Superseding(Struct, frozen=True, gc=False):
    """A message that takes the place of older ones of its `key` (digest) that were not sent. `partition`, `offset`: on
    `from_sender`; in another partition the later `recorded_ms` (Unix ms) is newer. `keep_s`: how long an older one may
    still arrive. `window_s`: it waits for newer ones until its window closes, which the first one opened; 0: it does
    not."""

    key: bytes
    row: RowKey
    partition: int
    offset: int
    recorded_ms: int
    message_id: str
    keep_s: float
    window_s: float = 0.0


class Superseded(NamedTuple):
    """The reply to a Superseding. `by`: id of a newer message, which takes its place; None: it is the newest one.
    `replaced`: digests of the last rows of earlier calls whose place it, or one before it, has taken. `wait_s`: until
    its window closes. `at_ms`: the time of this reply by the state's clock (Unix ms)."""

    by: str | None = None
    replaced: tuple[bytes, ...] = ()
    wait_s: float = 0.0
    at_ms: int = 0


class MessageRow(Struct, frozen=True, gc=False):
    """The row of a message; `partition`, `offset`: its first arrival on `from_sender`. `excluded`: as in `Arrival`;
    False also where that is not known."""

    stage: MessageStage
    digest: bytes
    partition: int
    offset: int
    excluded: bool = False


class Result(Struct, frozen=True, gc=False, omit_defaults=True):
    """The outcome of an attempt, kept until its hop record is acknowledged. Opaque to the state.
    `chain`: as in a hop."""

    outcome: Literal["answered", "delivered", "accepted", "dead"]
    status: int | None = None
    content_type: str | None = None
    body: bytes = b""
    truncated: bool = False
    reason: str | None = None
    detail: str | None = None
    status_url: str | None = None
    ask_after_s: float | None = None
    chain: str | None = None


@dataclass(frozen=True, slots=True)
class Row:
    """The row of a delivery or callback. With stage NONE all other fields have defaults, except the park fields.

    `attempts`: POSTs begun and counted in this generation; `polls`: status GETs begun. `due_in_s`: remaining wait of a
    RETRY or DOUBT, or of a failure until no attempt can arrive any more. `park_intent`: a parked copy may be on the
    log, so a tombstone is owed. `kept`: this lane has a parked reference to it. `behind`: the offset of the first
    parked record of its order key, which may be this one. `at`: once PUBLISHED, DONE or FAILED, the partition and
    offset of the mark. `code`: small integer of the finishing mark. `result`: while ACCEPTED or RESULT. `number`: of a
    delivery of a numbered receiver, until it is AWAITING or finished; `numbering`: the receiver's, with `result`, whose
    end it has.
    """

    stage: Stage = Stage.NONE
    generation: int = 0
    attempts: int = 0
    polls: int = 0
    due_in_s: float = 0.0
    last_status: int | None = None
    reason: str | None = None
    park_intent: bool = False
    kept: bool = False
    behind: int | None = None
    at: tuple[int, int] | None = None
    code: int = 0
    result: Result | None = None
    number: int | None = None
    numbering: Numbering | None = None


class Mark(Struct, frozen=True, gc=False):
    """The hop record is acknowledged: raise the row to AWAITING, PUBLISHED, DONE or FAILED.

    `at`: partition and offset of the record on `to_sender` (PUBLISHED, DONE; None keeps the previous ones) or
    `failed_messages` (FAILED). `code`: 0-255, stored with a finished row. `awaited`: a request waits for it, so a hint
    is published. Drops the stored result.
    """

    row: RowKey
    generation: int
    stage: Stage
    at: tuple[int, int] | None = None
    code: int = 0
    awaited: bool = False


@dataclass(frozen=True, slots=True)
class Parked:
    """A reference to a parked record. `order`: offset in the lane's topic, which ranks it within `queue`.

    `due_in_s`: when to process it again; it applies only to the head of its queue, which the others wait for. `poll`:
    counted separately from retries.
    """

    row: RowKey
    generation: int
    at: Coordinate
    due_in_s: float
    queue: bytes | None
    order: int
    poll: bool = False


class DueRequest(NamedTuple):
    """Up to `limit` references of a hash tag. `token`: identifies this take; a repeated call with it, after a lost
    reply, returns the same references. Empty for none."""

    tag: int
    limit: int
    token: bytes = b""


class Due(NamedTuple):
    """A due parked reference, leased to the caller."""

    row: RowKey
    generation: int
    at: Coordinate


class ParkedLife(NamedTuple):
    """Identifies parked references of one generation of a row. `queue`: its order key."""

    row: RowKey
    generation: int
    queue: bytes | None = None
