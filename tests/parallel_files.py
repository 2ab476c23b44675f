"""Runs several test files at a time (`--processes N`), in processes that are forked once all tests are collected.

Each process of xdist collects all tests for itself, and sends several messages for each.
"""

import sys
from collections.abc import Iterator, Sequence
from ctypes import c_int
from itertools import chain, groupby, pairwise
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.sharedctypes import Synchronized
from types import SimpleNamespace
from typing import Any, cast

import pytest
from _pytest._io import TerminalWriter
from _pytest.capture import CaptureManager

_FORK = get_context("fork")

Files = Sequence[Sequence[pytest.Item]]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--processes", type=int, default=0, metavar="N", help="run N test files at a time")


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool | None:
    option = session.config.option
    if not option.processes or option.collectonly or session.testsfailed:
        return None
    files = [list(tests) for _, tests in groupby(session.items, lambda test: test.nodeid.partition("::")[0])]
    taken = _FORK.Value(c_int, 0)
    workers = dict(_worker(session, files, taken) for _ in range(min(option.processes, len(files))))
    for report in _reports(session.config, workers):
        session.config.hook.pytest_runtest_logreport(report=report)
        if report.when == "teardown":  # shows the progress
            session.config.hook.pytest_runtest_logfinish(nodeid=report.nodeid, location=report.location)
        if session.shouldfail:
            taken.value = len(files)
    if session.shouldfail:
        raise session.Failed(session.shouldfail)
    return True


def _worker(session: pytest.Session, files: Files, taken: "Synchronized[int]") -> tuple[Connection, Any]:
    """What it sends, and its process."""
    receive, send = _FORK.Pipe(duplex=False)
    process = _FORK.Process(target=_run, args=(session, files, taken, send))
    process.start()
    send.close()  # it is open in that process only, so that its end is noticed
    return receive, process


def _reports(config: pytest.Config, workers: dict[Connection, Any]) -> Iterator[pytest.TestReport]:
    """All reports of all workers, until they have ended."""
    running = dict.fromkeys(workers, "")
    while running:
        for ready in cast(list[Connection], wait(list(running))):
            try:
                received = ready.recv()
            except EOFError:
                test, process = running.pop(ready), workers[ready]
                process.join()
                if process.exitcode:
                    why = f"its process ended with {process.exitcode}, so the rest of its file was not run"
                    where = (test.partition("::")[0], None, test)
                    yield pytest.TestReport(test, where, {}, "failed", why, "call")
            else:
                if isinstance(received, str):
                    running[ready] = received
                else:
                    yield config.hook.pytest_report_from_serializable(config=config, data=received)


def _run(session: pytest.Session, files: Files, taken: "Synchronized[int]", send: Connection) -> None:
    """In a worker: run files until all are taken."""
    plugins = session.config.pluginmanager
    capture = cast(CaptureManager, plugins.get_plugin("capturemanager"))
    capture.stop_global_capturing()
    capture.start_global_capturing()  # into files of its own
    plugins.unregister(name="terminalreporter")
    plugins.register(SimpleNamespace(_tw=TerminalWriter(sys.stderr)), "terminalreporter")  # of pytest-timeout
    plugins.register(_Sending(session.config, send))
    try:
        for test, following in pairwise(chain(_tests(files, taken), (None,))):
            session.config.hook.pytest_runtest_protocol(item=test, nextitem=following)
            if session.shouldfail:
                break
    except KeyboardInterrupt:
        pass
    finally:
        session._setupstate.teardown_exact(None)
        capture.stop_global_capturing()


def _tests(files: Files, taken: "Synchronized[int]") -> Iterator[pytest.Item]:
    while True:
        with taken.get_lock():
            number = taken.value
            taken.value = number + 1
        if number >= len(files):
            return
        yield from files[number]


class _Sending:
    """Sends the name of each test that begins, and its reports."""

    def __init__(self, config: pytest.Config, send: Connection) -> None:
        self._config = config
        self._send = send

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._send.send(nodeid)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._send.send(self._config.hook.pytest_report_to_serializable(config=self._config, report=report))
