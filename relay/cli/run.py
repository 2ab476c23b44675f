"""`relay run` and `relay worker`: production, on Kafka and Redis from the settings."""

import os
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

import click
from structlog.contextvars import bind_contextvars

from relay import __version__
from relay.api.peers import GroupProcess
from relay.cli.history import hosts_of_stores, with_local_history
from relay.cli.options import WholeRange, config_option, settings_from
from relay.cli.startup import check_api, check_history, names, roles_of
from relay.clock import SystemClock
from relay.config.own_address import answer_secrets, is_loopback
from relay.config.plan import API, ROLES, ProcessPlan
from relay.config.settings import Settings
from relay.domain.errors import UserError
from relay.run.autoscale import ScaleLimits
from relay.run.composition import kafka_log, redis_state
from relay.run.event_loop import run_loop, run_until_signalled
from relay.run.history_part import lower_priority
from relay.run.process import RelayProcess
from relay.run.processes import (
    CPU_TIMES,
    available_cores,
    command,
    group_directory,
    group_size,
    members_of,
    plan_of,
    start_group,
)
from relay.run.supervisor import Spec
from relay.telemetry.logging import configure, get_logger

GATHER_BYTES = 262_144
"""Bytes per fetch from a broker, for the history."""
STOP_MARGIN_S = 15.0
"""Beyond the grace period for requests in flight: leaving the groups, closing connections."""
SUPERVISOR_MARGIN_S = 10.0
"""Beyond the time that each process may take to stop, before the supervisor kills it."""

SCALE_LIMITS: Final = ScaleLimits()


@click.command()
@config_option
@click.option("--roles", help=f"Roles to run, comma-separated: {', '.join(ROLES)}. Default: all.")
@click.option("--receivers-only", help="Serve only these receivers, comma-separated.")
@click.option(
    "--processes",
    type=WholeRange(1),
    help="Number of processes. Default: one; up to one per core while a backlog waits for CPU time.",
)
@click.option(
    "--member", type=(int, int, click.Path(path_type=Path)), hidden=True, help="Index of this process among them."
)
def run(
    config_file: Path | None,
    roles: str | None,
    receivers_only: str | None,
    processes: int | None,
    member: tuple[int, int, Path] | None,
) -> None:
    """Run workers and API on Kafka and Redis, until SIGTERM or SIGINT."""
    settings = settings_from(config_file)
    wanted = roles_of(roles)
    check_api(settings, wanted)
    if member is None:
        check_history(with_local_history(settings, os.environ), roles)
    plan = ProcessPlan(wanted, names(receivers_only, None, "--receivers-only"), answer_secrets=answer_secrets(settings))
    cores = available_cores()
    count = group_size(processes or max(1, cores - cores_of_stores(settings)), plan, settings.api_port)
    if member is not None:
        index, count, _ = member
        run_production(settings, replace(plan, index=index, count=count), GroupProcess(*member))
    elif processes == 1 or cores == 1:
        run_production(settings, plan)
    else:
        _run_group(settings, plan, config_file, count, by_demand=processes is None and CPU_TIMES.exists())


def run_production(settings: Settings, plan: ProcessPlan, member: GroupProcess | None = None) -> None:
    """Run one process until a signal stops it. `member`: which one, of several that a parent has started."""
    settings = with_local_history(settings, os.environ)
    configure(settings.log_format, settings.log_level)
    if plan.is_history_alone:
        lower_priority()
    if member is not None:
        bind_contextvars(process=member.index)  # they all write to the same output
    run_loop(partial(_run, settings, plan, member))


def _run_group(settings: Settings, plan: ProcessPlan, config_file: Path | None, count: int, *, by_demand: bool) -> None:
    """`by_demand`: begin with one, and add and remove others by the load."""
    directory = group_directory()
    members = members_of(count, directory)
    plans = [replace(plan_of(index, plan, settings.api_port), index=index, count=count) for index in range(count)]
    spec = Spec(
        str(directory),
        [command(*each, config_file) for each in zip(members, plans, strict=True)],
        started=[],
        limits=SCALE_LIMITS if by_demand and count > 1 else None,
        grace_s=settings.shutdown_grace + STOP_MARGIN_S + SUPERVISOR_MARGIN_S,
        log_format=settings.log_format,
        log_level=settings.log_level,
    )
    member = start_group(spec, members[:1] if by_demand else members)
    run_production(settings, plans[member.index], member)


def _log_missing_file(settings: Settings, member: GroupProcess | None) -> None:
    """The file may be created later; but if it was named, its absence is more likely a mistake."""
    path = settings.receivers_file
    if "receivers_file" in settings.model_fields_set and not path.exists() and (member is None or not member.index):
        get_logger("relay.process").warning("receivers_file_missing", path=str(path), setting="RELAY_RECEIVERS_FILE")


async def _run(settings: Settings, plan: ProcessPlan, member: GroupProcess | None) -> None:
    log = kafka_log(settings, gather_bytes=GATHER_BYTES if plan.is_history_alone else 1)
    state = redis_state(settings)
    _log_missing_file(settings, member)
    relay = RelayProcess(settings, log, state, plan, os.environ, SystemClock(), member, exit_when_stuck=True)
    events = get_logger("relay.process")

    def started() -> None:
        known = relay.registry
        events.info(
            "started",
            version=__version__,
            pid=os.getpid(),
            brokers=settings.kafka_bootstrap_servers,
            roles=sorted(plan.roles),
            api=relay.api_url,
            listens=relay.addresses,
            receivers=sorted(known.receivers()),
            shared=len(known.shared),
        )

    await run_until_signalled(
        partial(relay.run, started=started),
        grace_s=settings.shutdown_grace + STOP_MARGIN_S,
        hangup=relay.hangup.set,
        lifeline=0 if member else None,  # standard input, see `detach`
    )
    events.info("stopped")


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


def cores_of_stores(settings: Settings) -> int:
    """Cores to leave to the stores that run on this machine: one for Kafka, one for Redis."""
    brokers, redis = hosts_of_stores(settings)
    return any(map(is_loopback, brokers)) + (not redis or any(map(is_loopback, redis)))
