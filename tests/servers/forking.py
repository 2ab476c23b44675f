"""Starts relay processes by forking the fork server, which has imported the relay already; and waits for them."""

import asyncio
import atexit
import contextlib
import functools
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.servers.fork_server import Job
from tests.servers.shared import shared_address, shared_directory

_ROOT = Path(__file__).parents[2]
_SAID_BYTES = 64
_STARTING = threading.Lock()


class Forked:
    """A forked process, with the interface of `asyncio.subprocess.Process`. `streams`: descriptors of its standard
    streams."""

    def __init__(self, job: Job, streams: Sequence[int]) -> None:
        self._keeper, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            socket.send_fds(fork_server(), [job.encode()], [theirs.fileno(), *streams])
        self.pid = int(self._keeper.recv(_SAID_BYTES))
        self._returncode: int | None = None
        self._watching: asyncio.Task[None] | None = None

    @property
    def returncode(self) -> int | None:
        with contextlib.suppress(BlockingIOError):
            self._listen(socket.MSG_DONTWAIT)
        return self._returncode

    def send_signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):  # it may have ended before its exit status arrived
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    async def wait(self) -> int:
        if self._watching is None:
            self._watching = asyncio.create_task(self._watch())
        await asyncio.shield(self._watching)
        return self.join()

    def join(self) -> int:
        """As `wait`, for code without an event loop."""
        returncode = self._listen()
        self._keeper.close()
        return returncode

    def _listen(self, flags: int = 0) -> int:
        if self._returncode is None:
            self._returncode = int(self._keeper.recv(_SAID_BYTES, flags))
        return self._returncode

    async def _watch(self) -> None:
        if self.returncode is not None:
            return
        loop, said = asyncio.get_running_loop(), asyncio.Event()
        loop.add_reader(self._keeper, said.set)
        try:
            await said.wait()
        finally:
            loop.remove_reader(self._keeper)


def run(
    *arguments: str | bytes,
    cwd: Path | None = None,
    environ: Mapping[str, str] | None = None,
    stdin: bytes = b"",
    together: bool = False,
) -> subprocess.CompletedProcess[str]:
    """Run a `relay` command to its end. `together`: its standard error is part of its output."""
    words = tuple(map(os.fsdecode, arguments))
    job = Job("relay", words, str(cwd or Path.cwd()), dict(os.environ if environ is None else environ))
    with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        given.write(stdin)
        given.seek(0)
        streams = [given, output, output if together else errors]
        returncode = Forked(job, [stream.fileno() for stream in streams]).join()
        output.seek(0)
        errors.seek(0)
        return subprocess.CompletedProcess(words, returncode, output.read().decode(), errors.read().decode())


def fork_server() -> socket.socket:
    """A socket of the fork server, which the first call starts. All workers of xdist share one; without xdist it ends
    with this process."""
    with _STARTING:
        return _started()


@functools.cache
def _started() -> socket.socket:
    if (shared := shared_directory()) is not None:
        ours = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        ours.connect(shared_address(shared, "fork_server", _left_running))
        return ours
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        process = _server(theirs)

    def end() -> None:
        ours.close()
        process.wait()

    atexit.register(end)
    return ours


def _left_running(within: Path) -> tuple[int, str]:
    path = str(within / "jobs")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as jobs:
        jobs.bind(path)
        process = _server(jobs)
    process.returncode = 0  # else Popen warns when it goes that the process still runs
    return process.pid, path


def _server(jobs: socket.socket) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "tests.servers.fork_server"]
    return subprocess.Popen(command, cwd=_ROOT, stdin=jobs.fileno(), env=os.environ | {"PYTHONUNBUFFERED": "1"})
