"""Hot receivers of the shared lane: when one is reported, when it leaves that lane, and when it returns."""

from collections.abc import Mapping

import pytest
from structlog.testing import capture_logs

from relay.config.setting_layers import load_settings
from relay.domain.errors import UserError
from relay.domain.hot_receivers import LEAST, WINDOW, HotLane, HotMoves, HotReceivers, MoveLimits, SharesSeen
from relay.domain.topics import Topics
from relay.state.read_model import LaneLoad
from relay.telemetry.metrics import Metrics
from relay.watch.hot_moves import HotReceiverWatch

BUSY = {"big": 60, "small": 20, "tiny": 20}
EVEN = {"big": 20, "small": 40, "tiny": 40}


def turns_of(known: HotReceivers, sent: Mapping[str, int], times: int = WINDOW) -> list[tuple[str, str]]:
    return [(turn.receiver, turn.state) for _ in range(times) for turn in known.add(sent)]


def test_one_is_hot_after_a_whole_window_and_is_reported_once() -> None:
    known = HotReceivers()
    assert turns_of(known, BUSY, WINDOW - 1) == []
    assert turns_of(known, BUSY) == [("big", "hot")]
    assert known.hot == {"big": 0.6}


def test_it_is_calm_only_far_below_the_share_that_made_it_hot() -> None:
    known = HotReceivers()
    turns_of(known, BUSY)
    assert turns_of(known, {"big": 30, "small": 40, "tiny": 30}, 5 * WINDOW) == []
    assert turns_of(known, EVEN) == [("big", "calm")]
    assert turns_of(known, {"big": 45, "small": 55}, 5 * WINDOW) == [("small", "hot")]


