"""`relay doctor`: checks settings, Kafka, Redis and receivers from this machine, and says what to do."""

import asyncio
import os
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

import click

from relay.cli.api import ApiOptions, with_api
from relay.cli.options import DIRECTORY, FiniteRange, config_option, options, output_option
from relay.cli.startup import roles_of, unmakeable
from relay.config.limits import raise_descriptor_limit
from relay.config.plan import ROLES
from relay.config.settings import Settings
from relay.domain.diagnosis import Diagnosis, Severity
from relay.domain.errors import UserError
from relay.embedded.directory import is_taken, running_api_url, usual_directory
from relay.schema.operation import CheckView, DoctorView
from relay.telemetry.redaction import escape_control

_COLOURS: Final[Mapping[Severity, str]] = {"ok": "green", "warning": "yellow", "error": "red", "skipped": "cyan"}
_TIMEOUT: Final = FiniteRange(0, 600, min_open=True)
_WIDTH: Final = 13
_ELSEWHERE: Final = (
    "note: no servers are set, and no `relay dev` runs on the usual data directory of this folder; one with another"
    " data directory is checked with --data-dir DIRECTORY, any relay with --api URL"
)


@click.command()
@click.option("--receiver", metavar="NAME", help="Check only this receiver.")
@click.option("--roles", help=f"Roles of the `relay run` to check, comma-separated: {', '.join(ROLES)}. Default: all.")
@click.option(
    "--timeout", "within_s", type=_TIMEOUT, default=20.0, show_default=True, help="Maximum seconds for all checks."
)
@click.option("--data-dir", type=DIRECTORY, help="Data directory of the `relay dev` to check.")
@click.option("--api", help="URL of the API of a relay that checks itself. RELAY_API_URL does not count.")
@options(config_option, output_option)
@with_api
def doctor(call: ApiOptions, receiver: str | None, roles: str | None, within_s: float, data_dir: Path | None) -> None:
    """Check the relay and all its dependencies, and say for each what to do.

    Checks from this machine with its settings, whether or not a relay runs. With --api, or if `relay dev` runs here,
    that relay checks itself. Exit code 0 if there are only warnings, 1 if there is an error.
    """
    wanted = roles_of(roles)
    try:
        settings = call.settings
    except UserError as wrong:
        _report(call, _of_mistakes(wrong))
        return
    directory = data_dir or _embedded(settings)
    if call.api is None and directory is not None and is_taken(directory):
        call = replace(call, api=running_api_url(directory))
    if call.api is not None:
        _report(call, call.run(lambda client: client.doctor(receiver=receiver), timeout_s=within_s + 5))
        return
    found = _view(asyncio.run(_looked(settings, wanted, directory, receiver, within_s)))
    if directory is None and not found["ok"] and not _names_servers(settings):
        click.echo(_ELSEWHERE, err=True)
    _report(call, found)


def _embedded(settings: Settings) -> Path | None:
    """The default directory of `relay dev`, if one runs and no servers are configured."""
    directory = usual_directory(os.environ, settings.receivers_file)
    return directory if not _names_servers(settings) and is_taken(directory) else None


def _names_servers(settings: Settings) -> bool:
    return bool({"kafka_bootstrap_servers", "redis_url"} & settings.model_fields_set)


async def _looked(
    settings: Settings, roles: frozenset[str], directory: Path | None, receiver: str | None, within_s: float
) -> Diagnosis:
    from relay.checks.runner import examine
    from relay.clock import SystemClock
    from relay.embedded.relay import local
    from relay.run.check_contexts import context_of_command, context_of_directory  # their imports take time

    raise_descriptor_limit()  # as a process does at its start
    if directory is not None:
        context = context_of_directory(local(settings), directory, os.environ, SystemClock(), receiver)
    else:
        mistakes = await unmakeable(settings, roles)
        context = context_of_command(settings, os.environ, roles, SystemClock(), receiver, mistakes=mistakes)
    try:
        return await examine(context, within_s=within_s)
    finally:
        await context.close()


def _of_mistakes(wrong: UserError) -> DoctorView:
    """The finding for settings that cannot be read: nothing else can be checked."""
    from relay.checks.host import unusable  # its imports take time

    return _view(Diagnosis(time.time(), unusable(str(wrong).splitlines())))


def _view(found: Diagnosis) -> DoctorView:
    """The checks in the API's form."""
    from relay.api.health import view_of  # its imports take time

    return view_of(found)


# --- output ------------------------------------------------------------------------------------------------------


def _report(call: ApiOptions, found: DoctorView) -> None:
    call.show(found, _print_all)
    if not found["ok"]:
        sys.exit(1)


def _print_all(found: DoctorView) -> None:
    for checked in found["checks"]:
        _print(checked)
    click.echo(_summary(found["checks"]))


def _print(checked: CheckView) -> None:
    severity = checked["severity"]
    mark = click.style(f"{severity:<8}", fg=_COLOURS.get(severity))
    about = "" if checked["subject"] is None else f"{checked['subject']}: "
    click.echo(f"{mark} {checked['name']:<{_WIDTH}} {escape_control(about + checked['what'])}")
    if checked["todo"] is not None:
        click.echo(f"{'':<{_WIDTH + 10}}-> {escape_control(checked['todo'])}")


def _summary(checks: Sequence[CheckView]) -> str:
    counts: dict[str, int] = {severity: sum(each["severity"] == severity for each in checks) for severity in _COLOURS}
    nouns = [f"{counts[word]} {word}{'' if counts[word] == 1 else 's'}" for word in ("error", "warning")]
    return ", ".join([*nouns, f"{counts['skipped']} skipped", f"{counts['ok']} ok"])
