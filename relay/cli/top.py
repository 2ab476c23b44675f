"""`relay top`: throughput, lag and failures of each stage and receiver, updated continuously."""

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

import aiohttp
import click
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from relay.cli.client import ApiBusy, ApiFailed, Client, api_base
from relay.cli.config import api_option, config_option, settings_from
from relay.cli.table import output_option, print_json
from relay.config.settings import Settings
from relay.run.event_loop import run_until_signalled
from relay.telemetry.redaction import escape_control

MOST_RECEIVERS: Final = 20
MOST_ATTENTION: Final = 10
MOST_FAILURES: Final = 5
_UNTIL_RATES_S: Final = 1.2
"""A rate takes two readings, and the API reads again after a second."""
_TIMEOUT_S: Final = 30.0
_PIPED_WIDTH: Final = 200
_AT_A_TIME: Final = 5


class TopSnapshot(NamedTuple):
    """`overview`, and the statistics of `receivers`; `more`: receivers beyond those that are shown."""

    overview: Mapping[str, Any]
    receivers: Sequence[Mapping[str, Any]]
    more: bool


@click.command()
@click.option("--once", is_flag=True, help="Print once, and exit.")
@click.option(
    "--every",
    "every_s",
    default=2.0,
    show_default=True,
    type=click.FloatRange(0.5, 3600),
    help="Seconds between updates.",
)
@click.option("--receiver", "receivers", multiple=True, help="Only these; repeatable. Default: those with most to do.")
@api_option
@config_option
@output_option
def top(
    once: bool, every_s: float, receivers: tuple[str, ...], api: str | None, config_file: Path | None, output: str
) -> None:
    """Show rates, lag and failures of each stage, the outcomes of attempts at each receiver, and what needs attention.
    In a terminal it is updated until Ctrl-C.

    \b
    relay top
    relay top --once -o json | jq '.overview.attention[0]'
    """
    settings, console = settings_from(config_file), Console(markup=False, highlight=False, emoji=False)
    again = console.is_terminal and not once and output != "json"
    asyncio.run(
        run_until_signalled(
            partial(_top, settings, api, receivers, every_s if again else None, console, output), grace_s=0
        )
    )


async def _top(
    settings: Settings,
    api: str | None,
    receivers: tuple[str, ...],
    every_s: float | None,
    console: Console,
    output: str,
    _stop: asyncio.Event,
) -> None:
    key = settings.api_key.get_secret_value() if settings.api_key else None
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=_TIMEOUT_S)) as session:
        client = Client(api_base(settings, api), key, session)
        seen = await _look(client, receivers)
        if every_s is None and "stages" in seen.overview and seen.overview.get("rates") is None:
            await asyncio.sleep(_UNTIL_RATES_S)
            seen = await _look(client, receivers)
        if output == "json":
            print_json({"overview": seen.overview, "receivers": list(seen.receivers)})
        elif every_s is None:
            wide = console if console.is_terminal else Console(markup=False, highlight=False, width=_PIPED_WIDTH)
            wide.print(page(seen))
        else:
            await _watch(client, receivers, seen, every_s, console)


async def _watch(
    client: Client, receivers: tuple[str, ...], seen: TopSnapshot, every_s: float, console: Console
) -> None:
    with Live(page(seen), console=console, screen=True, auto_refresh=False) as live:
        while True:
            live.update(page(seen), refresh=True)
            await asyncio.sleep(every_s)
            try:
                seen = await _look(client, receivers)
            except ApiBusy as error:
                live.update(Group(Text(f"{error}", "yellow"), page(seen)), refresh=True)


async def _look(client: Client, receivers: tuple[str, ...]) -> TopSnapshot:
    """Raises ApiFailed."""
    overview: Mapping[str, Any] = await client.overview() or {}  # an older relay has none
    names, more = (list(receivers), False) if receivers else await _names(client)
    slots = asyncio.Semaphore(_AT_A_TIME)

    async def statistics(name: str) -> Mapping[str, Any] | None:
        async with slots:
            try:
                found: Mapping[str, Any] = await client.statistics(name)
                return found
            except ApiFailed:
                if receivers:
                    raise
                return None  # removed meanwhile

    each = await asyncio.gather(*map(statistics, names))
    return TopSnapshot(overview, busiest([one for one in each if one is not None]), more)