@pytest.mark.parametrize(
    "sent",
    [
        EVEN,
        {"big": LEAST // WINDOW - 1, "small": 1},
        {"big": 100},
        {"big": 1_000, "small": 1},
        {},
    ],
)
def test_what_burdens_no_one_is_not_hot(sent: Mapping[str, int]) -> None:
    assert turns_of(HotReceivers(), sent, 3 * WINDOW) == []


def test_one_that_is_sent_nothing_any_more_is_calm() -> None:
    known = HotReceivers()
    turns_of(known, BUSY)
    assert turns_of(known, {}) == [("big", "calm")]
    assert not known.hot


def test_the_watch_reports_those_of_the_shared_lane_alone() -> None:
    metrics = Metrics("0")
    watch = HotReceiverWatch(metrics, Topics(), lambda name: name != "own", {})
    with capture_logs() as lines:
        for _ in range(WINDOW):
            watch.add({**BUSY, "own": 10_000})
        assert b'relay_hot_receiver_share{receiver="big"} 0.6' in metrics.render()
        for _ in range(WINDOW):
            watch.add(EVEN)
    assert [(line["event"], line["receiver"]) for line in lines] == [("receiver_hot", "big"), ("receiver_calm", "big")]
    assert b"relay_hot_receiver_share{" not in metrics.render()


def test_the_watch_measures_what_the_decision_on_moves_needs() -> None:
    topics, moved = Topics(), {"own": HotLane(0.0, 0.6)}
    watch = HotReceiverWatch(Metrics("0"), topics, lambda name: name != "own", moved)
    for _ in range(WINDOW):
        watch.add({**BUSY, "own": 10})
    assert watch.load(topics.to_receiver("shared")) == LaneLoad(100 * WINDOW, (("big", 0.6),))
    assert watch.load(topics.to_receiver("own")) == LaneLoad(10 * WINDOW)
    assert watch.load(topics.to_receiver("other")) is None
    assert watch.load(topics.pending("shared")) is None


def test_one_that_has_left_is_not_reported_as_calm() -> None:
    left: set[str] = set()
    watch = HotReceiverWatch(Metrics("0"), Topics(), lambda name: name not in left, {})
    with capture_logs() as lines:
        for _ in range(WINDOW):
            watch.add(BUSY)
        left.add("big")
        for _ in range(2 * WINDOW):
            watch.add({"big": 60, "small": 2, "tiny": 3, "least": 3})
    assert [(line["event"], line["receiver"]) for line in lines] == [("receiver_hot", "big")]


def test_the_setting_takes_three_modes() -> None:
    assert load_settings({}, {}).hot_receivers == "off"
    assert load_settings({}, {"RELAY_HOT_RECEIVERS": "Tell"}).hot_receivers == "tell"
    assert load_settings({}, {"RELAY_HOT_RECEIVERS": "move"}).hot_receivers == "move"
    with pytest.raises(UserError, match="RELAY_HOT_RECEIVERS"):
        load_settings({}, {"RELAY_HOT_RECEIVERS": "always"})


# moves

LIMITS = MoveLimits(hot_s=60, stay_s=1_800, calm_s=600, most=2)
LEFT = HotLane(0.0, 0.9)


class Hours:
    """Looks every 5 s, each time at the given loads."""

    def __init__(self, moved: Mapping[str, HotLane] | None = None) -> None:
        self.decisions = HotMoves(LIMITS)
        self.moved = dict(moved or {})
        self.now = 0.0
        self.log: list[tuple[float, str, str]] = []

    def pass_by(self, seconds: float, hot: Mapping[str, float] | None = None, *calm: str) -> None:
        for _ in range(int(seconds / 5)):
            self.now += 5
            for move in self.decisions.decide(self.now, SharesSeen(hot or {}, self.moved, frozenset(calm))):
                self.log.append((self.now, *move))
                if move.to == "dedicated":
                    self.moved[move.receiver] = HotLane(self.now, (hot or {})[move.receiver])
                else:
                    del self.moved[move.receiver]


def test_one_leaves_once_it_has_been_hot_for_long_enough() -> None:
    hours = Hours()
    hours.pass_by(60, {"big": 0.9})
    assert hours.log == []
    hours.pass_by(600, {"big": 0.9})
    assert hours.log == [(65.0, "big", "dedicated")]


def test_an_interruption_begins_the_time_anew() -> None:
    hours = Hours()
    hours.pass_by(60, {"big": 0.9})
    hours.pass_by(5)
    hours.pass_by(60, {"big": 0.9})
    assert hours.log == []


def test_it_returns_after_its_stay_once_it_has_been_calm_for_long_enough() -> None:
    hours = Hours({"big": LEFT})
    hours.pass_by(1_000)
    hours.pass_by(795, {}, "big")
    assert hours.log == []  # calm, but it has not stayed long enough
    hours.pass_by(5, {}, "big")
    assert hours.log == [(1_800.0, "big", "shared")]
    hours = Hours({"big": LEFT})
    hours.pass_by(7_200)
    hours.pass_by(600, {}, "big")
    assert hours.log == []
    hours.pass_by(5, {}, "big")
    assert hours.log == [(7_805.0, "big", "shared")]


def test_one_that_turns_at_each_look_stays_where_it_is() -> None:
    shared, own = Hours(), Hours({"big": LEFT})
    for _ in range(2_000):
        shared.pass_by(5, {"big": 0.9})
        shared.pass_by(5)
        own.pass_by(5, {}, "big")
        own.pass_by(5)
    assert shared.log == own.log == []


def test_one_that_sends_in_bursts_of_a_second_moves_at_most_once_in_a_stay() -> None:
    """Second by second all or nothing: the window makes an even share of that."""
    known, hours = HotReceivers(), Hours()
    for second in range(0, 4 * 3_600, 5):
        burst = 400 if second % 2 else 0
        known.add({"big": burst, "small": 100})
        hours.pass_by(5, known.hot)
    assert len(hours.log) <= 1


def test_the_hottest_leave_first_and_no_more_than_the_cap() -> None:
    hours = Hours()
    hours.pass_by(65, {"a": 0.5, "b": 0.8, "c": 0.6})
    assert [name for _, name, _ in hours.log] == ["b", "c"]
    hours.pass_by(3_600, {"a": 0.5})
    assert len(hours.log) == 2
    hours.pass_by(610, {"a": 0.5}, "b")
    assert hours.log[2:] == [(hours.now - 5, "b", "shared"), (hours.now, "a", "dedicated")]


def test_one_of_which_nothing_is_known_does_not_move() -> None:
    hours = Hours({"big": LEFT})
    hours.pass_by(100_000)
    assert hours.log == []
