"""Statistics of POSTs to receivers in the state: kept for a day, added to by every process, lost with its memory."""

from typing import Final, NamedTuple

from relay.domain.exchange import Response
from relay.domain.receiver import Endpoint
from relay.domain.redact import shown_body, shown_response_headers
from relay.domain.statistics import Counted

MOST_BODY: Final = 4_096
MOST_HEADERS: Final = 32
MOST_VALUE: Final = 256
"""Limits of a stored last response: bytes of its body, number of headers, and characters of a header's value."""


class LastAttempt(NamedTuple):
    """`at`: Unix seconds. `status`: of the response; None without one, and `failure` is the kind of NoResponse."""

    at: float
    status: int | None
    failure: str | None
    seconds: float


class LastResponse(NamedTuple):
    """The last response to a POST, bounded, with secrets masked. `at`: Unix seconds. `truncated`: the response had a
    longer body."""

    at: float
    status: int
    headers: dict[str, str]
    body: str
    truncated: bool


class Tally(NamedTuple):
    """A process's counts of an owner since its last call. `response`: None if no attempt had one."""

    owner: str
    counted: Counted
    last: LastAttempt
    response: LastResponse | None = None


class Statistics(NamedTuple):
    """Statistics of an owner. `hours`: by clock hour of the report, counted since 1970, without empty ones; at most the
    current hour and 23 before it."""

    hours: dict[int, Counted]
    last: LastAttempt | None


def kept_response(at: float, response: Response, endpoint: Endpoint) -> LastResponse:
    """The part of a response that is kept, with the secrets of its endpoint masked."""
    shown = list(shown_response_headers(response.headers, endpoint).items())[:MOST_HEADERS]
    headers = {name[:MOST_VALUE]: value[:MOST_VALUE] for name, value in shown}
    return LastResponse(at, response.status, headers, *shown_body(response, endpoint, MOST_BODY))
