"""The command: what to run, and where the report goes."""

import asyncio
import signal
import sys
import tempfile
from collections.abc import Coroutine
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Literal, get_args

import click

from bench.campaign import PHASES, QUICK, Plan, run_case
from bench.cases import BASE, CASES, Case
from bench.ceiling import calibrate
from bench.children import ChildFailed
from bench.machine import machine, revision
from bench.markdown import headroom
from bench.relay_process import History
from bench.report import write
from bench.results import Report
from bench.rig import ROOT, Options, Via
from relay.cli.options import FiniteRange, WholeRange
from relay.domain.errors import UserError

RESULTS: Final = ROOT / "bench" / "results"
CALIBRATION_S: Final = 2.0
_LEAST_RATE: Final = 0.1
_path = click.Path(file_okay=False, path_type=Path)


def _phases(context: click.Context, parameter: click.Parameter, value: str) -> tuple[str, ...]:
    found = tuple(part.strip() for part in value.split(",") if part.strip())
    wrong = [phase for phase in found if phase not in PHASES]
    if wrong or not found:
        raise click.BadParameter(f"comma-separated, of: {', '.join(PHASES)}")
    return found


def _rates(context: click.Context, parameter: click.Parameter, value: str | None) -> tuple[float, ...]:
    try:
        found = tuple(float(part) for part in (value or "").split(",") if part.strip())
    except ValueError as error:
        raise click.BadParameter("comma-separated numbers") from error
    if value is not None and (not found or min(found) < _LEAST_RATE):
        raise click.BadParameter(f"comma-separated, of at least {_LEAST_RATE}")
    return found


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--case", "name", type=click.Choice([*CASES, "all"]), default=BASE.name, show_default=True, help="What to measure."
)
@click.option("--receivers", type=WholeRange(1), help="Other than the case has; in the base each has its own lane.")
@click.option("--quick", is_flag=True, help="Short windows: about a minute a case, and rough figures.")
@click.option(
    "--phases", callback=_phases, default=",".join(PHASES), show_default=True, help="Parts of a case, comma-separated."
)
@click.option("--rates", "--rate", callback=_rates, help="Only runs at these messages a second, such as 100,400,800.")
@click.option("--seconds", type=FiniteRange(1), help="How long a rate has to hold. Default: 60, quick: 5.")
@click.option("--against", type=click.Choice(["plain"]), help="Also measure a plain pipeline, and report the ratios.")
@click.option("--turns", type=WholeRange(1), default=1, show_default=True, help="How often all rates are run.")
@click.option("--foreign-load", type=WholeRange(0), default=0, help="Cores to keep busy beside it.")
@click.option("--changes", type=WholeRange(0), default=0, help="Receivers to add and remove while a rate is held.")
@click.option(
    "--history",
    type=click.Choice(get_args(History)),
    default="log",
    show_default=True,
    help="Whether the relay records each request on delivery_attempts, and a process beside it stores that.",
)
@click.option("--backlog", type=WholeRange(1), help="Messages to drain or hold. Default: 100,000, quick: 3,000.")
@click.option("--drain", type=WholeRange(1), help="Only drain, a backlog of so many messages.")
@click.option("--out", type=_path, default=RESULTS, help="Directory of the report. Default: bench/results.")
@click.option("--processes", type=WholeRange(1), help="Of the relay. Default: as many as `relay run` has.")
@click.option(
    "--receiver-processes", type=WholeRange(1), default=1, show_default=True, help="Of the receiver of all POSTs."
)
@click.option(
    "--via",
    type=click.Choice(["kafka", "http", "http-batch"]),
    help="How messages are sent. Default: kafka.",
)
@click.option("--embedded", is_flag=True, help="Measure the embedded engine, `relay dev`, over the HTTP API.")
@click.option("--kafka", metavar="HOST:PORT", help="A broker that runs. Default: one is started.")
@click.option("--redis", metavar="URL", help="A Redis that runs. Default: one is started.")
@click.option("--profile", type=_path, help="Run the relay under cProfile, and leave the profiles here.")
@click.option("--relay-path", type=_path, default=ROOT, hidden=True)
def bench(
    name: str,
    receivers: int | None,
    quick: bool,
    phases: tuple[str, ...],
    rates: tuple[float, ...],
    seconds: float | None,
    against: Literal["plain"] | None,
    turns: int,
    foreign_load: int,
    changes: int,
    history: History,
    backlog: int | None,
    drain: int | None,
    out: Path,
    processes: int | None,
    receiver_processes: int,
    via: Via | None,
    embedded: bool,
    kafka: str | None,
    redis: str | None,
    profile: Path | None,
    relay_path: Path,
) -> None:
    """Measure the relay: throughput, latency, CPU per message, and that no message is lost, doubled or out of order.

    Starts Kafka, Redis, the relay, a load generator and a receiver, all real, on this machine, and ends them.
    """
    if not sys.platform.startswith("linux"):
        raise UserError("relay bench reads /proc, so it needs Linux")
    if embedded and (via == "kafka" or kafka or redis):
        raise click.UsageError("--embedded has neither Kafka nor Redis: leave out --via kafka, --kafka and --redis")
    if against and (not rates or embedded or via not in (None, "kafka")):
        raise click.UsageError("--against runs at --rates, and takes messages from Kafka: without --embedded and --via")
    if history == "full" and embedded:
        raise click.UsageError("--history full has a process of its own beside the relay: without --embedded")
    options = Options(
        processes=1 if embedded else processes,
        receiver_processes=receiver_processes,
        via=via or ("http" if embedded else "kafka"),
        embedded=embedded,
        kafka=kafka,
        redis=redis,
        code=relay_path.absolute(),
        profile=profile,
        against=against,
        foreign_load=foreign_load,
        changes=changes,
        history=history,
    )
    plan = _plan(QUICK if quick else Plan(), phases, rates, turns, seconds, drain, backlog)
    cases = list(CASES.values()) if name == "all" else [CASES[name]]
    if receivers is not None:
        if any(case.hold for case in cases):
            raise click.UsageError("--receivers: a case that holds requests has as many as one process can have")
        cases = [case.with_receivers(receivers) for case in cases]
    try:
        asyncio.run(_until_signalled(_run(cases, options, plan, out)))
    except ChildFailed as error:
        raise click.ClickException(str(error)) from error
    except asyncio.CancelledError as error:
        raise click.Abort from error


