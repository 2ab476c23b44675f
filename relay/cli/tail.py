"""`relay tail`: prints events as they happen."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from datetime import datetime

import click

from relay.cli.api import ApiOptions, api_command, error_of
from relay.cli.events import Lines, Screen
from relay.cli.options import types_option
from relay.client import ClientError
from relay.client.sse import ServerSentEvent
from relay.run.event_loop import run_until_signalled

Report = Callable[[ServerSentEvent], None]


@click.command()
@click.option("--source", "sources", multiple=True, help="Only events of this source; repeatable.")
@click.option("--receiver", "receivers", multiple=True, help="Only events of this receiver; repeatable.")
@types_option
@click.option("--failed", is_flag=True, help="Only failures.")
@api_command
def tail(
    call: ApiOptions, sources: tuple[str, ...], receivers: tuple[str, ...], types: tuple[str, ...], failed: bool
) -> None:
    """Show events from now on: messages (-->), responses of receivers (<--), answers on their way to the sender (<==)
    and dead letters (!!!). Ctrl-C ends it.

    \b
    relay tail --receiver ci
    relay tail --source github --type 'pull_request.*' --failed
    relay tail -o json | jq 'select(.event == "failed").data.detail'
    """
    report = _as_json if call.is_json else shown_on(Screen(), Lines(api=call.api))

    async def follow(_stop: asyncio.Event) -> None:
        async with call.client() as client:
            await report_all(
                client.tail(sources=sources, receivers=receivers, types=types, failed=failed, reconnect=_trouble),
                report,
            )

    asyncio.run(run_until_signalled(follow, grace_s=0))


def _trouble(why: ClientError) -> None:
    click.echo(f"{error_of(why)}; trying again", err=True)


def ignore(_why: ClientError) -> None:
    """For a relay that is part of this process: when it ends, the command ends."""


async def report_all(events: AsyncIterator[ServerSentEvent], report: Report) -> None:
    async for event in events:
        report(event)


def shown_on(screen: Screen, lines: Lines) -> Report:
    """Prints events as lines."""

    def report(event: ServerSentEvent) -> None:
        for line in lines.of(event.name, event.data, datetime.now().astimezone()):
            screen.show(line)

    return report


def _as_json(event: ServerSentEvent) -> None:
    """One object a line. Events about the stream itself are omitted, except those about missing events."""
    if event.name != "listening":
        click.echo(json.dumps({"event": event.name, "data": event.data}, ensure_ascii=False))
