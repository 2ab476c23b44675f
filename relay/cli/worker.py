"""`relay worker`: one worker, for deployments that scale each separately."""

import os
from pathlib import Path

import click

from relay.cli.local_history import with_local_history
from relay.cli.options import config_option, settings_from
from relay.cli.run import run_production
from relay.cli.startup import check_history
from relay.config.answer_urls import answer_secrets
from relay.config.plan import API, ROLES, ProcessPlan
from relay.domain.errors import UserError


@click.command()
@click.argument("role", type=click.Choice([role for role in ROLES if role != API]))
@click.option("--receiver", "receivers", multiple=True, help="Serve only this receiver; repeatable.")
@config_option
def worker(role: str, receivers: tuple[str, ...], config_file: Path | None) -> None:
    """Run one worker on Kafka and Redis, until SIGTERM or SIGINT.

    `to-receiver` and `from-receiver-async` serve all receivers, or those that --receiver names.
    """
    if receivers and role not in ("to-receiver", "from-receiver-async"):
        raise UserError(f"--receiver: {role} does not work per receiver")
    settings = settings_from(config_file)
    check_history(with_local_history(settings, os.environ), role)
    only = frozenset(receivers) if receivers else None
    run_production(settings, ProcessPlan(frozenset({role}), only, answer_secrets=answer_secrets(settings)))
