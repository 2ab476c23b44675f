"""Lets processes of one installation listen on the same port, and no others.

With SO_REUSEPORT the system shares a port between any processes of a user, and spreads the connections over them: a
second installation would take half of the first one's requests. So each process first locks a file of this user that
names the installation which has the port.
"""

import errno
import fcntl
import hashlib
import os
import socket
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

SUPPORTED: Final = hasattr(socket, "SO_REUSEPORT")


@dataclass(frozen=True, slots=True)
class Sharing:
    """Selects the processes that may share a port with this one: those of `installation`. With `any_process`, also
    processes of this user without a lock, such as those of releases before 0.2, or with that of another
    installation."""

    installation: str
    any_process: bool = False


def installation_id(servers: Iterable[str], prefix: str) -> str:
    """Names the installation that these Kafka servers and this topic prefix make; nothing can be read from it."""
    text = "\0".join((*sorted(server.strip() for server in servers), prefix))
    return hashlib.sha256(text.encode()).hexdigest()


def lock_directory() -> Path:
    """The folder of this user's lock files, created if missing. Raises OSError, also where another user owns it."""
    path = Path(tempfile.gettempdir()) / f"relay-ports-{os.geteuid()}"
    with suppress(FileExistsError):
        path.mkdir(mode=0o700)
    found = path.lstat()
    if not path.is_dir() or path.is_symlink() or found.st_uid != os.geteuid():
        raise PermissionError(errno.EPERM, "the folder of its lock files belongs to another user", str(path))
    return path


def share_port(host: str, port: int, sharing: Sharing) -> "SharedPort | None":
    """Joins the processes that share a port. None if there is no directory for the lock, so that it cannot be shared.
    Raises OSError as `SharedPort.join`."""
    try:
        directory = lock_directory()
    except OSError:
        return None
    return SharedPort.join(host, port, sharing, directory)


class SharedPort:
    """A process's share of a port, until `leave` or its end. `locks`: descriptors."""

    def __init__(self, *locks: int) -> None:
        self._locks = locks

    @classmethod
    def join(cls, host: str, port: int, sharing: Sharing, directory: Path) -> "SharedPort":
        """Raises OSError where the port is in use by a process that is not of `sharing`."""
        with _one_at_a_time(directory / f"{port}.join"):
            lock = os.open(directory / f"{port}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                _enter(lock, host, port, sharing)
            except OSError:
                os.close(lock)
                raise
            # systemd-tmpfiles passes over a locked folder: once the file has another inode, no process could join
            folder = os.open(directory, os.O_RDONLY | os.O_CLOEXEC)
            fcntl.flock(folder, fcntl.LOCK_SH)
        return cls(lock, folder)

    def leave(self) -> None:
        """May be called once."""
        for lock in self._locks:
            os.close(lock)


def _enter(lock: int, host: str, port: int, sharing: Sharing) -> None:
    name = sharing.installation.encode()
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        fcntl.flock(lock, fcntl.LOCK_SH)
        if not sharing.any_process and os.pread(lock, 128, 0) != name:
            raise OSError(errno.EADDRINUSE, "the port is in use by another installation of the relay") from None
        return
    if not sharing.any_process:
        check_free(host, port)  # of programs that have no lock
    os.ftruncate(lock, 0)
    os.pwrite(lock, name, 0)
    fcntl.flock(lock, fcntl.LOCK_SH)


@contextmanager
def _one_at_a_time(path: Path) -> Iterator[None]:
    lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def check_free(host: str, port: int) -> None:
    """Raises OSError where the port cannot be had for oneself."""
    family, kind, protocol, _, address = socket.getaddrinfo(
        host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(address)
