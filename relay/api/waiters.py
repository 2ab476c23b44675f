"""Requests that stay open for the receiver's answer, with `?wait=10` or `Prefer: wait=10` (RFC 7240).

The query is an order: a value that cannot be used is refused. A preference is a wish: a value that cannot be used is
ignored. The response is the receiver's answer with the headers of a callback, or 502 with the reason that there is
none.

The process that finishes a delivery publishes a hint. A hint may be lost, and is published only if the message was sent
by a request that waits; so the state is read when a request begins to wait, and then each second for all of them in one
call. A waiting request takes one of a bounded number of places until the client hangs up or the server stops."""

import asyncio
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import chain
from types import MappingProxyType
from typing import Annotated, Final, NamedTuple

from aiohttp import web
from msgspec import Meta

from relay.api.bounds import bounds_of
from relay.api.connection import on_loss
from relay.api.parameter import Parameter
from relay.api.problems import Problem, ProblemKind, invalid
from relay.api.responses import foreign_response
from relay.api.route import Body, DocumentedResponse
from relay.api.shares import sharer_of
from relay.api.status import StatusReader
from relay.clock import set_within
from relay.config.limits import ApiLimits
from relay.domain.dead_letter import parse_dead_letter
from relay.domain.errors import Unavailable
from relay.domain.headers import header_value
from relay.domain.hop import hop_of
from relay.domain.identity import DeliveryId, callback_id
from relay.domain.reasons import REASON_OF_CODE, REASONS, UNKNOWN
from relay.domain.requests import attribute_value
from relay.engine.supervision import end
from relay.log.port import Record
from relay.state.port import State
from relay.state.rows import Row, RowKey, Stage, delivery_row

