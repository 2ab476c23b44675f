"""Resolves deliveries in doubt: an attempt was started, its outcome is unknown, and it can no longer arrive.

1. A receiver with a status endpoint is asked. It has the message: delivered. It never saw it: POST again. No usable
   response: ask again.
2. Any other receiver gets the message again, or the message is dead-lettered, as configured.
"""

from collections.abc import Callable
from functools import partial
from math import inf
from typing import Final, assert_never

from msgspec import structs

from relay.domain.errors import ExpressionError
from relay.domain.outcome import Answered
from relay.domain.receiver import Receiver
from relay.domain.status import AskLater, NeverSeen, StatusGone, StillRunning, status_url
from relay.domain.status_chain import ChainPosition, ChainReading, NoAnswer, StepFinished, first_position
from relay.engine.decision import Dead, Decision, Done, Later, Step
from relay.state.attempts import Change
from relay.state.rows import Result, Stage
from workers.delivery import Delivery, can_be_asked, resend_or_give_up
from workers.dependencies import Dependencies
from workers.requests import ask, ask_again_s

_UNKNOWN: Final = "its outcome is unknown"
_ASKED: Final = "; asked about it: "


class Doubt:
    """Resolves deliveries in doubt."""

    def __init__(self, dependencies: Dependencies) -> None:
        self._dependencies = dependencies

    def resolve(self, work: Delivery) -> Step:
        receiver = work.receiver
        if can_be_asked(receiver):
            url = _url(receiver, work)
            if isinstance(url, Dead):
                return url
            return self._ask(work, url, self._decide)
        if receiver.on_ambiguous == "dead_letter":
            said = f": {work.last_failure}" if work.last_failure else ""
            return Dead("ambiguous", f"an attempt was started, and its outcome is unknown{said}")
        return resend_or_give_up(work, receiver.post.retry, "exhausted")

    def before(self, work: Delivery) -> Step:
        """Asks the receiver once before anything is sent, as the delivery's previous life may have reached it."""
        url = _url(work.receiver, work)
        return url if isinstance(url, Dead) else self._ask(work, url, self._decide_before)

    def _ask(
        self, work: Delivery, at: ChainPosition, decide: Callable[[Delivery, ChainPosition, ChainReading], Decision]
    ) -> Step:
        hop, payload = structs.replace(work.hop, chain=at.text or None), work.record.value or b""
        purpose = work.purpose("status", work.receiver.post, work.asked + 1, work.attempts)
        return ask(self._dependencies, purpose, hop, work.receiver, at.url, payload, partial(decide, work, at))

    def _decide_before(self, work: Delivery, at: ChainPosition, reading: ChainReading) -> Decision:
        if not isinstance(reading, NeverSeen):
            return self._decide(work, at, reading)
        work.asked += 1
        return Later(0.0, "the receiver never saw it", Change.RELEASED)

    def _decide(self, work: Delivery, at: ChainPosition, reading: ChainReading) -> Decision:
        now, meter = self._dependencies.clock.time(), self._dependencies.meter
        work.asked += 1
        if isinstance(reading, StepFinished | NoAnswer):  # it has the message: the chain goes on from here
            reading = StillRunning(0.0)
        if work.newer_than_loss and isinstance(reading, Answered | StillRunning):
            return self._unproved(work, now)
        match reading:
            case Answered():
                meter.delivered(work.receiver.name, work.age_s(now), "poll")
                return Done(stage=Stage.PUBLISHED, result=self._dependencies.result_of(reading), healthy=True)
            case StillRunning(ask_after_s):
                meter.delivered(work.receiver.name, work.age_s(now))
                chain = at.text or None
                result = Result("accepted", 202, status_url=at.url, ask_after_s=ask_after_s, chain=chain)
                return Done(stage=Stage.AWAITING, result=result, healthy=True)
            case NeverSeen():
                return resend_or_give_up(work, work.receiver.post.retry, "exhausted")
            case StatusGone():
                return Dead("gone", "the receiver's status endpoint says that it is gone", 410, pause_s=inf)
            case AskLater(retry_after_s, whole, kind, detail):
                wait_s = ask_again_s(retry_after_s, work.asked, work.receiver.poll)
                pause_s = wait_s if whole else 0.0
                known, _, _ = (work.last_failure or _UNKNOWN).partition(_ASKED)
                work.last_failure = f"{known}{_ASKED}{detail}"
                why = f"in doubt, and asking failed: {kind}"
                wait_s = min(wait_s, work.rest_s(now))
                return Later(wait_s, why, Change.DOUBT, pause_s=pause_s, detail=detail)
        assert_never(reading)

    def _unproved(self, work: Delivery, now: float) -> Later:
        """Waits. Some status endpoints know every id, so their response proves nothing for a record newer than the
        loss of the state. If the message was sent before, its row will be rebuilt from the log; if not, it is sent
        after the rebuild."""
        wait_s = min(ask_again_s(None, work.asked, work.receiver.poll), work.rest_s(now))
        return Later(wait_s, "waits until what Redis lost is rebuilt", Change.DOUBT)


def _url(receiver: Receiver, work: Delivery) -> ChainPosition | Dead:
    """The status URL to ask; Dead if this message leads to a URL that must not be requested."""
    if receiver.status_steps:
        try:
            return first_position(receiver, work.hop, work.record.value or b"")
        except ExpressionError as error:
            return Dead("ambiguous", f"the outcome of an attempt is unknown, and the receiver cannot be asked: {error}")
    return ChainPosition(status_url(receiver.status_endpoint or "", work.hop.delivery), "")
