"""The settings of a receiver as a form: only what was changed is sent; and pictures of a day."""

import re
from typing import Any

import pytest

from relay.client import ApiError
from relay.domain.receiver import Endpoint
from relay.pages import charts
from relay.pages.receiver_form import (
    COMMON,
    credentials_of,
    mistakes_of,
    renewed_credentials,
    settings_of,
    shown,
    wanted_of,
)
from relay.pages.receivers import host_of
from relay.pages.sources import FIELDS as CALLBACK
from relay.schema.receivers import ReceiverView
from relay.schema.statistics import HourView

PRESENT: dict[str, Any] = {
    "preset": None,
    "post_endpoint": "https://u:********@ci.example/hooks",
    "status_endpoint": None,
    "sources": ["github"],
    "event_types": [],
    "rate_limit": 50,
    "window_size": 1.0,
    "max_in_flight": 32,
    "timeout": 2.5,
    "payload": "full",
    "encrypt": {"jwk": {"kty": "EC"}, "jwks_url": None},
    "batch": {"max_events": 100, "max_bytes": 1_048_576, "linger": 0.2, "format": "cloudevents"},
    "respond_async": 30,
    "labels": {"env": "production"},
}


def form(**changed: str) -> dict[str, str]:
    return {field.name: shown(PRESENT[field.name], field.kind) for field in COMMON} | changed


def test_the_hint_of_a_field_whose_empty_text_is_a_default_has_that_default() -> None:
    hints = [field.hint for fields in (COMMON, CALLBACK) for field in fields if field.name.endswith("max_in_flight")]
    assert hints == [f"At most. Empty: {Endpoint('https://ci.example/').max_in_flight}."] * 2


def test_what_nobody_touched_is_not_sent_and_so_no_masked_secret_either() -> None:
    assert wanted_of(form(), PRESENT, COMMON) == {}


@pytest.mark.parametrize(
    ("changed", "patch"),
    [
        ({"rate_limit": "7"}, {"rate_limit": 7}),
        ({"rate_limit": " "}, {"rate_limit": None}),
        ({"timeout": "3s"}, {"timeout": "3s"}),
        ({"sources": "github, gitea*,"}, {"sources": ["github", "gitea*"]}),
        ({"sources": ""}, {"sources": None}),
        ({"labels": "env=test, team = a"}, {"labels": {"env": "test", "team": "a"}}),
        ({"labels": "team=a"}, {"labels": {"env": None, "team": "a"}}),
        ({"labels": ""}, {"labels": {"env": None}}),
        ({"batch": ""}, {"batch": None}),
        (
            {"batch": "max_events=10, linger=1.5, max_bytes=64KiB"},
            {"batch": {"max_events": 10, "linger": 1.5, "max_bytes": "64KiB", "format": None}},
        ),
        ({"encrypt": "https://x.example/keys"}, {"encrypt": {"jwk": None, "jwks_url": "https://x.example/keys"}}),
        ({"respond_async": ""}, {"respond_async": None}),
        ({"post_endpoint": "https://x.example/"}, {"post_endpoint": "https://x.example/"}),
    ],
)
def test_what_was_changed_is_a_merge_patch(changed: dict[str, str], patch: dict[str, Any]) -> None:
    assert wanted_of(form(**changed), PRESENT, COMMON) == patch


def test_a_credential_that_is_wanted_anew_has_a_field_that_goes_along() -> None:
    errors = [{"pointer": place, "detail": ""} for place in ("/bearer_token", "/headers/x~1y", "/tls/client_key")]
    wanted = credentials_of(ApiError(409, {"type": "/problems/credentials-needed", "errors": errors}))
    assert [field.label for field in wanted] == ["bearer_token", "headers.x/y"]
    written = {field.name: f"new {field.label}" for field in wanted} | {"rate_limit": "7"}
    assert renewed_credentials(written) == {"bearer_token": "new bearer_token", "headers": {"x/y": "new headers.x/y"}}
    assert renewed_credentials(dict.fromkeys(written, "")) == {}
    assert credentials_of(ApiError(422, {"type": "/problems/invalid-receiver", "errors": errors})) == []


