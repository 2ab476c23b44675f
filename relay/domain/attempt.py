"""One HTTP exchange on a message's way, as it is told on `delivery_attempts` and shown to people. Pure."""

from typing import Final, Literal

from msgspec import DecodeError, Struct, json

from relay.domain.errors import InvalidRecord
from relay.domain.identity import MessageId
from relay.domain.outcome import CodeClass

AttemptKind = Literal["post", "status", "callback", "ping"]
"""A POST to the receiver; a status GET; a POST to the sender's callback; a throw-away POST to one that was offline."""

SHOWN_BODY: Final = 1_024
"""Bytes of a response's body that are told, at most."""


class Told(Struct, frozen=True, gc=False):
    """What came back. `headers` with lower-case names; `body`: its beginning as text, secrets masked; `truncated`:
    there was more."""

    status: int
    headers: dict[str, str]
    body: str
    truncated: bool = False


class Missed(Struct, frozen=True, gc=False):
    """Why nothing came back: `kind` as in `NoResponse`; `sent`: a part of the request went out."""

    kind: str
    detail: str
    sent: bool


class Attempt(Struct, frozen=True, gc=False, omit_defaults=True):
    """`started_at`, `next_attempt_at`: Unix seconds. `attempt`: 1-based, counted per kind. `receiver` None: a ping at a
    source's callback. `source_id`, `message_id` None: a ping, which is about no message.

    `headers`: of the request, in the order they were sent, secrets masked. One of `response` and `error` is there.
    `code_class`: of a POST to a receiver, what it came to. `outcome`: `done`, `retry`, `doubt`, `released` or `dead`;
    `reason`: why not `done`. `next_attempt_at`: when it goes on at the earliest; None: it is over, or went on at once.
    """

    kind: AttemptKind
    started_at: float
    duration_ms: float
    method: str
    url: str
    headers: dict[str, str]
    outcome: str
    receiver: str | None = None
    source_id: str | None = None
    message_id: str | None = None
    generation: int = 0
    attempt: int = 1
    response: Told | None = None
    error: Missed | None = None
    reason: str | None = None
    detail: str | None = None
    next_attempt_at: float | None = None
    code_class: CodeClass | None = None

    @property
    def identity(self) -> MessageId | None:
        """Of the message that it is about, if it is about one."""
        if self.source_id is None or self.message_id is None:
            return None
        return MessageId(self.source_id, self.message_id)


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
