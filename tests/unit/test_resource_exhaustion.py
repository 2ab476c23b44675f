"""Whose fault it is that nothing could be sent."""

from itertools import count

import pytest

from relay.domain.exchange import Exchange, NoResponse, Response
from relay.domain.resource_exhaustion import FIRST_PAUSE_S, LATELY_S, LONGEST_PAUSE_S, Shortage

WELL = Response(200, {}, b"")


def none(kind: str, *, sent: bool = False) -> NoResponse:
    return NoResponse(kind, "why", sent)


def told(shortage: Shortage, exchange: Exchange, now: float, party: str = "r:a", host: str = "a") -> bool:
    return shortage.is_ours(party, f"https://{host}:8443/x", exchange, now)


@pytest.mark.parametrize(
    "exchange",
    [
        WELL,
        *(none(kind) for kind in ("refused", "tls", "dns", "connect_timeout", "blocked", "invalid_url", "failed")),
        none("timeout", sent=True),
        none("disconnected", sent=True),
        none("unreachable"),
        none("dns_silent"),
    ],
)
def test_what_happened_at_one_receiver_is_not_ours(exchange: Exchange) -> None:
    shortage = Shortage()
    assert not any(told(shortage, exchange, now) for now in range(100))
    assert shortage.gate(100) == "open"
    assert shortage.since is None


def test_descriptors_and_memory_are_ours_at_once_although_others_get_through() -> None:
    shortage = Shortage()
    told(shortage, WELL, 1.0)
    assert told(shortage, none("no_resources"), 1.0)
    assert shortage.gate(1.0) == "shut"


@pytest.mark.parametrize("kind", ["no_local_address", "no_proxy"])
def test_ours_but_no_reason_to_pause_while_others_get_through(kind: str) -> None:
    shortage = Shortage()
    for now in range(50):
        told(shortage, WELL, now, "r:b", "b")
        assert told(shortage, none(kind), now)
        assert shortage.gate(now) == "open"


@pytest.mark.parametrize("kind", ["unreachable", "dns_silent"])
class TestTheWayOut:
    def test_is_ours_when_everything_fails_so(self, kind: str) -> None:
        shortage = Shortage()
        assert not told(shortage, none(kind), 0.0)
        assert told(shortage, none(kind), 1.0, "r:b", "b")
        assert told(shortage, none(kind), 2.0)
        assert shortage.gate(1.0) == "shut"

    def test_is_not_while_anybody_is_heard_or_was_lately(self, kind: str) -> None:
        shortage = Shortage()
        told(shortage, none("refused"), 0.0, "r:c", "c")
        told(shortage, none(kind), 1.0)
        assert not told(shortage, none(kind), LATELY_S - 1, "r:b", "b")
        told(shortage, none(kind), LATELY_S)
        assert told(shortage, none(kind), LATELY_S, "r:b", "b")

    def test_needs_two_receivers_and_two_hosts(self, kind: str) -> None:
        shortage = Shortage()
        hosts = count()
        assert not any(told(shortage, none(kind), now, "r:a", f"a{next(hosts)}") for now in range(5))
        assert not told(shortage, none(kind), 5.0, "r:b", "a4")

    def test_what_was_tried_long_ago_says_nothing(self, kind: str) -> None:
        shortage = Shortage()
        told(shortage, none(kind), 0.0)
        assert not told(shortage, none(kind), LATELY_S + 1, "r:b", "b")


class TestPauses:
    def test_grow_and_one_request_at_a_time_finds_out(self) -> None:
        shortage, now = Shortage(), 0.0
        pauses = []
        for _ in range(8):
            told(shortage, none("no_resources"), now)
            assert shortage.gate(now) == "shut"
            pauses.append(shortage.changes_in(now))
            told(shortage, none("no_resources"), now + pauses[-1] / 2)  # was in flight
            assert shortage.changes_in(now) == pauses[-1]
            now += pauses[-1]
            assert shortage.gate(now) == "ajar"
        assert pauses[:3] == [FIRST_PAUSE_S, 2 * FIRST_PAUSE_S, 4 * FIRST_PAUSE_S]
        assert max(pauses) == pauses[-1] == LONGEST_PAUSE_S

    def test_end_when_something_gets_through_and_are_told_of_later(self) -> None:
        shortage = Shortage()
        told(shortage, none("no_resources"), 0.0)
        told(shortage, none("no_resources"), 2.0)
        told(shortage, WELL, 2.1)
        assert shortage.gate(2.1) == "shut", "it was under way before"
        told(shortage, WELL, 3.0)
        assert (shortage.gate(3.0), shortage.changes_in(3.0)) == ("open", 0.0)
        assert shortage.over(3.0) is None
        assert shortage.over(2.0 + LATELY_S) == 2.0
        assert shortage.over(2.0 + LATELY_S) is None

    def test_open_by_themselves_when_nothing_is_sent(self) -> None:
        shortage = Shortage()
        told(shortage, none("no_resources"), 0.0)
        assert shortage.gate(2 * FIRST_PAUSE_S) == "open"
