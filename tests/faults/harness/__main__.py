"""`python -m tests.faults.harness`: runs the experiments, and reports the outcome of every message."""

import argparse
import asyncio
import logging
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from bench.machine import machine
from tests.faults.harness.experiments import EXPERIMENTS
from tests.faults.harness.report import Outcome, as_json, markdown
from tests.faults.harness.trial import Context, Experiment, run_experiment


def main() -> int:
    """Exit code 0: all passed; 1: a failure; 2: a mistake in the arguments."""
    arguments = _arguments()
    chosen = [EXPERIMENTS[name] for name in arguments.only or EXPERIMENTS]
    context = Context(arguments.scale, arguments.seed, arguments.out.absolute(), _say, arguments.patience)
    context.out.mkdir(parents=True, exist_ok=True)
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)  # the experiments stop brokers, so its errors are expected
    found: list[Outcome] = []
    try:
        with asyncio.Runner() as runner:
            runner.run(_run(chosen, context, found))
    except (KeyboardInterrupt, asyncio.CancelledError):
        _say("interrupted: what follows is what there was until then")
    sys.stdout.write(markdown(found))
    return 0 if len(found) == len(chosen) and all(outcome.passed for outcome in found) else 1


async def _run(chosen: Sequence[Experiment], context: Context, found: list[Outcome]) -> None:
    task = asyncio.current_task()
    assert task is not None, "this is a coroutine"
    for number in (signal.SIGINT, signal.SIGTERM):  # the parent may have ignored interrupts
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    for experiment in chosen:
        outcome = await run_experiment(experiment, context)
        found.append(outcome)
        _write(context, found)  # after each experiment, because all take hours


def _write(context: Context, found: Sequence[Outcome]) -> None:
    about = {"scale": context.scale, "seed": context.seed, "machine": asdict(machine())}
    (context.out / "report.json").write_bytes(as_json(found, about))
    (context.out / "report.md").write_text(markdown(found))


def _say(line: str) -> None:
    sys.stdout.write(f"{time.strftime('%H:%M:%S')} {line}\n")
    sys.stdout.flush()


def _names(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    if unknown := [name for name in names if name not in EXPERIMENTS]:
        raise argparse.ArgumentTypeError(f"{unknown[0]!r} is none of {', '.join(EXPERIMENTS)}")
    return names


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        "python -m tests.faults.harness", description="Faults on a relay with real servers."
    )
    parser.add_argument("--scale", type=float, default=1.0, help="of the number of trials; at least one is made")
    parser.add_argument("--patience", type=float, default=1.0, help="more than 1 where the machine is busy")
    parser.add_argument("--only", type=_names, help=f"comma-separated, of: {', '.join(EXPERIMENTS)}")
    parser.add_argument("--seed", type=int, default=1, help="the same seed makes the same faults at the same moments")
    parser.add_argument(
        "--out", type=Path, default=Path("faults-out"), help="directory of the report, and of what failed"
    )
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
