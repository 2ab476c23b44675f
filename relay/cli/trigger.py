"""`relay trigger`: sample events with real payloads."""

import asyncio
import secrets
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import click

from relay.cli.await_answer import AwaitedAnswer, Outgoing, first_tried, send, tell, wait_option
from relay.cli.client import ApiFailed, Client, with_client
from relay.cli.config import api_option, config_option, settings_from
from relay.cli.status import print_details, reasons_to_wait
from relay.cli.table import output_option, print_json
from relay.samples import Sample, load, names
from relay.telemetry.redaction import escape_control

FIRST_TRIED_S = 1.0
"""Wait for a single event's first attempt, so that a receiver that is down is noticed."""


@click.command()
@click.argument("event", required=False)
@click.option("--receiver", "receivers", multiple=True, help="Its receiver; repeatable. Default: the subscribers.")
@click.option("--source", help="The source_id. Default: the event's first part, such as github.")
@click.option("--count", type=click.IntRange(1), default=1, show_default=True)
@click.option("--rate", type=click.FloatRange(0, min_open=True), help="Per second. Default: one after the other.")
@wait_option
@api_option
@config_option
@output_option
def trigger(
    event: str | None,
    receivers: tuple[str, ...],
    source: str | None,
    count: int,
    rate: float | None,
    wait_s: float | None,
    api: str | None,
    config_file: Path | None,
    output: str,
) -> None:
    """Send the sample EVENT, such as github.push. Without EVENT, list all samples.

    With --wait, the answers are printed, and the exit code is as that of `relay send --wait`.
    """
    if event is None:
        _list(output)
        return
    first_s = FIRST_TRIED_S if wait_s is None and count == 1 else 0.0
    firing = _Firing(load(event), source or event.partition(".")[0], receivers, wait_s, first_s)

    def over(waited: AwaitedAnswer) -> None:
        if output == "table":
            state = waited.state
            click.echo(f"--> {event}  {state['source_id']}  {state['message_id']}  {state['status']}")
            if wait_s is not None:
                print_details(state)
                tell(waited)
            for reason in reasons_to_wait(state) if wait_s is None else ():
                click.echo(escape_control(f"    {reason}"))

    sent = with_client(settings_from(config_file), api, lambda client: firing.fire(client, count, rate, over))
    if output == "json":
        print_json([waited.state for waited in sent])
    if late := [waited.late for waited in sent if waited.late]:
        raise ApiFailed("\n".join(late))
    if wait_s is not None and any(waited.failed for waited in sent):
        click.get_current_context().exit(1)


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
        self, client: Client, count: int, rate: float | None, over: Callable[[AwaitedAnswer], None]
    ) -> list[AwaitedAnswer]:
        """Send `count`, `rate` a second, or one after the other; `over` is called for each as soon as it is over."""

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

    async def _one(self, client: Client) -> AwaitedAnswer:
        message_id, sample = secrets.token_hex(8), self.sample
        outgoing = Outgoing(self.source_id, sample.payload, message_id, self.receivers, sample.event_type)
        waited = await send(client, outgoing, self.wait_s)
        return replace(waited, state=await first_tried(client, waited.state, self.first_s)) if self.first_s else waited


def _list(output: str) -> None:
    if output == "json":
        print_json(list(names()))
    else:
        for name in names():
            click.echo(name)
