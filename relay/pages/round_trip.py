"""A message's round trip as steps in time: its arrival, its attempts with their results, and its waits. Pure.

It is made from a message of the API, and from its attempts, if a history has them.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import groupby, pairwise
from math import sqrt
from typing import Final, NamedTuple

from relay.domain.advice import status_words
from relay.domain.attempt import OF_SENDER
from relay.domain.reasons import reason_words
from relay.domain.text import counted
from relay.pages.causes import attempt_cause, end_advice, group_advice, ruling_words, wait_cause
from relay.schema.attempts import AttemptItem
from relay.schema.messages import AnswerView, CallbackView, DeliveryView, MessageView

WIDTH: Final = 1_000.0
"""Width of the drawing, in its own units."""
_NARROWEST: Final = 5.0
_NOTICED_S: Final = 0.02
"""A gap that is shorter is no wait."""
_UNFOLDED: Final = 8
"""Attempts of a generation that are all shown; of more, the first and the last..."""
_SHOWN: Final = 3
"""... are."""
_TONES: Final = {"done": "good", "retry": "warn", "doubt": "warn", "released": "plain", "dead": "bad"}
_NAMES: Final = {
    "post": "Attempt",
    "status": "Status check",
    "callback": "Callback",
    "ping": "Ping",
    "progress": "Progress",
}


@dataclass(frozen=True, slots=True)
class Bar:
    """The bar of a step in the drawing: position and width, in units of WIDTH."""

    x: float
    width: float


@dataclass(frozen=True, slots=True)
class Step:
    """`kind`: `arrived`, `attempt`, `wait`, `answer`, `end` or `done`. `at`, `until`: Unix seconds; `at` None: not
    known; `until` None: at one moment, or `ongoing`. `attempts`: the exchanges that it is about, oldest first.
    `next_at`: the earliest end of a wait; `is_due`: that time has passed. `deadline`: its latest end."""

    kind: str
    title: str
    tone: str
    at: float | None
    until: float | None = None
    ongoing: bool = False
    detail: str = ""
    advice: str = ""
    attempts: tuple[AttemptItem, ...] = ()
    next_at: float | None = None
    is_due: bool = False
    deadline: float | None = None
    bar: Bar | None = None

    @property
    def seconds(self) -> float | None:
        """Duration of the step; None if it is unknown, or if the step is a moment."""
        return None if self.at is None or self.until is None else max(0.0, self.until - self.at)


class Fold(NamedTuple):
    """Steps of a generation that are shown on demand: from `begin` to before `end`, with this number of attempts."""

    begin: int
    end: int
    attempts: int


@dataclass(frozen=True, slots=True)
class GenerationSteps:
    """One generation of a delivery: the first, or a replay."""

    generation: int
    steps: tuple[Step, ...]

    @property
    def fold(self) -> Fold | None:
        """The steps between the first attempt and the last `_SHOWN`, if there are many attempts."""
        attempts = [place for place, step in enumerate(self.steps) if step.attempts]
        if len(attempts) <= _UNFOLDED:
            return None
        begin, end = attempts[0] + 1, attempts[-_SHOWN]
        return Fold(begin, end, sum(len(step.attempts) for step in self.steps[begin:end]))


@dataclass(frozen=True, slots=True)
class Trip:
    """One delivery, there and back. `view`: as the API has it. `lives`: oldest first."""

    view: DeliveryView
    lives: tuple[GenerationSteps, ...]


def trips_of(message: MessageView, attempts: Sequence[AttemptItem], now: float) -> tuple[Trip, ...]:
    """The trip of each delivery. `attempts`: in any order. `now`: Unix seconds, the end of steps in progress."""
    received = moment(message.received_at)
    trips = [_trip(view, [each for each in attempts if each["receiver"] == view.receiver], received, now)
             for view in message.deliveries]  # fmt: skip
    places = _places([step for trip in trips for life in trip.lives for step in life.steps], received, now)
    return tuple(replace(trip, lives=tuple(_drawn(life, places, now) for life in trip.lives)) for trip in trips)


def _trip(view: DeliveryView, attempts: list[AttemptItem], received: float | None, now: float) -> Trip:
    tried, newest = {each["generation"] for each in attempts}, view.generation
    # a discard is a generation of its own, that sends nothing: it ends the one before
    if view.status == "failed" and view.reason == "discarded":
        newest = max(tried - {newest}, default=newest)
    lives = []
    for number in sorted({newest, *(min(each, newest) for each in tried)}):
        own = [each for each in attempts if min(each["generation"], newest) == number]
        steps = _life(view, own, received, now, number=number, newest=newest)
        lives.append(GenerationSteps(number, tuple(steps)))
    return Trip(view, tuple(lives))


def _life(
    view: DeliveryView, attempts: list[AttemptItem], received: float | None, now: float, *, number: int, newest: int
) -> Iterable[Step]:
    came = sorted(attempts, key=lambda each: moment(each["started_at"]) or 0.0)
    if number == 0:
        yield Step("arrived", "Arrived", "good", received, detail="acknowledged by the log")
    last, before, ended, answered = (received if number == 0 else None), None, False, False
    for group in _grouped(came):
        begun = moment(group[0]["started_at"])
        if last is not None and begun is not None and begun - last > _NOTICED_S:
            yield _gap(before, last, begun)
        if group[0]["kind"] == "callback" and number == newest and view.answer is not None and not answered:
            yield _answer(view.answer, moment(view.answer.received_at))
            answered = True
        step = _attempt(group)
        is_last = not any(each["kind"] == group[0]["kind"] for each in came[came.index(group[-1]) + 1 :])
        last, before = step.until, group[-1]
        if before["outcome"] == "dead" and before["kind"] != "callback":
            is_end = number == newest and view.status == "failed" and before["reason"] == view.reason
            yield replace(step, detail="" if step.detail == before["detail"] else step.detail, advice="")
            yield Step("end", f"Given up: {words(before['reason'])}", "bad", last, detail=before["detail"] or "",
                       advice=end_advice(view) if is_end else "")  # fmt: skip
            ended = ended or is_end
            continue
        yield step if is_last else replace(step, advice="")  # what was tried again since needs no advice
        if number == newest and _brought_answer(before) and view.answer is not None:
            yield _answer(view.answer, last)
            answered = True
    if number == newest:
        yield from _now(view, last, now, before=before, ended=ended, answered=answered)
    elif before is not None and before["outcome"] == "dead" and before["kind"] == "callback":
        yield Step("end", f"Given up: {words(before['reason'])}", "bad", last, detail=before["detail"] or "")


def _grouped(attempts: Sequence[AttemptItem]) -> Iterable[tuple[AttemptItem, ...]]:
    """Status checks with the same response are one step."""

    def alike(each: AttemptItem) -> object:
        response = each["response"]
        is_check = each["kind"] == "status" and each["outcome"] in ("working", "retry")
        return id(each) if response is None or not is_check else ("status", response["status"])

    return (tuple(group) for _, group in groupby(attempts, alike))


def _attempt(group: tuple[AttemptItem, ...]) -> Step:
    first, last = group[0], group[-1]
    cause, name = attempt_cause(last), _NAMES.get(first["kind"], first["kind"])
    number = f" {first['attempt']}" if len(group) == 1 else f"s {first['attempt']} to {last['attempt']}"
    ended = moment(last["started_at"])
    until = None if ended is None else ended + last["duration_ms"] / 1000
    at_work = _accepted(last)
    tone = "live" if at_work and last["outcome"] != "dead" else _TONES.get(last["outcome"], "plain")
    advice = "" if last["outcome"] in ("done", "released") or at_work else cause.advice
    detail = last["detail"] or (last["error"]["detail"] if last["error"] else "")
    title = f"{name}{number}: {cause.title}"
    detail = "" if detail in title else detail
    if last["rule"] and last["rule"] not in detail:
        detail = "; ".join(filter(None, (ruling_words(last), detail)))
    return Step(
        "attempt", title, tone, moment(first["started_at"]), until, detail=detail, advice=advice, attempts=group
    )


def exchange_name(attempt: AttemptItem) -> str:
    """Which exchange it was, and with which endpoint."""
    name = f"{_NAMES.get(attempt['kind'], attempt['kind'])} {attempt['attempt']}"
    return name if attempt["kind"] in OF_SENDER or not attempt["receiver"] else f"{name} at {attempt['receiver']}"


def _gap(before: AttemptItem | None, since: float, until: float) -> Step:
    """The wait between two exchanges."""
    if before is None:
        return Step("wait", "Waited to be sent", "plain", since, until)
    if _accepted(before):
        return Step("wait", "The receiver was processing it", "live", since, until)
    if before["outcome"] in ("retry", "doubt"):
        return Step("wait", "Waited to try again", "warn", since, until)
    return Step("wait", "On its way to the sender", "plain", since, until)


def _brought_answer(attempt: AttemptItem) -> bool:
    """Whether its response is the receiver's answer."""
    return attempt["kind"] in ("post", "status") and attempt["outcome"] == "done" and not _accepted(attempt)


