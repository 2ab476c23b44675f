"""Scopes: valid ones, and that a key never does more than they allow."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.domain.scope import Access, Scope, ScopeKind, in_text, may_do_everything, parse_scope

KINDS: list[ScopeKind] = ["ingest", "read", "receiver", "owner", "metrics", "admin"]
NAMES = st.text(alphabet="ab*-", min_size=1, max_size=4)
RECEIVERS = st.text(alphabet="ab", min_size=1, max_size=3)


@st.composite
def texts(draw: st.DrawFn) -> str:
    kind = draw(st.sampled_from(KINDS))
    if kind in ("metrics", "admin"):
        return kind
    return f"{kind}:{draw(RECEIVERS if kind == 'receiver' else NAMES)}"


def allows(text: str, kind: ScopeKind, name: str) -> bool:
    """What the documentation says, in the simplest words."""
    if text == "admin":
        return True
    word, _, of = text.partition(":")
    exact = word == kind and of == name
    wide = word == kind and kind in ("ingest", "read") and of[-1:] == "*" and name[: len(of) - 1] == of[:-1]
    return exact or wide


@given(st.lists(texts(), max_size=4), st.sampled_from(KINDS), st.one_of(st.just(""), NAMES))
def test_a_key_does_what_one_of_its_scopes_says_and_nothing_else(scopes: list[str], kind: ScopeKind, name: str) -> None:
    access = Access("key:1", frozenset(map(parse_scope, scopes)))
    assert access.may(kind, name) == any(allows(text, kind, name) for text in scopes)


@given(texts())
def test_a_scope_is_written_as_it_is_read(text: str) -> None:
    assert str(parse_scope(text)) == text


@pytest.mark.parametrize(
    ("scope", "name", "may"),
    [
        ("ingest:github", "github", True),
        ("ingest:github", "github-2", False),
        ("ingest:github*", "github-2", True),
        ("ingest:github*", "gitlab", False),
        ("ingest:*", "anything", True),
        ("ingest:a*b", "axb", False),
        ("ingest:a*b", "a*b", True),
    ],
)
def test_a_star_at_the_end_stands_for_anything(scope: str, name: str, may: bool) -> None:
    access = Access("k", frozenset({parse_scope(scope)}))
    assert (access.may("ingest", name), access.may("read", name)) == (may, False)


def test_a_star_is_no_wildcard_where_names_are_exact() -> None:
    assert not Access("k", frozenset({parse_scope("owner:*")})).may("owner", "alice")
    with pytest.raises(ValueError, match="not a receiver name"):
        parse_scope("receiver:*")


@pytest.mark.parametrize(
    "text",
    [
        *("", "ingest", "ingest:", "admin:", "admin:x", "metrics:", "write:a", "INGEST:a", " admin", "owner:"),
        *("receiver:A", "read:\x00", "read:\ud800", "read:" + "x" * 257),
    ],
)
def test_what_is_no_scope_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not a scope|missing|control|bytes|UTF-8"):
        parse_scope(text)


def test_who_has_something_of_a_kind() -> None:
    some = Access("k", frozenset({Scope("receiver", "ci"), Scope("metrics")}))
    assert some.has_some("owner", "receiver")
    assert not some.has_some("read")
    assert may_do_everything("x").has_some("read")
    assert in_text(some.scopes) == ["metrics", "receiver:ci"]
