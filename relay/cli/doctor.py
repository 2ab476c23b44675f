"""`relay doctor`: looks at settings, Kafka, Redis and receivers from this machine, and says what to do."""

import asyncio
import os
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import click

from relay.cli.config import api_option, config_option, settings_from
from relay.cli.paths import DIRECTORY
from relay.cli.startup import roles_of
from relay.cli.table import output_option, print_json
from relay.config.settings import CONFIG_FILE, sources_of
from relay.domain.diagnosis import Checked, Diagnosis, Severity, skipped
from relay.domain.errors import UserError
from relay.plan import ROLES

_MARKS: Final[Mapping[Severity, tuple[str, str]]] = {
    "ok": ("ok", "green"),
    "warning": ("warning", "yellow"),
    "error": ("error", "red"),
    "skipped": ("skipped", "cyan"),
}
_TIMEOUT: Final = click.FloatRange(0, 600, min_open=True)


@click.command()
@click.option("--receiver", metavar="NAME", help="Only what is about this receiver.")
@click.option("--roles", help=f"Of the `relay run` that is meant; comma-separated, of: {', '.join(ROLES)}. Default: all.")
@click.option("--timeout", "within_s", type=_TIMEOUT, default=20.0, show_default=True, help="Seconds for all of it.")
@click.option("--data-dir", type=DIRECTORY, help="Of `relay dev`, if that is meant.")
@api_option
@config_option
@output_option
def doctor(
    receiver: str | None,
    roles: str | None,
    within_s: float,
    data_dir: Path | None,
    api: str | None,
    config_file: Path | None,
    output: str,
) -> None:
    """Look at everything that the relay depends on, and say of each thing whether it is right, or what to do.

    Looks from this machine, with its settings, whether or not a relay runs; with --api, a running relay looks for
    itself. Exits with 0 where all is right, or there are only warnings; with 1 where there is an error.
    """
    wanted = roles_of(roles)
    try:
        settings = settings_from(config_file)
    except UserError as wrong:
        _tell(_of_mistakes(wrong), output)
        return
    ...
