"""Counts of attempts: of a receiver, and of the history."""

from typing import Literal, TypedDict

from relay.domain.outcome import CodeClass
from relay.domain.statistics import Health
from relay.schema.attempts import ResponseView


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
    """The attempts of an hour. `hour`: its start (RFC 3339)."""

    hour: str | None


class LastResponseView(TypedDict):
    """The result of the last attempt: the `status` of the response, or the kind of `failure`, such as `timeout`."""

    at: str | None
    status: int | None
    failure: str | None
    duration_ms: float


class LastResponseDetail(ResponseView):
    """The last response of a receiver to a POST. `body`: its beginning, as text; `truncated`: there was more. At most
    32 headers, each cut at 256 characters. Secrets are masked."""

    name: str
    at: str | None


class HealthView(TypedDict):
    """How the newest attempts went. `success_rate`: share of the `attempts` that succeeded: those of as many of the
    newest hours as have 20; null without any. `last_error`: the status, or the kind of failure, of the last attempt if
    it has failed. `oldest_waiting_s`: how long the oldest message, or result, that is not finished has waited for it,
    some seconds late; null if none waits for long, or it is not known."""

    state: Health
    success_rate: float | None
    attempts: int
    last_error: str | None
    oldest_waiting_s: float | None


class StatsView(CountedView):
    """Statistics of the current clock hour and the 23 before it; `hours` in order. `buckets_ms`: upper ends of the
    buckets of response times."""

    name: str
    health: HealthView
    last_response: LastResponseView | None
    buckets_ms: list[float]
    hours: list[HourView]


class RateView(TypedDict):
    """The use of a rate limit. `used`: attempts per `window_s`, averaged over the current hour; `limit`: the maximum,
    null if unlimited."""

    used: float | None
    limit: int | None
    window_s: float


class TrafficView(CountedView):
    """The traffic of the current hour and the 23 before it. `unfinished`: records in its lane; in the shared lane
    those of all receivers in its partition; `parked`: records that wait for their next attempt. Null if unknown at
    present."""

    hours: list[HourView]
    last_response: LastResponseView | None
    unfinished: int | None
    parked: int | None
    rate: RateView | None


class CountItem(TypedDict):
    """POSTs to receivers. `delivered`: those that were accepted or delivered; `failed`: the others. `p50_ms`, `p99_ms`:
    upper bounds of the median and the 99th percentile, from buckets; null if there was no response, or it took longer
    than the last bucket."""

    attempts: int
    delivered: int
    failed: int
    success_rate: float | None
    p50_ms: float | None
    p99_ms: float | None


class PointItem(CountItem):
    """A point in time. `at`: the start of the minute or hour."""

    at: str | None


class SpanItem(PointItem):
    """All attempts of a minute or an hour. `outcomes`: how many of them had each class, without zeros."""

    outcomes: dict[CodeClass, int]


class SeriesItem(TypedDict):
    """A series of points, oldest first, without idle ones."""

    receiver: str
    source_id: str
    points: list[PointItem]


class CountsView(TypedDict):
    """Counts of the time from `since` until before `until`. `spans`: all attempts by time, oldest first; `series`: the
    same by receiver and source."""

    by: Literal["minute", "hour"]
    since: str | None
    until: str | None
    totals: CountItem
    spans: list[SpanItem]
    series: list[SeriesItem]
