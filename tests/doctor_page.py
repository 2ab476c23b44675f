"""The table of docs/doctor.md: each check, what it finds, and the other places that report the same problem."""

import re
from collections.abc import Mapping
from typing import Final, NamedTuple

from tests.documents import ROOT

_HEAD: Final = "| check | looks at | finds | what to do | also reported |"

NO_CHECK: Final[Mapping[str, str]] = {
    "start": "on /readyz while the process connects",
    "receivers": "on /readyz while the process reads the receivers",
    "stopping": "on /readyz while the process ends",
    "process": "on /readyz, another process of the same `relay run`",
    "RelayTargetDown": "about one process, while the doctor looks at the whole relay",
    "RelayProcessSilent": "about one process, while the doctor looks at the whole relay",
    "RelayApiFails": "about requests of the last minutes; the metric names their route",
    "RelayBug": "about an event, which no later look can find",
    "RelayLogTruncated": "about an event, which no later look can find",
    "RelayReceiverHot": "about what was sent in the last minute; the metric and the log name the receiver",
    "RelayHeadOfLine": "about one message; the overview and the log name it",
}
"""Names on /readyz and alerts that belong to no check, and why."""


class Row(NamedTuple):
    """`severities`: with a meaning each. `at_start`: what a start does about an error; empty if it does not make the
    check. `ready`: names on /readyz. `alerts`: each links to its runbook."""

    name: str
    looks_at: str
    severities: frozenset[str]
    todo: str
    at_start: str
    ready: frozenset[str]
    alerts: tuple[str, ...]


def _row(line: str) -> Row:
    name, looks_at, finds, todo, also = (cell.strip() for cell in line.strip("|").split(" | "))
    meanings = dict(part.split(": ", 1) for part in re.split(r"; (?=warning: )", finds))
    assert meanings.keys() <= {"error", "warning"}, f"{name}: `error: ...; warning: ...`"
    assert all(meanings.values())
    start = re.findall(r"\bstart (fails|waits|logs)\b", also)
    ready, alerts = re.findall(r"`([\w-]+)` on `/readyz`", also), re.findall(r"\[(\w+)\]\(runbooks/\1\.md\)", also)
    known = len(start) + len(ready) + len(alerts)
    assert known == len(also.split(", ") if also else []), f"{name}: the last column names other places than these"
    return Row(name.strip("`"), looks_at, frozenset(meanings), todo, "".join(start), frozenset(ready), tuple(alerts))


def rows() -> list[Row]:
    """The rows in their order."""
    lines = (ROOT / "docs" / "doctor.md").read_text().splitlines()
    return [_row(line) for line in lines[lines.index(_HEAD) + 2 :]]
