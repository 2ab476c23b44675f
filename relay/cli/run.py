"""`relay run`: production, on Kafka and Redis from the settings."""

import os
from functools import partial
from pathlib import Path

import click

from relay.cli.config import config_option, settings_from
from relay.cli.process import run_loop, run_until_signalled
from relay.composition import answer_secret, kafka_log, redis_state
from relay.config.settings import Settings
from relay.domain.errors import UserError
from relay.engine.clock import SystemClock
from relay.plan import ROLES, Plan
from relay.process import Relay
from relay.telemetry.logging import configure, get_logger

STOP_MARGIN_S = 15.0
"""On top of the grace for what is in flight: leaving the groups, closing connections."""


def names(text: str | None, allowed: tuple[str, ...] | None, what: str) -> frozenset[str] | None:
    """A comma-separated list of names; None where it was not given. Raises UserError for one that is not allowed."""
    if text is None:
        return None
    found = frozenset(part.strip() for part in text.split(",") if part.strip())
    for name in sorted(found):
        if allowed is not None and name not in allowed:
            raise UserError(f"{what}: {name!r} is none of {', '.join(allowed)}")
    return found


@click.command()
@config_option
@click.option("--roles", help=f"Comma-separated, of: {', '.join(ROLES)}. Default: all.")
@click.option("--receivers-only", help="Comma-separated: serve only these receivers.")
@click.option("--processes", type=click.IntRange(1), default=1, show_default=True, help="How many processes.")
def run(config_file: Path | None, roles: str | None, receivers_only: str | None, processes: int) -> None:
    """Run workers and API on Kafka and Redis, until SIGTERM or SIGINT."""
    settings = settings_from(config_file)
    wanted = names(roles, ROLES, "--roles") or frozenset(ROLES)
    plan = Plan(wanted, names(receivers_only, None, "--receivers-only"), answer_secret=answer_secret(settings))
    if processes > 1:
        from relay.cli.processes import run_processes

        configure(settings.log_format, settings.log_level)
        run_loop(run_processes(processes, plan, config_file))
    else:
        run_production(settings, plan)


def run_production(settings: Settings, plan: Plan) -> None:
    """Run one process until it is told to stop."""
    configure(settings.log_format, settings.log_level)
    run_loop(_run(settings, plan))


async def _run(settings: Settings, plan: Plan) -> None:
    relay = Relay(settings, kafka_log(settings), redis_state(settings), plan, os.environ, SystemClock())
    log = get_logger("relay.process")

    def started() -> None:
        log.info("started", roles=sorted(plan.roles), api=relay.api_url, receivers=sorted(relay.registry.receivers()))

    grace_s = settings.shutdown_grace + STOP_MARGIN_S
    await run_until_signalled(partial(relay.run, started=started), grace_s=grace_s, hangup=relay.hangup.set)
    log.info("stopped")
