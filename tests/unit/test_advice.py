"""Advice: for every reason to wait and to fail, and for known error texts."""

import re
from pathlib import Path
from typing import get_args

import pytest

from relay.domain import exchange
from relay.domain.advice import ERRORS, STATUSES, WAITS, advice_on_end, advice_on_wait
from relay.domain.reasons import REASONS
from relay.domain.state import WaitKind


def test_there_is_advice_on_all_that_is_waited_for_and_on_every_end() -> None:
    assert set(WAITS) == set(get_args(WaitKind))
    assert all(cause.title and cause.advice for cause in WAITS.values())
    assert all(reason.advice for reason in REASONS.values())


def test_there_is_advice_on_every_way_to_get_no_response() -> None:
    doc = exchange.NoResponse.__doc__ or ""
    told = set(re.findall(r"`([a-z_]+)`", doc)) - {"kind", "sent"}
    told = {kind for kind in told if not kind.startswith("relay")}
    assert told == set(ERRORS)


def test_commands_that_are_advised_exist() -> None:
    said = " ".join((*(reason.advice for reason in REASONS.values()), *(cause.advice for cause in WAITS.values())))
    from relay.cli.group import COMMANDS

    for command in re.findall(r"`relay ([a-z]+)", said):
        assert command in COMMANDS
    for setting in re.findall(r"RELAY_[A-Z_]+", " ".join(cause.advice for cause in ERRORS.values())):
        assert setting.removeprefix("RELAY_").lower() in Path("relay/config/settings.py").read_text()


@pytest.mark.parametrize(
    ("kind", "reason", "last_status", "said"),
    [
        ("retry", "client_error", 401, "compare them"),
        ("retry", "client_error", 403, "compare them"),
        ("retry", "redirect", 302, "the redirect's target"),
        ("retry", "blocked", None, "RELAY_ALLOW_PRIVATE_NETWORKS"),
        ("retry", "a newer kind", 418, "retries automatically"),
        ("breaker", "refused", None, "Nothing listens there"),
        ("offline", "dns", None, "Check the receiver's URL"),
        ("callback", "dns", None, "Check the callback's URL"),
        ("callback", "server_error", 500, "check its logs"),
        ("order", "blocked", None, "Once the message ahead"),
        ("no_worker", None, None, "Start a worker"),
        ("answer", None, None, "Nothing needs to be done"),  # an attempt in progress may not have arrived
    ],
)
def test_a_wait_is_advised_on_by_what_its_last_attempt_met(
    kind: WaitKind, reason: str | None, last_status: int | None, said: str
) -> None:
    advice = advice_on_wait(kind, reason=reason, last_status=last_status)
    assert said in advice
    assert advice.endswith(WAITS[kind].advice)


def test_only_a_redirect_is_called_one() -> None:
    assert "redirects" not in advice_on_wait("retry", reason="redirect", last_status=304)


@pytest.mark.parametrize(
    ("reason", "last_status", "said"),
    [
        ("exhausted", 401, "compare them"),
        ("expired", 503, "under maintenance"),
        ("callback_exhausted", 404, "change the callback's URL"),
        ("callback_rejected", 400, "its answer should say why"),
        ("gone", 410, "resume and replay"),
        ("answer_timeout", 202, "Check with the receiver"),
        ("exhausted", None, "Once it works again"),
    ],
)
def test_an_end_is_advised_on_by_what_the_last_attempt_met(reason: str, last_status: int | None, said: str) -> None:
    advice = advice_on_end(reason, last_status)
    assert said in advice
    assert advice.endswith(REASONS[reason].advice)


def test_what_a_newer_version_may_say_has_no_advice_here() -> None:
    assert (advice_on_end("of a newer version", 500), advice_on_end(None)) == ("", "")
    assert all(isinstance(status, int) for status in STATUSES)
