"""`relay receivers stats`: the outcomes of a receiver's attempts within a day."""

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from relay.cli.config import api_option, config_option
from relay.cli.entry_options import asked
from relay.cli.table import output_option, print_json, print_table

if TYPE_CHECKING:
    from relay.cli.client import Client

_COLUMNS: Final = ("HOUR", "ATTEMPTS", "SUCCESS", "P50", "P99", "OUTCOMES")


@click.command()
@click.argument("name")
@api_option
@config_option
@output_option
def stats(name: str, api: str | None, config_file: Path | None, output: str) -> None:
    """Show the outcomes of NAME's attempts within a day, and the durations of its responses."""

    async def work(client: "Client") -> Any:
        return await client.statistics(name)

    known = asked(config_file, api, work)
    if output == "json":
        print_json(known)
        return
    click.echo(_last(known["last_response"]))
    hours = [hour for hour in known["hours"] if hour["attempts"]]
    print_table(_COLUMNS, [*(_row(hour["hour"], hour) for hour in hours), _row("24 hours", known)])


def _last(last: Any) -> str:
    if last is None:
        return "last response: none within a day"
    what = last["status"] if last["failure"] is None else f"none ({last['failure']})"
    return f"last response: {what}, in {last['duration_ms']:g} ms, at {last['at']}"


def _row(what: str, counted: Any) -> tuple[str, ...]:
    rate = counted["success_rate"]
    outcomes = ", ".join(f"{count} {name}" for name, count in counted["outcomes"].items() if count)
    times = (_at_most(counted["p50_ms"]), _at_most(counted["p99_ms"]))
    return (what, str(counted["attempts"]), "-" if rate is None else f"{rate:.1%}", *times, outcomes or "-")


def _at_most(milliseconds: float | None) -> str:
    return "-" if milliseconds is None else f"<= {milliseconds:g} ms"
