"""How long a request is to stay open for the receiver's answer: `?wait=10`, or `Prefer: wait=10` (RFC 7240).

The query is an order, so one that cannot be carried out is refused. A preference is a wish: what cannot be had of it,
or read, is left aside.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Final

from aiohttp import web
from msgspec import Meta

from relay.api.problems import invalid
from relay.api.route import Body, DocumentedResponse, Parameter

WAIT: Final = "wait"
WAIT_PARAMETER: Final = Parameter(
    "wait", "query", Annotated[float, Meta(ge=0, le=999_999_999)], "Seconds to stay open for the receiver's answer."
)
PREFER_PARAMETER: Final = Parameter(
    "Prefer", "header", str, "`wait=10` (RFC 7240): as the query has it, but only a wish."
)
ANSWER_HEADERS: Final = {
    "webhook-id": "`ans_...`, as a callback has it.",
    "relay-outcome": "`answered` or `delivered`.",
    "relay-answer-status": "The status that the receiver answered with.",
}
ANSWERED: Final = DocumentedResponse(
    200,
    "With `wait`: the receiver's answer, its body and content type as they are.",
    Body({"*/*": None}),
    ANSWER_HEADERS,
)
_SECONDS: Final = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9})?")
_PREFERENCE: Final = re.compile(r'\s*wait\s*=\s*"?([0-9]{1,9})"?\s*(;.*)?', re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class WaitAsked:
    """How many seconds to wait, within the limit. `preferred`: it is only a preference."""

    seconds: float
    preferred: bool = False

    @property
    def applied(self) -> dict[str, str]:
        """The response header for a preference that was applied."""
        return {"Preference-Applied": f"wait={self.seconds:g}"} if self.preferred else {}


def wait_asked(request: web.Request, longest_s: float) -> WaitAsked | None:
    """What the request asks for; None: nothing. Raises a Problem (400) for a `wait` that is no number of seconds."""
    return asked_in(request.query.getall(WAIT, ()), request.headers.getall("Prefer", ()), longest_s)


def asked_in(query: Sequence[str], prefer: Iterable[str], longest_s: float) -> WaitAsked | None:
    """The last value of the query counts, as of any parameter here; without one, the first preference of that name."""
    if query:
        if not _SECONDS.fullmatch(query[-1]):
            raise invalid("wait must be a number of seconds, such as 10", parameter=WAIT)
        return WaitAsked(min(float(query[-1]), longest_s))
    for preference in ",".join(prefer).split(","):
        if found := _PREFERENCE.fullmatch(preference):
            return WaitAsked(min(float(found[1]), longest_s), preferred=True)
    return None
