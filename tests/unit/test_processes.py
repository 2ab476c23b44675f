"""How many processes `relay run` starts, as what, and when it starts one again."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import SecretStr

from relay.api.peers import GroupProcess, leave_counts
from relay.cli.run import cores_of_stores
from relay.config.plan import API, ROLES, ProcessPlan
from relay.config.settings import Settings
from relay.run.autoscale import Demand, ScaleLimits
from relay.run.event_loop import run_until_signalled
from relay.run.processes import available_cores, command, group_size, interpreter, plan_of, within_limit
from relay.run.supervisor import FIRST_PAUSE_S, LONGEST_PAUSE_S, Child, ProcessSupervisor, Spec, cpu_seconds, next_pause


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


@pytest.mark.parametrize(
    ("brokers", "redis", "cores"),
    [
        ("kafka-1:9092,kafka-2:9092", "rediss://redis.example:6380/0", 0),
        ("localhost:9092", "redis://redis.example/0", 1),
        ("kafka-1:9092", "redis://127.0.0.1:6379/0", 1),
        ("127.0.0.1:9092", "unix:///run/valkey.sock", 2),
        ("[::1]:9092", "redis+sentinel://:secret@localhost:26379,10.0.0.2:26379/main", 2),
    ],
)
def test_stores_on_this_machine_need_cores_too(brokers: str, redis: str, cores: int) -> None:
    settings = Settings(kafka_bootstrap_servers=brokers, redis_url=SecretStr(redis))
    assert cores_of_stores(settings) == cores


def test_all_serve_the_api_on_a_port_with_a_number_and_one_on_a_free_one() -> None:
    assert [API in plan_of(index, ProcessPlan(), 8080).roles for index in range(3)] == [True, True, True]
    assert [API in plan_of(index, ProcessPlan(), 0).roles for index in range(3)] == [True, False, False]
    assert plan_of(1, ProcessPlan(), 0).roles == set(ROLES) - {API}


def test_nobody_is_started_who_has_nothing_to_do() -> None:
    only_api = ProcessPlan(frozenset({API}))
    assert group_size(4, only_api, 8080) == 4
    assert group_size(4, only_api, 0) == 1
    assert group_size(4, ProcessPlan(), 0) == 4


def test_the_command_hands_on_what_was_asked_for() -> None:
    plan = ProcessPlan(frozenset({"to-sender", API}), frozenset({"b", "a"}))
    found = command(GroupProcess(1, 4, Path("/run/x")), plan, Path("relay.yaml"))
    assert found[1:4] == ["-m", "relay", "run"]
    assert found[4:] == [
        *("--member", "1", "4", "/run/x"),
        *("--roles", "api,to-sender"),
        *("--receivers-only", "a,b"),
        *("--config", "relay.yaml"),
    ]


def test_modules_of_the_current_directory_are_not_taken_for_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("relay.py", "workers.py", "select.py"):
        (tmp_path / name).write_text("raise SystemExit('a module of the user')")
    monkeypatch.chdir(tmp_path)
    imports = [*interpreter(), "-c", "import relay.run.supervisor, workers"]
    assert subprocess.run(imports, capture_output=True, text=True, check=False).stderr == ""
    assert command(GroupProcess(0, 2, tmp_path), ProcessPlan(frozenset(ROLES)), None)[:2] == interpreter()


def test_the_supervisor_imports_next_to_nothing() -> None:
    script = "import sys, relay.run.supervisor; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split()
    assert {name for name in loaded if name.partition(".")[0] in ("relay", "workers")} == {
        *("relay", "relay.config", "relay.config.process_count"),
        *("relay.run", "relay.run.autoscale", "relay.run.supervisor"),
    }
    assert not {"asyncio", "logging", "subprocess", "threading", "pydantic", "structlog", "aiohttp"} & set(loaded)


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


def test_what_a_process_takes_is_read_whatever_its_name_is(tmp_path: Path) -> None:
    taken = " ".join(["S", *map(str, range(10)), "250", "50", *map(str, range(30))])
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "stat").write_text(f"7 (a) b (c) {taken}\n")
    assert cpu_seconds(7, str(tmp_path)) == 300 / os.sysconf("SC_CLK_TCK")
    assert cpu_seconds(8, str(tmp_path)) is None
    assert (cpu_seconds(os.getpid()) or 0) > 0


def test_a_stop_right_after_a_start_is_not_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The supervisor's handler would take the signal in the forked process, which then goes on as if nothing was."""
    fork = os.fork

    def slow_fork() -> int:
        if (pid := fork()) == 0:
            time.sleep(0.2)
        return pid

    monkeypatch.setattr(os, "fork", slow_fork)
    before = signal.signal(signal.SIGTERM, lambda *_: None)
    try:
        child = Child(0, ["/bin/sleep", "5"], str(tmp_path))
        child.start(time.monotonic())
        child.stop(time.monotonic() + 60)
        assert child.pid is not None
        _, status = os.waitpid(child.pid, 0)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert os.waitstatus_to_exitcode(status) == -signal.SIGTERM
    assert not {signal.SIGTERM, signal.SIGINT, signal.SIGHUP} & signal.pthread_sigmask(signal.SIG_BLOCK, ())


async def test_a_second_signal_cuts_off_no_request_of_one_that_has_a_parent() -> None:
    """A service manager that stops all processes signals each, and the parent passes the signal on as well."""
    ended: list[str] = []

    async def work(stop: asyncio.Event) -> None:
        await stop.wait()
        await asyncio.sleep(0.2)
        ended.append("by itself")

    lifeline, parents = os.pipe()
    try:
        running = asyncio.create_task(run_until_signalled(work, grace_s=60, lifeline=lifeline))
        await asyncio.sleep(0)
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGTERM)
            await asyncio.sleep(0.05)
        await running
    finally:
        asyncio.get_running_loop().remove_reader(lifeline)
        os.close(lifeline)
        os.close(parents)
    assert ended == ["by itself"]


def test_a_process_whose_directory_is_gone_knows_of_those_before_it() -> None:
    member = GroupProcess(1, 4, Path("/nonexistent"))
    assert (member.others, member.is_dismissed, member.leaving) == ([0], False, [])


def test_a_directory_that_cannot_be_written_ends_neither_the_supervisor_nor_a_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cleaner of temporary files removes it, or their disk is full."""
    gone = tmp_path / "gone"
    leave_counts(GroupProcess(0, 2, gone), b"")

    group = ProcessSupervisor(Spec(str(gone), [["/bin/true"]], [], ScaleLimits(), 1.0, "json", "error"))
    monkeypatch.setattr("relay.run.supervisor.decide", lambda *_: Demand(1, 0.0))
    group._scale(time.monotonic() + 60)
    [child] = group._children
    assert child.pid is not None
    os.waitpid(child.pid, 0)
    monkeypatch.setattr("relay.run.supervisor.decide", lambda *_: Demand(0, 0.0))
    child.pid = None
    group._scale(time.monotonic() + 120)
