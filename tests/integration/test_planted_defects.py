"""Tests the tests: each defect that users met, planted again, is found by a test of the feature."""

import asyncio
import pkgutil
from collections.abc import Callable, Mapping
from inspect import iscoroutine, signature
from pathlib import Path
from typing import Final

import pytest

from tests.integration.planted_defects import DEFECTS, plant

LEFT_OVER: Final = "integration.test_dev_directory:test_what_is_left_over_is_named_until_a_fresh_start"
FRESH: Final = "unit.test_data_directory:test_fresh_"
DEMO: Final = "integration.test_demo:test_the_demo_shows_every_message_s_way"
TAIL: Final = "unit.test_tail_order:test_"
CLI: Final = "integration.test_cli_mistakes:test_a_"
HISTORY: Final = "unit.test_local_history:test_"
SLOW: Final = pytest.mark.slow  # what starts processes
COOKIE: Final = {"name": b"relay_visitor", "value": b"\xff"}
TYPO: Final = {"arguments": ("hlep",), "environ": {}, "code": 2, "words": ("Did you mean 'help'?",)}


@pytest.mark.parametrize(
    ("name", "found_by", "given"),
    [
        ("a visitor is any text", "integration.test_api_odd_requests:test_a_page_makes_do_with_any_cookie", COOKIE),
        pytest.param("one directory for all folders", LEFT_OVER, {}, marks=SLOW),
        pytest.param("nothing is said of what is left over", LEFT_OVER, {}, marks=SLOW),
        pytest.param("fresh removes nothing", LEFT_OVER, {}, marks=SLOW),
        ("fresh removes anything", FRESH + "removes_nothing_that_is_no_data_directory", {}),
        ("fresh removes what is in use", FRESH + "removes_nothing_that_is_in_use", {}),
        (
            "the tail is in the order of reading",
            TAIL + "it_is_held_for_a_moment_and_what_comes_late_goes_before_it",
            {},
        ),
        ("the tail is in the order of time alone", TAIL + "of_one_millisecond_what_led_to_another_goes_before_it", {}),
        pytest.param("the demo is cut", DEMO, {}, marks=SLOW),
        pytest.param("the demo is not folded", DEMO, {}, marks=SLOW),
        pytest.param("the demo's sender answers a notice", DEMO, {}, marks=SLOW),
        ("broken JSON is not seen", "integration.test_api:test_strict_json_refuses_it", {}),
        pytest.param("a wrong key is none", CLI + "wrong_key_is_told_from_a_missing_one", {}, marks=SLOW),
        pytest.param("TLS failed, and no more", CLI + "port_without_tls_is_said", {}, marks=SLOW),
        pytest.param("no command is suggested", CLI + "mistake_is_said_in_a_line", TYPO, marks=SLOW),
        ("a wait has no reason", "unit.test_api_waiting:test_what_nothing_is_known_to_hold_up_is_queued", {}),
        (
            "no history by default",
            HISTORY + "one_machine_that_runs_all_keeps_it_in_sqlite",
            {"redis": "redis://localhost:6379/0"},
        ),
        (
            "a history for several machines",
            HISTORY + "where_other_machines_may_take_part_there_is_none",
            {"brokers": "kafka:9092", "redis": "redis://localhost"},
        ),
        ("one history for all installations", HISTORY + "two_installations_on_one_machine_have_one_each", {}),
        (
            "a log that hangs is well",
            "unit.test_parts_watch:test_a_log_that_hangs_is_said_to_be_silent_until_it_answers",
            {},
        ),
    ],
)
def test_a_planted_defect_is_found(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str, found_by: str, given: dict[str, object]
) -> None:
    plant(monkeypatch, name)
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        run(pkgutil.resolve_name(f"tests.{found_by}"), {**given, "tmp_path": tmp_path})


def test_each_defect_replaces_what_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    for place, planted in DEFECTS.values():
        monkeypatch.setattr(place, planted)


def run(test: Callable[..., object], given: Mapping[str, object]) -> None:
    """With those of the arguments that it takes."""
    result = test(**{name: given[name] for name in signature(test).parameters})
    if iscoroutine(result):
        asyncio.run(result)
