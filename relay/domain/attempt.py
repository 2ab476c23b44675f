"""Attempts: records of single HTTP exchanges, as published on `delivery_attempts` and shown to users. Pure."""

from collections.abc import Callable
from typing import Final, Literal
from zlib import crc32

from msgspec import Struct, json

from relay.domain.errors import InvalidRecord
from relay.domain.identity import MessageId
from relay.domain.json_pointer import NOT_JSON
from relay.domain.outcome import CodeClass

AttemptKind = Literal["post", "status", "callback", "ping", "progress"]
"""A POST to the receiver; a status GET; a POST to the sender's callback; a probe POST to an offline endpoint; a POST of
progress to the callback."""
OF_SENDER: Final = frozenset[AttemptKind]({"callback", "progress"})
"""Requests to the sender's callback."""

AttemptOutcome = Literal["done", "working", "retry", "doubt", "released", "dead"]
"""`done`: succeeded. `working`: a status GET found no answer yet and is repeated later. `retry`: another attempt
follows. `doubt`: it is unknown whether it arrived, which is resolved first. `released`: it does not count as an
attempt. `dead`: a dead letter follows, or for a ping nothing."""

FINE: Final = frozenset[AttemptOutcome]({"done", "working"})
"""All other outcomes are failures."""

SHOWN_BODY: Final = 1_024
"""Bytes of a response's body that are recorded, at most."""


class AttemptResponse(Struct, frozen=True, gc=False):
    """The response. `headers` have lower-case names; `body`: its beginning as text, secrets masked; `truncated`: there
    was more."""

    status: int
    headers: dict[str, str]
    body: str
    truncated: bool = False


class AttemptFailure(Struct, frozen=True, gc=False):
    """Why there was no response: `kind` as in `NoResponse`; `sent`: at least a part of the request was written."""

    kind: str
    detail: str
    sent: bool


class Attempt(Struct, frozen=True, gc=False, omit_defaults=True):
    """A request and its response, as recorded on `delivery_attempts`. `started_at`, `next_attempt_at`: Unix seconds.
    `attempt`: 1-based, counted per kind. `message_id` is None for a ping, which belongs to no message; a ping has a
    `receiver`, or a `source_id` if it went to a callback.

    `headers`: of the request, in the order they were sent, secrets masked. Either `response` or `error` is set.
    `code_class`: the result of a POST to a receiver; `rule`: the rule of the receiver's settings that decided about
    its response, None for the usual table. `reason`: why not `done`. `next_attempt_at`: the earliest time of
    the next step; None if there is none, or if it followed at once. `life`: of the receiver's name (see
    `relay/domain/receiver.py`). `number`: of the delivery, where the receiver's deliveries are numbered.
    `counted`: False for a POST to a receiver that does not count, as after a 429: the next one has the same `attempt`.
    """

    kind: AttemptKind
    started_at: float
    duration_ms: float
    method: str
    url: str
    headers: dict[str, str]
    outcome: AttemptOutcome
    receiver: str | None = None
    source_id: str | None = None
    message_id: str | None = None
    generation: int = 0
    attempt: int = 1
    response: AttemptResponse | None = None
    error: AttemptFailure | None = None
    reason: str | None = None
    detail: str | None = None
    next_attempt_at: float | None = None
    code_class: CodeClass | None = None
    life: str = ""
    rule: str | None = None
    number: int | None = None
    counted: bool = True

    @property
    def failed(self) -> bool:
        return self.outcome not in FINE

    @property
    def identity(self) -> MessageId | None:
        """The message's identity; None for a ping."""
        if self.source_id is None or self.message_id is None:
            return None
        return MessageId(self.source_id, self.message_id)


def key_of(attempt: Attempt) -> bytes:
    """The key of its record. All attempts of one message, to any endpoint, are in one partition; those of one source
    are spread over all partitions. (Ids have no line feed.)"""
    if attempt.message_id is None:
        return (attempt.receiver or attempt.source_id or "").encode()
    return f"{attempt.source_id}\n{attempt.message_id}".encode()


def is_sampled(source_id: str, message_id: str, share: float) -> bool:
    """Whether the message is in a sample of `share` of all messages, in [0, 1]. Every process decides the same."""
    return crc32(f"{source_id}\n{message_id}".encode()) < share * 2**32


_decoder = json.Decoder(Attempt)


encode_attempt: Final[Callable[[Attempt], bytes]] = json.Encoder().encode


def decode_attempt(value: bytes | None) -> Attempt:
    """Unknown fields, of a newer version, are ignored. Raises InvalidRecord."""
    try:
        return _decoder.decode(value or b"")
    except NOT_JSON as error:
        raise InvalidRecord("invalid", f"not a valid record of an attempt: {error}") from error
