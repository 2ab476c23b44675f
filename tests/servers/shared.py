"""One broker for all processes of xdist, because each broker costs seconds of CPU.

The first worker that needs it starts it. The controller kills it after all workers have ended.
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
_INPUT: Final = "broker_directory"


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    config: pytest.Config = node.config
    if _DIRECTORY not in config.stash:
        config.stash[_DIRECTORY] = Path(tempfile.mkdtemp(prefix="broker-"))
    node.workerinput[_INPUT] = str(config.stash[_DIRECTORY])


def pytest_unconfigure(config: pytest.Config) -> None:
    if (directory := config.stash.get(_DIRECTORY, None)) is None:
        return
    with suppress(FileNotFoundError, ProcessLookupError):  # no test needed it, or it has ended
        os.kill(int((directory / "pid").read_text()), signal.SIGKILL)
    shutil.rmtree(directory, ignore_errors=True)


def shared_directory(config: pytest.Config) -> Path | None:
    """The directory of the broker that all workers share; None without xdist."""
    directory: str | None = getattr(config, "workerinput", {}).get(_INPUT)
    return Path(directory) if directory is not None else None


def shared_bootstrap(directory: Path, start: Callable[[Path], tuple[int, str]]) -> str:
    """host:port of the broker in `directory`. `start` starts one there, and returns its process id and host:port."""
    running = directory / "bootstrap"
    with (directory / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not running.exists():
            pid, bootstrap = start(directory)
            (directory / "pid").write_text(str(pid))
            running.write_text(bootstrap)
    return running.read_text()
