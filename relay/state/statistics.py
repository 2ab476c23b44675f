"""What the state keeps of the POSTs to receivers for a day: added to by every process, and lost with its memory."""

from typing import NamedTuple

from relay.domain.statistics import Counted


class LastAttempt(NamedTuple):
    """`at`: Unix seconds. `status`: of the response; None: there was none, and `failure` is the kind of NoResponse."""

    at: float
    status: int | None
    failure: str | None
    seconds: float


class Tally(NamedTuple):
    """What a process has counted of an owner since it told last."""

    owner: str
    counted: Counted
    last: LastAttempt


class Statistics(NamedTuple):
    """Of an owner. `hours`: by the hour of the clock in which it was told, counted since 1970, those without attempts
    left out; the present one and 23 before it at most."""

    hours: dict[int, Counted]
    last: LastAttempt | None
