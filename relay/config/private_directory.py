"""Temporary directories of this user alone. Those of processes that were killed are removed when the next one is made.

A process has a lock on its directory itself, which the kernel releases with the last process that inherited it, and by
which cleaners of temporary files know that the directory is in use.
"""

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

_PREFIX: Final = "relay-run-"
"""Not the `relay-` of releases up to 0.2, whose directories have no lock while they are in use."""


def make_private_directory() -> tuple[Path, int]:
    """A new directory, and the descriptor that locks it. Raises FileNotFoundError without a place for it."""
    _remove_left_over()
    while True:
        directory = Path(tempfile.mkdtemp(prefix=_PREFIX))
        with suppress(FileNotFoundError):
            lock = os.open(directory, os.O_RDONLY)
            with suppress(OSError):  # without locks on this file system, no process removes the directory
                fcntl.flock(lock, fcntl.LOCK_EX)
            if directory.exists():  # else another process took it for left over before it was locked
                return directory, lock
            os.close(lock)


@contextmanager
def private_directory() -> Iterator[Path]:
    directory, lock = make_private_directory()
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)
        os.close(lock)


def _remove_left_over() -> None:
    for path in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with suppress(OSError):
            lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                if os.fstat(lock).st_uid == os.geteuid():
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(path)
            finally:
                os.close(lock)
