"""Several processes of one `relay run` on one machine: their number, and their restart when one ends unexpectedly."""

import asyncio
import os
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final

from relay.api.peers import GroupProcess, begin
from relay.clock import set_within
from relay.config.plan import API, ProcessPlan
from relay.config.session_secrets import keep_launch_secret
from relay.domain.errors import UserError
from relay.run.event_loop import run_until_signalled
from relay.telemetry.logging import get_logger

BUSY_CORES: Final = 0.85
"""CPU use per process beyond which messages wait for the process."""
BUSY_S: Final = 3.0
"""How long they must be that busy. A shorter burst does not justify another process."""
SETTLE_S: Final = 8.0
"""After a start, the new process is busy starting, and the others are busy handing over partitions."""
LOOK_EVERY_S: Final = 1.0
CPU_TIMES: Final = Path("/proc/self/stat")
"""Without this file the CPU use is unknown: then one process per core is started at once."""
FIRST_PAUSE_S: Final = 1.0
LONGEST_PAUSE_S: Final = 30.0
USAGE: Final = 2
STOP_MARGIN_S: Final = 10.0
"""Added to the time that each process may take to stop, before it is killed."""
SOCKET_PATH_BYTES: Final = 100
"""The system allows 103 to 107."""

_log = get_logger("relay.processes")


class Autoscale:
    """How many processes the load needs if `relay run` is given no number: one, until that one is busy.

    On a small machine one process is better than one per core as long as it can keep up: it batches requests to Kafka
    and Redis that two would make apart (docs/performance.md). A process is never removed: the sums of `/metrics` would
    fall. `most`: the largest number of processes; `now` in seconds.
    """

    def __init__(self, most: int, now: float) -> None:
        self._most = most
        self._last: tuple[float, float] | None = None
        self._busy_s = 0.0
        self._settled_at = now + SETTLE_S
        self.count = 1

    @property
    def complete(self) -> bool:
        """Whether the largest number is running."""
        return self.count >= self._most

    def look(self, now: float, cpu_s: float) -> int:
        """How many there should be. `cpu_s`: CPU seconds of all running processes since they started."""
        last, self._last = self._last, (now, cpu_s)
        if self.complete or last is None or now < self._settled_at or now <= last[0]:
            return self.count
        elapsed = now - last[0]
        busy = (cpu_s - last[1]) / elapsed >= BUSY_CORES * self.count
        self._busy_s = self._busy_s + elapsed if busy else 0.0
        if self._busy_s >= BUSY_S:
            self.count, self._busy_s, self._settled_at = self.count + 1, 0.0, now + SETTLE_S
        return self.count


