"""Resolves deliveries in doubt: an attempt was started, its outcome is unknown, and it can no longer arrive.

1. A receiver with a status endpoint is asked. It has the message: delivered. It never saw it: POST again. No usable
   response: ask again.
2. Any other receiver gets the message again, or the message is dead-lettered, as configured.
"""

from functools import partial
from math import inf
from typing import assert_never

from relay.domain.identity import webhook_id
from relay.domain.receiver import Receiver
from relay.domain.status import AnswerReady, AskLater, NeverSeen, StatusGone, StatusReading, StillRunning, status_url
from relay.engine.work import Dead, Decision, Done, Later, Resend, Step
from relay.state.attempts import Change
from relay.state.rows import Result, Stage
from workers.delivery import Delivery, can_be_asked
from workers.dependencies import Outside
from workers.journal import RequestPurpose
from workers.requests import ask, ask_again_s


class Doubt:
    """Resolves deliveries in doubt."""

    def __init__(self, outside: Outside) -> None:
        self._outside = outside

    def resolve(self, work: Delivery) -> Step:
        receiver = work.receiver
        if can_be_asked(receiver):
            url = _url(receiver, work)
            return ask(self._outside, _about(work), work.hop, receiver, url, partial(self._decide, work, url))
        if receiver.on_ambiguous == "dead_letter":
            said = f": {work.said}" if work.said else ""
            return Dead("ambiguous", f"an attempt was started, and its outcome is unknown{said}")
        return _again(work)

    def before(self, work: Delivery) -> Step:
        """Asks the receiver once before anything is sent, as the delivery's previous life may have reached it."""
        url = _url(work.receiver, work)
        return ask(self._outside, _about(work), work.hop, work.receiver, url, partial(self._decide_before, work, url))

    def _decide_before(self, work: Delivery, url: str, reading: StatusReading) -> Decision:
        if not isinstance(reading, NeverSeen):
            return self._decide(work, url, reading)
        work.asked += 1
        return Later(0.0, "the receiver never saw it", Change.RELEASED)

    def _decide(self, work: Delivery, url: str, reading: StatusReading) -> Decision:
        now, meter = self._outside.clock.time(), self._outside.meter
        work.asked += 1
        if work.newer_than_loss and isinstance(reading, AnswerReady | StillRunning):
            return self._unproved(work, now)
        match reading:
            case AnswerReady(status, content_type, body, truncated):
                meter.delivered(work.receiver.name, work.age_s(now))
                meter.answered(work.receiver.name, "poll", work.age_s(now))
                result = Result("answered", status, content_type, body, truncated)
                return Done(stage=Stage.PUBLISHED, result=result, healthy=True)
            case StillRunning(ask_after_s):
                meter.delivered(work.receiver.name, work.age_s(now))
                result = Result("accepted", 202, status_url=url, ask_after_s=ask_after_s)
                return Done(stage=Stage.AWAITING, result=result, healthy=True)
            case NeverSeen():
                return _again(work)
            case StatusGone():
                return Dead("gone", "the receiver's status endpoint says that it is gone", 410, pause_s=inf)
            case AskLater(retry_after_s, whole, kind, detail):
                wait_s = ask_again_s(retry_after_s, work.asked, work.receiver.poll)
                pause_s = wait_s if whole else 0.0
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


def _about(work: Delivery) -> RequestPurpose:
    return work.purpose("status", work.receiver.post, work.asked + 1, work.attempts)


def _url(receiver: Receiver, work: Delivery) -> str:
    delivery = work.hop.delivery
    identity = webhook_id(delivery.source_id, delivery.message_id)
    return status_url(receiver.status_endpoint or "", delivery, webhook_id=identity, response_body=b"")


def _again(work: Delivery) -> Resend | Dead:
    if work.attempts >= work.receiver.post.retry.max_attempts:
        said = work.said or "it got no answer"
        return Dead("exhausted", f"given up after {work.attempts} attempts; the last: {said}")
    return Resend()
