"""Prints at the end of a run how long each test file took, so that slow files are seen at once."""

from collections import defaultdict
from collections.abc import Iterable, Mapping

import pytest

SHOWN_FROM_S = 1.0


def seconds_by_file(reports: Iterable[pytest.TestReport]) -> dict[str, float]:
    """What setup, call and teardown of each file's tests took, the longest first."""
    seconds: dict[str, float] = defaultdict(float)
    for report in reports:
        seconds[report.nodeid.partition("::")[0]] += report.duration
    return dict(sorted(seconds.items(), key=lambda item: -item[1]))


def table(seconds: Mapping[str, float]) -> list[str]:
    """One line a file; those that take next to nothing are one line together."""
    lines = [f"{took:8.1f} s  {file}" for file, took in seconds.items() if took >= SHOWN_FROM_S]
    rest = [took for took in seconds.values() if took < SHOWN_FROM_S]
    if rest:
        lines.append(f"{sum(rest):8.1f} s  {len(rest)} files below {SHOWN_FROM_S:g} s each")
    lines.append(f"{sum(seconds.values()):8.1f} s  all of them, one after the other")
    return lines


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """With `--durations`, as `make test` has it, each file's time."""
    if config.getoption("durations") is None:
        return
    reports = [
        report
        for outcome in ("passed", "failed", "skipped", "error", "")
        for report in terminalreporter.stats.get(outcome, ())
        if isinstance(report, pytest.TestReport)
    ]
    if reports:
        terminalreporter.section("time of each test file")
        for line in table(seconds_by_file(reports)):
            terminalreporter.write_line(line)
