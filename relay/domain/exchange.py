"""What came of one HTTP exchange, as far as the core needs to know."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True, slots=True)
class Request:
    """One request. `headers` in the order they are sent; `timeout_s` covers everything from connect to last byte."""

    method: Literal["GET", "POST"]
    url: str
    headers: tuple[tuple[str, str], ...]
    body: bytes = field(default=b"", repr=False)
    timeout_s: float = 15.0


@dataclass(frozen=True, slots=True)
class Response:
    """A status line came. `headers` have lower-case names (of repeated ones the last).

    `truncated`: the body was cut: by the byte cap, by a broken connection, or because it could not be read in time.
    """

    status: int
    headers: Mapping[str, str]
    body: bytes = field(repr=False)
    truncated: bool = False


@dataclass(frozen=True, slots=True)
class NoResponse:
    """No status line came. `sent`: whether a byte of the request was written; then the receiver may have acted on it.

    `kind` says what happened, for people: `blocked` (address guard), `dns`, `refused`, `tls`, `connect_timeout`,
    `timeout`, `disconnected`, `protocol` (not HTTP), `invalid_url`.
    """

    kind: str
    detail: str
    sent: bool


Exchange = Response | NoResponse
