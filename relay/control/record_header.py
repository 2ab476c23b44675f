"""Fast partial decoding of a receiver's record on `receiver_config`, in a microsecond, without validation or
secrets."""

from collections.abc import Container
from typing import Final

import msgspec

from relay.domain.receiver import NO_LIFE, Endpoint, Life, Receiver, RetryPolicy
from relay.domain.topics import SHARED

_DEADLINE_S: Final = Receiver("", Endpoint("")).answer_deadline


class _Retry(msgspec.Struct, frozen=True, gc=False):
    max_age: float = RetryPolicy().max_age


class _EntryFields(msgspec.Struct, frozen=True, gc=False):
    post_endpoint: str = ""
    verification: str = "none"
    lane: str = "dedicated"
    sources: tuple[str, ...] = ()
    event_types: tuple[str, ...] = ()
    enabled: bool = True
    owner: str | None = None
    answer_deadline: float | None = None
    retry: _Retry | None = None


def _wait_s(entry: _EntryFields) -> float:
    max_age = (_Retry() if entry.retry is None else entry.retry).max_age
    return max_age + (_DEADLINE_S if entry.answer_deadline is None else entry.answer_deadline)


class RecordHeader(msgspec.Struct, frozen=True, gc=False):
    """The parts of a receiver's record that an index needs."""

    declared_by: str
    entry: _EntryFields
    life: Life = NO_LIFE

    @property
    def is_shared(self) -> bool:
        """Whether its entry has the shared lane; a route may override it."""
        return self.entry.lane == SHARED

    @property
    def wait_s(self) -> float:
        """Maximum lifetime of its messages, in seconds: `max_age` of its retries plus the `answer_deadline`."""
        entry = self.entry
        return DEFAULT_WAIT_S if entry.retry is None and entry.answer_deadline is None else _wait_s(entry)


NOTHING: Final = RecordHeader("", _EntryFields(enabled=False))
"""Stands for an unreadable record."""
DEFAULT_WAIT_S: Final = _wait_s(_EntryFields())
_decode: Final = msgspec.json.Decoder(RecordHeader).decode


def glance(value: bytes) -> RecordHeader | None:
    """The header of a record; None if it is invalid, for which only a full validation gives the reason."""
    try:
        return _decode(value)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def lacks(value: bytes, known: Container[bytes]) -> bool:
    """Whether a record refers to a variable, or has a secret with a key (`enc:<id>`), that is not `known`. Expressions
    (`${{ ... }}`) have neither."""
    at = value.find(b"${")
    while at >= 0:
        is_expression = value.startswith(b"${{", at)
        end = value.find(b"}}" if is_expression else b"}", at)
        name = value[at + 2 : end]
        if not is_expression and name not in known and not (name.startswith(b"enc:") and name[:12] in known):
            return True
        at = value.find(b"${", end)
    return False