@pytest.mark.parametrize("text", ["many", "1.5", "-1", "²"])
def test_what_is_no_number_is_said(text: str) -> None:
    with pytest.raises(ApiError, match="whole number"):
        wanted_of(form(rate_limit=text), PRESENT, COMMON)


def test_a_mistake_has_the_label_of_its_field() -> None:
    errors = [
        {"pointer": "/post_endpoint", "detail": "not a URL"},
        {"pointer": "/rate_limit", "detail": "-1 is too small"},
        {"pointer": "/batch/max_events", "detail": "0 is too small"},
        {"pointer": "/event_types/1", "detail": "'*hub' is not a pattern"},
        {"pointer": "/retry/cap", "detail": "too big"},
    ]
    refused = ApiError(422, {"title": "The receiver is not valid", "detail": "/post_endpoint: ...", "errors": errors})
    assert mistakes_of(refused, COMMON) == [
        ("post_endpoint", "URL", "not a URL"),
        ("rate_limit", "Rate limit", "-1 is too small"),
        ("batch", "Batch", "max_events: 0 is too small"),
        ("event_types", "Event types", "'*hub' is not a pattern"),
        ("retry.cap", "retry.cap", "too big"),
    ]
    assert mistakes_of(None, COMMON) == []


def test_settings_say_where_they_come_from() -> None:
    it: ReceiverView = {
        "name": "ci",
        "declared_by": "file",
        "owner": None,
        "labels": {},
        "etag": "1",
        "settings": {"timeout": 90.0, "enabled": True, "lane": "shared", "outcomes": [], "preset": "circleci"},
        "given": ["timeout", "preset"],
        "from_preset": ["outcomes"],
    }
    assert settings_of(it) == [
        ("outcomes", "", "preset"),
        ("preset", "circleci", "receivers file"),
        ("timeout", "90 s", "receivers file"),
        ("enabled", "true", "default"),
        ("lane", "shared", "default"),
    ]
    assert settings_of({**it, "settings": None, "given": None, "from_preset": None, "declared_by": None}) == []


@pytest.mark.parametrize(
    ("url", "host"),
    [
        ("https://u:p@ci.example:8443/a?b", "ci.example:8443"),
        ("https://[::1", "https://[::1"),
        ("https://ci.example:no/", "https://ci.example:no/"),
        (None, ""),
    ],
)
def test_a_host_is_told_without_what_may_be_secret(url: str | None, host: str) -> None:
    assert host_of(url) == host


def hour(attempts: int, rate: float | None = None, ms: float | None = None) -> HourView:
    return {
        "hour": "2026-07-01T12:00:00.000Z",
        "attempts": attempts,
        "outcomes": {},
        "success_rate": rate,
        "p50_ms": ms,
        "p99_ms": ms,
    }


def test_a_picture_says_in_words_what_it_shows() -> None:
    hours = [hour(0), hour(1_000, 0.999), hour(10, 0.0)]
    picture = charts.attempts(hours, large=True)
    assert 'aria-label="1,010 attempts in 24 h, 11 of them failed"' in picture
    assert picture.count("<title>12:00 UTC: ") == 3
    assert "<title>" not in charts.attempts(hours)
    [bad] = re.findall(r'class="bar no" d="([^"]*)"', picture)
    highs = [float(high) for high in re.findall(r"v([0-9.]+)", bad)]
    assert len(highs) == 2
    assert min(highs) >= 1.5  # one in a thousand is seen
    assert charts.attempts([]).startswith("<svg")


def test_a_line_has_gaps_where_nothing_is_known() -> None:
    picture = charts.line([hour(1, 1, 5), hour(1, 1, 10), hour(0), hour(1, 1, 5)], ("p50_ms", "p99_ms"), "it")
    assert [path.count("M") for path in re.findall(r' d="([^"]*)"', picture)] == [2, 2]
    assert charts.line([hour(0)], ("p50_ms",), "it").count('d=""') == 1
