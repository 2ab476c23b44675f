"""`relay top`: throughput, lag and failures of each stage and receiver, updated continuously."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import click
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from relay.cli.api import ApiOptions, api_command, error_of, if_known
from relay.cli.options import FiniteRange
from relay.cli.table import at_most, print_json, span
from relay.client import AsyncRelay, ClientError
from relay.domain.identity import PROBE
from relay.domain.state import Tone
from relay.domain.statistics import TONES, WELL
from relay.run.event_loop import run_until_signalled
from relay.schema.incidents import AttentionView, FailuresView, OverviewView, StageView
from relay.schema.statistics import LastResponseView, StatsView
from relay.telemetry.redaction import escape_control

MOST_RECEIVERS: Final = 20
MOST_ATTENTION: Final = 10
MOST_FAILURES: Final = 5
_UNTIL_RATES_S: Final = 1.2
"""A rate takes two readings, and the API reads again after a second."""
_PIPED_WIDTH: Final = 200
_AT_A_TIME: Final = 5


class TopSnapshot(NamedTuple):
    """`overview` (None: the relay has none), and the statistics of `receivers`; `more`: there are others."""

    overview: OverviewView | None
    receivers: Sequence[StatsView]
    more: bool


@click.command()
@click.option("--once", is_flag=True, help="Print once, and exit.")
@click.option(
    "--every",
    "every_s",
    default=2.0,
    show_default=True,
    type=FiniteRange(0.5, 3600),
    help="Seconds between updates.",
)
@click.option(
    "--receiver",
    "receivers",
    multiple=True,
    help="Only this receiver; repeatable. Default: those with the most attempts.",
)
@api_command
def top(call: ApiOptions, once: bool, every_s: float, receivers: tuple[str, ...]) -> None:
    """Show rates, lag and failures of each stage, the outcomes of attempts at each receiver, and what needs attention.
    In a terminal it is updated until Ctrl-C.

    \b
    relay top
    relay top --once -o json | jq '.overview.attention[0]'
    """
    console = Console(markup=False, highlight=False, emoji=False)
    again = console.is_terminal and not once and not call.is_json

    async def run(_stop: asyncio.Event) -> None:
        async with call.client() as client:
            seen = await _look(client, receivers)
            if again:
                await _watch(client, receivers, seen, every_s, console)
                return
            if seen.overview is not None and seen.overview["rates"] is None:
                await asyncio.sleep(_UNTIL_RATES_S)
                seen = await _look(client, receivers)
            _print(call, seen, console)

    asyncio.run(run_until_signalled(run, grace_s=0))


def _print(call: ApiOptions, seen: TopSnapshot, console: Console) -> None:
    if call.is_json:
        print_json({"overview": seen.overview or {}, "receivers": list(seen.receivers)})
    else:
        wide = console if console.is_terminal else Console(markup=False, highlight=False, width=_PIPED_WIDTH)
        wide.print(page(seen))


async def _watch(
    client: AsyncRelay, receivers: tuple[str, ...], seen: TopSnapshot, every_s: float, console: Console
) -> None:
    with Live(page(seen), console=console, screen=True, auto_refresh=False) as live:
        while True:
            live.update(page(seen), refresh=True)
            await asyncio.sleep(every_s)
            try:
                seen = await _look(client, receivers)
            except ClientError as error:
                if not error.busy:
                    raise
                live.update(Group(Text(f"{error_of(error)}", "yellow"), page(seen)), refresh=True)


async def _look(client: AsyncRelay, receivers: tuple[str, ...]) -> TopSnapshot:
    """Raises ClientError."""
    overview = await if_known(client.overview())  # an older relay has none
    names, more = (list(receivers), False) if receivers else await _names(client)
    slots = asyncio.Semaphore(_AT_A_TIME)

    async def statistics(name: str) -> StatsView | None:
        async with slots:
            try:
                return await client.receivers.stats(name)
            except ClientError:
                if receivers:
                    raise
                return None  # removed meanwhile

    each = await asyncio.gather(*map(statistics, names))
    return TopSnapshot(overview, busiest([one for one in each if one is not None]), more)


async def _names(client: AsyncRelay) -> tuple[list[str], bool]:
    page = await client.receivers.page(limit=MOST_RECEIVERS)
    return [item["name"] for item in page["items"] if item["name"] != PROBE], page["cursor"] is not None


# the output: pure


def busiest(receivers: Sequence[StatsView]) -> list[StatsView]:
    return sorted(receivers, key=lambda one: (-one["attempts"], one["name"]))


def page(seen: TopSnapshot) -> Group:
    overview = seen.overview
    parts: list[RenderableType] = [_stages(overview["stages"] if overview else ())]
    parts += [Text(), _receivers(seen.receivers)]
    if overview and overview["failures"]["count"]:
        parts += [Text(), _failures(overview["failures"])]
    if seen.more:
        parts.append(Text(f"the first {MOST_RECEIVERS} by name; --receiver NAME shows others", "dim"))
    if overview and overview["attention"]:
        parts += _all_attention(overview["attention"])
    return Group(*parts)


def _all_attention(items: Sequence[AttentionView]) -> list[RenderableType]:
    lines: list[RenderableType] = [Text(), Text("NEEDS ATTENTION", "bold"), *map(_attention, items[:MOST_ATTENTION])]
    if len(items) > MOST_ATTENTION:
        lines.append(Text(f"and {len(items) - MOST_ATTENTION} more", "dim"))
    return lines


def _stages(stages: Sequence[StageView]) -> Table:
    table = _table("STAGE", "IN/S", "DONE/S", "LAG", "OLDEST", "PARKED", "UNSERVED")
    for stage in stages:
        table.add_row(
            stage["name"],
            _number(stage["come"]),
            _number(stage["rate"]),
            Text(_number(stage["lag"]), "yellow" if stage["lag"] else ""),
            "-" if stage["oldest_s"] is None else span(stage["oldest_s"]),
            _number(stage["parked"]),
            Text(_number(stage["unserved"]), "red" if stage["unserved"] else ""),
        )
    return table


def _receivers(receivers: Sequence[StatsView]) -> Table:
    table = _table("RECEIVER, 24 H", "HEALTH", "ATTEMPTS", "SUCCESS", "P50", "P99", "LAST")
    for one in receivers:
        rate, state = one["success_rate"], one["health"]["state"]
        table.add_row(
            escape_control(one["name"]),
            Text(state, _COLOURS[TONES.get(state, "plain")]),
            _number(one["attempts"]),
            Text("-") if rate is None else Text(f"{rate:.1%}", "green" if rate > WELL else "red"),
            at_most(one["p50_ms"]),
            at_most(one["p99_ms"]),
            _last(one["last_response"]),
        )
    return table


_COLOURS: Final[Mapping[Tone, str]] = {"good": "green", "warn": "yellow", "bad": "red", "live": "", "plain": ""}


def _table(*columns: str) -> Table:
    table = Table(*columns, box=None, pad_edge=False, header_style="bold")
    for column in table.columns:
        column.overflow = "ellipsis"  # without no_wrap, with which a long name leaves no room for the figures
    for column in table.columns[1:]:
        column.justify = "right"
    return table


def _last(last: LastResponseView | None) -> Text:
    if last is None:
        return Text("-")
    if last["failure"] is not None or last["status"] is None:
        return Text(escape_control(str(last["failure"])), "red")
    return Text(str(last["status"]), "green" if last["status"] < 300 else "red")


def _failures(failures: FailuresView) -> Text:
    each = [f"{one['receiver']} {one['reason'].replace('_', ' ')} {one['count']}" for one in failures["by"]]
    more = f", and {len(each) - MOST_FAILURES} more kinds" if len(each) > MOST_FAILURES else ""
    kinds = escape_control(", ".join(each[:MOST_FAILURES])) + more
    return Text(f"{failures['count']} ", "red").append("DEAD LETTERS, 1 H: ", "bold").append(kinds)


def _attention(item: AttentionView) -> Text:
    what = escape_control(f"{item['kind'].replace('_', ' ')} {item['subject']}")
    line = Text(no_wrap=False).append(what, "red").append(f": {escape_control(item['detail'])}")
    action = item["action"]
    return line if action is None else line.append(f"  [{escape_control(action['label'])}]", "dim")


def _number(value: float | None) -> str:
    """A dash where it is not known."""
    if value is None:
        return "-"
    return f"{value:.0f}" if float(value).is_integer() else f"{value:.1f}"