def _accepted(attempt: AttemptItem) -> bool:
    if attempt["response"] is None or attempt["kind"] not in ("post", "status"):
        return False
    if attempt["kind"] == "post" and attempt["code_class"]:
        return attempt["code_class"] == "accepted"
    if attempt["outcome"] == "working":  # a status endpoint that returns 200 in every state, or a step of several
        return True
    return attempt["response"]["status"] == 202


def _now(
    view: DeliveryView, last: float | None, now: float, *, before: AttemptItem | None, ended: bool, answered: bool
) -> Iterable[Step]:
    """The present state of a delivery. `before`: its last attempt, if attempts are known. `ended`, `answered`: a step
    before says that it was given up, or answered."""
    if before is None and view.attempts:
        yield _summary(view, last)
    answer, callback, wait = view.answer, view.callback, view.waiting_for
    came = None if answer is None else moment(answer.received_at)
    if answer is not None and not answered and view.status not in ("arrived", "delivered_to_receiver"):
        yield _answer(answer, came)
    # One that was accepted was ended by the receiver's own POST or a deadline; one that was given up without a last
    # request by a deadline, a newer message or an operator, at a time that is not known.
    accepted = before is not None and _accepted(before)
    known = [at for at in (None if accepted else last, came) if at is not None]
    over = None if view.status == "failed" else max(known, default=None)
    if wait is not None:
        # the advice of a delivery that was given up is about its end, not about the callback that its notice waits for
        cause = wait_cause(wait, None if view.status == "failed" else view.advice)
        since, ends = moment(wait.since), moment(wait.until)
        next_at, deadline = (None, ends) if wait.kind == "answer" else (ends, None)
        at = last if last is not None and (since is None or since < last) else since
        yield Step("wait", cause.title, "warn" if wait.kind not in ("answer", "callback") else "live",
                   now if at is None else min(at, now), ongoing=True, detail=wait.detail, advice=cause.advice,
                   next_at=next_at, is_due=next_at is not None and next_at <= now, deadline=deadline)  # fmt: skip
    if view.status == "failed" and not ended:
        yield Step("end", f"Given up: {words(view.reason)}", "bad", over, detail=view.detail or "",
                   advice=end_advice(view))  # fmt: skip
    if callback is not None and callback.status == "failed":
        advice = end_advice(view) if view.status != "failed" else group_advice("callback_exhausted", None)
        yield Step("end", "The result could not be returned to the sender", "bad", last, detail=callback.detail or "",
                   advice=advice)  # fmt: skip
    elif callback is not None and callback.status == "delivered":
        told = "The sender was notified of the failure" if view.status == "failed" else "Back at the sender"
        yield Step("done", told, "good", over if before is None else last)
    elif callback is None and wait is None and view.status in ("done", "response_received_from_receiver"):
        wanted = "kept for the sender, which has no callback" if view.status != "done" else "no answer is expected"
        yield Step("done", "Done", "good", over, detail=wanted)


