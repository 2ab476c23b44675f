"""Child processes of a run: each with a log file of its own, and none of them outlives the run."""

import asyncio
import contextlib
import os
import signal
import sys
from collections import deque
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Final

_STOP_S: Final = 60.0
_LOG_TAIL: Final = 25

# Runs between us and the command: asks the kernel to signal the child when this process dies, however it does. Code of
# our own between fork and exec is not safe in a process with threads; this is.
_LAUNCHER: Final = """
import os, sys
if sys.platform == "linux":
    import ctypes
    PR_SET_PDEATHSIG = 1
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(sys.argv[2]))
if os.getppid() != int(sys.argv[1]):
    sys.exit("the parent is gone")
os.execvp(sys.argv[3], sys.argv[3:])
"""


_ROOT: Final = Path(__file__).parents[1]


def own_environ() -> dict[str, str]:
    """For processes that run modules of the benchmark, wherever they are started."""
    return dict(os.environ) | {"PYTHONPATH": str(_ROOT)}


class ChildFailed(Exception):
    """A child ended, or did not come up; says which, and how its log ends."""


@dataclass(eq=False)
class Child:
    """One child process. `orphaned`: the signal it gets when this process dies without stopping it.

    Its stdin and stdout are ours when `piped`; stderr, and else stdout as well, go to `<name>.log`.
    """

    name: str
    command: list[str]
    directory: Path
    _: KW_ONLY
    environ: Mapping[str, str] | None = None
    piped: bool = False
    orphaned: signal.Signals = signal.SIGKILL
    _process: asyncio.subprocess.Process | None = None

    def __post_init__(self) -> None:
        self.log_file = self.directory / f"{self.name}.log"

    @property
    def pid(self) -> int:
        return self._running().pid

    @property
    def ended(self) -> bool:
        return self._process is None or self._process.returncode is not None

    async def start(self) -> None:
        launcher = [sys.executable, "-I", "-S", "-c", _LAUNCHER, str(os.getpid()), str(int(self.orphaned))]
        with self.log_file.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *launcher,
                *self.command,
                cwd=self.directory,
                env=self.environ,
                stdin=asyncio.subprocess.PIPE if self.piped else asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE if self.piped else log,
                stderr=log,
                start_new_session=True,  # a Ctrl-C in the terminal is ours alone: we end the children in our order
            )

    async def read_line(self) -> bytes:
        """The next line of a piped child's stdout. Raises ChildFailed when it has ended."""
        stdout = self._running().stdout
        line = await stdout.readline() if stdout is not None else b""
        if not line:
            raise self.failed("ended")
        return line

    async def write_line(self, line: bytes) -> None:
        """To a piped child's stdin."""
        stdin = self._running().stdin
        if stdin is None:
            raise RuntimeError(f"{self.name} is not piped")
        stdin.write(line + b"\n")
        await stdin.drain()

    def lines_with(self, text: str) -> int:
        """How many lines of its log contain `text`."""
        with self.log_file.open(errors="replace") as log:
            return sum(text in line for line in log)

    async def until_logged(self, text: str, count: int, within_s: float, *, unless: str | None = None) -> None:
        """Wait until `text` is in `count` lines of its log. Raises ChildFailed when it ends first or takes longer, or
        one with `unless` comes."""
        try:
            async with asyncio.timeout(within_s):
                while self.lines_with(text) < count:
                    if self.ended:
                        raise self.failed("ended")
                    if unless is not None and self.lines_with(unless):
                        raise self.failed("failed")
                    await asyncio.sleep(0.05)
        except TimeoutError as error:
            raise self.failed(f"did not log {text!r} within {within_s:g} s") from error

    def failed(self, what: str) -> ChildFailed:
        """The error that says so, with the end of the log."""
        with self.log_file.open(errors="replace") as log:
            tail = "".join(deque(log, _LOG_TAIL))
        return ChildFailed(f"{self.name} {what}; its log ends:\n{tail}")

    async def wait(self) -> int:
        """Its exit code, once it has ended."""
        return await self._running().wait()

    async def stop(self, number: signal.Signals = signal.SIGTERM) -> None:
        """End it and the rest of its session; processes that do not end in time are killed. Can be repeated."""
        process, self._process = self._process, None
        if process is None:
            return
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(number)
            try:
                await asyncio.wait_for(process.wait(), _STOP_S)
            except TimeoutError:
                process.kill()
                await process.wait()
        for pid in _session(process.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _running(self) -> asyncio.subprocess.Process:
        if self._process is None:
            raise RuntimeError(f"{self.name} is not running")
        return self._process


def _session(leader: int) -> set[int]:
    """Processes of the session that `leader` led: its number cannot be taken by others while one of them is left."""
    found = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if os.getsid(int(entry.name)) == leader:
                    found.add(int(entry.name))
    return found
