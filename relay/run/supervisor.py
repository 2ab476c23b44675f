"""The supervisor of the processes of one `relay run`: restarts them, starts further ones, and passes signals on.

`relay run` becomes it with `exec`, once it has forked the first processes (`relay.run.processes`), and keeps its
process id and its children. It imports next to nothing, so that it takes a tenth of the memory of a process that has
imported the relay. Hence no asyncio, and log lines of its own.
"""

import json
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final, NamedTuple

from relay.config.process_count import begin
from relay.run.autoscale import Load, LoadSample, ScaleLimits, decide, first

CHECK_EVERY_S: Final = 1.0
FIRST_PAUSE_S: Final = 1.0
LONGEST_PAUSE_S: Final = 30.0
USAGE: Final = 2
LIFELINE: Final = 0
"""A child's standard input. It writes its load there, and notices the end of the supervisor."""
_READ_BYTES: Final = 65_536
_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_LEVELS: Final = ("debug", "info", "warning", "error", "critical")


class Spec(NamedTuple):
    """What the supervisor has to know. `commands`: of each process, to start it again. `started`: of those that already
    run, the process id and our end of its lifeline, a descriptor. `limits`: of changes of their number, None if it is
    fixed. `grace_s`: how long they may take to stop."""

    directory: str
    commands: list[list[str]]
    started: list[tuple[int, int]]
    limits: ScaleLimits | None
    grace_s: float
    log_format: str
    log_level: str


def next_pause(pause_s: float, ran_s: float) -> float:
    """Seconds until a process that ran for `ran_s` is restarted; `pause_s`: the previous pause, 0 for the first."""
    if pause_s == 0 or ran_s >= LONGEST_PAUSE_S:
        return FIRST_PAUSE_S
    return min(pause_s * 2, LONGEST_PAUSE_S)


def cpu_seconds(pid: int, root: str = "/proc") -> float | None:
    """CPU seconds of process `pid` since it started; None if it has ended, or the system does not say."""
    try:
        with open(f"{root}/{pid}/stat") as file:
            # The second field, the command's name in parentheses, may have blanks.
            fields = file.read().rpartition(")")[2].split()
    except OSError:
        return None
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class LineLog:
    """Writes events to standard error, in the form that `relay.telemetry.logging` gives them, without colours."""

    def __init__(self, form: str, level: str) -> None:
        self._console = form == "console" or (form == "auto" and os.isatty(2))
        self._least = _LEVELS.index(level)

    def info(self, event: str, **fields: object) -> None:
        self._write("info", event, fields)

    def warning(self, event: str, **fields: object) -> None:
        self._write("warning", event, fields)

    def _write(self, level: str, event: str, fields: dict[str, object]) -> None:
        if _LEVELS.index(level) < self._least:
            return
        at, logger = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ"), "relay.processes"
        line = json.dumps({"timestamp": at, "level": level, "event": event, "logger": logger, **fields})
        if self._console:
            shown = " ".join(f"{name}={value}" for name, value in fields.items())
            line = f"{at} [{level:<9}] {event:<24} [{logger}] {shown}"
        try:
            os.write(2, f"{line}\n".encode())
        except OSError:  # a log that cannot be written (full disk, closed pipe) stops no work
            return