def _answer(answer: AnswerView, at: float | None) -> Step:
    return Step("answer", f"Answered: {_answer_words(answer)}", "good", at)


def _summary(view: DeliveryView, last: float | None) -> Step:
    """A summary of the attempts without a history."""
    count, status = view.attempts, view.last_status
    met = "" if status is None else f"; the last one got {status_words(status)}"
    good = view.status not in ("arrived", "failed")
    return Step("attempt", f"{counted(count, 'attempt')}{met}", "good" if good else "warn", last,
                detail="" if good or view.status == "failed" else view.detail or "")  # fmt: skip


def _answer_words(answer: AnswerView) -> str:
    size = len(answer.body or "") or len(answer.body_base64 or "") * 3 // 4
    kind = answer.content_type or "no content type"
    status = "" if answer.status is None else f"{status_words(answer.status)}, "
    return f"{status}{kind}" if size else f"{status}without a body"


# --- the drawing -----------------------------------------------------------------------------------------------------


def _places(steps: Sequence[Step], received: float | None, now: float) -> Mapping[float, float]:
    """The position of each moment in the drawing. The distance of two moments is the square root of the time between
    them, so that 20 ms and 2 h are both visible."""
    moments = {each for step in steps for each in (step.at, step.until) if each is not None}
    if any(step.ongoing for step in steps):
        moments.add(now)
    if received is not None:
        moments.add(received)
    ordered = sorted(moments)
    lengths = [sqrt(later - earlier) for earlier, later in pairwise(ordered)]
    unit = WIDTH / (sum(lengths) or 1.0)
    places, x = dict[float, float](), 0.0
    for each, length in zip(ordered, [*lengths, 0.0][: len(ordered)], strict=True):
        places[each] = x
        x += length * unit
    return places


