"""Causes of a wait, a failure or an attempt's result, as pages show them, and what to do about them. Pure.

The words are those of `relay.domain.advice`; what the API itself advises about a delivery comes first.
"""

from relay.domain.advice import ERRORS, STATUSES, WAITS, Cause, advice_on_end, of_callback, status_words
from relay.domain.attempt import OF_SENDER
from relay.schema.attempts import AttemptItem
from relay.schema.messages import DeliveryView, WaitView


def wait_cause(wait: WaitView, advice: str | None) -> Cause:
    """Why a delivery waits. `advice`: the API's, if it gives any."""
    known = WAITS[wait.kind]
    return Cause(known.title, plain(advice or known.advice))


def end_advice(delivery: DeliveryView) -> str:
    """What to do about a delivery that was given up, or whose result was."""
    reason = (delivery.reason or "") if delivery.status == "failed" else "callback_exhausted"
    return plain(delivery.advice or advice_on_end(reason, delivery.last_status))


def group_advice(reason: str, last_status: int | None) -> str:
    """What to do about all that failed for one reason."""
    return plain(advice_on_end(reason, last_status))


def attempt_cause(attempt: AttemptItem) -> Cause:
    """The result of an attempt in words; without advice if it succeeded."""
    response, error = attempt["response"], attempt["error"]
    if response is not None:
        status = response["status"]
        advice = "" if attempt["outcome"] == "done" else STATUSES.get(status, "")
        return _of(attempt, Cause(status_words(status), advice))
    if error is not None:
        return _of(attempt, ERRORS.get(error["kind"], Cause(error["kind"].replace("_", " "), "")))
    return Cause(attempt["outcome"], "")


def ruling_words(attempt: AttemptItem) -> str:
    """What a response means, and which rule says so; empty if it has no such meaning."""
    if attempt["code_class"] is None or attempt["response"] is None:
        return ""
    return f"{attempt['code_class'].replace('_', ' ')} by {attempt['rule'] or 'the usual table'}"


def _of(attempt: AttemptItem, cause: Cause) -> Cause:
    advice = of_callback(cause.advice) if attempt["kind"] in OF_SENDER else cause.advice
    return Cause(cause.title, plain(advice))


def plain(text: str) -> str:
    """The text without code marks."""
    return text.replace("`", "")
