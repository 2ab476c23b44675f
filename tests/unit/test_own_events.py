"""Operational webhooks: which receiver gets which events, which messages are none, and that they never cause each
other."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from relay.control.subscriptions import Subscriptions, subscribes
from relay.domain.errors import InvalidRecord
from relay.domain.message import Message, message_digest
from relay.domain.own_events import FAILED, Turn, feed, hearers, hearers_of, message_of, turn_of
from relay.domain.receiver import Endpoint, Receiver
from tests.fakes.steps import KnownOnes

OPS = ("relay",)


def receiver(
    name: str, sources: Sequence[str] = (), owner: str | None = None, types: Sequence[str] = ("*",)
) -> Receiver:
    return Receiver(name, Endpoint("https://r.example/"), sources=tuple(sources), event_types=tuple(types), owner=owner)


class Known(KnownOnes):
    """A directory with a real index."""

    def __init__(self, *receivers: Receiver) -> None:
        super().__init__({each.name: each for each in receivers})
        self.index = Subscriptions(receivers)

    def subscribers(self, source_id: str, event_type: str | None) -> tuple[str, ...]:
        return self.index.match(source_id, event_type)


def event(turn: Turn = "receiver.offline", name: str = "ci") -> Message:
    return message_of(turn_of(turn, name, None, "2026-01-01T00:00:00.000Z", None), "1")


# who hears


def test_only_who_names_the_source_hears() -> None:
    known = Known(
        *(
            receiver(name, sources)
            for name, sources in (("ops", OPS), ("all", ["*"]), ("re", ["re*"]), ("relay-all", ["relay*"]))
        ),
        receiver("ci"),
    )
    assert hearers(known, "receiver.offline", "ci") == ("ops",)
    assert known.subscribers("relay", "receiver.offline") == ("all", "re", "relay-all"), "as any other source's"


def test_types_are_chosen_as_of_any_source() -> None:
    known = Known(receiver("turns", OPS, types=["receiver.*"]), receiver("fails", OPS, types=[FAILED]), receiver("ci"))
    assert hearers(known, "receiver.gone", "ci") == ("turns",)
    assert hearers(known, FAILED, "ci") == ("fails",)


def test_who_has_an_owner_hears_of_the_same_owner_s_only() -> None:
    known = Known(
        receiver("ops", OPS),
        receiver("of-acme", OPS, "acme"),
        receiver("of-beta", OPS, "beta"),
        receiver("ci", owner="acme"),
        receiver("cd"),
    )
    for turn in ("receiver.offline", "receiver.gone", FAILED):
        assert hearers(known, turn, "ci") == ("of-acme", "ops")
        assert hearers(known, turn, "cd") == ("ops",)
        assert hearers(known, turn, None) == ("ops",), "nobody that is known"


def test_a_pattern_that_looks_like_a_feed_is_none() -> None:
    spy = receiver("spy", [feed("acme"), feed(None)], "beta")
    known = Known(spy, receiver("ci", owner="acme"))
    assert hearers(known, "receiver.offline", "ci") == ()
    assert not subscribes(spy, feed("acme"), "receiver.offline")


def test_of_a_removed_receiver_its_last_owner_hears() -> None:
    known = Known(receiver("of-acme", OPS, "acme"), receiver("of-beta", OPS, "beta"))
    known.gone["ci"] = receiver("ci", owner="acme")
    assert hearers(known, FAILED, "ci") == ("of-acme",)


def test_an_event_of_a_former_owner_s_receiver_is_not_for_the_next_owner() -> None:
    ops, of_acme, of_beta = receiver("ops", OPS), receiver("of-acme", OPS, "acme"), receiver("of-beta", OPS, "beta")
    for ci in (receiver("ci", owner="acme"), receiver("ci", owner="beta"), receiver("ci")):
        said = message_of(turn_of("receiver.gone", "ci", "acme", None, None), "1")
        assert hearers_of(Known(ops, of_acme, of_beta, ci), said) == ("of-acme", "ops")


def test_who_hears_of_others_is_told_of_upwards_while_it_may_come_back_by_itself() -> None:
    known = Known(
        receiver("ops-1", OPS), receiver("ops-2", OPS), receiver("acme-1", OPS, "acme"), receiver("acme-2", OPS, "acme")
    )
    for turn in ("receiver.offline", "receiver.back"):
        assert hearers(known, turn, "acme-1") == ("ops-1", "ops-2")
        assert hearers(known, turn, "ops-1") == ()
    for turn in ("receiver.disabled", "receiver.gone", FAILED):
        assert hearers(known, turn, "acme-1") == ("acme-2", "ops-1", "ops-2")
        assert hearers(known, turn, "ops-1") == ("ops-2",)


@given(st.lists(st.tuples(st.booleans(), st.sampled_from([None, "acme", "beta"])), min_size=1, max_size=7))
def test_no_event_leads_round_to_the_receiver_that_it_was_about(wishes: list[tuple[bool, str | None]]) -> None:
    """Each receiver that is sent an event may go offline and come back for it, which is an event, and so on."""
    known = Known(*(receiver(f"r{n}", OPS if hears else (), owner) for n, (hears, owner) in enumerate(wishes)))
    edges = {
        name: set(hearers(known, "receiver.offline", name)) | set(hearers(known, "receiver.back", name))
        for name in known.receivers
    }
    for start in edges:
        reached, todo = set[str](), set(edges[start])
        while todo:
            each = todo.pop()
            if each not in reached:
                reached.add(each)
                todo |= edges[each]
        assert start not in reached


# operational events


def test_what_we_said_is_read_again() -> None:
    known = Known(receiver("ops", OPS), receiver("ci"))
    assert hearers_of(known, event()) == ("ops",)


@pytest.mark.parametrize(
    "changed",
    [
        {"receivers": ("ci",)},
        {"event_type": "push"},
        {"event_type": None},
        {"event_type": "receiver.back"},
        {"payload": b"{}"},
        {"payload": b"\xff"},
        {"payload": b"[" * 100_000},
        {"payload": b'{"type":"receiver.offline","receiver":"Not A Name"}'},
    ],
)
def test_what_we_cannot_have_said_is_refused(changed: dict[str, object]) -> None:
    with pytest.raises(InvalidRecord, match="'relay' is the relay's own source"):
        hearers_of(Known(receiver("ops", OPS)), structs.replace(event(), **changed))


def test_the_same_event_in_other_words_is_the_same_message() -> None:
    first = event()
    assert message_digest(first) == message_digest(structs.replace(first, payload=b"in other words"))
    assert message_digest(first) != message_digest(structs.replace(first, message_id="receiver.offline:ci:2"))
    assert first.message_id == "receiver.offline:ci:1"
