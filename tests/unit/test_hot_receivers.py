"""Hot receivers of the shared lane: when one is reported, and when it has calmed down."""

from collections.abc import Mapping

import pytest
from structlog.testing import capture_logs

from relay.config.setting_layers import load_settings
from relay.domain.errors import UserError
from relay.domain.hot_receivers import LEAST, WINDOW, HotReceivers
from relay.telemetry.metrics import Metrics
from relay.watch.hot_receivers import HotReceiverWatch

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
    watch = HotReceiverWatch(metrics, lambda name: name != "own")
    with capture_logs() as lines:
        for _ in range(WINDOW):
            watch.add({**BUSY, "own": 10_000})
        assert b'relay_hot_receiver_share{receiver="big"} 0.6' in metrics.render()
        for _ in range(WINDOW):
            watch.add(EVEN)
    assert [(line["event"], line["receiver"]) for line in lines] == [("receiver_hot", "big"), ("receiver_calm", "big")]
    assert b"relay_hot_receiver_share{" not in metrics.render()


def test_a_receiver_is_not_moved() -> None:
    assert load_settings({}, {}).hot_receivers == "off"
    assert load_settings({}, {"RELAY_HOT_RECEIVERS": "Tell"}).hot_receivers == "tell"
    with pytest.raises(UserError, match="moves no receiver on its own"):
        load_settings({}, {"RELAY_HOT_RECEIVERS": "move"})
