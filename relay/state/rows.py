"""What the state knows of messages and deliveries: their rows, the keys of these, and the marks that raise them."""

import hashlib
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, Literal, NamedTuple

from msgspec import Struct

from relay.domain.identity import DeliveryId, MessageId, digest12

TAGS: Final = 64


class MessageStage(IntEnum):
    """Life of a message up to its fan-out. ENQUEUED is proof that all its hop records are acknowledged."""

    ACCEPTED = 1
    ARRIVED = 2
    ENQUEUED = 3


class Stage(IntEnum):
    """Life of a delivery, and of a callback (which uses NONE, SENDING, RESULT and DONE only).

    NONE: no row, which is all that ENQUEUED would say. ACCEPTED, RESULT: an outcome is stored, its hop record not yet
    acknowledged; AWAITING, PUBLISHED: it is. DONE and FAILED are finished: kept for `dedup_window`.
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
    """A row: `owner` is `r:<receiver>` or `s:<source_id>` and decides the hash tag, `digest` (12 bytes) names it."""

    owner: str
    digest: bytes


def tag_of(owner: str) -> int:
    """The hash tag, 0-63, of everything that belongs to `owner` (`r:<receiver>` or `s:<source_id>`)."""
    return hashlib.sha256(owner[2:].encode()).digest()[0] % TAGS


def delivery_row(delivery: DeliveryId) -> RowKey:
    """The row of a delivery: with its receiver."""
    return RowKey(f"r:{delivery.receiver}", digest12("d", *delivery))


def callback_row(delivery: DeliveryId, generation: int, *, failed: bool) -> RowKey:
    """The row of a callback: with its source, one per generation and kind."""
    kind = "f" if failed else "a"
    return RowKey(f"s:{delivery.source_id}", digest12("c", *delivery, str(generation), kind))


class Arrival(Struct, frozen=True, gc=False):
    """`digest`: 6 bytes over payload, receivers and type. `partition`, `offset`: where on `from_sender`."""

    id: MessageId
    digest: bytes
    partition: int
    offset: int
    stage: MessageStage = MessageStage.ARRIVED


class MessageRow(Struct, frozen=True, gc=False):
    """What is known of a message; `partition`, `offset`: its first arrival on `from_sender`."""

    stage: MessageStage
    digest: bytes
    partition: int
    offset: int


class Result(Struct, frozen=True, gc=False):
    """The outcome of an attempt, kept until its hop record is acknowledged. Opaque to the state."""

    outcome: Literal["answered", "delivered", "accepted", "dead"]
    status: int | None = None
    content_type: str | None = None
    body: bytes = b""
    truncated: bool = False
    reason: str | None = None
    detail: str | None = None
    status_url: str | None = None
    ask_after_s: float | None = None


@dataclass(frozen=True, slots=True)
class Row:
    """What is known of a delivery or callback. With stage NONE all the rest has its default, but for the park fields.

    `attempts`: POSTs begun and counted in this generation; `polls`: status GETs begun. `due_in_s`: rest of the wait
    that a RETRY or DOUBT asked for. `park_intent`: a parked copy may be on the log, so a tombstone is owed. `kept`:
    this lane holds a parked reference to it. `behind`: its order key has parked records, and this is none of them.
    `at`: once PUBLISHED, DONE or FAILED, the partition and offset given with the mark. `code`: small integer given
    with the finishing mark. `result`: while ACCEPTED or RESULT.
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
    behind: bool = False
    at: tuple[int, int] | None = None
    code: int = 0
    result: Result | None = None


class Mark(Struct, frozen=True, gc=False):
    """The hop record is acknowledged: raise the row to AWAITING, PUBLISHED, DONE or FAILED.

    `at`: partition and offset of the record on `to_sender` (PUBLISHED, DONE; None keeps what was marked before) or
    `failed_messages` (FAILED). `code`: 0-255, kept with a finished row. `awaited`: somebody waits for that, so a
    hint says that it is there. Drops the stored result.
    """

    row: RowKey
    generation: int
    stage: Stage
    at: tuple[int, int] | None = None
    code: int = 0
    awaited: bool = False