def cpu_seconds(pid: int, root: Path = Path("/proc")) -> float | None:
    """CPU seconds of process `pid` since it started; None if it has ended, or the system does not say."""
    try:
        # The second field, the command's name in parentheses, may have blanks.
        fields = (root / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def group_size(wanted: int, plan: ProcessPlan, api_port: int) -> int:
    """How many of `wanted` processes have something to do. A free port serves only the first: no client can guess
    others."""
    return 1 if api_port == 0 and plan.roles == {API} else wanted


def plan_of(index: int, plan: ProcessPlan, api_port: int) -> ProcessPlan:
    """All serve the API on the same port, if it is fixed."""
    return plan if index == 0 or api_port != 0 else replace(plan, roles=plan.roles - {API})


def next_pause(pause_s: float, ran_s: float) -> float:
    """Seconds until a process that ran for `ran_s` is restarted; `pause_s`: the previous pause, 0 for the first."""
    if pause_s == 0 or ran_s >= LONGEST_PAUSE_S:
        return FIRST_PAUSE_S
    return min(pause_s * 2, LONGEST_PAUSE_S)


async def run_processes(
    count: int, plan: ProcessPlan, config_file: Path | None, *, by_demand: bool, api_port: int, grace_s: float
) -> int:
    """Run `count` processes until a signal. Returns the exit code: USAGE if they refused to start, else 0.

    `by_demand`: begin with one, and start another whenever the running ones are busy. `grace_s`: what each of them may
    take to stop.
    """
    with _private_directory() as directory:
        keep_launch_secret(directory)
        members = [GroupProcess(index, count, directory) for index in range(count)]
        children = [
            Child(member, command(member, plan_of(member.index, plan, api_port), config_file)) for member in members
        ]

        async def work(stop: asyncio.Event) -> None:
            async with asyncio.TaskGroup() as tasks:
                running = 0
                async for wanted in _wanted(children, stop) if by_demand else _at_once(count):
                    begin(directory, wanted)
                    for child in children[running:wanted]:
                        tasks.create_task(child.keep_running(stop, may_refuse=running == 0))
                    running = wanted
                    _log.info("processes_start", count=running)

        def hangup() -> None:
            for child in children:
                child.hangup()

        await run_until_signalled(work, grace_s=grace_s + STOP_MARGIN_S, hangup=hangup)
        _log.info("processes_stopped")
    return USAGE if any(child.refused for child in children) else 0


def command(member: GroupProcess, plan: ProcessPlan, config_file: Path | None) -> list[str]:
    """The command line of one of the processes; it inherits settings from the environment."""
    place = ["--member", str(member.index), str(member.count), str(member.directory)]
    found = [sys.executable, "-m", "relay", "run", *place, "--roles", ",".join(sorted(plan.roles))]
    if plan.receivers is not None:
        found += ["--receivers-only", ",".join(sorted(plan.receivers))]
    return found + (["--config", str(config_file)] if config_file else [])


@contextmanager
def _private_directory() -> Iterator[Path]:
    """For sockets: no other user may read it. Raises UserError."""
    try:
        with tempfile.TemporaryDirectory(prefix="relay-", ignore_cleanup_errors=True) as name:
            if len(name.encode()) + len("/999.sock") > SOCKET_PATH_BYTES:
                raise UserError(f"{name} is too long a path for sockets; set TMPDIR to a shorter one")
            yield Path(name)
    except FileNotFoundError as error:
        raise UserError(
            "several processes need a temporary directory; set TMPDIR, or run with --processes 1"
        ) from error


async def _at_once(count: int) -> AsyncIterator[int]:
    yield count


async def _wanted(children: Sequence["Child"], stop: asyncio.Event) -> AsyncIterator[int]:
    """The number of processes to run: at first one, then each larger number, until `stop` or until all run."""
    clock = asyncio.get_running_loop().time
    demand = Autoscale(len(children), clock())
    yield demand.count
    while not (demand.complete or stop.is_set()):
        await set_within(stop, LOOK_EVERY_S)
        before = demand.count
        if demand.look(clock(), sum(child.cpu_s() for child in children)) > before:
            yield demand.count


class Child:
    """One of the processes, across restarts."""

    def __init__(self, member: GroupProcess, command: Sequence[str]) -> None:
        self._member = member
        self._command = command
        self._process: asyncio.subprocess.Process | None = None
        self.refused = False
        """It exited at once because of a mistake in the settings, which it has printed."""

    async def keep_running(self, stop: asyncio.Event, *, may_refuse: bool) -> None:
        """Until `stop`. `may_refuse`: set `stop` if it refuses to start, as the others would fail alike."""
        clock, pause_s, lives = asyncio.get_running_loop().time, 0.0, 0
        while not stop.is_set():
            began, lives = clock(), lives + 1
            code = await self._live(stop)
            if stop.is_set():
                return
            # Later an operator may be editing the file; that must not end the running processes.
            if code == USAGE and lives == 1 and may_refuse:
                self.refused = True
                stop.set()
                return
            pause_s = next_pause(pause_s, clock() - began)
            _log.warning("process_ended", process=self._member.index, code=code, again_in_s=pause_s)
            await set_within(stop, pause_s)

    @property
    def _running(self) -> asyncio.subprocess.Process | None:
        return self._process if self._process is not None and self._process.returncode is None else None

    def cpu_s(self) -> float:
        """CPU seconds of the process since it started; 0 if it does not run."""
        running = self._running
        return 0.0 if running is None else cpu_seconds(running.pid) or 0.0

    def hangup(self) -> None:
        """Pass SIGHUP on. A process without a socket would die of it, and reads everything at its start anyway."""
        if (running := self._running) is not None and self._member.socket.exists():
            running.send_signal(signal.SIGHUP)

    async def _live(self, stop: asyncio.Event) -> int:
        self._member.socket.unlink(missing_ok=True)
        # A session of its own: Ctrl-C in the terminal is for the parent, which passes it on once. The pipe is never
        # written to; when it closes, the child knows that the parent has ended.
        try:
            self._process = process = await asyncio.create_subprocess_exec(
                *self._command, stdin=asyncio.subprocess.PIPE, start_new_session=True
            )
        except OSError as error:  # no memory or no process available: temporary, and the others go on
            _log.warning("process_not_started", process=self._member.index, error=str(error))
            return os.EX_OSERR
        return await _until_exit(process, stop)


async def _until_exit(process: asyncio.subprocess.Process, stop: asyncio.Event) -> int:
    """The exit code; when `stop` is set first, the process is asked to end, too. Cancelled, it is killed."""
    ending = asyncio.ensure_future(process.wait())
    stopping = asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait((ending, stopping), return_when=asyncio.FIRST_COMPLETED)
        if not ending.done():
            process.terminate()
        return await ending
    finally:
        stopping.cancel()
        if process.returncode is None:
            process.kill()
            await process.wait()
