"""`python -m tests.servers.fork_server`: imports all of the relay once, and forks a child for each `python -m MODULE`.

A process of the relay spends most of a second of CPU on imports, and the tests start hundreds. Each message on standard
input, a socket, is a `Job`, with the descriptors of a connection and of the child's standard streams. The child's
parent, the keeper, writes the child's process id and later its exit status to the connection. The server ends with its
standard input.
"""

import atexit
import gc
import importlib
import json
import os
import pkgutil
import resource
import runpy
import signal
import socket
import sys
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Self

import relay
import workers
from relay.config.receiver_entry import ReceiverEntry
from relay.config.receivers_file import ReceiversModel
from relay.config.source_entry import SourceEntry
from relay.state.redis.calls import script, script_names
from tests.servers.templates import compile_all, keep_compiled

MOST_BYTES = 2**17


@dataclass(frozen=True, slots=True)
class Job:
    """The module to run, and how. `descriptors`: the child's limit of open descriptors."""

    module: str
    arguments: tuple[str, ...]
    cwd: str
    environ: dict[str, str]
    descriptors: int | None = None

    def encode(self) -> bytes:
        return json.dumps(asdict(self)).encode()

    @classmethod
    def decode(cls, data: bytes) -> Self:
        return cls(**json.loads(data))


def main() -> None:
    statuses: list[int] = []
    atexit.register(_leave, statuses)  # the first that is registered is called last
    for package in (relay, workers):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not module.name.endswith(".__main__"):
                importlib.import_module(module.name)
    for name in script_names():
        script(name)  # each child that connects to Redis needs all of them
    for model in (ReceiversModel, ReceiverEntry, SourceEntry):
        model.model_rebuild()  # builds its validators, which otherwise each child does that reads entries
    keep_compiled()
    compile_all()
    gc.collect()
    gc.freeze()  # else a child's first collection would copy all pages
    job = _wanted()
    sys.argv[1:] = job.arguments
    try:
        runpy.run_module(job.module, run_name="__main__", alter_sys=True)
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            statuses.append(end.code or 0)
        raise
    statuses.append(0)


def _leave(statuses: list[int]) -> None:
    """End without freeing each object of all modules, which would take ten times the CPU of a short command."""
    if not statuses:
        return  # there is a traceback, or more, to be written
    with suppress(OSError, ValueError):  # a broken stream is left to the interpreter, which reports it
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(statuses[0])


def _wanted() -> Job:
    """Fork a child for the job. Returns in that child only."""
    asked = socket.socket(fileno=0)
    signal.signal(signal.SIGCHLD, _reap)
    while True:
        data, descriptors, _, _ = socket.recv_fds(asked, MOST_BYTES, 4)
        if not data:
            sys.exit()
        connection, *streams = descriptors
        if os.fork() == 0:
            asked.detach()  # its number is the child's standard input
            return _kept(Job.decode(data), socket.socket(fileno=connection), streams)
        for each in (connection, *streams):
            os.close(each)


def _reap(_number: int, _frame: object) -> None:
    """Ends keepers. If they were ignored instead, the CPU time of their children would not be in that of a test run."""
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _kept(job: Job, connection: socket.socket, streams: list[int]) -> Job:
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    pid = os.fork()
    if pid == 0:
        connection.close()
        _become(job, streams)
        return job
    for each in streams:  # so that a reader notices when the child has closed them
        os.close(each)
    connection.sendall(b"%d\n" % pid)
    _, status = os.waitpid(pid, 0)
    connection.sendall(b"%d\n" % os.waitstatus_to_exitcode(status))
    os._exit(0)


def _become(job: Job, streams: list[int]) -> None:
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
    for stream in set(streams):
        os.close(stream)
    os.chdir(job.cwd)
    os.environ.clear()
    os.environ.update(job.environ)
    sys.path[0] = job.cwd  # as with `python -m`
    if job.descriptors is not None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (job.descriptors, job.descriptors))


if __name__ == "__main__":
    main()
