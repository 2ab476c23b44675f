"""CPU time and memory of processes, and what else the machine was busy with, from /proc (Linux)."""

import contextlib
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

_TICK_S: Final = 1 / os.sysconf("SC_CLK_TCK")
_PAGE: Final = os.sysconf("SC_PAGE_SIZE")
_PROC: Final = Path("/proc")
_KTHREADD: Final = 2


class Stat(NamedTuple):
    """One process. `cpu_s`: user and system time so far."""

    parent: int
    cpu_s: float
    rss_bytes: int


@dataclass(frozen=True, slots=True)
class Sample:
    """CPU seconds so far, at monotonic time `at`. `groups`: of ours, by name; `rss`: bytes, likewise.

    `largest`: of the largest process of each group, bytes. `busy_s`: user and system time of the whole machine,
    `kernel_s`: of its kernel threads, `steal_s`: what the hypervisor gave to others. `load`: threads that ran or were
    to run, on average over the last minute.
    """

    at: float
    groups: Mapping[str, float]
    rss: Mapping[str, int]
    busy_s: float
    kernel_s: float
    steal_s: float
    largest: Mapping[str, int] = field(default_factory=dict)
    load: float = 0.0


def processes() -> dict[int, Stat]:
    """Every process there is, by id."""
    found = {}
    for entry in os.listdir(_PROC):
        if entry.isdigit():
            stat = _stat(int(entry))
            if stat is not None:
                found[int(entry)] = stat
    return found


def tree(root: int, known: Mapping[int, Stat] | None = None) -> set[int]:
    """`root` and all that descend from it."""
    known = processes() if known is None else known
    children: dict[int, list[int]] = {}
    for pid, stat in known.items():
        children.setdefault(stat.parent, []).append(pid)
    found, pending = set(), [root]
    while pending:
        pid = pending.pop()
        found.add(pid)
        pending.extend(children.get(pid, ()))
    return found


def sample(groups: Mapping[str, Iterable[int]], at: float) -> Sample:
    """Now. `groups`: name -> roots of process trees; a process counts for the first group that has it."""
    known = processes()
    cpu, rss, largest = {}, {}, {}
    for name, members in members_of(groups, known).items():
        cpu[name] = sum(known[pid].cpu_s for pid in members)
        rss[name] = sum(known[pid].rss_bytes for pid in members)
        largest[name] = max((known[pid].rss_bytes for pid in members), default=0)
    kernel = sum(known[pid].cpu_s for pid in tree(_KTHREADD, known) if pid in known)
    busy, steal = _machine()
    return Sample(at, cpu, rss, busy, kernel, steal, largest, os.getloadavg()[0])


def members_of(groups: Mapping[str, Iterable[int]], known: Mapping[int, Stat]) -> dict[str, set[int]]:
    """The processes of each group; one that descends from the roots of several counts for the first."""
    found, taken = {}, set[int]()
    for name, roots in groups.items():
        found[name] = {pid for root in roots for pid in tree(root, known) if pid in known} - taken
        taken |= found[name]
    return found


def wakeups(groups: Mapping[str, Iterable[int]]) -> dict[str, int]:
    """How often threads of each group have gone to sleep, because they had nothing to do; of those that still live."""
    return {name: sum(map(_sleeps, members)) for name, members in members_of(groups, processes()).items()}


def command_of(pid: int) -> str:
    """The short name of a process; empty when it is gone."""
    try:
        return (_PROC / str(pid) / "comm").read_text().strip()
    except OSError:
        return ""


def _stat(pid: int) -> Stat | None:
    try:
        text = (_PROC / str(pid) / "stat").read_text()
    except OSError:
        return None  # it has ended meanwhile
    fields = text[text.rindex(")") + 2 :].split()  # the name before it may hold anything
    return Stat(int(fields[1]), (int(fields[11]) + int(fields[12])) * _TICK_S, int(fields[21]) * _PAGE)


def _sleeps(pid: int) -> int:
    count = 0
    for thread in (_PROC / str(pid) / "task").glob("*/status"):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            count += int(thread.read_text().rpartition("\nvoluntary_ctxt_switches:")[2].split(maxsplit=1)[0])
    return count


def _machine() -> tuple[float, float]:
    """Seconds of user and system time, and of steal, over all cores. Interrupts are left out: they are ours mostly, and
    no process has them."""
    with (_PROC / "stat").open() as lines:
        user, nice, system, _idle, _iowait, _irq, _softirq, steal = (int(n) for n in lines.readline().split()[1:9])
    return (user + nice + system) * _TICK_S, steal * _TICK_S
