"""How messages, attempts and counts of the history look from outside: the JSON shapes, and what makes them. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate, groupby
from typing import Final, Literal, TypedDict

from msgspec import structs

from relay.domain.attempt import AttemptKind
from relay.domain.hop import NO_RECEIVER
from relay.domain.identity import webhook_id
from relay.domain.progress import Status, least_advanced
from relay.domain.reasons import is_of_callback
from relay.domain.statistics import Counted, sum_of
from relay.domain.timestamps import rfc3339
from relay.history.port import ArrivalFact, AttemptFound, By, DeliveryFound, SpanCount

SHOWN_HEADERS: Final = 2_048
"""Characters of the headers of a request, or a response, in a list."""


class DeliveryItem(TypedDict):
    """A delivery in its newest generation. `receiver`: `-` if it never had one. `updated_at`: RFC 3339."""

    receiver: str
    status: Status
    generation: int
    attempts: int
    last_status: int | None
    reason: str | None
    detail: str | None
    updated_at: str | None


class MessageItem(TypedDict):
    """A message as it is listed. `status`: the least advanced of its deliveries that are shown. `size`: bytes of its
    payload."""

    source_id: str
    message_id: str
    webhook_id: str
    type: str | None
    status: Status
    received_at: str | None
    size: int
    content_type: str | None
    deliveries: list[DeliveryItem]


class MessagePage(TypedDict):
    """Newest first. `cursor`: for what follows; null on the last page. `behind_s`: so many seconds ago happened what
    the history takes up next; 0: it has everything, null: not known."""

    items: list[MessageItem]
    cursor: str | None
    behind_s: float | None


class RequestItem(TypedDict):
    """What was sent: `headers` in their order, secrets masked."""

    method: str
    url: str
    headers: dict[str, str]


class ResponseItem(TypedDict):
    """What came back. `body`: its beginning as text, secrets masked; `truncated`: there was more."""

    status: int
    headers: dict[str, str]
    body: str
    truncated: bool


class ErrorItem(TypedDict):
    """Why nothing came back. `sent`: a part of the request went out, so it may have been acted on."""

    kind: str
    detail: str
    sent: bool


class AttemptItem(TypedDict):
    """One HTTP exchange; `partition` and `offset` of its record name it. `kind`: a POST to the receiver, a GET of its
    status, a POST to the sender's `callback`, or a `ping`, which is about no message. `attempt`: the first is 1,
    counted per kind. `outcome`: `done`, `retry`, `doubt`, `released` or `dead`; `reason`: why not `done`.
    `next_attempt_at`: when it goes on at the earliest. `cut`: of long headers only the first are here;
    `GET /v1/attempts/{partition}/{offset}` has all that are kept."""

    partition: int
    offset: int
    kind: AttemptKind
    receiver: str | None
    source_id: str | None
    message_id: str | None
    generation: int
    attempt: int
    started_at: str | None
    duration_ms: float
    request: RequestItem
    response: ResponseItem | None
    error: ErrorItem | None
    outcome: str
    reason: str | None
    detail: str | None
    next_attempt_at: str | None
    cut: bool


class AttemptPage(TypedDict):
    """Newest first. `cursor`: for what follows; null on the last page. A page of large ones ends early."""

    items: list[AttemptItem]
    cursor: str | None


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
    """`at`: when the minute, or the hour, began."""

    at: str | None


class SeriesItem(TypedDict):
    """Oldest first; what nothing happened in is left out."""

    receiver: str
    source_id: str
    points: list[PointItem]


class CountsView(TypedDict):
    """Of the time from `since` to before `until`."""

    by: Literal["minute", "hour"]
    since: str | None
    until: str | None
    totals: CountItem
    series: list[SeriesItem]


def message_item(arrival: ArrivalFact, deliveries: Iterable[DeliveryFound]) -> MessageItem:
    """`deliveries`: those that may be shown."""
    shown = [delivery_item(each) for each in deliveries]
    return {
        "source_id": arrival.message.source_id,
        "message_id": arrival.message.message_id,
        "webhook_id": webhook_id(*arrival.message),
        "type": arrival.event_type,
        "status": least_advanced([each["status"] for each in shown] or ["arrived"]),
        "received_at": rfc3339(arrival.received_at),
        "size": arrival.size,
        "content_type": arrival.content_type,
        "deliveries": shown,
    }


def of_receiver(found: DeliveryFound) -> DeliveryFound:
    """As its receiver may see it: of a callback that was given up, that it was, and no more."""
    return structs.replace(found, last_status=None, detail=None) if is_of_callback(found.reason) else found


def delivery_item(found: DeliveryFound) -> DeliveryItem:
    return {
        "receiver": found.receiver or NO_RECEIVER,
        "status": found.status,
        "generation": found.generation,
        "attempts": found.attempts,
        "last_status": found.last_status,
        "reason": found.reason,
        "detail": found.detail,
        "updated_at": rfc3339(found.updated_at),
    }


def attempt_item(found: AttemptFound, *, whole: bool = False) -> AttemptItem:
    """`whole`: with all headers that are kept."""
    attempt, most = found.attempt, None if whole else SHOWN_HEADERS
    response, error = attempt.response, attempt.error
    sent = _first(attempt.headers, most)
    returned = {} if response is None else _first(response.headers, most)
    return {
        "partition": found.at.partition,
        "offset": found.at.offset,
        "kind": attempt.kind,
        "receiver": attempt.receiver,
        "source_id": attempt.source_id,
        "message_id": attempt.message_id,
        "generation": attempt.generation,
        "attempt": attempt.attempt,
        "started_at": rfc3339(attempt.started_at),
        "duration_ms": round(attempt.duration_ms, 1),
        "request": {"method": attempt.method, "url": attempt.url, "headers": sent},
        "response": None
        if response is None
        else {
            "status": response.status,
            "headers": returned,
            "body": response.body,
            "truncated": response.truncated,
        },
        "error": None if error is None else {"kind": error.kind, "detail": error.detail, "sent": error.sent},
        "outcome": attempt.outcome,
        "reason": attempt.reason,
        "detail": attempt.detail,
        "next_attempt_at": None if attempt.next_attempt_at is None else rfc3339(attempt.next_attempt_at),
        "cut": len(sent) < len(attempt.headers) or (response is not None and len(returned) < len(response.headers)),
    }


def _first(headers: Mapping[str, str], most: int | None) -> dict[str, str]:
    """As many of them as have at most so many characters together; None: all."""
    sizes = accumulate(len(name) + len(value) for name, value in headers.items())
    return {name: headers[name] for name, size in zip(headers, sizes, strict=True) if most is None or size <= most}


def counts_view(by: By, since: float, until: float, found: Sequence[SpanCount]) -> CountsView:
    """`since`, `until`: Unix seconds."""

    def of_whom(each: SpanCount) -> tuple[str, str]:
        return each.receiver, each.source_id

    series: list[SeriesItem] = [
        {"receiver": receiver, "source_id": source_id, "points": [_point(each) for each in spans]}
        for (receiver, source_id), spans in groupby(sorted(found, key=lambda each: (*of_whom(each), each.at)), of_whom)
    ]
    return {
        "by": by,
        "since": rfc3339(since),
        "until": rfc3339(until),
        "totals": _count(sum_of(map(_counted, found))),
        "series": series,
    }


def _point(span: SpanCount) -> PointItem:
    return {"at": rfc3339(span.at), **_count(_counted(span))}


def _counted(span: SpanCount) -> Counted:
    return Counted(span.counts)


def _count(counted: Counted) -> CountItem:
    return {
        "attempts": counted.attempts,
        "delivered": counted.successes,
        "failed": counted.attempts - counted.successes,
        "success_rate": counted.success_rate,
        "p50_ms": counted.quantile_ms(0.5),
        "p99_ms": counted.quantile_ms(0.99),
    }
