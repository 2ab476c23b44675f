"""`relay messages cancel`: cancels one message, or many, until they are sent."""

from typing import Unpack

import click

from relay.cli.api import ApiOptions
from relay.cli.options import options
from relay.cli.replay import SelectOptions, begin, carry_out, carrying_out, split
from relay.client import ApiError, AsyncRelay
from relay.domain.errors import UserError
from relay.schema.replays import OneView

_choosing = options(
    click.option("--receiver", "receiver", multiple=True, help="Only deliveries to this receiver."),
    click.option("--source", "source", multiple=True, help="Only messages of this source."),
    click.option("--id", "ids", multiple=True, help="Only the message with this id."),
    click.option("--since", help="Only messages sent since this time: RFC 3339, or how long ago, such as 2h."),
    click.option("--until", help="Only messages sent before this time."),
)


@click.command()
@click.argument("message", metavar="[SOURCE MESSAGE_ID]", nargs=-1)
@_choosing
@carrying_out
def cancel(call: ApiOptions, message: tuple[str, ...], **given: Unpack[SelectOptions]) -> None:
    """Cancel deliveries that were not sent yet: of the message SOURCE MESSAGE_ID, or all that the options select.

    A cancelled delivery is never sent. What was sent already, or is being sent, is left alone.
    """
    chosen, how = split(given)
    if not message:
        begin(call, "cancel", chosen, how)
        return
    if len(message) != 2 or chosen.keys() - {"receiver"}:
        raise UserError("give a SOURCE and a MESSAGE_ID, with --receiver or without; or options alone")
    source, message_id = message
    receivers = list(given.get("receiver", ()))

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
