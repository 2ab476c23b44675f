"""Converts messages, attempts and counts of the history to the shapes of the API. Pure."""

import codecs
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate, groupby
from typing import Final

from msgspec import structs

from relay.api.history.live_overlay import ListedDelivery
from relay.api.responses import view_as
from relay.api.view import wait_view
from relay.domain.hop import NO_RECEIVER
from relay.domain.identity import webhook_id
from relay.domain.reasons import is_of_callback, replaced_by
from relay.domain.state import Status, least_advanced, message_state
from relay.domain.statistics import OUTCOMES, Counted, sum_of
from relay.domain.times import rfc3339
from relay.history.port import ArrivalFact, AttemptFound, By, SpanCount
from relay.schema.attempts import AttemptItem, ErrorItem, RequestItem, ResponseItem
from relay.schema.messages import DeliveryItem, MessageItem
from relay.schema.statistics import CountItem, CountsView, PointItem, SeriesItem, SpanItem

_utf8: Final = codecs.getincrementaldecoder("utf-8")
PREVIEW: Final = 120
"""Characters of a payload in a list."""
SHOWN_HEADERS: Final = 2_048
"""Characters of the headers of a request or response in a list, at most."""


def message_item(
    arrival: ArrivalFact, deliveries: Iterable[ListedDelivery], without: Status = "arrived"
) -> MessageItem:
    """`deliveries`: those that the caller may see. `without`: the message's status if there are none."""
    shown = [delivery_item(each) for each in deliveries]
    return {
        "source_id": arrival.message.source_id,
        "message_id": arrival.message.message_id,
        "webhook_id": webhook_id(*arrival.message),
        "type": arrival.event_type,
        "status": least_advanced([each["status"] for each in shown] or [without]),
        "state": message_state((each["state"] for each in shown), without),
        "received_at": rfc3339(arrival.received_at),
        "size": arrival.size,
        "content_type": arrival.content_type,
        "preview": preview(arrival.body),
        "deliveries": shown,
    }


def preview(body: bytes | None) -> str | None:
    """The beginning of a payload in one line; None if it is not kept, or no text."""
    if body is None:
        return None
    try:
        # incremental: the last character may be cut
        text = _utf8().decode(body)
    except UnicodeDecodeError:
        return None
    return None if "\x00" in text else " ".join(text.split())[:PREVIEW]


def of_receiver(listed: ListedDelivery) -> ListedDelivery:
    """The delivery as its receiver may see it: without the details of a callback that was given up."""
    if not is_of_callback(listed.found.reason):
        return listed
    return listed._replace(found=structs.replace(listed.found, last_status=None, detail=None))


def delivery_item(listed: ListedDelivery) -> DeliveryItem:
    found, next_at, wait = listed.found, listed.next_attempt_at, listed.wait
    item = view_as(
        DeliveryItem,
        found,
        receiver=found.receiver or NO_RECEIVER,
        state=listed.state,
        next_attempt_at=rfc3339(next_at),
        waiting_for=None if wait is None else wait_view(wait),
        updated_at=rfc3339(found.updated_at),
    )
    if (newer := replaced_by(found.reason, found.detail)) is not None:
        item["replaced_by"] = newer
    return item


def attempt_item(found: AttemptFound, *, whole: bool = False) -> AttemptItem:
    """`whole`: with all headers that are kept."""
    attempt, most = found.attempt, None if whole else SHOWN_HEADERS
    response, error = attempt.response, attempt.error
    sent = _first(attempt.headers, most)
    returned = {} if response is None else _first(response.headers, most)
    return view_as(
        AttemptItem,
        attempt,
        partition=found.at.partition,
        offset=found.at.offset,
        started_at=rfc3339(attempt.started_at),
        duration_ms=round(attempt.duration_ms, 1),
        request=view_as(RequestItem, attempt, headers=sent),
        response=None if response is None else view_as(ResponseItem, response, headers=returned),
        error=None if error is None else view_as(ErrorItem, error),
        next_attempt_at=rfc3339(attempt.next_attempt_at),
        cut=len(sent) < len(attempt.headers) or (response is not None and len(returned) < len(response.headers)),
    )


def _first(headers: Mapping[str, str], most: int | None) -> dict[str, str]:
    """The first headers up to a total number of characters; None: all."""
    sizes = accumulate(len(name) + len(value) for name, value in headers.items())
    return {name: headers[name] for name, size in zip(headers, sizes, strict=True) if most is None or size <= most}


def counts_view(
    by: By, since: float, until: float, found: Sequence[SpanCount], *, with_series: bool = True
) -> CountsView:
    """`since`, `until`: Unix seconds."""

    def of_whom(each: SpanCount) -> tuple[str, str]:
        return each.receiver, each.source_id

    series: list[SeriesItem] = [
        {"receiver": receiver, "source_id": source_id, "points": [_point(each) for each in spans]}
        for (receiver, source_id), spans in groupby(sorted(found, key=lambda each: (*of_whom(each), each.at)), of_whom)
        if with_series
    ]
    return {
        "by": by,
        "since": rfc3339(since),
        "until": rfc3339(until),
        "totals": _count(sum_of(map(_counted, found))),
        "spans": [_span(at, sum_of(map(_counted, spans))) for at, spans in groupby(sorted(found, key=_begin), _begin)],
        "series": series,
    }


def _point(span: SpanCount) -> PointItem:
    return {"at": rfc3339(span.at), **_count(_counted(span))}


def _begin(span: SpanCount) -> float:
    return span.at


def _span(at: float, counted: Counted) -> SpanItem:
    outcomes = {name: count for name, count in zip(OUTCOMES, counted.outcomes, strict=True) if count}
    return {"at": rfc3339(at), "outcomes": outcomes, **_count(counted)}


def _counted(span: SpanCount) -> Counted:
    return Counted(span.counts)


def _count(counted: Counted) -> CountItem:
    p50_ms, p99_ms = counted.quantiles_ms(0.5, 0.99)
    return {
        "attempts": counted.attempts,
        "delivered": counted.successes,
        "failed": counted.attempts - counted.successes,
        "success_rate": counted.success_rate,
        "p50_ms": p50_ms,
        "p99_ms": p99_ms,
    }
