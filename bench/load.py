"""The generator's process, seen from the driver."""

import asyncio
import contextlib
import json
import sys
from pathlib import Path
from types import TracebackType
from typing import Self

from bench.children import Child, own_environ
from bench.generator import Job


class Load:
    """A job in a process of its own, ready when the block begins; `go` starts it, and its process ends with the block.

    `acked`, `failed`, `produced`: as last reported. `done` is set when all has been taken or refused, or the process
    has ended.
    """

    def __init__(self, job: Job, directory: Path) -> None:
        self.job = job
        self.acked = self.failed = self.produced = 0
        self.done = asyncio.Event()
        command = [sys.executable, "-m", "bench.generator", job.as_json()]
        self.child = Child("generator", command, directory, environ=own_environ(), piped=True)
        self._reading: asyncio.Task[None] | None = None
        self._complete = False

    async def __aenter__(self) -> Self:
        await self.child.start()
        try:
            await self.child.read_line()
        except BaseException:
            await self.child.stop()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._reading is not None:
            self._reading.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._reading
        await self.child.stop()

    async def go(self) -> None:
        await self.child.write_line(b"go")
        self._reading = asyncio.create_task(self._read())

    def check(self) -> None:
        """Raises ChildFailed when the process ended before its job."""
        if self.done.is_set() and not self._complete:
            raise self.child.failed("ended before its job")

    async def _read(self) -> None:
        try:
            while not self._complete:
                said = json.loads(await self.child.read_line())
                self.acked, self.failed, self.produced = said["acked"], said["failed"], said["produced"]
                self._complete = said.get("done", False)
        finally:
            self.done.set()
