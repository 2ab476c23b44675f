"""Subscriptions: the index agrees with a naive matcher, and keeps its bound."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.control.subscriptions import MAX_MATCHES, Subscriptions
from relay.domain.errors import InvalidRecord
from relay.domain.receiver import Endpoint, Receiver

_TEXT = st.text("ab.", max_size=4)
_PATTERNS = st.lists(st.builds(lambda text, star: text + star or "*", _TEXT, st.sampled_from(["", "*"])), max_size=3)


def _receiver(name: str, sources: Sequence[str], event_types: Sequence[str], *, enabled: bool = True) -> Receiver:
    post = Endpoint("https://ci.example/hooks")
    return Receiver(name, post, sources=tuple(sources), event_types=tuple(event_types), enabled=enabled)


def _matches(patterns: Sequence[str], text: str) -> bool:
    return any(text.startswith(one[:-1]) if one.endswith("*") else text == one for one in patterns)


@given(st.lists(st.tuples(_PATTERNS, _PATTERNS, st.booleans()), max_size=8), _TEXT, _TEXT | st.none())
def test_the_index_finds_what_a_naive_matcher_finds(
    wishes: list[tuple[list[str], list[str], bool]], source_id: str, event_type: str | None
) -> None:
    receivers = [_receiver(f"r{i}", s, t, enabled=on) for i, (s, t, on) in enumerate(wishes)]
    naive = [
        one.name
        for one in receivers
        if one.enabled and _matches(one.sources, source_id) and _matches(one.event_types, event_type or "")
    ]
    assert Subscriptions(receivers).match(source_id, event_type) == tuple(sorted(naive))


def test_both_lists_have_to_match() -> None:
    index = Subscriptions([_receiver("ci", ["github"], ["push", "pull_request.*"])])
    assert index.match("github", "push") == ("ci",)
    assert index.match("github", "pull_request.opened") == ("ci",)
    assert index.match("github", "pull_request") == ()
    assert index.match("gitlab", "push") == ()
    assert index.match("github", None) == ()


def test_a_message_without_a_type_goes_to_those_that_want_all_types() -> None:
    index = Subscriptions([_receiver("all", ["*"], ["*"]), _receiver("some", ["*"], ["push*"])])
    assert index.match("github", None) == ("all",)


def test_more_matches_than_the_bound_are_a_mistake_of_the_sender() -> None:
    many = [_receiver(f"r{i}", ["github"], ["*"]) for i in range(MAX_MATCHES)]
    assert len(Subscriptions(many).match("github", "push")) == MAX_MATCHES
    too_many = Subscriptions([*many, _receiver("last", ["git*"], ["push"])])
    with pytest.raises(InvalidRecord, match="1001 receivers subscribe to this; 1000 are allowed") as caught:
        too_many.match("github", "push")
    assert caught.value.reason == "invalid"
    assert len(too_many.match("github", "other")) == MAX_MATCHES
