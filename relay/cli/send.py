"""`relay send`: one message from a file."""

import asyncio
import contextlib
import sys
import time
from pathlib import Path
from typing import Any

import click

from relay.cli.client import ApiBusy, ApiFailed, Client, with_client
from relay.cli.config import api_option, config_option, settings_from
from relay.cli.paths import FILE_OR_STDIN
from relay.cli.status import has_failed, is_over, reasons_to_wait, show
from relay.cli.table import output_option
from relay.domain.errors import UserError

LOOK_EVERY_S = 0.2


@click.command()
@click.option("--source", required=True, help="The source_id it comes from.")
@click.option("--receiver", "receivers", multiple=True, help="Who gets it; repeatable. Default: who subscribes.")
@click.option("--type", "event_type", help="Its event type, such as push.")
@click.option("--id", "message_id", help="Its id, unique per source. Default: a new one.")
@click.option("--content-type", default="application/json", show_default=True)
@click.option("--wait", "wait_s", type=click.FloatRange(0), help="Wait so many seconds for all answers.")
@api_option
@config_option
@output_option
@click.argument("file", type=FILE_OR_STDIN)
def send(
    source: str,
    receivers: tuple[str, ...],
    event_type: str | None,
    message_id: str | None,
    content_type: str,
    wait_s: float | None,
    api: str | None,
    config_file: Path | None,
    output: str,
    file: str,
) -> None:
    """Send one message from FILE, or from standard input where FILE is a dash.

    With --wait, the exit code is 1 when a delivery failed, or the way of its result to the sender.
    """
    payload = _payload(file)

    async def work(client: Client) -> Any:
        sent = await client.send(
            source,
            payload,
            receivers=receivers,
            message_id=message_id,
            event_type=event_type,
            content_type=content_type,
        )
        return sent if wait_s is None else await until_over(client, source, sent["message_id"], wait_s)

    state = with_client(settings_from(config_file), api, work)
    show(state, output)
    if wait_s is not None and has_failed(state):
        click.get_current_context().exit(1)


async def until_over(client: Client, source_id: str, message_id: str, wait_s: float) -> Any:
    """The message's state once it is over. Raises ApiFailed when that takes longer than `wait_s`."""
    end = time.monotonic() + wait_s
    while True:
        state = None
        with contextlib.suppress(ApiBusy):
            state = await client.message(source_id, message_id)
        if state is not None and is_over(state):
            return state
        if time.monotonic() >= end:
            word = state["status"] if state else "unknown"
            why = "".join(f"; {reason}" for reason in reasons_to_wait(state)) if state else ""
            raise ApiFailed(f"no end of message {message_id} within {wait_s:g} s; it is {word} now{why}")
        await asyncio.sleep(LOOK_EVERY_S)


def _payload(file: str) -> bytes:
    if file == "-":
        return sys.stdin.buffer.read()
    try:
        return Path(file).read_bytes()
    except OSError as error:
        raise UserError(f"{file}: {error.strerror}") from error
