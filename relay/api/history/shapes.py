"""Converts messages, attempts and counts of the history to the shapes of the API.

First it adds to listed deliveries what only the state knows: progress that no record shows yet, or ever, waits and next
attempts. The record of a callback's attempt is in memory for a moment: if the process is killed then, the history never
has it. A delivery that was discarded, cancelled or replaced while it waits has its dead letter only when its lane
reaches it. So the rows of listed deliveries are read, a limited number of them and all at once; unfinished ones for
what they wait for, too. If the state is unavailable or has no row any more, the history's status stays.

Messages that filters excluded from all subscribers are `done`, although the history has no end of them: their rows say
so, or their age.
"""

import codecs
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import accumulate, groupby, islice
from typing import Final, NamedTuple

from msgspec import structs

from relay.api.responses import view_as
from relay.api.status import StatusReader
from relay.api.view import ON_THE_WAY, FoundDelivery, detail_of, reason_of, status_of, wait_view
from relay.api.waiting import DeliveryWait, next_attempt
from relay.domain.errors import Unavailable
from relay.domain.expression import Expression
from relay.domain.hop import NO_RECEIVER
from relay.domain.identity import DeliveryId, MessageId, webhook_id
from relay.domain.message import Message
from relay.domain.reasons import is_of_callback, replaced_by
from relay.domain.receiver import Source
from relay.domain.result_delivery import Handover, from_code, handover
from relay.domain.state import (
    PROGRESS,
    CallbackStatus,
    State,
    Status,
    StoredState,
    delivery_state,
    least_advanced,
    message_state,
)
from relay.domain.statistics import OUTCOMES, Counted, sum_of
from relay.domain.times import rfc3339
from relay.history.port import (
    ArrivalFact,
    AttemptFound,
    By,
    DeliveryFound,
    MessageFound,
    MessageQuery,
    SourceSet,
    SpanCount,
)
from relay.schema.attempts import AttemptItem, ErrorItem, RequestItem, ResponseItem
from relay.schema.messages import DeliveryItem, MessageItem
from relay.schema.statistics import CountItem, CountsView, PointItem, SeriesItem, SpanItem
from relay.state.rows import Row, Stage

MOST_LIVE: Final = 1_000
"""Deliveries of a list whose rows are read at once, at most."""
IN_QUESTION: Final[Status] = "response_received_from_receiver"
"""The status of a delivery without a recorded callback."""


class ListedDelivery(NamedTuple):
    """A delivery in a list of messages. `next_attempt_at`: Unix seconds. `wait`: None if it is over, or was not
    determined."""

    found: DeliveryFound
    state: State
    next_attempt_at: float | None = None
    wait: DeliveryWait | None = None


@dataclass(frozen=True, slots=True)
class ListedMessage:
    """A message in a list, with its deliveries. `without`: its status if it has no deliveries."""

    arrival: ArrivalFact
    deliveries: tuple[ListedDelivery, ...]
    without: Status = "arrived"


async def with_live(
    reader: StatusReader, found: Sequence[MessageFound], query: MessageQuery, now: float
) -> list[ListedMessage]:
    """The messages as the state knows them. A query for a status or a state drops those that no longer have it.
    `now`: Unix seconds."""
    without = {each.arrival.message: each.arrival.received_at for each in found if not each.deliveries}
    excluded = await reader.excluded(without, now)
    found = [each if each.deliveries or each.arrival.message in excluded else _awaited(each, reader) for each in found]
    received = {
        DeliveryId(each.receiver, *message.arrival.message): message.arrival.received_at
        for message in found
        for each in message.deliveries
        if each.receiver
    }
    live: Mapping[DeliveryId, FoundDelivery] = {}
    with suppress(Unavailable):
        live = await reader.waits(dict(islice(received.items(), MOST_LIVE)), now) if received else {}
    listed = [
        _message(message, live, excluded, reader.source(message.arrival.message.source_id), now) for message in found
    ]
    return [each for each in listed if _is_wanted(each, query)]


def _awaited(message: MessageFound, reader: StatusReader) -> MessageFound:
    """The message with deliveries to its subscribers, of which no record has anything yet. It stays without where these
    depend on its payload."""
    arrival = message.arrival
    names = reader.unfiltered(Message(*arrival.message, None, arrival.event_type), arrival.at)
    waiting = [DeliveryFound(name, "arrived", 0, 0, None, None, None, arrival.received_at) for name in names]
    return structs.replace(message, deliveries=tuple(waiting))


def answered_by(state: StoredState | None, sources: Mapping[str, Source], usual: Source) -> SourceSet:
    """The sources whose answered deliveries may be in this state. `usual`: the settings of sources that are not
    declared."""
    if state not in ("returning", "delivered"):
        return SourceSet()

    def may_be(source: Source) -> bool:
        return _returns(source, empty=False) if state == "returning" else not _always_returns(source)

    names = [name for name, source in sources.items() if name != "*" and may_be(source) != may_be(usual)]
    return SourceSet(sorted(names), excluded=may_be(usual))


