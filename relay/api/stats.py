"""Statistics of the attempts at a receiver within a day, and its last response: of all processes, seconds late."""

from collections.abc import Mapping
from typing import Final, TypedDict

from aiohttp import web

from relay.api.access import RECEIVER
from relay.api.context import ApiContext
from relay.api.exchange_view import ResponseView
from relay.api.json_body import json_response
from relay.api.problems import NOT_FOUND, Problem, no_receiver
from relay.api.reading import query_of
from relay.api.route import (
    NAME,
    DocumentedResponse,
    Example,
    json_of,
    route,
)
from relay.api.view import rfc3339
from relay.domain.outcome import CodeClass
from relay.domain.statistics import BOUNDS_S, HOURS, NUMBERS, OUTCOMES, Counted, sum_of
from relay.state.statistics import LastAttempt

_HOUR_S: Final = 3600
_NOTHING: Final = Counted((0,) * NUMBERS)
_BUCKETS_MS: Final = [bound * 1000 for bound in BOUNDS_S]


class CountedView(TypedDict):
    """Attempts of some time. `outcomes`: how many came to each class, as in `codes` of a receiver; `success_rate`:
    share of those that were `accepted` or `delivered`, null without any. `p50_ms`, `p99_ms`: upper
    bounds of the median and the 99th percentile, from `buckets_ms`; null if there was none, or it took longer."""

    attempts: int
    outcomes: dict[CodeClass, int]
    success_rate: float | None
    p50_ms: float | None
    p99_ms: float | None


class HourView(CountedView):
    """`hour`: its begin, RFC 3339."""

    hour: str | None


class LastResponseView(TypedDict):
    """What the last attempt came to: the `status` of the response, or as `failure` the kind of it, as `timeout`."""

    at: str | None
    status: int | None
    failure: str | None
    duration_ms: float


class StatsView(CountedView):
    """The present hour of the clock and the 23 before it; `hours` in their order. `buckets_ms`: the upper ends of the
    buckets that response times are counted in."""

    name: str
    last_response: LastResponseView | None
    buckets_ms: list[float]
    hours: list[HourView]


class LastResponseDetail(ResponseView):
    """The last response of a receiver to a POST. `body`: its beginning, as text; `truncated`: there was more. At most
    32 headers, each cut at 256 characters. Secrets are masked."""

    name: str
    at: str | None


class StatsResource:
    """`GET /v1/receivers/{name}/stats` and `/last-response`."""

    def __init__(self, context: ApiContext) -> None:
        self._context = context

    @route(
        "GET",
        "/v1/receivers/{name}/stats",
        scope=RECEIVER,
        id="getReceiverStats",
        noun="receivers",
        parameters=(NAME,),
        answers=(DocumentedResponse(200, "Of 24 hours of the clock, the present one among them.", json_of(StatsView)),),
        example=Example(200, path={"name": "ci"}),
    )
    async def get(self, request: web.Request) -> web.Response:
        """What became of the attempts at a receiver within a day.

        Over all processes, some seconds late. Status GETs, pings and tests do not count.
        """
        query_of(request)
        name = request.match_info["name"]
        self._check_known(name)
        [found] = await self._context.state.statistics([f"r:{name}"])
        view: StatsView = {
            "name": name,
            **counted_view(sum_of(found.hours.values())),
            "last_response": None if found.last is None else last_view(found.last),
            "buckets_ms": _BUCKETS_MS,
            "hours": hours_view(found.hours, self._context.clock.time()),
        }
        return json_response(200, view)

    @route(
        "GET",
        "/v1/receivers/{name}/last-response",
        scope=RECEIVER,
        id="getLastResponse",
        noun="receivers",
        parameters=(NAME,),
        answers=(DocumentedResponse(200, "The response.", json_of(LastResponseDetail)),),
        example=Example(200, path={"name": "ci"}),
    )
    async def last_response(self, request: web.Request) -> web.Response:
        """The last response of a receiver to a POST.

        From all processes, some seconds late, for a day; it takes no history. 404 if there was none.
        """
        query_of(request)
        name = request.match_info["name"]
        self._check_known(name)
        found = await self._context.state.last_response(f"r:{name}")
        if found is None:
            raise Problem(NOT_FOUND, "No response is known of the last 24 hours.")
        view: LastResponseDetail = {
            "name": name,
            "at": rfc3339(found.at),
            "status": found.status,
            "headers": found.headers,
            "body": found.body,
            "truncated": found.truncated,
        }
        return json_response(200, view)

    def _check_known(self, name: str) -> None:
        if not self._context.has_receiver(name):
            raise no_receiver(name)


def hours_view(known: Mapping[int, Counted], now: float) -> list[HourView]:
    """The state has a clock of its own, which may be in the next hour already."""
    last = max(int(now // _HOUR_S), max(known, default=0))
    return [
        {"hour": rfc3339(hour * _HOUR_S), **counted_view(known.get(hour, _NOTHING))}
        for hour in range(last - HOURS + 1, last + 1)
    ]


def counted_view(counted: Counted) -> CountedView:
    return {
        "attempts": counted.attempts,
        "outcomes": dict(zip(OUTCOMES, counted.outcomes, strict=True)),
        "success_rate": counted.success_rate,
        "p50_ms": counted.quantile_ms(0.5),
        "p99_ms": counted.quantile_ms(0.99),
    }


def last_view(last: LastAttempt) -> LastResponseView:
    return {
        "at": rfc3339(last.at),
        "status": last.status,
        "failure": last.failure,
        "duration_ms": round(last.seconds * 1000, 1),
    }
