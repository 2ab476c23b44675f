"""Whatever is changed, in whatever order: a credential is sent to no origin that it was not given for."""

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import Phase, example, find, given, settings
from hypothesis import strategies as st

from relay.config import credentials
from relay.config.credentials import missing_credentials
from relay.control.patch import merge_patch
from relay.domain.urls import origin_of

ORIGINS = ["https://a.example", "https://a.example:443", "https://A.example", "https://b.example", "http://a.example"]
VARIABLES = {"BASE": "https://b.example"}
urls = st.builds(str.__add__, st.sampled_from([*ORIGINS, "${BASE}"]), st.sampled_from(["/", "/x", "/{message_id}"]))
given_once = st.integers().map(lambda n: f"credential {n}")
tokens = st.none() | given_once
oauth2 = st.fixed_dictionaries({}, optional={"token_url": urls, "client_secret": tokens, "scope": st.just("s")})
patches = st.fixed_dictionaries(
    {},
    optional={
        "post_endpoint": urls,
        "status_endpoint": st.none() | urls,
        "bearer_token": tokens,
        "headers": st.none() | st.fixed_dictionaries({}, optional={"x-a": tokens, "x-b": tokens}),
        "oauth2": st.none() | oauth2,
        "tls": st.none() | st.fixed_dictionaries({}, optional={"client_key": tokens, "ca": st.just("ca")}),
        "rate_limit": st.integers(1, 9),
    },
)
stories = st.lists(patches, min_size=1, max_size=6)
FIRST = settings(max_examples=2_000, phases=[Phase.generate], database=None, derandomize=True)
Sent = set[tuple[str, object]]


def sent(entry: Mapping[str, Any]) -> Sent:
    """What such an entry sends: each credential, and the origins that it goes to."""
    posted_to = {entry.get("post_endpoint"), entry.get("status_endpoint")}
    oauth, values = entry.get("oauth2") or {}, [entry.get("bearer_token"), *(entry.get("headers") or {}).values()]
    values += [oauth.get("client_secret"), (entry.get("tls") or {}).get("client_key")]
    found = {(value, url) for value in values for url in posted_to}
    found.add((oauth.get("client_secret"), oauth.get("token_url")))
    return {(value, _origin(url)) for value, url in found if value is not None and url is not None}


def _origin(url: str) -> object:
    return origin_of(url.replace("${BASE}", VARIABLES["BASE"]))


def leaks(story: list[dict[str, Any]]) -> Sent:
    """What was sent to an origin that it was not given for, after any of the changes that pass."""
    entry: Any = {}
    allowed: Sent = set()
    for patch in story:
        wanted: Any = merge_patch(entry, patch)
        if missing_credentials(entry, wanted, patch, VARIABLES):
            continue
        allowed |= {each for each in sent(wanted) if each[0] in _values(patch)}
        if found := sent(wanted) - allowed:
            return found
        entry = wanted
    return set()


def _values(patch: object) -> set[object]:
    if isinstance(patch, dict):
        return set().union(*map(_values, patch.values()))
    return {patch}


@settings(max_examples=300)
@given(stories)
@example([{"oauth2": {"token_url": "https://a.example/"}}, {"oauth2": {"client_secret": "credential 0"}}])
def test_no_credential_goes_where_it_was_not_given_for(story: list[dict[str, Any]]) -> None:
    assert leaks(story) == set()


@settings(max_examples=100)
@given(stories)
def test_a_change_on_the_same_origins_needs_nothing(story: list[dict[str, Any]]) -> None:
    entry: Any = {}
    for patch in story:
        entry = merge_patch(entry, patch)
    assert missing_credentials(entry, entry, {}, VARIABLES) == []
    for field in ("post_endpoint", "status_endpoint"):
        if entry.get(field):
            patch = {field: entry[field] + "more"}
            assert missing_credentials(entry, merge_patch(entry, patch), patch, VARIABLES) == []  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "planted"),
    [
        ("_POSTED_TO", ("post_endpoint", "url")),
        ("_POSTED_TO", ("status_endpoint", "url")),
        ("_OAUTH2", "oauth"),
        ("_origin", lambda url, _variables: url.rpartition("//")[2].partition("/")[0]),
    ],
)
def test_a_planted_hole_is_found(monkeypatch: pytest.MonkeyPatch, name: str, planted: object) -> None:
    monkeypatch.setattr(credentials, name, planted)
    find(stories, lambda story: bool(leaks(story)), settings=FIRST)  # raises NoSuchExample


@pytest.mark.parametrize(
    "patch",
    [
        {"callback": {"allow_origins": ["https://evil.example"]}},
        {"callback": {"url": "https://evil.example/"}},
        {"preset": "gitea"},
        {"preset": None, "callback": {"url": "https://evil.example/x/${{ message.id }}"}},
    ],
)
def test_a_credential_of_a_preset_stays_at_its_origins(patch: dict[str, Any]) -> None:
    entry: dict[str, object] = {"preset": "github", "callback": {"bearer_token": "t"}}
    changed: Any = merge_patch(entry, patch)
    assert missing_credentials(entry, changed, patch, VARIABLES) == [("callback", "bearer_token")]


def test_a_version_of_a_preset_with_the_same_origins_needs_nothing() -> None:
    entry: dict[str, object] = {"preset": "github", "callback": {"bearer_token": "t"}}
    patch = {"preset": "github@1"}
    assert missing_credentials(entry, entry | patch, patch, VARIABLES) == []


SENT_ALONG = {"headers": {"x-key": "t"}, "query": {"token": "${TOKEN}"}, "form": {"a": ["${TOKEN}"]}}
PLAIN = {"headers": {"content-type": "text/plain", "x-id": "${{ message.id }}"}, "query": {"a": "b"}}
STEPS = [{"url": "state?token=${TOKEN}", "until": "true"}]
MOVED = [{"post_endpoint": "https://evil.example/"}, {"allow_origins": ["https://evil.example"]}]


@pytest.mark.parametrize("patch", MOVED)
def test_what_a_request_of_its_own_sends_along_stays_at_its_origins(patch: dict[str, object]) -> None:
    entry: dict[str, object] = {"post_endpoint": "https://a.example/", "request": SENT_ALONG, "status_steps": STEPS}
    in_request = [("headers", "x-key"), ("query", "token"), ("form", "a")]
    found = [*(("request", *place) for place in in_request), ("status_steps",)]
    assert missing_credentials(entry, entry | patch, patch, VARIABLES) == found
    anew: dict[str, Any] = {**patch, "request": {"headers": {"x-key": "anew"}, "query": None, "form": None}}
    wanted: Any = merge_patch(entry, anew | {"status_steps": None})
    assert missing_credentials(entry, wanted, anew | {"status_steps": None}, VARIABLES) == []


@pytest.mark.parametrize("patch", MOVED)
def test_a_request_of_its_own_without_credentials_moves_freely(patch: dict[str, object]) -> None:
    entry: dict[str, object] = {"post_endpoint": "https://a.example/", "request": PLAIN}
    mistaken = {**patch, "request": "text", "status_steps": 1}
    assert missing_credentials(entry, entry | mistaken, mistaken, VARIABLES) == []
    assert missing_credentials(entry, entry | patch, patch, VARIABLES) == []