def _returns(source: Source, *, empty: bool) -> bool:
    return handover(source, failed=False, empty=empty) is Handover.DELIVERED


def _always_returns(source: Source) -> bool:
    """Whether no answer is kept for queries: an empty one is wanted, and the URL of the callback is never empty."""
    form = None if source.callback is None else source.callback.request
    pieces = () if form is None or form.url is None else form.url.pieces
    return _returns(source, empty=True) and not (pieces and isinstance(pieces[0], Expression))


def _message(
    message: MessageFound,
    live: Mapping[DeliveryId, FoundDelivery],
    excluded: Collection[MessageId],
    source: Source,
    now: float,
) -> ListedMessage:
    ids = message.arrival.message
    return ListedMessage(
        message.arrival,
        tuple(_delivery(each, live.get(DeliveryId(each.receiver, *ids)), source, now) for each in message.deliveries),
        "done" if ids in excluded else "arrived",
    )


def _delivery(found: DeliveryFound, live: FoundDelivery | None, source: Source, now: float) -> ListedDelivery:
    if live is not None and live.row.generation < found.generation:
        live = None
    if live is not None and live.row.stage is not Stage.NONE:
        found = _advanced(found, live)
    if live is None or found.status not in ON_THE_WAY or status_of(live.row) != found.status:
        is_returning = found.status == IN_QUESTION and _is_returning(None if live is None else live.row, source)
        callback: CallbackStatus | None = "pending" if is_returning else None
        state = delivery_state(found.status, attempts=found.attempts, reason=found.reason, callback=callback)
        return ListedDelivery(found, state)
    row, wait = live.row, live.wait
    state = delivery_state(found.status, attempts=found.attempts, wait=None if wait is None else wait.kind)
    return ListedDelivery(found, state, next_attempt(row, wait, now), wait)


def _advanced(found: DeliveryFound, live: FoundDelivery) -> DeliveryFound:
    """The delivery as its row has it, where that is further. A callback that was given up is `failed` in the history
    only."""
    row, status = live.row, status_of(live.row)
    attempts, last_status = row.attempts, row.last_status
    if row.generation == found.generation:
        attempts = max(attempts, found.attempts)
        if found.status == "failed" or PROGRESS.index(status) <= PROGRESS.index(found.status):
            return structs.replace(found, attempts=attempts, last_status=found.last_status or last_status)
        last_status = last_status or found.last_status
    return structs.replace(
        found,
        status=status,
        generation=row.generation,
        attempts=attempts,
        last_status=last_status,
        reason=reason_of(row),
        detail=detail_of(live),
    )


def _is_returning(row: Row | None, source: Source) -> bool:
    """Whether an answered delivery's result is still on its way to the sender. A row that has gone has ended."""
    if row is None or row.stage is Stage.NONE:
        return _always_returns(source)
    if row.stage is Stage.DONE:
        return from_code(row.code).how is Handover.DELIVERED
    return _returns(source, empty=False)


def _is_wanted(message: ListedMessage, query: MessageQuery) -> bool:
    if not message.deliveries:
        state = message_state((), message.without)
        return query.status in (None, message.without) and query.state in (None, state)
    return any(
        query.status in (None, each.found.status)
        and (query.state is None or each.state in (query.state, "blocked"))
        and query.receiver in (None, each.found.receiver)
        for each in message.deliveries
    )


_utf8: Final = codecs.getincrementaldecoder("utf-8")
PREVIEW: Final = 120
"""Characters of a payload in a list."""
SHOWN_HEADERS: Final = 2_048
"""Characters of the headers of a request or response in a list, at most."""


def message_item(
    arrival: ArrivalFact, deliveries: Iterable[ListedDelivery], without: Status = "arrived"
) -> MessageItem:
    """The JSON of a message in a list. `deliveries`: those that the caller may see. `without`: the message's status if
    there are none."""
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
    found, next_at, wait = listed.found, rfc3339(listed.next_attempt_at), listed.wait
    item = view_as(
        DeliveryItem,
        found,
        receiver=found.receiver or NO_RECEIVER,
        state=listed.state,
        next_attempt_at=next_at,
        next_at=next_at,
        waiting_for=None if wait is None else wait_view(wait),
        updated_at=rfc3339(found.updated_at),
    )
    if (newer := replaced_by(found.reason, found.detail)) is not None:
        item["replaced_by"] = newer
    return item


def attempt_item(found: AttemptFound, *, whole: bool = False) -> AttemptItem:
    """The JSON of an attempt. `whole`: with all headers that are kept."""
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
