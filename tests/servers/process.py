"""Runs a `relay` command as a separate process, and reads its output line by line."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.servers.fork_server import Job
from tests.servers.forking import Forked

LINE_TIMEOUT_S = 200.0
"""On a busy machine a start takes most of a minute; below pytest's own limit, so that the output is printed."""
LONGEST_LINE = 2**20
"""Largest line in bytes: a JSON log line may have a traceback."""


class RelayProcess:
    """Runs during the `async with` block. `lines`: its output so far, of both streams. `descriptors`: its limit of open
    descriptors. `terminal`: its output is one. `module`: the module to run. `python`: the interpreter, which then
    imports everything itself; None: a fork of this one. With a PYTHONPATH in `environ` it is not forked either, because
    a fork has imported the code of this checkout.
    """

    def __init__(
        self,
        *arguments: str,
        cwd: Path,
        environ: dict[str, str] | None = None,
        descriptors: int | None = None,
        terminal: bool = False,
        module: str = "relay",
        python: str | Path | None = None,
    ) -> None:
        self._arguments = arguments
        self._terminal = terminal
        self._module = module
        self._python = python
        self._cwd = cwd
        self._environ = environ or {}
        self._descriptors = descriptors
        self._process: asyncio.subprocess.Process | Forked | None = None
        self._reader: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()
        self.lines: list[str] = []

    async def __aenter__(self) -> Self:
        clean = {name: value for name, value in os.environ.items() if not name.startswith("RELAY_")}
        # no directory for a history or data that the test did not request
        environ = clean | {"PYTHONUNBUFFERED": "1", "XDG_DATA_HOME": os.devnull} | self._environ
        reading, writing = os.openpty() if self._terminal else os.pipe()
        nothing = os.open(os.devnull, os.O_RDONLY)
        try:
            self._process = await self._start(environ, nothing, writing)
        finally:
            os.close(nothing)
            os.close(writing)
        self._reader = asyncio.create_task(self._read(reading))
        return self

    async def _start(self, environ: dict[str, str], stdin: int, output: int) -> asyncio.subprocess.Process | Forked:
        if self._python is None and "PYTHONPATH" not in self._environ:
            job = Job(self._module, self._arguments, str(self._cwd), environ, self._descriptors)
            return await asyncio.to_thread(Forked, job, (stdin, output, output))
        command = (self._python or sys.executable, "-m", self._module, *self._arguments)
        return await asyncio.create_subprocess_exec(
            *command, cwd=self._cwd, env=environ, stdin=stdin, stdout=output, stderr=output
        )

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._running.returncode is None:
            self._running.send_signal(signal.SIGTERM)
            try:
                await asyncio.wait_for(self._running.wait(), 60)
            except TimeoutError:
                self._running.kill()
        await self.finish()
        if error is not None:
            print(f"--- relay {' '.join(self._arguments)}:", *self.lines[-60:], sep="\n")  # noqa: T201

    @property
    def pid(self) -> int:
        return self._running.pid

    @property
    def returncode(self) -> int | None:
        return self._running.returncode

    def signal(self, number: int) -> None:
        self._running.send_signal(number)

    async def finish(self) -> str:
        """Wait for its end; returns all of its output."""
        async with asyncio.timeout(LINE_TIMEOUT_S):
            await self._running.wait()
            if self._reader is not None:
                await self._reader
        return "\n".join(self.lines)

    async def line_with(self, text: str) -> str:
        """Wait for the first line that contains `text`. Fails if the process ends without it."""
        return (await self.lines_with(text, 1))[0]

    async def lines_with(self, text: str, count: int) -> list[str]:
        """Wait for the first `count` lines that contain `text`."""
        async with asyncio.timeout(LINE_TIMEOUT_S):
            while True:
                found = [line for line in self.lines if text in line]
                if len(found) >= count:
                    return found[:count]
                if self._reader is not None and self._reader.done():
                    raise AssertionError(f"ended without {text!r}:\n" + "\n".join(self.lines[-40:]))
                self._changed.clear()
                await self._changed.wait()

    def value_of(self, name: str) -> str:
        """The first word behind `name` in the block that `relay dev` prints."""
        return next(line.split()[1] for line in self.lines if line.startswith(name))

    @property
    def _running(self) -> asyncio.subprocess.Process | Forked:
        if self._process is None:
            raise AssertionError("not started")
        return self._process

    async def _read(self, output: int) -> None:
        stream = asyncio.StreamReader(limit=LONGEST_LINE)
        with open(output, "rb") as pipe:  # noqa: ASYNC230 - it is a descriptor
            await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(stream), pipe)
            with suppress(OSError):  # which is the end of a terminal
                while line := await stream.readline():
                    self.lines.append(line.decode(errors="replace").rstrip("\r\n"))
                    self._changed.set()
        self._changed.set()


@asynccontextmanager
async def relay_dev(cwd: Path, *options: str, **process: Any) -> AsyncIterator[RelayProcess]:
    """A `relay dev` on a free port that is ready. It keeps nothing, unless a --data-dir is one of `options`."""
    kept = () if "--data-dir" in options else ("--ephemeral",)
    async with RelayProcess("dev", "--port", "0", *kept, *options, cwd=cwd, **process) as dev:
        await dev.line_with("Ready")
        yield dev
