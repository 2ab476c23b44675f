"""Starts several processes of one `relay run` on one machine, and turns the starting process into their supervisor."""

import gc
import json
import os
import socket
import sys
from collections.abc import Sequence
from dataclasses import replace
from math import ceil
from pathlib import Path
from typing import Final, NoReturn

import relay
from relay.api.peers import GroupProcess
from relay.config.own_address import keep_launch_secret
from relay.config.plan import API, ProcessPlan
from relay.config.private_directory import make_private_directory
from relay.config.process_count import begin
from relay.domain.errors import UserError
from relay.run.supervisor import Spec, block_signals, detach, remove

CPU_TIMES: Final = Path("/proc/self/stat")
"""Without this file the CPU use is unknown: then one process per core is started at once."""
CPU_MAX: Final = Path("/sys/fs/cgroup/cpu.max")
SOCKET_PATH_BYTES: Final = 100
"""The system allows 103 to 107."""


def available_cores() -> int:
    """At least 1. In a container with a limit, the limit counts rather than the host's processors."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        return within_limit(cores, CPU_MAX.read_text())
    except OSError:  # no container, or none of the second version of control groups
        return cores


def within_limit(cores: int, cpu_max: str) -> int:
    """`cores`, or fewer by the limit of a cgroup. `cpu_max`: the quota in microseconds, or "max", and its period, as in
    cgroup v2."""
    quota, _, period = cpu_max.strip().partition(" ")
    if quota == "max":
        return cores
    return max(1, min(cores, ceil(int(quota) / int(period))))


def group_size(wanted: int, plan: ProcessPlan, api_port: int) -> int:
    """How many of `wanted` processes have something to do. A free port serves only the first: no client can guess
    others."""
    return 1 if api_port == 0 and plan.roles == {API} else wanted


def plan_of(index: int, plan: ProcessPlan, api_port: int) -> ProcessPlan:
    """All serve the API on the same port, if it is fixed."""
    return plan if index == 0 or api_port != 0 else replace(plan, roles=plan.roles - {API})


def start_group(spec: Spec, members: Sequence[GroupProcess]) -> GroupProcess:
    """Fork `members`, in each of which this returns its place, and become their supervisor: there it does not return.

    A fork of a process that has imported everything starts at once. `spec`: what the supervisor has to know; the forked
    processes are added. Call it without threads and without an event loop.
    """
    begin(spec.directory, len(members))
    block_signals()
    gc.freeze()  # a collection in one of them would copy all pages that they share
    lifelines: list[socket.socket] = []
    started = []
    for member in members:
        ours, theirs = socket.socketpair()
        lifelines.append(ours)
        pid = os.fork()
        if pid == 0:
            for lifeline in lifelines:  # those of the others must close when the supervisor ends
                lifeline.close()
            detach(theirs.detach())
            return member
        theirs.close()
        os.set_inheritable(ours.fileno(), True)
        started.append((pid, ours.fileno()))
    return _supervise(spec._replace(started=started))


def _supervise(spec: Spec) -> NoReturn:
    encoded = json.dumps(spec._asdict())
    os.execv(sys.executable, [*interpreter(), "-m", "relay.run.supervisor", encoded])  # noqa: S606  no shell is wanted


def interpreter() -> list[str]:
    """Python; with `-P`, so that it imports no `relay.py` or `workers` of the current directory in place of ours."""
    is_ours = Path(relay.__file__).parents[1] == Path.cwd()
    return [sys.executable] if is_ours else [sys.executable, "-P"]


def members_of(count: int, directory: Path) -> list[GroupProcess]:
    return [GroupProcess(index, count, directory) for index in range(count)]


def command(member: GroupProcess, plan: ProcessPlan, config_file: Path | None) -> list[str]:
    """The command line of one of the processes; it inherits settings from the environment."""
    place = ["--member", str(member.index), str(member.count), str(member.directory)]
    found = [*interpreter(), "-m", "relay", "run", *place, "--roles", ",".join(sorted(plan.roles))]
    if plan.receivers is not None:
        found += ["--receivers-only", ",".join(sorted(plan.receivers))]
    return found + (["--config", str(config_file)] if config_file else [])


def group_directory() -> Path:
    """A new directory for sockets and a secret: no other user may read it. Raises UserError."""
    try:
        directory, lock = make_private_directory()
    except FileNotFoundError as error:
        raise UserError(
            "several processes need a temporary directory; set TMPDIR, or run with --processes 1"
        ) from error
    os.set_inheritable(lock, True)  # by the supervisor, which replaces this process, and those that it starts
    if len(os.fsencode(directory)) + len("/999.sock") > SOCKET_PATH_BYTES:
        remove(str(directory))
        raise UserError(f"{directory} is too long a path for sockets; set TMPDIR to a shorter one")
    keep_launch_secret(directory)
    return directory
