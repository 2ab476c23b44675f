"""`relay messages cancel`: cancels one message, or many, until they are sent."""

from typing import Any

import click

from relay.cli.api import ApiOptions
from relay.cli.options import options
from relay.cli.replay import begin, carry_out, carrying_out, split
from relay.client import ApiError, AsyncRelay
from relay.domain.errors import UserError
from relay.schema.replays import OneView

_choosing = options(
    click.option("--receiver", "receiver", multiple=True, help="To this receiver."),
    click.option("--source", "source", multiple=True, help="From this source."),
    click.option("--id", "ids", multiple=True, help="This message."),
    click.option("--since", help="Sent since then: a time, or how long ago: 2h, 1d."),
    click.option("--until", help="Sent before then."),
)


@click.command()
@click.argument("message", metavar="[SOURCE MESSAGE_ID]", nargs=-1)
@_choosing
@carrying_out
def cancel(call: ApiOptions, message: tuple[str, ...], **given: Any) -> None:
    """Cancel deliveries that were not sent yet: those of MESSAGE_ID of SOURCE, or all that are selected.

    A cancelled delivery is never sent. What was sent already, or is being sent, is left alone.
    """
    chosen, how = split(given)
    if not message:
        begin(call, "cancel", chosen, how)
        return
    if len(message) != 2 or chosen.keys() - {"receiver"}:
        raise UserError("give a SOURCE and a MESSAGE_ID, with --receiver or without; or options alone")
    source, message_id = message
    receivers = list(given["receiver"])

    async def work(client: AsyncRelay) -> tuple[list[OneView], list[str]]:
        names = receivers or [each.receiver for each in (await client.messages.get(source, message_id)).deliveries]
        done, refused = [], []
        for name in names:
            try:
                done.append(await client.messages.cancel(source, message_id, name))
            except ApiError as error:
                if error.status != 409:
                    raise
                refused.append(f"{name}: {error.detail}")
        return done, refused

    carry_out(call, work)
