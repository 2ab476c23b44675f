"""One HTTP exchange on a message's way, as it is told on `delivery_attempts` and shown to people. Pure."""

from typing import Final, Literal
from zlib import crc32

from msgspec import DecodeError, Struct, json

from relay.domain.errors import InvalidRecord
from relay.domain.identity import MessageId
from relay.domain.outcome import CodeClass

AttemptKind = Literal["post", "status", "callback", "ping"]
"""A POST to the receiver; a status GET; a POST to the sender's callback; a throw-away POST to one that was offline."""

AttemptOutcome = Literal["done", "working", "retry", "doubt", "released", "dead"]
"""What follows: nothing, as all went well; a status GET finds no answer yet, and asks again later; another attempt;
nobody knows whether it arrived, which is found out first; it counts as none; a dead letter, or for a ping the end."""

FINE: Final = frozenset[AttemptOutcome]({"done", "working"})
"""All other outcomes are failures."""

SHOWN_BODY: Final = 1_024
"""Bytes of a response's body that are told, at most."""


class AttemptResponse(Struct, frozen=True, gc=False):
    """What came back. `headers` with lower-case names; `body`: its beginning as text, secrets masked; `truncated`:
    there was more."""

    status: int
    headers: dict[str, str]
    body: str
    truncated: bool = False


class AttemptFailure(Struct, frozen=True, gc=False):
    """Why nothing came back: `kind` as in `NoResponse`; `sent`: a part of the request went out."""

    kind: str
    detail: str
    sent: bool


class Attempt(Struct, frozen=True, gc=False, omit_defaults=True):
    """`started_at`, `next_attempt_at`: Unix seconds. `attempt`: 1-based, counted per kind. `message_id` None: a ping,
    which is about no message; it has a `receiver`, or, where it went to a callback, a `source_id`.

    `headers`: of the request, in the order they were sent, secrets masked. One of `response` and `error` is there.
    `code_class`: of a POST to a receiver, what it came to. `reason`: why not `done`. `next_attempt_at`: when it goes on
    at the earliest; None: it is over, or went on at once. `life`: of the receiver's name (see `relay/domain/life.py`).
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

    @property
    def failed(self) -> bool:
        return self.outcome not in FINE

    @property
    def identity(self) -> MessageId | None:
        """Of the message that it is about, if it is about one."""
        if self.source_id is None or self.message_id is None:
            return None
        return MessageId(self.source_id, self.message_id)


def key_of(attempt: Attempt) -> bytes:
    """Of its record: attempts of one message, whoever they were made to, are in one partition, and those of one source
    are spread over all of them. (Ids have no line feed.)"""
    if attempt.message_id is None:
        return (attempt.receiver or attempt.source_id or "").encode()
    return f"{attempt.source_id}\n{attempt.message_id}".encode()


def is_sampled(source_id: str, message_id: str, share: float) -> bool:
    """Whether the message is among a `share` of all, in [0, 1]: every process says the same of it, always."""
    return crc32(f"{source_id}\n{message_id}".encode()) < share * 2**32


_encoder = json.Encoder()
_decoder = json.Decoder(Attempt)


def encode_attempt(attempt: Attempt) -> bytes:
    return _encoder.encode(attempt)


def decode_attempt(value: bytes | None) -> Attempt:
    """Unknown fields, of a newer version, are ignored. Raises InvalidRecord."""
    try:
        return _decoder.decode(value or b"")
    except (DecodeError, UnicodeDecodeError) as error:
        raise InvalidRecord("invalid", f"an attempt that is none of ours: {error}") from error
