"""Sentry hears of each kind of failure, seldom, and never anything secret."""

import json
from typing import Any

import pytest
import sentry_sdk
from hypothesis import given
from hypothesis import strategies as st
from sentry_sdk.envelope import Envelope
from sentry_sdk.transport import Transport

from relay.domain.errors import UserError
from relay.domain.reasons import REASONS, reason_class
from relay.telemetry.sentry import SentryReporter
from relay.telemetry.throttle import Throttle

CANARY = "canary-4711"
DSN = "https://public@sentry.example/1"


class Captured(Transport):
    def __init__(self) -> None:
        super().__init__()
        self.envelopes: list[Envelope] = []

    def capture_envelope(self, envelope: Envelope) -> None:
        self.envelopes.append(envelope)

    @property
    def events(self) -> list[dict[str, Any]]:
        found = [envelope.get_event() for envelope in self.envelopes]
        return [dict(event) for event in found if event is not None]

    @property
    def text(self) -> str:
        return "\n".join(envelope.serialize().decode() for envelope in self.envelopes)


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Rig:
    def __init__(self) -> None:
        self.sent = Captured()
        self.clock = Clock()
        self.reporter = SentryReporter(now=self.clock, transport=self.sent)
        self.reporter.start(DSN, "test", "relay@1.2.3")

    def fail(self, receiver: str = "ci", reason: str = "exhausted") -> None:
        self.reporter.report_failure(receiver, reason, reason_class(reason), f"to_receiver_{receiver}", 20, 503)


@pytest.fixture
def rig() -> Rig:
    return Rig()


def test_a_failure_is_an_event_grouped_by_receiver_and_reason(rig: Rig) -> None:
    rig.fail()
    [event] = rig.sent.events
    assert event["fingerprint"] == ["ci", "exhausted"]
    assert event["message"] == "ci: exhausted"
    assert event["tags"] == {
        "receiver": "ci",
        "reason": "exhausted",
        "reason_class": "receiver",
        "stage": "to_receiver_ci",
        "page": "no",
    }
    assert event["extra"] == {"attempts": 20, "last_status": 503, "suppressed": 0}
    assert event["environment"] == "test"
    assert event["release"] == "relay@1.2.3"


@pytest.mark.parametrize(
    ("receiver", "reason", "page"),
    [
        ("ci", "exhausted", "/ui/failed?receiver=ci&reason=exhausted"),
        ("-", "invalid", "/ui/failed?reason=invalid"),
        (f"https://{CANARY}/", "invalid", "/ui/failed?reason=invalid"),
        ("ci", "gone", "/ui/receivers/ci"),
        ("ci", "disabled", "/ui/receivers/ci"),
        ("-", "offsets_skipped", "/ui/workers"),
    ],
)
def test_a_failure_leads_to_the_page_about_it(receiver: str, reason: str, page: str) -> None:
    sent = Captured()
    reporter = SentryReporter(transport=sent)
    reporter.start(DSN, "test", "1", "https://relay.example")
    reporter.report_failure(receiver, reason, "receiver", "to_receiver_ci", 20, 503)
    assert sent.events[0]["extra"]["link"] == f"https://relay.example{page}"


def test_a_crash_leads_to_the_page_of_the_lanes() -> None:
    sent = Captured()
    reporter = SentryReporter(transport=sent)
    reporter.start(DSN, "test", "1", "https://relay.example")
    reporter.report_crash(caught())
    assert sent.events[0]["extra"]["link"] == "https://relay.example/ui/workers"


@pytest.mark.parametrize("reason", REASONS)
def test_only_the_class_system_pages(rig: Rig, reason: str) -> None:
    rig.fail(reason=reason)
    [event] = rig.sent.events
    pages = REASONS[reason].party == "system"
    assert event["level"] == ("error" if pages else "warning")
    assert event["tags"]["page"] == ("yes" if pages else "no")


def test_repeats_are_counted_and_not_sent_for_a_minute(rig: Rig) -> None:
    for _ in range(1000):
        rig.fail()
    rig.fail(reason="expired")
    rig.fail(receiver="deploy")
    assert [event["fingerprint"] for event in rig.sent.events] == [
        ["ci", "exhausted"],
        ["ci", "expired"],
        ["deploy", "exhausted"],
    ]
    rig.clock.now += 60
    rig.fail()
    assert rig.sent.events[-1]["extra"]["suppressed"] == 999


def test_many_dead_receivers_are_no_flood_either(rig: Rig) -> None:
    for number in range(5000):
        rig.fail(receiver=f"r{number}")
    assert len(rig.sent.events) == 100
    rig.clock.now += 60
    rig.fail(receiver="r4999")
    assert rig.sent.events[-1]["tags"]["receiver"] == "r4999"


def test_names_that_are_none_do_not_get_out(rig: Rig) -> None:
    rig.reporter.report_failure(f"https://{CANARY}/", CANARY.upper(), f"{CANARY} ", f"{CANARY}\n", 1, None)
    [event] = rig.sent.events
    assert event["fingerprint"] == ["-", "-"]
    assert CANARY not in rig.sent.text.lower()


@given(receiver=st.text(), reason=st.text(), reason_class=st.text(), stage=st.text(), attempts=st.integers(0, 10**6))
def test_any_input_gives_an_event_or_none_but_no_error(
    receiver: str, reason: str, reason_class: str, stage: str, attempts: int
) -> None:
    rig = Rig()
    rig.reporter.report_failure(receiver, reason, reason_class, stage, attempts, None)
    assert len(rig.sent.events) == 1