class Child:
    """One of the processes, across restarts. Times are monotonic seconds."""

    def __init__(self, index: int, command: list[str], directory: str) -> None:
        self.index = index
        self.may_refuse = False
        """Whether its refusal to start ends all: the others would fail alike."""
        self.start_at: float | None = None
        """When to start it; None while it runs, and if it is not to run."""
        self.kill_at: float | None = None
        """When it is killed, because it has been asked to stop; None while it is to run."""
        self.load: Load | None = None
        """Its last report."""
        self.pid: int | None = None
        self._command = command
        self._socket = os.path.join(directory, f"{index}.sock")
        self._lifeline = -1
        self._began = self._pause_s = 0.0
        self._lives = 0

    def adopt(self, pid: int, lifeline: int, now: float) -> None:
        """Takes over a child that was started as `pid`."""
        os.set_inheritable(lifeline, False)  # others that hold it would keep the process alive when we have ended
        self.pid, self._lifeline, self._began = pid, lifeline, now
        self.start_at, self._lives, self.load = None, self._lives + 1, None
        os.set_blocking(lifeline, False)

    def start(self, now: float) -> None:
        """Raises OSError if there is no memory or no process available: temporary, and the others go on."""
        self.remove_socket()
        ours, theirs = socket.socketpair()
        with theirs:
            signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)  # our handlers would take them in the new process, too
            try:
                pid = os.fork()
            except OSError:
                signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
                ours.close()
                raise
            if pid == 0:
                try:
                    for number in _SIGNALS:
                        signal.signal(number, signal.SIG_DFL)
                    detach(theirs.detach())
                    os.execv(self._command[0], self._command)  # noqa: S606  no shell is wanted
                finally:
                    os._exit(os.EX_OSERR)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
        self.adopt(pid, ours.detach(), now)

    def has_ended(self) -> int | None:
        """The exit code, the first time that it is known."""
        if self.pid is None:
            return None
        pid, status = os.waitpid(self.pid, os.WNOHANG)
        if pid == 0:
            return None
        os.close(self._lifeline)
        self.pid = None
        return os.waitstatus_to_exitcode(status)

    def restart_later(self, now: float) -> float:
        """Returns the pause in seconds."""
        self._pause_s = next_pause(self._pause_s, now - self._began)
        self.start_at = now + self._pause_s
        return self._pause_s

    def refused(self, code: int) -> bool:
        """Whether it exited at once because of a mistake in the settings, which it has printed. Later an operator may
        be editing the file; that must not end the running processes."""
        return code == USAGE and self._lives == 1 and self.may_refuse

    def stop(self, kill_at: float) -> None:
        """Ask it to stop, or not to start again."""
        self.start_at, self.kill_at = None, kill_at
        self.signal(signal.SIGTERM)

    def read_report(self) -> None:
        """Read the reports that the process has written since the last call."""
        if self.pid is None:
            return
        try:
            lines = os.read(self._lifeline, _READ_BYTES).splitlines()
        except OSError:  # no report since the last one, or it is ending
            return
        if lines:
            self.load = Load.of_line(lines[-1])

    def signal(self, number: int) -> None:
        """A process without a socket would die of SIGHUP, and reads everything at its start anyway."""
        if self.pid is not None and (number != signal.SIGHUP or os.path.exists(self._socket)):
            os.kill(self.pid, number)

    def cpu_s(self) -> float:
        """CPU seconds of the process since it started; 0 if it does not run."""
        return 0.0 if self.pid is None else cpu_seconds(self.pid) or 0.0

    def remove_socket(self) -> None:
        if os.path.exists(self._socket):
            os.unlink(self._socket)


def detach(lifeline: int) -> None:
    """Detach this process, just forked, from the terminal, and make `lifeline` its standard input.

    Ctrl-C is for the supervisor, which passes it on once. The supervisor writes nothing to a lifeline; when it closes,
    the process knows that the supervisor has ended.
    """
    os.setsid()
    if lifeline != 0:
        os.dup2(lifeline, 0)
        os.close(lifeline)
    os.set_inheritable(0, True)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)


def block_signals() -> None:
    """Signals arrive once there are handlers: see `ProcessSupervisor.run`, and `detach` for a child."""
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # ignored, which is inherited, exit codes would be lost