def _plan(
    plan: Plan,
    phases: tuple[str, ...],
    rates: tuple[float, ...],
    turns: int,
    seconds: float | None,
    drain: int | None,
    backlog: int | None,
) -> Plan:
    if drain:
        phases = ("drain",)
    elif rates:
        phases = ()
    return replace(
        plan,
        phases=phases,
        rates=rates,
        turns=turns,
        confirm_s=seconds or plan.confirm_s,
        backlog=drain or backlog or plan.backlog,
    )


async def _until_signalled(work: Coroutine[Any, Any, None]) -> None:
    """Do `work`; SIGINT or SIGTERM cancels it, once: what it has started is ended in peace."""
    loop, task = asyncio.get_running_loop(), asyncio.ensure_future(work)

    def on_signal() -> None:
        click.echo("ending what was started", err=True)
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)
            signal.signal(number, signal.SIG_IGN)
        task.cancel()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, on_signal)
    await task


async def _run(cases: list[Case], options: Options, plan: Plan, out: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="bench-") as directory:
        calibration = await calibrate(Path(directory), CALIBRATION_S)
    report = Report(
        at=datetime.now(UTC).isoformat(timespec="seconds"),
        revision=revision(options.code),
        machine=machine(),
        calibration=calibration,
        options=options.as_json(),
        plan=asdict(plan),
        cases=[],
    )
    click.echo(f"a core runs {calibration.loops / 1e6:.1f} M loops/s", nl=False)
    click.echo(f", the receiver takes {calibration.receiver_rate:,.0f} requests/s")
    for case in cases:
        report.cases.append(await run_case(case, options, plan, click.echo))
        files = write(report, out)  # after each case: a long run that is broken off keeps what it has
    if any(case.best for case in report.cases):
        click.echo(f"the receiver takes {headroom(report)}")
    click.echo(f"report: {', '.join(str(file) for file in files)}")
