"""Statistics of the attempts at receivers within a day: of one, with its last response, and of those in a list.

They count all processes, some seconds late."""

import asyncio
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Final

from relay.api.access import RECEIVER
from relay.api.context import ApiContext
from relay.api.problems import NOT_FOUND, Problem
from relay.api.receivers import LANE_LOOK_S, condition_of, health_view, waited_s
from relay.api.responses import view_as
from relay.api.route import route
from relay.domain.errors import LogUnavailable
from relay.domain.receiver import Receiver
from relay.domain.statistics import BOUNDS_S, HOURS, NUMBERS, OUTCOMES, Counted, sum_of
from relay.domain.times import rfc3339
from relay.domain.topics import lane_of
from relay.schema.statistics import (
    CountedView,
    HourView,
    LastResponseDetail,
    LastResponseView,
    RateView,
    StatsView,
    TrafficView,
)
from relay.state.lanes import in_lanes
from relay.state.port import Counts
from relay.state.read_model import LastAttempt, Statistics

_HOUR_S: Final = 3600
_NOTHING: Final = Counted((0,) * NUMBERS)
_BUCKETS_MS: Final = [bound * 1000 for bound in BOUNDS_S]


class StatsResource:
    """`GET /v1/receivers/{name}/stats` and `/last-response`."""

    noun = "receivers"

    def __init__(self, context: ApiContext) -> None:
        self._context = context

    @route(
        "GET",
        "/v1/receivers/{name}/stats",
        scope=RECEIVER,
        answer="Statistics of 24 clock hours, including the current one.",
    )
    async def get_receiver_stats(self, name: str) -> StatsView:
        """Get the statistics of the attempts at a receiver within a day.

        Over all processes, some seconds late. Status GETs, pings and tests do not count.
        """
        self._context.check_receiver(name)
        [found] = await self._context.state.statistics([f"r:{name}"])
        [endpoint] = await self._context.state.endpoints([f"r:{name}"])
        now_is = condition_of(self._context.directory.receiver(name), endpoint)
        oldest_s = waited_s(await self._context.state.waiting(), f"r:{name}", self._context.clock.time())
        return {
            "name": name,
            "health": health_view(found, endpoint, now_is, oldest_s),
            **counted_view(sum_of(found.hours.values())),
            "last_response": None if found.last is None else last_view(found.last),
            "buckets_ms": _BUCKETS_MS,
            "hours": hours_view(found.hours, self._context.clock.time()),
        }

    @route("GET", "/v1/receivers/{name}/last-response", scope=RECEIVER, answer="The response.")
    async def get_last_response(self, name: str) -> LastResponseDetail:
        """Get the last response of a receiver to a POST.

        From all processes, some seconds late, for a day; it needs no history. 404 if there was none.
        """
        self._context.check_receiver(name)
        found = await self._context.last_response(name)
        if found is None:
            raise Problem(NOT_FOUND, "The receiver sent no response within the last 24 hours.")
        return view_as(LastResponseDetail, found, name=name, at=rfc3339(found.at))


def hours_view(known: Mapping[int, Counted], now: float) -> list[HourView]:
    """The state has a clock of its own, which may be in the next hour already."""
    last = max(int(now // _HOUR_S), max(known, default=0))
    return [
        {"hour": _begin(hour), **(counted_view(known[hour]) if hour in known else _IDLE)}
        for hour in range(last - HOURS + 1, last + 1)
    ]


@lru_cache(maxsize=2 * HOURS)
def _begin(hour: int) -> str | None:
    return rfc3339(hour * _HOUR_S)


def counted_view(counted: Counted) -> CountedView:
    p50_ms, p99_ms = counted.quantiles_ms(0.5, 0.99)
    return {
        "attempts": counted.attempts,
        "outcomes": dict(zip(OUTCOMES, counted.outcomes, strict=True)),
        "success_rate": counted.success_rate,
        "p50_ms": p50_ms,
        "p99_ms": p99_ms,
    }


_IDLE: Final = counted_view(_NOTHING)
"""The counts of an idle hour, shared: a list has thousands."""


def last_view(last: LastAttempt) -> LastResponseView:
    return view_as(LastResponseView, last, at=rfc3339(last.at), duration_ms=round(last.seconds * 1000, 1))


_FIRST_S: Final = 60.0
"""The minimum age of an hour for its mean to be meaningful."""


async def traffic_of(
    context: ApiContext, receivers: Mapping[str, Receiver | None], statistics: Sequence[Statistics]
) -> dict[str, TrafficView]:
    """The traffic by name; None if the receiver's settings cannot be used. `statistics`: of each, in this order. Raises
    Unavailable if the number of waiting messages is unknown."""
    if not receivers:
        return {}
    names, now = list(receivers), context.clock.time()
    parked = await context.state.parked([f"r:{name}" for name in names])
    unfinished = await _unfinished(context, {name: lane_of(each) for name, each in receivers.items() if each})
    found: dict[str, TrafficView] = {}
    for name, known, counts in zip(names, statistics, parked, strict=True):
        found[name] = {
            **counted_view(sum_of(known.hours.values())),
            "hours": hours_view(known.hours, now),
            "last_response": None if known.last is None else last_view(known.last),
            "unfinished": unfinished.get(name),
            "parked": counts.retries + counts.polls if isinstance(counts, Counts) else None,
            "rate": _rate(receivers[name], known.hours, now),
        }
    return found


def _rate(receiver: Receiver | None, hours: Mapping[int, Counted], now: float) -> RateView | None:
    if receiver is None:
        return None
    since_s, window_s, present = now % _HOUR_S, receiver.post.window_size, hours.get(int(now // _HOUR_S))
    used = None if since_s < _FIRST_S else (present.attempts if present else 0) * window_s / since_s
    return {"used": used, "limit": receiver.post.rate_limit, "window_s": window_s}


async def _unfinished(context: ApiContext, lanes: Mapping[str, str]) -> Mapping[str, int]:
    """The unfinished records that are known without waiting."""
    try:
        async with asyncio.timeout(LANE_LOOK_S):
            return await in_lanes(context.log, context.topics, lanes)
    except (LogUnavailable, TimeoutError):
        return {}