def crash(secret: str, payload: bytes) -> None:
    webhook_secret, headers = secret, {"Authorization": f"Bearer {secret}"}
    try:
        json.loads(payload)
    except ValueError as error:
        error.add_note(f"note {webhook_secret} {headers}")
        raise RuntimeError(f"cannot deliver {payload!r} with {secret}") from error


def caught(secret: str = CANARY) -> Exception:
    try:
        crash(secret, f"{{{CANARY}".encode())
    except RuntimeError as error:
        return error
    raise AssertionError


class OddError(Exception):
    """Carries secrets in every place that an exception has."""

    def __init__(self) -> None:
        super().__init__(CANARY, {"token": CANARY})
        self.secret = CANARY
        self.errno = 5

    def __str__(self) -> str:
        return CANARY


@pytest.mark.parametrize(
    "error",
    [
        caught(),
        ExceptionGroup(CANARY, [caught(), OddError()]),
        OddError(),
        OSError(5, CANARY, CANARY),
        KeyError(CANARY),
        UnicodeDecodeError("utf-8", CANARY.encode(), 0, 1, CANARY),
        KeyboardInterrupt(CANARY),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_crash_tells_types_and_places_and_nothing_else(rig: Rig, error: BaseException) -> None:
    sentry_sdk.add_breadcrumb(message=CANARY, data={"secret": CANARY})
    sentry_sdk.set_tag("message_id", CANARY)
    sentry_sdk.set_user({"id": CANARY})
    try:
        rig.reporter.report_crash(error)
    finally:
        sentry_sdk.get_isolation_scope().clear()
        sentry_sdk.get_current_scope().clear()
    [event] = rig.sent.events
    assert event["level"] == "error"
    assert type(error).__name__ in {value["type"] for value in event["exception"]["values"]}
    assert CANARY not in rig.sent.text
    assert not event.keys() & {"server_name", "contexts", "modules", "request", "user", "breadcrumbs", "threads"}


def test_a_crash_shows_where_it_came_from_without_variables_and_source(rig: Rig) -> None:
    rig.reporter.report_crash(caught())
    values = rig.sent.events[0]["exception"]["values"]
    assert [value["type"] for value in values] == ["JSONDecodeError", "RuntimeError"]
    frames = [frame for value in values for frame in value["stacktrace"]["frames"]]
    assert "crash" in {frame["function"] for frame in frames}
    assert all(frame.keys() <= {"filename", "function", "module", "lineno", "in_app"} for frame in frames)


def test_crashes_are_rate_limited_by_type_and_place(rig: Rig) -> None:
    for _ in range(50):
        rig.reporter.report_crash(caught())
        rig.reporter.report_crash(OddError())
    assert len(rig.sent.events) == 2
    rig.clock.now += 60
    rig.reporter.report_crash(caught())
    assert rig.sent.events[-1]["extra"]["suppressed"] == 49


@pytest.mark.parametrize("dsn", [None, ""])
def test_without_a_dsn_nothing_happens(dsn: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SENTRY_DSN", DSN)  # otherwise the SDK would read it
    sent = Captured()
    reporter = SentryReporter(transport=sent)
    reporter.start(dsn, "test", "1")
    reporter.report_failure("ci", "poison", "system", "to_receiver_ci", 1, None)
    reporter.report_crash(OddError())
    reporter.close()
    assert sent.envelopes == []


def test_a_wrong_dsn_is_the_users_mistake_and_is_not_repeated() -> None:
    with pytest.raises(UserError, match="SENTRY_DSN") as raised:
        SentryReporter().start(f"not a dsn {CANARY}", "test", "1")
    assert CANARY not in str(raised.value)


def test_nothing_in_the_process_is_hooked(rig: Rig) -> None:
    assert not sentry_sdk.is_initialized()
    rig.fail()
    assert not sentry_sdk.get_client().is_active()


def test_after_close_nothing_is_sent(rig: Rig) -> None:
    rig.fail()
    rig.reporter.close()
    rig.fail(reason="expired")
    assert len(rig.sent.events) == 1


def test_a_key_that_was_forgotten_counts_as_new() -> None:
    throttle = Throttle(every_s=60, overall=100, keys=2)
    assert throttle.admit("a", 0) == 0
    assert throttle.admit("b", 0) == 0
    assert throttle.admit("a", 1) is None  # used again: b is the older one now
    assert throttle.admit("c", 1) == 0
    assert throttle.admit("a", 2) is None
    assert throttle.admit("b", 2) == 0


@given(st.lists(st.tuples(st.sampled_from("abc"), st.floats(0, 30)), max_size=60))
def test_no_report_is_lost_from_the_count(steps: list[tuple[str, float]]) -> None:
    throttle = Throttle(every_s=60, overall=3, keys=10)
    now = 0.0
    told = dict.fromkeys("abc", 0)
    last: dict[str, float] = {}
    for key, pause in steps:
        now += pause
        suppressed = throttle.admit(key, now)
        if suppressed is None:
            continue
        assert now - last.get(key, float("-inf")) >= 60
        last[key] = now
        told[key] += 1 + suppressed
    for key in told:
        assert told[key] <= sum(1 for asked, _ in steps if asked == key)
        suppressed = throttle.admit(key, now + 1000)
        assert suppressed is not None
        assert told[key] + suppressed == sum(1 for asked, _ in steps if asked == key)
