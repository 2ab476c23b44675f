"""A process of the relay under test: starts, kills and freezes it, and starts it again when it has ended on its own."""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from bench.children import Child

_START_S: Final = 60.0
_LOOK_S: Final = 0.05
_BACKOFF_S: Final = 0.3


class Member:
    """One member of the deployment, across restarts. `arguments`: of the `relay` command. `wanted`: it should run, so
    it is started again when it ends. `extra`: settings of its next start only, such as a failpoint or a planted bug
    (with the harness's own entry).
    """

    def __init__(
        self,
        name: str,
        arguments: tuple[str, ...],
        directory: Path,
        environ: Mapping[str, str],
        told: Callable[[str], None],
    ) -> None:
        self.name = name
        self.wanted = False
        self.extra: dict[str, str] = {}
        self.always: dict[str, str] = {}
        """Settings of all of its starts."""
        self.starts = 0
        self.ends = 0
        """How often it ended without a request."""
        self._arguments = arguments
        self._directory = directory
        self._environ = environ
        self._told = told
        self._child: Child | None = None
        self._frozen = False

    @property
    def running(self) -> bool:
        return self._child is not None and not self._child.ended

    @property
    def pid(self) -> int:
        if self._child is None:
            raise RuntimeError(f"{self.name} was not started")
        return self._child.pid

    @property
    def log_file(self) -> Path:
        """Of the latest start."""
        return self._directory / f"{self.name}.{self.starts}.log"

    async def start(self) -> None:
        """Start it without waiting; see `started`."""
        self.starts += 1
        self.wanted = True
        extra, self.extra = self.always | self.extra, {}
        entry = "tests.faults.harness.entry" if extra else "relay"
        child = Child(
            f"{self.name}.{self.starts}",
            [sys.executable, "-m", entry, *self._arguments],
            self._directory,
            environ={**self._environ, **extra},
        )
        await child.start()
        self._child = child  # only now, because a child that has not begun looks like one that has ended

    async def started(self) -> None:
        """Wait until it logs `started`. Raises ChildFailed if it ends first."""
        if self._child is not None:
            await self._child.until_logged('"started"', 1, _START_S)

    async def kill(self) -> None:
        """kill -9, without a restart."""
        self.wanted = False
        await self._end(signal.SIGKILL)

    async def terminate(self) -> None:
        """SIGTERM, and wait for its end."""
        self.wanted = False
        await self._end(signal.SIGTERM)

    def freeze(self) -> None:
        if self.running:
            os.kill(self.pid, signal.SIGSTOP)
            self._frozen = True

    def thaw(self) -> None:
        if self.running:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGCONT)
        self._frozen = False

    @property
    def stopped_itself(self) -> bool:
        """Whether a failpoint has frozen it: it is in state T, and not by `freeze`."""
        if not self.running or self._frozen:
            return False
        with contextlib.suppress(OSError):
            return Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
        return False

    async def keep(self) -> None:
        """Forever: start it again whenever it has ended while it is wanted, as an operator would."""
        while True:
            await asyncio.sleep(_LOOK_S)
            ended = self._child
            if self.wanted and ended is not None and ended.ended:
                self.ends += 1
                self._told(f"{self.name} ended with {await ended.wait()}")
                await asyncio.sleep(_BACKOFF_S)
                if self._child is ended:  # it was not started again meanwhile
                    await self.start()

    async def _end(self, number: signal.Signals) -> None:
        child, self._child = self._child, None
        if child is None:
            return
        if not child.ended:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child.pid, signal.SIGCONT if number is signal.SIGTERM else number)
        await child.stop(number)
        self._frozen = False
