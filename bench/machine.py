"""What the benchmark runs on, for its report."""

import os
import platform
import subprocess
from pathlib import Path

from bench.results import Machine


def machine() -> Machine:
    return Machine(
        cpu=_field(Path("/proc/cpuinfo"), "model name") or platform.machine(),
        cores=os.cpu_count() or 1,
        memory=int((_field(Path("/proc/meminfo"), "MemTotal") or "0 kB").split()[0]) * 1024,
        kernel=platform.release(),
        python=platform.python_version(),
    )


def revision(code: Path) -> str:
    """The commit of the checkout at `code`, with a plus if it is changed; empty where git does not know."""
    try:
        text = subprocess.run(
            ["git", "describe", "--always", "--dirty=+", "--exclude=*"],  # noqa: S607 - whichever git there is
            cwd=code,
            capture_output=True,
            text=True,
            check=True,
        ).stdout
    except (OSError, subprocess.CalledProcessError):
        return ""
    return text.strip()


def _field(path: Path, name: str) -> str:
    """The value of the first line `name : value`."""
    for line in path.read_text().splitlines():
        key, _, value = line.partition(":")
        if key.strip() == name:
            return value.strip()
    return ""
