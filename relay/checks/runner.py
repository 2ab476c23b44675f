"""Runs the checks concurrently: each has its own time limit, and a failure affects only itself."""

import asyncio
from collections.abc import Collection, Iterator, Sequence
from typing import Final, NamedTuple

from pydantic import SecretStr

from relay.checks import api, entries, host, log, state, topics
from relay.checks.context import CheckContext, Probe
from relay.config.settings import Settings
from relay.domain.diagnosis import URGENCY, Checked, Diagnosis, error, skipped, warning
from relay.domain.errors import RelayError, StateRecovering
from relay.domain.secrecy import redacted, secret_spans
from relay.telemetry.logging import get_logger
from relay.telemetry.redaction import escape_control

LONGEST_S: Final = 20.0
_TEXT: Final = 600
_COMMAND: Final = "relay"
"""A user or password of this name is shown: commands without the word would be useless, and would reveal it."""
_BUG: Final = "this is a bug of the relay: please report it"

_log = get_logger("relay.doctor")


PROBES: Final = tuple(
    each
    for module in (host, api, log, topics, state, entries)
    for each in vars(module).values()
    if isinstance(each, Probe)
)
"""All probes, in the order of the report."""
CHECKS: Final = tuple(dict.fromkeys(name for probe in PROBES for name in (probe.check.name, *probe.check.also)))


async def examine(case: CheckContext, *, within_s: float = LONGEST_S, probes: Sequence[Probe] = PROBES) -> Diagnosis:
    """All results within this time, and a note for each check without one. Never raises because of a finding."""
    begun = case.clock.wall()
    if case.receiver is not None:
        probes = [probe for probe in probes if probe.check.per_receiver]
    async with asyncio.TaskGroup() as tasks:
        made = [(probe, tasks.create_task(_run(case, probe, within_s))) for probe in probes]
    outcomes = [(probe, task.result()) for probe, task in made]
    gone = {probe.check.name for probe, outcome in outcomes if _is_broken(outcome)}
    checks = dict.fromkeys(checked for probe, outcome in outcomes for checked in _reported(probe, outcome, gone))
    secrets = await _secrets(case)
    shown = [_redacted(each, secrets) for each in checks]
    return Diagnosis(begun, sorted(shown, key=lambda each: (CHECKS.index(each.name), URGENCY.index(each.severity))))


class _Failed(NamedTuple):
    """The probe could not be run."""

    why: Checked


async def _run(case: CheckContext, probe: Probe, within_s: float) -> Sequence[Checked] | _Failed:
    check = probe.check
    name, limit_s = check.name, min(check.limit_s, within_s)
    try:
        async with asyncio.timeout(limit_s):
            return await probe.look(case)
    except TimeoutError:
        return _Failed(error(name, f"no answer within {limit_s:g} s", check.if_away))
    except StateRecovering as recovering:
        return [warning(name, str(recovering), "wait until it ends; see `recovery`")]
    except RelayError as failure:
        what, _, remedy = str(failure).partition("; see ")  # of a login that is rejected, for one
        return _Failed(error(name, what, f"see {remedy}" if remedy else check.if_away))
    except Exception as bug:  # noqa: BLE001  a check that crashes is that check's failure only
        _log.error("check_failed", check=name, error=f"{type(bug).__name__}: {bug}", exc_info=bug)
        return _Failed(error(name, f"the check itself has failed: {type(bug).__name__}: {bug}", _BUG))


def _is_broken(outcome: Sequence[Checked] | _Failed) -> bool:
    """Whether it is why others fail that need the same."""
    return isinstance(outcome, _Failed) or any(each.severity == "error" for each in outcome)


def _reported(probe: Probe, outcome: Sequence[Checked] | _Failed, gone: Collection[str]) -> Sequence[Checked]:
    if not isinstance(outcome, _Failed):
        return outcome
    missing = [part for part in probe.check.needs if part in gone]
    if missing and outcome.why.todo != _BUG:
        return [skipped(probe.check.name, f"the {' and the '.join(missing)} cannot be used")]
    return [outcome.why]


# --- output ------------------------------------------------------------------------------------------------


async def _secrets(case: CheckContext) -> list[str]:
    """All secrets, which no line may show."""
    found = list(_in_settings(case.settings))
    if case.known.is_open:
        there = await case.known()
        callbacks = [source.callback for source in there.sources.values() if source.callback is not None]
        for endpoint in (*(receiver.post for receiver in there.receivers.values()), *callbacks):
            found += endpoint.secrets
    return found


def _in_settings(settings: Settings) -> Iterator[str]:
    for _, value in settings:
        for each in value if isinstance(value, tuple) else (value,):
            if isinstance(each, SecretStr):
                text = each.get_secret_value()
                if text.startswith("sqlite:"):  # the path of a file
                    continue
                spans = [text[start:end] for start, end in secret_spans(text)] if "://" in text else [text]
                yield from (part for span in spans for part in (span, span.rpartition(":")[2]) if part != _COMMAND)


def _redacted(checked: Checked, secrets: Sequence[str]) -> Checked:
    def safe(text: str) -> str:
        return escape_control(" ".join(redacted(text, secrets).split()))[:_TEXT]

    todo = None if checked.todo is None else safe(checked.todo)
    subject = None if checked.subject is None else safe(checked.subject)
    return Checked(checked.name, checked.severity, safe(checked.what), todo, subject)