WAIT: Final = "wait"
_MOST_S: Final = 999_999_999
WAIT_PARAMETERS: Final = (
    Parameter("wait", Annotated[float, Meta(ge=0, le=_MOST_S)], "Seconds to wait for the receiver's answer."),
    Parameter("Prefer", str, "`wait=10` (RFC 7240): like the query parameter, but only a preference.", "header"),
)
ANSWER_HEADERS: Final = {
    "webhook-id": "`ans_...`, as a callback has it.",
    "relay-outcome": "`answered` or `delivered`.",
    "relay-answer-status": "Status of the receiver's answer.",
}
ANSWERED: Final = DocumentedResponse(
    200,
    "With `wait`: the receiver's answer, with its body and content type unchanged.",
    Body({"*/*": None}),
    ANSWER_HEADERS,
)
_SECONDS: Final = re.compile(r"-?[0-9]{1,30}(\.[0-9]{1,30})?([eE][+-]?[0-9]{1,3})?")
_PREFERENCE: Final = re.compile(r'\s*wait\s*=\s*"?([0-9]{1,9})"?\s*(;.*)?', re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class RequestedWait:
    """The requested wait in seconds, within the limit. `preferred`: it is only a preference."""

    seconds: float
    preferred: bool = False

    @property
    def applied(self) -> dict[str, str]:
        """The response header for a preference that was applied."""
        return {"Preference-Applied": f"wait={self.seconds:g}"} if self.preferred else {}


def requested_wait(request: web.Request, longest_s: float) -> RequestedWait | None:
    """The wait that the request asks for; None if it asks for none. Raises a Problem (400) for a `wait` that is not a
    number of seconds."""
    return wait_in(request.query.getall(WAIT, ()), request.headers.getall("Prefer", ()), longest_s)


def wait_in(query: Sequence[str], prefer: Iterable[str], longest_s: float) -> RequestedWait | None:
    """The last value of the query counts, as of any parameter here; without one, the first preference of that name."""
    if query:
        seconds = float(query[-1]) if _SECONDS.fullmatch(query[-1]) else -1.0
        if not 0 <= seconds <= _MOST_S:
            raise invalid("wait must be a number of seconds, such as 10", parameter=WAIT)
        return RequestedWait(min(seconds, longest_s))
    for preference in ",".join(prefer).split(","):
        if found := _PREFERENCE.fullmatch(preference):
            return RequestedWait(min(float(found[1]), longest_s), preferred=True)
    return None


ANSWER_GONE: Final = ProblemKind(
    "answer-gone",
    410,
    "The answer is not kept any more",
    "The message was delivered, but so long ago that its answer is no longer in the log.",
)
_FAILED: Final = "delivery_failed"


def _kind(reason: str) -> ProblemKind:
    known = REASONS.get(reason, UNKNOWN)
    return ProblemKind(reason.replace("_", "-"), 502, known.title, known.advice)


FAILURES: Final = tuple(map(_kind, (_FAILED, *REASONS)))
"""Problems of deliveries without an answer; the first one is for unknown reasons."""


def is_over(row: Row) -> bool:
    """Whether the log has what became of the delivery: its answer, or its dead letter."""
    return row.stage >= Stage.PUBLISHED


def ended(delivery: DeliveryId, row: Row, record: Record | None) -> web.Response:
    """The answer in `record`, with headers of ours. `row`: of an ended delivery, which points at `record`. Raises a
    Problem: 502 if the delivery failed for good, 410 if the record was deleted."""
    if row.stage is Stage.FAILED:
        raise _failed(delivery, row, record)
    answer = None if record is None else _answer(delivery, record)
    if answer is None:
        raise Problem(ANSWER_GONE, "The message was delivered so long ago that its answer is no longer in the log.")
    return answer


def _answer(delivery: DeliveryId, record: Record) -> web.Response | None:
    hop = hop_of(record.headers)
    if hop is None:
        return None
    headers = _named(delivery, hop.generation, failed=False) | {"relay-outcome": hop.outcome or "answered"}
    if hop.attempt:
        headers["relay-attempt"] = str(hop.attempt)
    if hop.answer_status is not None:
        headers["relay-answer-status"] = str(hop.answer_status)
    if hop.answer_truncated:
        headers["relay-answer-truncated"] = "true"
    content_type = None if hop.content_type is None else header_value(hop.content_type)
    return foreign_response(record.value or b"", content_type, headers)


def _failed(delivery: DeliveryId, row: Row, record: Record | None) -> Problem:
    letter = None if record is None else parse_dead_letter(record.headers)
    reason = REASON_OF_CODE.get(row.code) or (letter.reason if letter else None)
    kind = _kind(reason or _FAILED)
    more: dict[str, object] = {
        "reason": reason,
        "attempts": letter.attempts if letter else row.attempts,
        "last_status": letter.last_status if letter else row.last_status,
        "source_id": delivery.source_id,
        "message_id": delivery.message_id,
        "receiver": delivery.receiver,
        "dead_letter": f"/v1/failed/{row.at[0]}/{row.at[1]}" if row.at else None,
    }
    headers = _named(delivery, row.generation, failed=True) | {"relay-outcome": "failed"}
    if reason is not None:
        headers["relay-reason"] = reason
    return Problem(kind, (letter.detail if letter else "") or kind.title, headers=headers, more=more)


def _named(delivery: DeliveryId, generation: int, *, failed: bool) -> dict[str, str]:
    return {
        "webhook-id": callback_id(delivery, generation, failed=failed),
        "relay-source": attribute_value(delivery.source_id),
        "relay-message-id": attribute_value(delivery.message_id),
        "relay-receiver": header_value(delivery.receiver),
        "relay-generation": str(generation),
    }


_AGAIN: Final = {"Retry-After": "1"}
"""Header of responses to requests whose wait ended before the answer."""


@dataclass(eq=False, slots=True)
class _Waiter:
    """`woken`: there may be a result, or the client is gone (`gone`)."""

    woken: asyncio.Event = field(default_factory=asyncio.Event)
    gone: bool = False

    def leave(self) -> None:
        self.gone = True
        self.woken.set()


class WaitResult(NamedTuple):
    """The result of waiting. `response` is None if it takes longer, or if too many requests wait already; then
    `headers` are for the 202."""

    response: web.Response | None = None
    headers: Mapping[str, str] = MappingProxyType(_AGAIN)


class Waiters:
    """All those of a process."""

    def __init__(self, reader: StatusReader, state: State, limits: ApiLimits) -> None:
        self._reader = reader
        self._state = state
        self._limits = limits
        self._waiting: dict[RowKey, set[_Waiter]] = {}
        self._of_digest: dict[bytes, RowKey] = {}
        self._count = 0
        self._of_caller: Counter[str] = Counter()
        self._closed = False
        self._looking: asyncio.Task[None] | None = None
        self._listening: asyncio.Task[None] | None = None

    async def start(self, _app: web.Application | None = None) -> None:
        """Listen to hints, until `close`."""
        self._listening = asyncio.create_task(self._listen())

    async def close(self, _app: web.Application | None = None) -> None:
        """End all waits, and accept no more: the server stops."""
        self._closed = True
        for waiter in list(chain.from_iterable(self._waiting.values())):
            waiter.leave()
        await end([task for task in (self._looking, self._listening) if task is not None])

    async def wait(
        self, request: web.Request, delivery: DeliveryId, asked: RequestedWait, *, generation: int = 0
    ) -> WaitResult:
        """200 with the answer, if it comes in time; not with that of a life before `generation`. Raises a Problem
        where the delivery failed for good."""
        caller = sharer_of(request).name
        if self._closed or not self._has_place_for(caller):
            return WaitResult()
        bounds_of(request).room.shrink(0)  # the body is on the log, and others may need its memory
        try:
            with self._place(request, caller, delivery_row(delivery)) as waiter:
                answer = await self._answer(request, waiter, delivery, generation, asked.seconds)
        except Problem as problem:
            problem.headers |= asked.applied
            raise
        if answer is None:
            return WaitResult(headers=_AGAIN | asked.applied)
        answer.headers.update(asked.applied)
        return WaitResult(answer)

    async def _answer(
        self, request: web.Request, waiter: _Waiter, delivery: DeliveryId, generation: int, seconds: float
    ) -> web.Response | None:
        now = asyncio.get_running_loop().time
        until = now() + seconds
        while not waiter.gone:
            waiter.woken.clear()
            with suppress(Unavailable):  # the next look may find it
                row, record = await self._reader.outcome(delivery)
                if is_over(row) and row.generation >= generation:
                    bounds_of(request).check_again()
                    return ended(delivery, row, record)
            await set_within(waiter.woken, until - now())
            if not waiter.woken.is_set():
                return None
        return None

    def _has_place_for(self, caller: str) -> bool:
        """One of the last eighth is for a caller only while it has fewer than are left, so that others find some."""
        left = self._limits.waiters - self._count
        return left > self._limits.waiters // 8 or self._of_caller[caller] < left

    @contextmanager
    def _place(self, request: web.Request, caller: str, row: RowKey) -> Iterator[_Waiter]:
        waiter = _Waiter(gone=request.transport is None)
        self._count += 1
        self._of_caller[caller] += 1
        self._waiting.setdefault(row, set()).add(waiter)
        self._of_digest[row.digest] = row
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._look())
        try:
            with on_loss(request, waiter.leave):
                yield waiter
        finally:
            self._waiting[row].discard(waiter)
            if not self._waiting[row]:
                del self._waiting[row], self._of_digest[row.digest]
            self._count -= 1
            self._of_caller -= Counter({caller: 1})

    async def _look(self) -> None:
        """Wakes the requests whose delivery has ended, while any request waits."""
        while True:
            await asyncio.sleep(self._limits.look_s)
            rows = list(self._waiting)
            if not rows:
                return
            with suppress(Unavailable):
                for row, seen in zip(rows, await self._state.row_details(rows), strict=True):
                    if is_over(seen.row):
                        self._wake(row)

    async def _listen(self) -> None:
        while True:
            with suppress(Unavailable):
                async with self._state.hints() as hints:
                    async for digest in hints:
                        if (row := self._of_digest.get(digest)) is not None:
                            self._wake(row)
            await asyncio.sleep(self._limits.look_s)

    def _wake(self, row: RowKey) -> None:
        for waiter in self._waiting.get(row, ()):
            waiter.woken.set()
