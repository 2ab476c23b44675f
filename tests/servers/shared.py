"""Servers that all processes of xdist share, because each costs seconds of CPU.

The first worker that needs one starts it. The controller kills it after all workers have ended.
"""

import fcntl
import os
import shutil
import signal
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import pytest

_DIRECTORY: Final = pytest.StashKey[Path]()
_INPUT: Final = "shared_directory"
_MEMORY: Final = Path("/dev/shm")  # noqa: S108 - directories in it have random names
_ROOM_BYTES: Final = 2**30
_of_worker: list[Path] = []


def memory() -> Path | None:
    """Where files are in memory, if there is room. A broker syncs files of each new partition, and the tests make
    thousands: on a disk that took most of its CPU."""
    there = os.access(_MEMORY, os.W_OK) and shutil.disk_usage(_MEMORY).free > _ROOM_BYTES
    return _MEMORY if there else None


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    config: pytest.Config = node.config
    if _DIRECTORY not in config.stash:
        config.stash[_DIRECTORY] = Path(tempfile.mkdtemp(prefix="shared-", dir=memory()))
    node.workerinput[_INPUT] = str(config.stash[_DIRECTORY])


def pytest_configure(config: pytest.Config) -> None:
    _of_worker[:] = map(Path, filter(None, [getattr(config, "workerinput", {}).get(_INPUT)]))
    if _of_worker and memory() is not None:
        os.environ["TMPDIR"] = str(_of_worker[0])  # relays sync each message, and what killed ones leave goes with it


def pytest_unconfigure(config: pytest.Config) -> None:
    if (directory := config.stash.get(_DIRECTORY, None)) is None:
        return
    for pid in directory.glob("*.pid"):
        with suppress(ProcessLookupError):  # it has ended
            os.kill(int(pid.read_text()), signal.SIGKILL)
    shutil.rmtree(directory, ignore_errors=True)


def shared_directory() -> Path | None:
    """The directory of the servers that all workers share; None without xdist."""
    return _of_worker[0] if _of_worker else None


def shared_address(directory: Path, name: str, start: Callable[[Path], tuple[int, str]]) -> str:
    """The address of the server `name` in `directory`. `start` starts one there, and returns its process id and
    address."""
    running = directory / f"{name}.address"
    with (directory / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not running.exists():
            pid, address = start(directory)
            (directory / f"{name}.pid").write_text(str(pid))
            running.write_text(address)
    return running.read_text()
