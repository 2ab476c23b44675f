"""Sends the relay's own events to receivers that subscribe to them: as messages on `from_sender`.

The engine only queues an event; the rest is done in a task of its own. Events may be lost: beyond `MOST` that wait for
the log, and if the process crashes. The state of receivers and the dead letters are also available elsewhere.
"""

import asyncio
from collections import Counter, OrderedDict, deque
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from relay.clock import Clock
from relay.domain.directory import Directory
from relay.domain.errors import InvalidRecord, RelayError, Unavailable
from relay.domain.hop import NO_RECEIVER
from relay.domain.identity import OWN_SOURCE
from relay.domain.incident import Incident
from relay.domain.message import Message, message_headers
from relay.domain.own_events import (
    FAILED,
    Change,
    FailedExample,
    MessagesFailed,
    Turn,
    change_of,
    example_of,
    hearers,
    message_of,
    receiver_of,
    turn_of,
)
from relay.domain.receiver import Receiver
from relay.domain.times import rfc3339
from relay.domain.topics import Topics
from relay.engine.supervision import Retrier
from relay.log.port import Log, NewRecord
from relay.state.port import FailedEntry, State
from relay.telemetry.logging import get_logger
from relay.telemetry.metrics import Metrics

GATHER_S: Final = 10.0
"""Failures of a receiver within this time make one event."""
MOST: Final = 1_000
"""Most waiting events, and most receivers whose failures are being gathered."""
EXAMPLES: Final = 10
LAST_S: Final = 2.0
"""Time for the last events when the process ends."""
_KNOWN: Final = 10_000

_log = get_logger("relay.events")


@dataclass(frozen=True, slots=True)
class _Turned:
    """`since`: of its outage; None: of its hold, which the state knows. Unix seconds."""

    type: Turn
    receiver: str
    since: float | None
    at: float


@dataclass(frozen=True, slots=True)
class _Changed:
    """`at`: when it was noticed, Unix seconds."""

    type: Change
    incident: Incident
    at: float


@dataclass(slots=True)
class _Batch:
    """Failures of one receiver; None: of unknown receivers. `owner`: its owner then. `due`: when the event is sent, on
    the monotonic clock."""

    receiver: str | None
    owner: str | None
    due: float
    first: FailedEntry
    count: int = 0
    reasons: Counter[str] = field(default_factory=Counter)
    times: tuple[float, float] = (float("inf"), 0.0)
    examples: list[FailedExample] = field(default_factory=list)
    type: str = FAILED

    def add(self, entry: FailedEntry, attempts: int) -> None:
        self.count += 1
        self.reasons[entry.reason] += 1
        self.times = min(self.times[0], entry.failed_at), max(self.times[1], entry.failed_at)
        if len(self.examples) < EXAMPLES:
            self.examples.append(example_of(entry.source_id, entry.message_id, entry.reason, attempts, entry.at))