class ProcessSupervisor:
    """Runs until all processes have ended after a signal, or after one of the first refused to start."""

    def __init__(self, spec: Spec) -> None:
        now = time.monotonic()
        self._spec = spec
        self._log = LineLog(spec.log_format, spec.log_level)
        self._children = [Child(index, command, spec.directory) for index, command in enumerate(spec.commands)]
        for child, (pid, lifeline) in zip(self._children, spec.started, strict=False):
            child.adopt(pid, lifeline, now)
            child.may_refuse = True
        self._count = len(spec.started)
        self._demand = None if spec.limits is None else first(now, spec.limits)
        self._check_at = now + CHECK_EVERY_S
        self._received: list[int] = []
        self._kill_at: float | None = None
        """When those that still run are killed; None until they are asked to stop."""
        self._code = 0

    def run(self) -> int:
        """Returns the exit code: USAGE if the processes refused to start, else 0."""
        woken = self._wake_up_on_signals()
        self._log.info("processes_start", count=self._count)
        while self._kill_at is None or self._running():
            self._turn(time.monotonic())
            if self._kill_at is None or self._running():
                self._wait(woken)
        self._log.info("processes_stopped")
        return self._code

    def _wake_up_on_signals(self) -> int:
        """A descriptor that can be read after a signal."""
        woken, waking = socket.socketpair()
        woken.setblocking(False)
        waking.setblocking(False)
        signal.set_wakeup_fd(waking.detach(), warn_on_full_buffer=False)
        for number in (*_SIGNALS, signal.SIGCHLD):
            signal.signal(number, lambda number, _frame: self._received.append(number))
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
        return woken.detach()

    def _wait(self, woken: int) -> None:
        """Until a signal, or until something is due."""
        due = [each.start_at for each in self._children if each.start_at is not None and self._kill_at is None]
        due += [at for at in (self._kill_at, *(each.kill_at for each in self._children)) if at is not None]
        due += [self._check_at] if self._demand is not None else []
        timeout_s = max(0.0, min(due) - time.monotonic()) if due else None
        if select.select([woken], [], [], timeout_s)[0]:
            os.read(woken, 4096)

    def _turn(self, now: float) -> None:
        received, self._received = self._received, []
        for number in received:
            if number == signal.SIGHUP:
                self._signal_all(number)
            elif number != signal.SIGCHLD:
                self._stop(now)
        self._check_children(now)
        if self._kill_at is not None and now >= self._kill_at:
            self._signal_all(signal.SIGKILL)
            self._kill_at = now + LONGEST_PAUSE_S
        if self._kill_at is None:
            self._scale(now)

    def _stop(self, now: float) -> None:
        """A second request kills those that still run: that is safe by design, as unfinished work is read again."""
        if self._kill_at is not None:
            self._kill_at = now
            return
        self._kill_at = now + self._spec.grace_s
        self._signal_all(signal.SIGTERM)

    def _check_children(self, now: float) -> None:
        for child in self._children:
            code = child.has_ended()
            if code is not None and self._kill_at is None:
                self._on_ended(child, code, now)
            if child.kill_at is not None and now >= child.kill_at:
                child.signal(signal.SIGKILL)
                child.kill_at = now + LONGEST_PAUSE_S
            if child.start_at is not None and now >= child.start_at and self._kill_at is None:
                self._start(child, now)

    def _on_ended(self, child: Child, code: int, now: float) -> None:
        if child.kill_at is not None:
            self._on_dismissed(child, now)
        elif child.refused(code):
            self._code = USAGE
            self._stop(now)
        else:
            again_in_s = child.restart_later(now)
            self._log.warning("process_ended", process=child.index, code=code, again_in_s=again_in_s)

    def _on_dismissed(self, child: Child, now: float) -> None:
        """Handles a child that ended on request; it may be needed again by now."""
        child.remove_socket()
        child.kill_at = None
        child.start_at = now if child.index < self._count else None

    def _start(self, child: Child, now: float) -> None:
        try:
            child.start(now)
        except OSError as error:
            self._log.warning("process_not_started", process=child.index, error=str(error))
            child.restart_later(now)

    def _scale(self, now: float) -> None:
        if self._demand is None or self._spec.limits is None or now < self._check_at:
            return
        self._check_at = now + CHECK_EVERY_S
        for child in self._children:
            child.read_report()
        cpu_s, loads = sum(child.cpu_s() for child in self._children), [each.load for each in self._children]
        sample = LoadSample(now, cpu_s, loads[: self._count])
        self._demand = decide(self._demand, sample, len(self._children), self._spec.limits)
        if self._demand.processes > self._count:
            self._add(now)
        elif self._demand.processes < self._count:
            self._dismiss(now)

    def _add(self, now: float) -> None:
        child, self._count = self._children[self._count], self._count + 1
        self._log.info("processes_start", count=self._count)
        self._record_count()
        if child.kill_at is None:  # otherwise it is started again as soon as it has ended
            self._start(child, now)

    def _dismiss(self, now: float) -> None:
        """Stop the last one. It gives its lanes to the others, and finishes the requests in flight."""
        self._count -= 1
        child = self._children[self._count]
        self._log.info("process_dismissed", process=child.index, count=self._count)
        self._record_count()  # first: a process that is no longer listed does not report its stop
        child.stop(now + self._spec.grace_s)
        if child.pid is None:
            self._on_dismissed(child, now)

    def _record_count(self) -> None:
        try:
            begin(self._spec.directory, self._count)
        except OSError as error:  # a full disk, or a cleaner of temporary files: only the sums over all are wrong
            self._log.warning("process_count_not_recorded", count=self._count, error=str(error))

    def _running(self) -> bool:
        return any(child.pid is not None for child in self._children)

    def _signal_all(self, number: int) -> None:
        for child in self._children:
            child.signal(number)


def remove(directory: str) -> None:
    """Remove the group's directory with its files."""
    try:
        for entry in os.scandir(directory):
            os.unlink(entry.path)
        os.rmdir(directory)
    except OSError:  # a process that still runs has made or removed a file
        return


def main(arguments: Sequence[str]) -> int:
    spec = Spec(**json.loads(arguments[0]))
    spec = spec._replace(limits=None if spec.limits is None else ScaleLimits(*spec.limits))
    try:
        return ProcessSupervisor(spec).run()
    finally:
        remove(spec.directory)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
