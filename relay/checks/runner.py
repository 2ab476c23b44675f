"""Runs the checks concurrently: each has its own time limit, and a failure affects only itself."""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from typing import Final, Literal, NamedTuple

from pydantic import SecretStr

from relay.checks import endpoints, entries, host, log, public_url, state
from relay.checks.context import CheckContext
from relay.checks.registry import NAMES
from relay.config.settings import Settings
from relay.domain.diagnosis import URGENCY, Checked, Diagnosis, error, skipped, warning
from relay.domain.errors import RelayError, StateRecovering
from relay.domain.secrecy import redacted, secret_spans
from relay.telemetry.logging import get_logger
from relay.telemetry.redaction import escape_control

LONGEST_S: Final = 20.0
_TEXT: Final = 600
_BUG: Final = "this is a bug of the relay: please report it"

Part = Literal["log", "state"]
_log = get_logger("relay.doctor")


class CheckProbe(NamedTuple):
    """`names`: the checks that it may report on; a failure of the probe itself is reported for the first. `needs`:
    without these it is skipped, which is no failure of its own."""

    names: tuple[str, ...]
    look: Callable[[CheckContext], Awaitable[Sequence[Checked]]]
    limit_s: float = 8.0
    needs: tuple[Part, ...] = ()


LOOKS: Final = (
    CheckProbe(("settings",), host.look_at_settings),
    CheckProbe(("software",), host.look_at_software),
    CheckProbe(("descriptors",), host.look_at_descriptors),
    CheckProbe(("data",), host.look_at_data),
    CheckProbe(("api-key",), host.look_at_key, 15.0),
    CheckProbe(("public-url",), public_url.look_at_public_url, 15.0),
    CheckProbe(("answer-urls",), host.look_at_answer_urls, 15.0),
    CheckProbe(("log",), log.look_at_log, 10.0),
    CheckProbe(("rights",), log.look_at_rights, 12.0, ("log",)),
    CheckProbe(("topics",), log.look_at_topics, 15.0, ("log",)),
    CheckProbe(("lag",), log.look_at_lag, 15.0, ("log",)),
    CheckProbe(("state",), state.look_at_state),
    CheckProbe(("recovery",), state.look_at_recovery, needs=("state",)),
    CheckProbe(("clock",), state.look_at_clock, needs=("state",)),
    CheckProbe(("clock",), log.look_at_clock, 12.0, ("log",)),
    CheckProbe(("lanes",), state.look_at_lanes, 15.0, ("state",)),
    CheckProbe(("parked",), state.look_at_parked, 15.0, ("state",)),
    CheckProbe(("dead-letters",), state.look_at_letters, needs=("state",)),
    CheckProbe(("entries",), entries.look_at_entries, 15.0),
    CheckProbe(endpoints.CHECKS, endpoints.look_at_endpoints, 18.0),
    CheckProbe(("history",), entries.look_at_history),
)
OF_A_RECEIVER: Final = frozenset(
    {"log", "topics", "lag", "state", "lanes", "parked", "dead-letters", "entries", *endpoints.CHECKS}
)
"""The probes for a single receiver."""


async def examine(case: CheckContext, *, within_s: float = LONGEST_S, looks: Sequence[CheckProbe] = LOOKS) -> Diagnosis:
    """All results within this time, and a note for each check without one. Never raises because of a finding."""
    begun = case.clock.wall()
    if case.receiver is not None:
        looks = [look for look in looks if OF_A_RECEIVER.intersection(look.names)]
    async with asyncio.TaskGroup() as tasks:
        made = [(look, tasks.create_task(_made(case, look, within_s))) for look in looks]
    outcomes = [(look, task.result()) for look, task in made]
    gone = {look.names[0] for look, outcome in outcomes if isinstance(outcome, _Failed)}
    checks = dict.fromkeys(checked for look, outcome in outcomes for checked in _said(look, outcome, gone))
    secrets = await _secrets(case)
    shown = [_shown(each, secrets) for each in checks]
    return Diagnosis(begun, sorted(shown, key=lambda each: (NAMES.index(each.name), URGENCY.index(each.severity))))


class _Failed(NamedTuple):
    """The probe could not be run."""

    why: Checked


async def _made(case: CheckContext, look: CheckProbe, within_s: float) -> Sequence[Checked] | _Failed:
    name, limit_s = look.names[0], min(look.limit_s, within_s)
    try:
        async with asyncio.timeout(limit_s):
            return await look.look(case)
    except TimeoutError:
        return _Failed(error(name, f"no answer within {limit_s:g} s", _TODO.get(name)))
    except StateRecovering as recovering:
        return [warning(name, str(recovering), "wait until it ends; see `recovery`")]
    except RelayError as failure:
        return _Failed(error(name, str(failure), _TODO.get(name)))
    except Exception as bug:  # noqa: BLE001  a check that crashes is that check's failure only
        _log.error("check_failed", check=name, error=f"{type(bug).__name__}: {bug}", exc_info=bug)
        return _Failed(error(name, f"the check itself has failed: {type(bug).__name__}: {bug}", _BUG))


_TODO: Final = {
    "log": "start Kafka, or correct RELAY_KAFKA_BOOTSTRAP_SERVERS and RELAY_KAFKA_SECURITY_PROTOCOL",
    "state": "start Redis, or correct RELAY_REDIS_URL",
    "history": "start the store of the history, or correct RELAY_HISTORY_URL",
}


def _said(look: CheckProbe, outcome: Sequence[Checked] | _Failed, gone: Collection[str]) -> Sequence[Checked]:
    if not isinstance(outcome, _Failed):
        return outcome
    missing = [part for part in look.needs if part in gone]
    if missing and outcome.why.todo != _BUG:
        return [skipped(look.names[0], f"the {' and the '.join(missing)} cannot be reached")]
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
                spans = [text[start:end] for start, end in secret_spans(text)] if "://" in text else [text]
                yield from (part for span in spans for part in (span, span.rpartition(":")[2]))


def _shown(checked: Checked, secrets: Sequence[str]) -> Checked:
    def safe(text: str) -> str:
        return escape_control(" ".join(redacted(text, secrets).split()))[:_TEXT]

    todo = None if checked.todo is None else safe(checked.todo)
    subject = None if checked.subject is None else safe(checked.subject)
    return Checked(checked.name, checked.severity, safe(checked.what), todo, subject)
