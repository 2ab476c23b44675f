"""Doubt: somebody began a POST, and nobody knows what came of it. It cannot arrive any more.

1. a receiver that can be asked is asked: known: delivered; never seen: POST again; no word: ask again;
2. another gets it again, or not, as it is configured.
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
from workers.status_request import ask, ask_again_s


class Doubt:
    """Resolves what is in doubt."""

    def __init__(self, outside: Outside) -> None:
        self._outside = outside

    def resolve(self, work: Delivery) -> Step:
        receiver = work.receiver
        if can_be_asked(receiver):
            url = _url(receiver, work)
            return ask(self._outside, _about(work), work.hop, receiver, url, partial(self._decide, work, url))
        if receiver.on_ambiguous == "dead_letter":
            said = f": {work.said}" if work.said else ""
            return Dead("ambiguous", f"an attempt was begun, and nobody knows what came of it{said}")
        return _again(work)

    def before(self, work: Delivery) -> Step:
        """Of a life whose former one may have reached the receiver: it is asked once before it is sent anything."""
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
        """Some status endpoints know every id. Its record is newer than the loss of the state: either the same was sent
        before, and its row will be read back from the log, or none was, and it is sent when that is done."""
        wait_s = min(ask_again_s(None, work.asked, work.receiver.poll), work.rest_s(now))
        return Later(wait_s, "waits until what Redis lost is rebuilt", Change.DOUBT)


def _about(work: Delivery) -> RequestPurpose:
    gate, post, asked = work.gate, work.receiver.post, work.asked + 1
    return RequestPurpose("status", gate, post, work.delivery, work.generation, asked, work.attempts, work.hop.life)


def _url(receiver: Receiver, work: Delivery) -> str:
    delivery = work.hop.delivery
    identity = webhook_id(delivery.source_id, delivery.message_id)
    return status_url(receiver.status_endpoint or "", delivery, webhook_id=identity, response_body=b"")


def _again(work: Delivery) -> Resend | Dead:
    if work.attempts >= work.receiver.post.retry.max_attempts:
        said = work.said or "it got no answer"
        return Dead("exhausted", f"given up after {work.attempts} attempts; the last: {said}")
    return Resend()
