"""What goes to receivers, of a page of them at once: a day's attempts, what waits, and how fast it may go."""

import asyncio
from collections.abc import Mapping
from typing import Final

from relay.api.backlog import in_lanes
from relay.api.context import ApiContext
from relay.api.receivers import LANE_LOOK_S
from relay.api.stats import counted_view, hours_view, last_view
from relay.domain.errors import LogUnavailable
from relay.domain.receiver import Receiver
from relay.domain.statistics import Counted, sum_of
from relay.domain.topics import lane_of
from relay.schema.statistics import RateView, TrafficView
from relay.state.port import Counts

_HOUR_S: Final = 3600.0
_FIRST_S: Final = 60.0
"""Of an hour that has just begun there is no mean yet."""


async def traffic_of(context: ApiContext, receivers: Mapping[str, Receiver | None]) -> dict[str, TrafficView]:
    """By name; None: its settings are refused. Raises Unavailable where the statistics cannot be had."""
    if not receivers:
        return {}
    names, now = list(receivers), context.clock.time()
    owners = [f"r:{name}" for name in names]
    statistics = await context.state.statistics(owners)
    parked = await context.state.parked(owners)
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
    """Those that are known at once."""
    try:
        async with asyncio.timeout(LANE_LOOK_S):
            return await in_lanes(context.log, context.topics, lanes)
    except (LogUnavailable, TimeoutError):
        return {}
