"""Sends a command's message and waits for its answer: in the same request if there is one receiver, else by polling
until all have answered."""

import asyncio
import contextlib
import secrets
import time
from dataclasses import dataclass, replace
from typing import Any, Final

import click

from relay.cli.client import ApiBusy, ApiFailed, Client, Ended
from relay.cli.status import has_failed, is_over, print_answers, reasons_to_wait, was_answered

LOOK_EVERY_S: Final = 0.2
WAY_BACK_S: Final = 5.0
"""How long the answer's delivery to the sender is followed: it usually takes no time, but may take days."""

wait_option = click.option(
    "--wait", "wait_s", type=click.FloatRange(0), help="Wait up to this many seconds for the answer, and print it."
)


@dataclass(frozen=True, slots=True)
class AwaitedAnswer:
    """`state`: the message's last known state. `letter`: place of its dead letter. `late`: after a timeout, what the
    message waits for; "" if it has ended."""

    state: Any
    letter: str | None = None
    late: str = ""

    @property
    def failed(self) -> bool:
        return has_failed(self.state)


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A message to send. Without `message_id` it gets a new one."""

    source_id: str
    payload: bytes
    message_id: str | None = None
    receivers: tuple[str, ...] = ()
    event_type: str | None = None
    content_type: str = "application/json"
    headers: tuple[tuple[str, str], ...] = ()

    async def send(self, client: Client, *, wait_s: int | None = None) -> Any:
        """As `Client.send`."""
        return await client.send(
            self.source_id,
            self.payload,
            receivers=self.receivers,
            message_id=self.message_id,
            event_type=self.event_type,
            content_type=self.content_type,
            wait_s=wait_s,
            headers=self.headers,
        )


async def send(client: Client, outgoing: Outgoing, wait_s: float | None) -> AwaitedAnswer:
    """Send a message, and wait for its end; `wait_s` None: do not wait."""
    if wait_s is None:
        return AwaitedAnswer(await outgoing.send(client))
    message_id = outgoing.message_id or secrets.token_hex(16)
    return await _sent(client, replace(outgoing, message_id=message_id), message_id, wait_s)


async def _sent(client: Client, outgoing: Outgoing, message_id: str, wait_s: float) -> AwaitedAnswer:
    source_id, until = outgoing.source_id, time.monotonic() + wait_s
    said = await outgoing.send(client, wait_s=int(wait_s))
    while not (isinstance(said, Ended) or was_answered(said)):
        rest = until - time.monotonic()
        if rest <= 0:
            return AwaitedAnswer(said, late=_late(said, wait_s))
        await asyncio.sleep(min(LOOK_EVERY_S, rest))
        with contextlib.suppress(ApiBusy):
            looked = await client.message(source_id, message_id, wait_s=max(0, int(until - time.monotonic())))
            said = looked or said
    state = await _followed(client, source_id, message_id, min(until, time.monotonic() + WAY_BACK_S))
    return AwaitedAnswer(state, said.letter if isinstance(said, Ended) else None)


async def until_over(client: Client, source_id: str, message_id: str, wait_s: float) -> Any:
    """The message's state once it has ended. Raises ApiFailed if that takes longer than `wait_s`."""
    state = await _followed(client, source_id, message_id, time.monotonic() + wait_s)
    if not is_over(state):
        raise ApiFailed(_late(state, wait_s))
    return state


async def first_tried(client: Client, state: Any, within_s: float) -> Any:
    """The message's state once each delivery was tried or has ended, or after `within_s` seconds."""
    until = time.monotonic() + within_s
    while not all(each["attempts"] for each in state["deliveries"]) and not is_over(state):
        if time.monotonic() >= until:
            break
        await asyncio.sleep(LOOK_EVERY_S)
        with contextlib.suppress(ApiBusy):
            state = await client.message(state["source_id"], state["message_id"]) or state
    return state


async def _followed(client: Client, source_id: str, message_id: str, until: float) -> Any:
    """The message's state once it has ended, or at `until`, on the monotonic clock."""
    state = None
    while True:
        with contextlib.suppress(ApiBusy):
            state = await client.message(source_id, message_id)
        if state is not None and is_over(state):
            return state
        if time.monotonic() >= until:
            if state is None:
                raise ApiFailed(f"the outcome of message {message_id} is unknown")
            return state
        await asyncio.sleep(LOOK_EVERY_S)


def tell(waited: AwaitedAnswer) -> None:
    """Print what the table does not show: each answer in full, and where to find failures."""
    print_answers(waited.state)
    if waited.letter is not None:
        click.echo(f"dead letter: relay failed show {waited.letter}")


def _late(state: Any, wait_s: float) -> str:
    why = "".join(f"; {reason}" for reason in reasons_to_wait(state))
    return f"no end of message {state['message_id']} within {wait_s:g} s; it is {state['status']} now{why}"