@dataclass(eq=False)
class OwnEvents:
    """One per process; the caller runs `run`."""

    log: Log
    state: State
    topics: Topics
    directory: Directory
    clock: Clock
    metrics: Metrics
    _queue: deque[_Turned | _Changed | _Batch] = field(default_factory=deque)
    _gathering: dict[tuple[str | None, str | None], _Batch] = field(default_factory=dict)
    _sent: OrderedDict[str, None] = field(default_factory=OrderedDict)
    _news: asyncio.Event = field(default_factory=asyncio.Event)
    _idle: asyncio.Event = field(default_factory=asyncio.Event)
    _ending: bool = False
    _dropping: bool = False

    # called by the engine: never blocks, never raises

    def turned(self, turn: Turn, receiver: str, since: float | None) -> None:
        """A receiver's state has changed; may be called repeatedly."""
        if self._is_wanted(turn, receiver):
            self._put(_Turned(turn, receiver, since, self.clock.time()))

    def changed(self, change: Change, incident: Incident) -> None:
        """An incident was opened or resolved."""
        if self._is_wanted(change, receiver_of(incident)):
            self._put(_Changed(change, incident, self.clock.time()))

    def failed(self, entry: FailedEntry, attempts: int) -> None:
        """A message has failed for good, and is listed."""
        if entry.source_id == OWN_SOURCE:
            return
        known = self._known(entry)
        receiver, owner = (None, None) if known is None else (known.name, known.owner)
        if not self._is_wanted(FAILED, receiver):
            return
        batch = self._gathering.get((receiver, owner))
        if batch is None:
            if len(self._gathering) >= MOST:
                self._drop(FAILED)
                return
            batch = _Batch(receiver, owner, self.clock.monotonic() + GATHER_S, entry)
            self._gathering[receiver, owner] = batch
            self._news.set()
        batch.add(entry, attempts)

    def _known(self, entry: FailedEntry) -> Receiver | None:
        """The receiver that the message was for. Senders may invent names, or may not use a name, and the name of a
        former owner's receiver may have another one by now: then the failure is of no receiver."""
        if entry.receiver == NO_RECEIVER:
            return None
        try:
            present = self.directory.receiver(entry.receiver)
            removed = self.directory.removed(entry.receiver) if present is None else None
        except Unavailable:
            return None
        return removed if entry.reason == "unknown_receiver" else present or removed

    def _is_wanted(self, event_type: str, receiver: str | None) -> bool:
        try:
            return bool(hearers(self.directory, event_type, receiver))
        except InvalidRecord:  # too many: its dead letter says so
            return True
        except Unavailable:
            self._drop(event_type)
            return False

    def _put(self, event: _Turned | _Changed | _Batch) -> None:
        if len(self._queue) >= MOST:
            self._drop(event.type)
            return
        self._queue.append(event)
        self._news.set()

    def _drop(self, event_type: str) -> None:
        self.metrics.own_events_dropped_total.labels(event_type).inc()
        if not self._dropping:
            self._dropping = True
            _log.warning(
                "own_events_dropped",
                type=event_type,
                problem=f"{MOST} events wait already, or the receivers cannot be read",
            )

    # sending

    async def run(self, retrier: Retrier) -> None:
        """Runs until cancelled. `retrier` repeats calls while the log or the state is unavailable."""
        while True:
            await self.clock.wait(self._news, self._until_due_s())
            self._news.clear()
            self._idle.clear()
            self._close_batches()
            while self._queue:
                await self._send(self._queue[0], retrier)
                self._queue.popleft()
            self._dropping = False
            if not self._news.is_set():
                self._idle.set()

    async def end(self) -> None:
        """Sends gathered failures now, within `LAST_S`."""
        self._ending = True
        self._idle.clear()
        self._news.set()
        await self.clock.wait(self._idle, LAST_S)

    def _until_due_s(self) -> float | None:
        if not self._gathering:
            return None
        return max(0.0, min(batch.due for batch in self._gathering.values()) - self.clock.monotonic())

    def _close_batches(self) -> None:
        now = self.clock.monotonic()
        for batch in [each for each in self._gathering.values() if self._ending or each.due <= now]:
            del self._gathering[batch.receiver, batch.owner]
            self._put(batch)

    async def _send(self, event: _Turned | _Changed | _Batch, retrier: Retrier) -> None:
        try:
            message = await retrier.until_done("look at a receiver", partial(self._message, event))
            if message is None or message.message_id in self._sent:
                return
            record = NewRecord(self.topics.from_sender, OWN_SOURCE.encode(), message.payload, message_headers(message))
            await retrier.until_done("send an event", partial(self.log.append, [record]))
        except RelayError as error:  # for example if the record is too large for the log
            self._drop(event.type)
            _log.warning("own_event_not_told", problem=str(error))
            return
        self._remember(message)

    def _remember(self, message: Message) -> None:
        self._sent[message.message_id] = None
        if len(self._sent) > _KNOWN:
            self._sent.popitem(last=False)
        self.metrics.own_events_total.labels(message.event_type or "").inc()

    async def _message(self, event: _Turned | _Changed | _Batch) -> Message | None:
        """The message of an event; None if the event no longer holds. Raises Unavailable."""
        if isinstance(event, _Batch):
            return self._of_batch(event)
        if isinstance(event, _Changed):
            one = event.incident
            change = change_of(event.type, one, self._owner_of(receiver_of(one), one.life), event.at)
            return message_of(change, f"{one.id}-{round(one.opened_at * 1000)}-{one.reopened}")
        since = event.since
        if since is None:
            [health] = await self.state.endpoints([f"r:{event.receiver}"])
            if health.hold is None or event.type != f"receiver.{health.hold.reason}":
                return None
            since = health.hold.since
        owner = self._owner_of(event.receiver)
        event_data = turn_of(event.type, event.receiver, owner, rfc3339(since), rfc3339(event.at))
        return message_of(event_data, str(round(since * 1000)))

    def _of_batch(self, batch: _Batch) -> Message:
        first, last = batch.times
        event_data: MessagesFailed = {
            "type": "message.failed",
            "receiver": batch.receiver,
            "owner": batch.owner,
            "count": batch.count,
            "reasons": dict(sorted(batch.reasons.items())),
            "first_failed_at": rfc3339(first),
            "last_failed_at": rfc3339(last),
            "at": rfc3339(self.clock.time()),
            "examples": batch.examples,
        }
        at = batch.first.at
        return message_of(event_data, f"{at.partition}-{at.offset}-{batch.count}")

    def _owner_of(self, name: str | None, life: str | None = None) -> str | None:
        """None if the name has another life than `life`. Raises Unavailable."""
        known = None if name is None else self.directory.receiver(name) or self.directory.removed(name)
        return known.owner if known and life in (None, known.life.id) else None
