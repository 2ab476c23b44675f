"""Planted bugs on the way back to the sender, of replays, of full parking; see `tests/faults/harness/planted.py`."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any
from unittest.mock import patch

from msgspec import structs

import workers.records
import workers.to_receiver
import workers.to_sender
from relay.api.answers import AnswersResource
from relay.domain.exchange import Request
from relay.domain.identity import DeliveryId
from relay.domain.requests import post_request
from relay.engine.decision import Done, Step
from relay.engine.parked_quota import ParkingQuota
from relay.engine.policy import Policy
from relay.state.replies import answered
from relay.state.rows import Mark, Result, Row, Stage, delivery_row
from workers.delivery import Delivery
from workers.failed_messages import FailedMessages
from workers.to_receiver import ToReceiver


@contextmanager
def marked_and_not_appended() -> Iterator[None]:
    """An answer that a receiver brings is marked as published, and is not on the log."""

    async def publish(self: AnswersResource, delivery: DeliveryId, row: Row) -> None:
        mark = Mark(delivery_row(delivery), row.generation, Stage.PUBLISHED, (0, 0))
        await answered(self._context.state.mark([mark]))

    with patch.object(AnswersResource, "_publish", publish):
        yield


@contextmanager
def failures_not_told() -> Iterator[None]:
    """No sender hears of a failure."""
    with patch.object(FailedMessages, "step", lambda *_: Done()):
        yield


@contextmanager
def told_twice() -> Iterator[None]:
    """The answer to a POST is on the log twice, and the callback gets both."""

    def twice(*given: Any) -> Done:
        end = rightly(*given)
        return structs.replace(end, records=end.records * 2)

    rightly = workers.records.done_with_answer
    with (
        patch.object(workers.to_receiver, "done_with_answer", twice),
        patch.object(workers.to_sender, "_is_done", lambda *_: False),
    ):
        yield


@contextmanager
def answers_mixed_up() -> Iterator[None]:
    """A sender gets the answer to the message before."""
    former: list[Result] = []

    def resume(self: ToReceiver, work: Delivery, result: Result) -> Any:
        former.append(result)
        return rightly(self, work, structs.replace(result, body=former[-2:][0].body))

    rightly = ToReceiver.resume
    with patch.object(ToReceiver, "resume", resume):
        yield


@contextmanager
def not_sent_again() -> Iterator[None]:
    """A replay gets the answer of the life before it."""

    def step(self: ToReceiver, work: Delivery) -> Step:
        if not work.generation or work.in_doubt:
            return rightly(self, work)
        body = b'{"built": "%b"}' % work.delivery.message_id.encode()
        return Done(stage=Stage.PUBLISHED, result=Result("answered", 200, body=body))

    rightly = ToReceiver.step
    with patch.object(ToReceiver, "step", step):
        yield


@contextmanager
def attempts_not_counted() -> Iterator[None]:
    """Each attempt says that it is the first."""

    def post(*given: Any, **how: Any) -> Request:
        return post_request(*given, **how | {"attempt": 1})

    with patch.object(workers.to_receiver, "post_request", post):
        yield


@contextmanager
def replays_without_order() -> Iterator[None]:
    """A replay does not wait for those before it, and later ones do not wait for a replay."""

    def made(self: Delivery, *given: Any) -> None:
        rightly(self, *given)
        self.queue = None if self.generation else self.queue

    rightly = Delivery.__init__
    with patch.object(Delivery, "__init__", made):
        yield


@contextmanager
def sent_ones_given_up() -> Iterator[None]:
    """A message that was sent once needs room to be parked, like others."""
    with patch.object(Policy, "counts_room", lambda *_, **__: True):
        yield


@contextmanager
def parked_without_shares() -> Iterator[None]:
    """One receiver may use the room of all."""

    async def left(self: ParkingQuota, lane: object, owners: Sequence[str]) -> dict[str, int]:
        return dict.fromkeys(owners, self._free)

    with patch.object(ParkingQuota, "_left", left):
        yield


PLANTED_IN_RETURNS: Mapping[str, Callable[[], AbstractContextManager[None]]] = {
    bug.__name__: bug
    for bug in (
        marked_and_not_appended,
        failures_not_told,
        told_twice,
        answers_mixed_up,
        not_sent_again,
        attempts_not_counted,
        replays_without_order,
        sent_ones_given_up,
        parked_without_shares,
    )
}
