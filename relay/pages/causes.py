"""Why something does not go on or ended, as a page says it, and what mends it. Pure; values of the API go in.

The words are those of `relay.domain.advice`; what the API itself advises about a delivery comes first.
"""

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, cast

from relay.domain.advice import ERRORS, STATUSES, WAITS, Cause, advice_on_end, of_callback
from relay.domain.progress import WaitKind

Value = Mapping[str, Any]


def wait_cause(delivery: Value) -> Cause:
    """Of a delivery with a `waiting_for`. A newer API may know of more kinds."""
    known = WAITS.get(cast(WaitKind, delivery["waiting_for"]["kind"]), Cause("Waiting", ""))
    return Cause(known.title, plain(delivery.get("advice") or known.advice))


def end_advice(delivery: Value) -> str:
    """What to do about a delivery that was given up, or whose result was."""
    reason = delivery["reason"] if delivery["status"] == "failed" else "callback_exhausted"
    return plain(delivery.get("advice") or advice_on_end(reason, delivery["last_status"]))


def group_advice(reason: str, last_status: int | None) -> str:
    """What to do about all that failed for one reason."""
    return plain(advice_on_end(reason, last_status))


def attempt_cause(attempt: Value) -> Cause:
    """What an attempt met, in words; without advice where all is well."""
    response, error = attempt["response"], attempt["error"]
    if response is not None:
        status = int(response["status"])
        advice = "" if attempt["outcome"] == "done" else STATUSES.get(status, "")
        return _of(attempt, Cause(status_words(status), advice))
    if error is not None:
        return _of(attempt, ERRORS.get(error["kind"], Cause(str(error["kind"]).replace("_", " "), "")))
    return Cause(str(attempt["outcome"]), "")


def _of(attempt: Value, cause: Cause) -> Cause:
    advice = of_callback(cause.advice) if attempt["kind"] == "callback" else cause.advice
    return Cause(cause.title, plain(advice))


def plain(text: str) -> str:
    """Without the marks of code."""
    return text.replace("`", "")


def status_words(status: int) -> str:
    """`503 Service Unavailable`."""
    try:
        return f"{status} {HTTPStatus(status).phrase}"
    except ValueError:
        return str(status)
