"""Differences between two versions of an entry, as displayed."""

import pytest

from relay.cli.receivers_apply import in_words
from relay.config.receivers_file import Raw, parse_receivers_file
from relay.config.redacted_entry import field_changes

URL = "https://ci.example/hooks"


def told(old: Raw, new: Raw) -> list[str]:
    return [in_words(change) for change in field_changes(old, new)]


def sealed(text: str) -> Raw:
    """The entry of a receiver as it is written to the log."""
    return dict(parse_receivers_file(f"receivers: {{ci: {{{text}}}}}").sealed.receivers["ci"])


@pytest.mark.parametrize(
    ("old", "new", "lines"),
    [
        ({}, {}, []),
        ({"timeout": 15.0}, {"timeout": 20.0}, ["timeout: 15.0 -> 20.0"]),
        ({"timeout": 15.0}, {}, ["timeout: 15.0 -> (default)"]),
        ({}, {"lane": "shared"}, ["lane: (default) -> shared"]),
        (
            {"retry": {"base": 1, "cap": 2}},
            {"retry": {"base": 3, "max_attempts": 4}},
            ["retry.base: 1 -> 3", "retry.cap: 2 -> (default)", "retry.max_attempts: (default) -> 4"],
        ),
        ({}, {"retry": {"base": 3}}, ["retry.base: (default) -> 3"]),
        ({"sources": ["a"]}, {"sources": ["a", "b*"]}, ['sources: ["a"] -> ["a", "b*"]']),
        ({"labels": {"team": "x"}}, {"labels": {}}, ["labels.team: x -> (default)"]),
        ({"callback": "kafka"}, {"callback": {"url": URL}}, [f'callback: kafka -> {{"url": "{URL}"}}']),
    ],
)
def test_each_field_is_told_with_what_it_was_and_is(old: Raw, new: Raw, lines: list[str]) -> None:
    assert told(old, new) == lines


@pytest.mark.parametrize(
    ("old", "new", "lines"),
    [
        ("secret: first-secret-1", "secret: second-secret-2", ["secret: changed"]),
        ("secret: first-secret-1", "secret: [first-secret-1, second-secret-2]", ["secret: changed"]),
        ("bearer_token: '${TOKEN}'", "bearer_token: second-secret-2", ["bearer_token: changed"]),
        ("timeout: 15", "headers: {x-key: second-secret-2}, timeout: 15", ["headers.x-key: changed"]),
    ],
)
def test_nothing_secret_is_told(old: str, new: str, lines: list[str]) -> None:
    both = (sealed(f"post_endpoint: '{URL}', {text}") for text in (old, new))
    assert told(*both) == lines


def test_of_a_url_only_what_is_no_secret_is_told() -> None:
    first, second = (f"https://ci.example/{path}?token=" for path in ("a", "b"))
    assert told(sealed(f"post_endpoint: '{first}11111111'"), sealed(f"post_endpoint: '{first}22222222'")) == [
        "post_endpoint: changed"
    ]
    [line] = told(sealed(f"post_endpoint: '{first}11111111'"), sealed(f"post_endpoint: '{second}22222222'"))
    assert line == f"post_endpoint: {first}******** -> {second}********"


def test_a_callback_that_comes_is_told_without_its_secret() -> None:
    source = "{callback: {url: 'https://s.example/r', secret: first-secret-1}}"
    declared = parse_receivers_file(f"sources: {{s: {source}}}").sealed.sources["s"]
    assert told({}, dict(declared)) == ["callback.secret: changed", "callback.url: (default) -> https://s.example/r"]
    [changed] = told({"callback": "kafka"}, dict(declared))
    assert changed == 'callback: kafka -> {"secret": "********", "url": "https://s.example/r"}'
