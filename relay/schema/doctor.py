"""Results of the doctor's checks."""

from typing import TypedDict

from relay.domain.diagnosis import Severity


class CheckView(TypedDict):
    """The result of a check. `name`: of the check; `subject`: a receiver or topic, for example; `what`: the finding;
    `todo`: how to fix it. `severity`: `error` if messages are lost, late or refused now, `warning` if they may be,
    `skipped` if it could not be checked."""

    name: str
    subject: str | None
    ok: bool
    severity: Severity
    what: str
    todo: str | None


class DoctorView(TypedDict):
    """The result of all checks. `ok`: no check found an error. `at`: time of the checks (RFC 3339)."""

    ok: bool
    at: str | None
    checks: list[CheckView]
