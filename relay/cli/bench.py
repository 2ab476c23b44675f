"""`relay bench`: the benchmark, which comes with a checkout only."""

import importlib
import sys

import click

from relay.domain.errors import UserError


@click.command(add_help_option=False, context_settings={"ignore_unknown_options": True})
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def bench(arguments: tuple[str, ...]) -> None:
    """Measure throughput, latency and CPU per message, on servers of its own."""
    if not sys.platform.startswith("linux"):
        raise UserError("relay bench reads /proc, so it needs Linux")
    try:
        command: click.Command = importlib.import_module("bench.command").bench
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != "bench":
            raise
        raise UserError("relay bench needs a checkout of the repository: run it where the folder bench is") from error
    command.main(list(arguments), prog_name="relay bench", standalone_mode=False)
