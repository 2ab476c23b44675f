"""`relay trigger`: samples with real payloads, or examples of the event types of the catalogue."""

import asyncio
import secrets
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

import click
import msgspec

from relay.cli.api import ApiOptions, api_command
from relay.cli.options import FiniteRange, WholeRange, receivers_option
from relay.cli.send import AwaitedAnswer, Outgoing, first_tried, print_answer, sent, wait_option
from relay.cli.status import print_details, reasons_to_wait
from relay.cli.table import print_json
from relay.client import ApiError, AsyncRelay, ClientError
from relay.config.problems import nearest
from relay.domain.errors import RelayError, UserError
from relay.sink.samples import Sample, load, names
from relay.telemetry.redaction import escape_control

FIRST_TRIED_S: Final = 1.0
"""Wait for a single event's first attempt, so that a receiver that is down is noticed."""


@click.command()
@click.argument("event", required=False)
@receivers_option
@click.option("--source", help="Source of the message. Default: the first part of EVENT, such as github.")
@click.option("--count", type=WholeRange(1), default=1, show_default=True, help="Number of messages.")
@click.option(
    "--rate",
    type=FiniteRange(0, min_open=True),
    help="Messages per second. Default: each waits for the one before.",
)
@wait_option
@api_command
def trigger(
    call: ApiOptions,
    event: str | None,
    receivers: tuple[str, ...],
    source: str | None,
    count: int,
    rate: float | None,
    wait_s: float | None,
) -> None:
    """Send the sample EVENT, such as github.push, or an example of that event type of the catalogue. Without EVENT,
    list all samples.

    With --wait, the answers are printed, and the exit code is as that of `relay send --wait`.
    """
    if event is None:
        call.show(list(names()), lambda each: click.echo("\n".join(each)))
        return
    first_s = FIRST_TRIED_S if wait_s is None and count == 1 else 0.0
    sample = load(event) if event in names() else call.run(partial(_example, event))
    firing = _Firing(sample, source or event.partition(".")[0], receivers, wait_s, first_s)

    def over(waited: AwaitedAnswer) -> None:
        if not call.is_json:
            state = waited.state
            click.echo(f"--> {event}  {state.source_id}  {state.message_id}  {state.state}")
            if wait_s is not None:
                print_details(state)
                print_answer(waited)
            for reason in reasons_to_wait(state) if wait_s is None else ():
                click.echo(escape_control(f"    {reason}"))

    found = call.run(lambda client: firing.fire(client, count, rate, over))
    if call.is_json:
        print_json([waited.state for waited in found])
    if late := [waited.late for waited in found if waited.late]:
        raise RelayError("\n".join(late))
    if wait_s is not None and any(waited.failed for waited in found):
        click.get_current_context().exit(1)


async def _example(event: str, client: AsyncRelay) -> Sample:
    """The first example of the newest version of an event type. Raises UserError."""
    try:
        found = await client.event_types.get(event)
    except ApiError as error:
        if error.status != 404:
            raise
        meant = nearest(event, names())
        suggestion = f"Did you mean {meant!r}? " if meant else ""
        raise UserError(f"{error.detail} {suggestion}Known samples: {', '.join(names())}") from None
    except ClientError:
        return load(event)  # which says that there is no such sample
    for version in reversed(found["versions"]):
        if version["examples"]:
            return Sample(event, event, msgspec.json.encode(version["examples"][0]))
    raise UserError(f"the event type {event} has no example")


@dataclass(frozen=True, slots=True)
class _Firing:
    """The messages, their receivers, and how long (seconds) to wait for each; None: only `first_s`, until it was
    tried."""

    sample: Sample
    source_id: str
    receivers: tuple[str, ...]
    wait_s: float | None
    first_s: float

    async def fire(
        self, client: AsyncRelay, count: int, rate: float | None, over: Callable[[AwaitedAnswer], None]
    ) -> list[AwaitedAnswer]:
        """Send `count` messages, `rate` a second, or one after the other. `over` is called for each as soon as it has
        ended."""

        async def one() -> AwaitedAnswer:
            waited = await self._one(client)
            over(waited)
            return waited

        if rate is None:
            return [await one() for _ in range(count)]
        async with asyncio.TaskGroup() as tasks:
            firing = []
            for number in range(count):
                await asyncio.sleep(1 / rate if number else 0)
                firing.append(tasks.create_task(one()))
        return [task.result() for task in firing]

    async def _one(self, client: AsyncRelay) -> AwaitedAnswer:
        message_id, sample = secrets.token_hex(8), self.sample
        outgoing = Outgoing(
            self.source_id, sample.payload, message_id, self.receivers, sample.event_type, wait_s=self.wait_s
        )
        waited = await sent(client, outgoing)
        return replace(waited, state=await first_tried(client, waited.state, self.first_s)) if self.first_s else waited