async def _names(client: Client) -> tuple[list[str], bool]:
    page = await client.registered([("limit", str(MOST_RECEIVERS))])
    return [str(item["name"]) for item in page["items"]], page["cursor"] is not None


# the output: pure


def busiest(receivers: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    return sorted(receivers, key=lambda one: (-one["attempts"], one["name"]))


def page(seen: TopSnapshot) -> Group:
    parts: list[Any] = [_stages(seen.overview), Text(), _receivers(seen.receivers)]
    failures = seen.overview.get("failures") or {"count": 0}
    if failures["count"]:
        parts += [Text(), _failures(failures)]
    if seen.more:
        parts.append(Text(f"the first {MOST_RECEIVERS} by name; --receiver NAME shows others", "dim"))
    attention = seen.overview.get("attention") or []
    if attention:
        parts += [Text(), Text("NEEDS ATTENTION", "bold")]
        parts += [_attention(item) for item in attention[:MOST_ATTENTION]]
        if len(attention) > MOST_ATTENTION:
            parts.append(Text(f"and {len(attention) - MOST_ATTENTION} more", "dim"))
    return Group(*parts)


def _stages(overview: Mapping[str, Any]) -> Table:
    table = _table("STAGE", "IN/S", "DONE/S", "LAG", "OLDEST", "PARKED", "UNSERVED")
    for stage in overview.get("stages", ()):
        lag, oldest_s = stage.get("lag"), stage.get("oldest_s")
        table.add_row(
            str(stage.get("name")),
            _number(stage.get("come")),
            _number(stage.get("rate")),
            Text(_number(lag), "yellow" if lag else ""),
            "-" if oldest_s is None else f"{oldest_s:.0f} s",
            _number(stage.get("parked")),
            Text(_number(stage.get("unserved")), "red" if stage.get("unserved") else ""),
        )
    return table


def _receivers(receivers: Sequence[Mapping[str, Any]]) -> Table:
    table = _table("RECEIVER, 24 H", "ATTEMPTS", "SUCCESS", "P50", "P99", "LAST")
    for one in receivers:
        rate = one["success_rate"]
        table.add_row(
            escape_control(str(one["name"])),
            _number(one["attempts"]),
            Text("-") if rate is None else Text(f"{rate:.1%}", "green" if rate > _WELL else "red"),
            _ms(one["p50_ms"]),
            _ms(one["p99_ms"]),
            _last(one["last_response"]),
        )
    return table


_WELL: Final = 0.95


def _table(*columns: str) -> Table:
    table = Table(*columns, box=None, pad_edge=False, header_style="bold")
    for column in table.columns[1:]:
        column.justify = "right"
    for column in table.columns:
        column.no_wrap, column.overflow = True, "ellipsis"
    return table


def _last(last: Mapping[str, Any] | None) -> Text:
    if last is None:
        return Text("-")
    if last["failure"] is not None:
        return Text(escape_control(str(last["failure"])), "red")
    return Text(str(last["status"]), "green" if last["status"] < 300 else "red")


def _failures(failures: Mapping[str, Any]) -> Text:
    each = [f"{one['receiver']} {one['reason'].replace('_', ' ')} {one['count']}" for one in failures["by"]]
    more = f", and {len(each) - MOST_FAILURES} more kinds" if len(each) > MOST_FAILURES else ""
    kinds = escape_control(", ".join(each[:MOST_FAILURES])) + more
    return Text("DEAD LETTERS, 1 H ", "bold").append(f"{failures['count']}: ", "red").append(kinds)


def _attention(item: Mapping[str, Any]) -> Text:
    what = escape_control(f"{item['kind'].replace('_', ' ')} {item['subject']}")
    line = Text(no_wrap=False).append(what, "red").append(f": {escape_control(item['detail'])}")
    action = item.get("action")
    return line if action is None else line.append(f"  [{escape_control(action['label'])}]", "dim")


def _number(value: Any) -> str:
    """A dash where it is not known."""
    if value is None:
        return "-"
    return f"{value:.1f}" if isinstance(value, float) and not value.is_integer() else f"{value:.0f}"


def _ms(value: float | None) -> str:
    return "-" if value is None else f"<= {value:g} ms"
