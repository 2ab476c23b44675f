"""A `relay` command as a process of its own, its output read line by line."""

import asyncio
import os
import resource
import signal
import sys
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self

LINE_TIMEOUT_S = 40.0


class RelayProcess:
    """Starts with the block, and is gone at its end. `lines`: what it has printed so far, on both streams.

    `descriptors`: how many it may have at most. `module`: what is run, by which `python`.
    """

    def __init__(
        self,
        *arguments: str,
        cwd: Path,
        environ: dict[str, str] | None = None,
        descriptors: int | None = None,
        module: str = "relay",
        python: str | Path = sys.executable,
    ) -> None:
        self._arguments = arguments
        self._module = module
        self._python = python
        self._cwd = cwd
        self._environ = environ or {}
        self._descriptors = descriptors
        self._process: asyncio.subprocess.Process | None = None
        self._reader: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()
        self.lines: list[str] = []

    async def __aenter__(self) -> Self:
        clean = {name: value for name, value in os.environ.items() if not name.startswith("RELAY_")}
        self._process = await asyncio.create_subprocess_exec(
            self._python,
            "-m",
            self._module,
            *self._arguments,
            cwd=self._cwd,
            env=clean | {"PYTHONUNBUFFERED": "1"} | self._environ,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            preexec_fn=None if self._descriptors is None else partial(_allow, self._descriptors),
        )
        self._reader = asyncio.create_task(self._read())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._running.returncode is None:
            self._running.send_signal(signal.SIGTERM)
            try:
                await asyncio.wait_for(self._running.wait(), 20)
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
        """All of its output, once it has ended."""
        async with asyncio.timeout(90):
            await self._running.wait()
            if self._reader is not None:
                await self._reader
        return "\n".join(self.lines)

    async def line_with(self, text: str) -> str:
        """The first line that contains `text`, as soon as it is there. Fails when the process ends without it."""
        return (await self.lines_with(text, 1))[0]

    async def lines_with(self, text: str, count: int) -> list[str]:
        """Likewise the first `count` lines."""
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
    def _running(self) -> asyncio.subprocess.Process:
        if self._process is None:
            raise AssertionError("not started")
        return self._process

    async def _read(self) -> None:
        stream = self._running.stdout
        while stream is not None and (line := await stream.readline()):
            self.lines.append(line.decode(errors="replace").rstrip("\n"))
            self._changed.set()
        self._changed.set()


def _allow(descriptors: int) -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors, descriptors))
