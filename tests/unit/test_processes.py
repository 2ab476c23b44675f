"""How many processes `relay run` starts, as what, and when it starts one again."""

import os
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.api.siblings import Member
from relay.cli.cores import available_cores, within_limit
from relay.cli.processes import FIRST_PAUSE_S, LONGEST_PAUSE_S, command, group_size, next_pause, plan_of
from relay.plan import API, ROLES, Plan


def test_there_is_at_least_one_core_and_never_more_than_we_may_use() -> None:
    assert 1 <= available_cores() <= len(os.sched_getaffinity(0))


@pytest.mark.parametrize(
    ("cores", "cpu_max", "allowed"),
    [
        (8, "max 100000\n", 8),
        (8, "200000 100000\n", 2),
        (8, "150000 100000\n", 2),
        (8, "10000 100000\n", 1),
        (2, "6400000 100000\n", 2),
    ],
)
def test_a_containers_limit_counts(cores: int, cpu_max: str, allowed: int) -> None:
    assert within_limit(cores, cpu_max) == allowed


def test_all_serve_the_api_on_a_port_with_a_number_and_one_on_a_free_one() -> None:
    assert [API in plan_of(index, Plan(), 8080).roles for index in range(3)] == [True, True, True]
    assert [API in plan_of(index, Plan(), 0).roles for index in range(3)] == [True, False, False]
    assert plan_of(1, Plan(), 0).roles == set(ROLES) - {API}


def test_nobody_is_started_who_has_nothing_to_do() -> None:
    only_api = Plan(frozenset({API}))
    assert group_size(4, only_api, 8080) == 4
    assert group_size(4, only_api, 0) == 1
    assert group_size(4, Plan(), 0) == 4


def test_the_command_hands_on_what_was_asked_for() -> None:
    plan = Plan(frozenset({"to-sender", API}), frozenset({"b", "a"}))
    found = command(Member(1, 4, Path("/run/x")), plan, Path("relay.yaml"))
    assert found[1:4] == ["-m", "relay", "run"]
    assert found[4:] == [
        *("--member", "1", "4", "/run/x"),
        *("--roles", "api,to-sender"),
        *("--receivers-only", "a,b"),
        *("--config", "relay.yaml"),
    ]


@given(st.lists(st.floats(0, LONGEST_PAUSE_S, exclude_max=True), min_size=1, max_size=12))
def test_pauses_double_up_to_a_bound_while_it_keeps_dying(runs: list[float]) -> None:
    pauses = [0.0]
    for ran_s in runs:
        pauses.append(next_pause(pauses[-1], ran_s))
    assert pauses[1] == FIRST_PAUSE_S
    assert all(after == min(2 * before, LONGEST_PAUSE_S) for before, after in pairwise(pauses[1:]))


@given(st.floats(0, LONGEST_PAUSE_S))
def test_after_a_long_life_the_pause_is_short_again(pause_s: float) -> None:
    assert next_pause(pause_s, LONGEST_PAUSE_S) == FIRST_PAUSE_S
