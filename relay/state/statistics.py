"""What the state keeps of the POSTs to receivers for a day: added to by every process, and lost with its memory."""

from typing import Final, NamedTuple

from relay.domain.exchange import Response
from relay.domain.statistics import Counted

MOST_BODY: Final = 4_096
MOST_HEADERS: Final = 32
MOST_VALUE: Final = 256
"""Bytes of a body, headers, and characters of a header's value that are kept of a last response."""


class LastAttempt(NamedTuple):
    """`at`: Unix seconds. `status`: of the response; None: there was none, and `failure` is the kind of NoResponse."""

    at: float
    status: int | None
    failure: str | None
    seconds: float


class LastResponse(NamedTuple):
    """The last response to a POST, bounded; secrets are not masked yet. `at`: Unix seconds. `truncated`: the response
    had a longer body."""

    at: float
    status: int
    headers: dict[str, str]
    body: bytes
    truncated: bool


class Tally(NamedTuple):
    """What a process has counted of an owner since its last call. `response`: None if no attempt had one."""

    owner: str
    counted: Counted
    last: LastAttempt
    response: LastResponse | None = None


class Statistics(NamedTuple):
    """Of an owner. `hours`: by the hour of the clock in which it was told, counted since 1970, those without attempts
    left out; the present one and 23 before it at most."""

    hours: dict[int, Counted]
    last: LastAttempt | None


def kept_response(at: float, response: Response) -> LastResponse:
    """The part of a response that is kept."""
    kept = list(response.headers.items())[:MOST_HEADERS]
    headers = {name[:MOST_VALUE]: value[:MOST_VALUE] for name, value in kept}
    truncated = response.truncated or len(response.body) > MOST_BODY
    return LastResponse(at, response.status, headers, response.body[:MOST_BODY], truncated)
