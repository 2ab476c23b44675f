"""`relay tail`: prints events as they happen."""

import asyncio
import json
from collections.abc import Callable
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Final

import aiohttp
import click

from relay.cli.client import ApiBusy, api_base
from relay.cli.config import api_option, config_option, settings_from
from relay.cli.events import Lines
from relay.cli.screen import Screen
from relay.cli.sse import EventStream
from relay.cli.table import output_option
from relay.client.sse import ServerSentEvent
from relay.config.settings import Settings
from relay.run.event_loop import run_until_signalled

AGAIN_S: Final = 1.0


@click.command()
@click.option("--source", "sources", multiple=True, help="Only of this source; repeatable.")
@click.option("--receiver", "receivers", multiple=True, help="Only about this receiver; repeatable.")
@click.option("--type", "types", multiple=True, help="Only this type, or with a trailing * all types with that prefix.")
@click.option("--failed", is_flag=True, help="Only failures.")
@api_option
@config_option
@output_option
def tail(
    sources: tuple[str, ...],
    receivers: tuple[str, ...],
    types: tuple[str, ...],
    failed: bool,
    api: str | None,
    config_file: Path | None,
    output: str,
) -> None:
    """Show events from now on: messages (-->), responses of receivers (<--), answers on their way to the sender (<==)
    and dead letters (!!!). Ctrl-C ends it.

    \b
    relay tail --receiver ci
    relay tail --source github --type 'pull_request.*' --failed
    relay tail -o json | jq 'select(.event == "failed").data.detail'
    """
    params = [
        *(("source", source) for source in sources),
        *(("receiver", receiver) for receiver in receivers),
        *(("type", one) for one in types),
        *([("failed", "true")] if failed else []),
    ]
    settings = settings_from(config_file)
    tell = _as_json if output == "json" else shown_on(Screen(), Lines(api=api))
    asyncio.run(run_until_signalled(partial(_follow_all, settings, api, params, tell), grace_s=0))


async def _follow_all(
    settings: Settings, api: str | None, params: list[tuple[str, str]], tell: "Tell", _stop: asyncio.Event
) -> None:
    async with aiohttp.ClientSession() as session:
        key = settings.api_key.get_secret_value() if settings.api_key else None
        await follow(EventStream(api_base(settings, api), key, session), params, tell)


Tell = Callable[[ServerSentEvent], None]


def _trouble(why: str) -> None:
    click.echo(f"{why}; trying again", err=True)


async def follow(
    stream: EventStream, params: list[tuple[str, str]], tell: Tell, trouble: Callable[[str], None] = _trouble
) -> None:
    """Reconnects until cancelled, once the stream has begun. Raises ApiFailed if it does not begin."""
    begun = False
    while True:
        try:
            async for event in stream.events("/v1/tail", params):
                begun = True
                tell(event)
        except ApiBusy as error:
            if not begun:
                raise
            trouble(str(error))
            await asyncio.sleep(AGAIN_S)


def shown_on(screen: Screen, lines: Lines) -> Tell:
    """Prints events as lines."""

    def tell(event: ServerSentEvent) -> None:
        for line in lines.of(event.name, event.data, datetime.now().astimezone()):
            screen.show(line)

    return tell


def _as_json(event: ServerSentEvent) -> None:
    """One object a line. Events about the stream itself are omitted, except those about missing events."""
    if event.name != "listening":
        click.echo(json.dumps({"event": event.name, "data": event.data}, ensure_ascii=False))
