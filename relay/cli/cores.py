"""How many processors this process may use."""

import os
from math import ceil
from pathlib import Path
from typing import Final

CPU_MAX: Final = Path("/sys/fs/cgroup/cpu.max")


def available_cores() -> int:
    """At least 1. In a container with a limit, the limit counts rather than the host's processors."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        return within_limit(cores, CPU_MAX.read_text())
    except OSError:  # no container, or none of the second version of control groups
        return cores


def within_limit(cores: int, cpu_max: str) -> int:
    """`cores`, or fewer. `cpu_max`: microseconds of processor time, or "max", in each so many, as cgroup v2 has it."""
    quota, _, period = cpu_max.strip().partition(" ")
    if quota == "max":
        return cores
    return max(1, min(cores, ceil(int(quota) / int(period))))
