"""`relay trigger`: sample events with real payloads."""

import asyncio
import secrets
from pathlib import Path
from typing import Any

import click

from relay.cli.client import Client, with_client
from relay.cli.config import api_option, config_option, settings_from
from relay.cli.table import output_option, print_json
from relay.samples import Sample, load, names


@click.command()
@click.argument("event", required=False)
@click.option("--receiver", "receivers", multiple=True, help="Who gets it; repeatable. Default: who subscribes.")
@click.option("--source", help="The source_id. Default: the event's first part, such as github.")
@click.option("--count", type=click.IntRange(1), default=1, show_default=True)
@click.option("--rate", type=click.FloatRange(0, min_open=True), help="Per second. Default: one after the other.")
@api_option
@config_option
@output_option
def trigger(
    event: str | None,
    receivers: tuple[str, ...],
    source: str | None,
    count: int,
    rate: float | None,
    api: str | None,
    config_file: Path | None,
    output: str,
) -> None:
    """Send the sample EVENT, such as github.push. Without EVENT, list what there is."""
    if event is None:
        _list(output)
        return
    sample = load(event)
    source_id, sent = source or event.partition(".")[0], list[Any]()

    async def work(client: Client) -> None:
        for number in range(count):
            state = await _send(client, source_id, sample, receivers)
            sent.append(state)
            if output == "table":
                click.echo(f"--> {event}  {state['source_id']}  {state['message_id']}  {state['status']}")
            if rate is not None and number + 1 < count:
                await asyncio.sleep(1 / rate)

    with_client(settings_from(config_file), api, work)
    if output == "json":
        print_json(sent)


def _list(output: str) -> None:
    if output == "json":
        print_json(list(names()))
    else:
        for name in names():
            click.echo(name)


async def _send(client: Client, source_id: str, sample: Sample, receivers: tuple[str, ...]) -> Any:
    return await client.send(
        source_id,
        sample.payload,
        receivers=receivers,
        message_id=secrets.token_hex(8),
        event_type=sample.event_type,
    )