def _drawn(life: GenerationSteps, places: Mapping[float, float], now: float) -> GenerationSteps:
    return replace(life, steps=tuple(_placed(step, places, now) for step in life.steps))


def _placed(step: Step, places: Mapping[float, float], now: float) -> Step:
    if step.at is None:
        return step
    begin = places[step.at]
    end = places[now] if step.ongoing else begin if step.until is None else places[step.until]
    width = max(_NARROWEST, end - begin)
    bar = Bar(round(min(begin, WIDTH - width), 1), round(width, 1))
    return replace(step, bar=bar)


def moment(text: str | None) -> float | None:
    """Unix seconds of RFC 3339."""
    return None if not text else datetime.fromisoformat(text).timestamp()


def words(code: str | None) -> str:
    return reason_words(code or "")


def took(trips: Iterable[Trip], received: float | None) -> float | None:
    """Seconds from the arrival to the last thing that happened; None while something goes on, or if it is not known."""
    steps = [step for trip in trips for life in trip.lives for step in life.steps]
    ends = [step.until or step.at for step in steps if step.at is not None]
    is_open = any(step.ongoing or (step.kind in ("done", "end") and step.at is None) for step in steps)
    if received is None or len(ends) < 2 or is_open:
        return None
    return max(0.0, max(ends) - received)


# --- at one glance ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Station:
    """One place on the way there and back. `state`: in a few words."""

    name: str
    state: str
    tone: str


def stations(view: DeliveryView, source_id: str) -> tuple[Station, ...]:
    """The stations of a delivery: those passed, and the current one."""
    status, wait, callback, tries = view.status, view.waiting_for, view.callback, view.attempts
    sent = Station(source_id, "sent it", "good")
    tried = counted(tries, "attempt") if tries else ""
    match status:
        case "arrived":
            held = "warn" if wait is not None and wait.kind != "answer" else "live"
            return (
                sent,
                Station(view.receiver, wait_cause(wait, None).title if wait else tried or "not tried yet", held),
                _NOT_YET,
                _NOT_HOME,
            )
        case "failed":
            given_up = Station(view.receiver, f"given up: {words(view.reason)}", "bad")
            return sent, given_up, Station("Answer", "none", "bad"), _home(callback, "was notified of the failure")
        case "delivered_to_receiver":
            return sent, Station(view.receiver, _joined("accepted", tried), "good"), _AT_WORK, _NOT_HOME
    answer = view.answer
    said = "none" if answer is None else _answer_words(answer).partition(",")[0]
    there = Station(view.receiver, _joined("delivered", tried), "good")
    home = (
        _home(callback, "has the answer") if callback is not None or status == "response_delivered_to_sender" else _KEPT
    )
    return sent, there, Station("Answer", said, "good"), home


def _joined(*words: str) -> str:
    """Joins the non-empty texts: a replay of a result alone has no attempt at the receiver."""
    return ", ".join(filter(None, words))


_NOT_YET: Final = Station("Answer", "not yet", "plain")
_AT_WORK: Final = Station("Answer", "still to come", "live")
_NOT_HOME: Final = Station("Sender", "not yet", "plain")
_KEPT: Final = Station("Sender", "can fetch it", "good")


def _home(callback: CallbackView | None, when_there: str) -> Station:
    if callback is None:
        return Station("Sender", when_there if when_there.startswith("has") else "no callback", "plain")
    match callback.status:
        case "delivered":
            return Station("Sender", when_there, "good")
        case "failed":
            return Station("Sender", "its callback refused it", "bad")
        case "retrying" if callback.attempts is not None:
            return Station("Sender", f"callback tried {counted(callback.attempts, 'time')}", "warn")
    return Station("Sender", "on its way back", "live")
