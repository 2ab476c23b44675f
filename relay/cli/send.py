"""`relay send`: one message from a file. What `relay trigger` sends goes the same way.

With --wait it waits for the answer: by a request that stays open if there is one receiver, else by polling until all
have answered. With --kafka it produces the record on `from_sender` itself, as a sender on Kafka does.
"""

import asyncio
import secrets
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import ceil
from pathlib import Path
from typing import Final, TypedDict, Unpack

import click
import msgspec

from relay.cli.api import ApiOptions, api_command
from relay.cli.entries import print_warnings
from relay.cli.options import FILE_OR_STDIN, NAME, FiniteRange, program, receivers_option
from relay.cli.status import (
    has_failed,
    is_over,
    print_answers,
    print_state,
    reasons_to_wait,
    state_or_none,
    was_answered,
)
from relay.cli.table import print_json
from relay.client import Answer, ApiError, AsyncRelay, ClientError, DeliveryFailed
from relay.client.errors import is_passing
from relay.config.settings import Settings
from relay.domain.coordinate import Coordinate, coordinate_text
from relay.domain.errors import InvalidRecord, LogUnavailable, RelayError, UserError
from relay.domain.headers import check_forwardable, check_header_value
from relay.domain.message import Message, message_headers, parse_message
from relay.domain.timing import read_timing
from relay.domain.topics import Topics
from relay.log.port import NewRecord
from relay.schema.messages import MessageView
from relay.telemetry.redaction import escape_control

LOOK_EVERY_S: Final = 0.2
WAY_BACK_S: Final = 5.0
"""Time limit for following the result's way to the sender: usually it is immediate, but may take days."""
_LETTERS: Final = "/v1/failed/"

wait_option = click.option(
    "--wait", "wait_s", type=FiniteRange(0), help="Wait up to this many seconds for the answer, and print it."
)


@dataclass(frozen=True, slots=True)
class AwaitedAnswer:
    """The result of waiting for a message's answer. `state`: the message's last known state. `letter`: place of its
    dead letter. `late`: after a timeout, what the message waits for; "" if it has ended."""

    state: MessageView
    letter: str | None = None
    late: str = ""

    @property
    def failed(self) -> bool:
        return has_failed(self.state)


class SendFields(TypedDict, total=False):
    """Fields of `relay.domain.timing`, and a message's own endpoint, as the client takes them."""

    deliver_at: str | None
    delay: str | None
    deadline: str | None
    supersede: str | None
    coalesce: Mapping[str, str | float] | None
    endpoint: str | None
    signing_secret: str | None


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A message to send. `wait_s`: seconds to wait for its answer; None: do not wait."""

    source_id: str
    payload: bytes
    message_id: str
    receivers: tuple[str, ...] = ()
    event_type: str | None = None
    content_type: str = "application/json"
    headers: tuple[tuple[str, str], ...] = ()
    fields: SendFields = field(default_factory=lambda: SendFields(), repr=False)
    wait_s: float | None = None


def _coalesce(_context: click.Context, _option: click.Parameter, text: str | None) -> dict[str, str | float] | None:
    try:
        return None if text is None else msgspec.json.decode(text, type=dict[str, str | float])
    except (msgspec.DecodeError, UnicodeError):
        raise click.BadParameter('give JSON such as {"key": "a", "window": "10s"}') from None


@click.command()
@click.option("--source", required=True, help="Source of the message.")
@receivers_option
@click.option("--type", "event_type", help="Event type of the message, such as push.")
@click.option("--id", "message_id", type=NAME, help="Id of the message, unique in its source. Default: a new one.")
@click.option("--content-type", default="application/json", show_default=True, help="Content type of the payload.")
@click.option("--header", "headers", multiple=True, help="Header of the message, as 'x-team: core'; repeatable.")
@click.option("--deliver-at", help="Time to deliver it at: RFC 3339 or Unix seconds, at most 30 days ahead.")
@click.option("--delay", help="How long to wait before the delivery, such as 10m.")
@click.option(
    "--deadline", help="Time after which it is not delivered: RFC 3339, Unix seconds, or a duration from now."
)
@click.option("--supersede", metavar="KEY", help="Replace older messages of this key that were not sent yet.")
@click.option(
    "--coalesce",
    metavar="JSON",
    callback=_coalesce,
    help='Such as {"key": "a", "window": "10s"}: only the newest message of this key within the window is sent.',
)
@click.option("--endpoint", help="URL to send it to instead of a receiver. The relay has to allow its origin.")
@click.option(
    "--signing-secret-from",
    "secret_file",
    type=FILE_OR_STDIN,
    help="File with the secret that signs requests to --endpoint.",
)
@click.option(
    "--kafka",
    "on_kafka",
    is_flag=True,
    help="Write it to the topic from_sender at RELAY_KAFKA_BOOTSTRAP_SERVERS, not to the API.",
)
@wait_option
@click.argument("file", type=FILE_OR_STDIN)
@api_command
def send(
    call: ApiOptions,
    source: str,
    receivers: tuple[str, ...],
    event_type: str | None,
    message_id: str | None,
    content_type: str,
    headers: tuple[str, ...],
    on_kafka: bool,
    secret_file: str | None,
    wait_s: float | None,
    file: str,
    **fields: Unpack[SendFields],
) -> None:
    """Send one message from FILE, or from standard input if FILE is a dash.

    With --wait, the answer is printed, and the exit code is 1 if a delivery or the callback with its result failed, or
    took longer.

    With --kafka, the command writes the record to Kafka, and prints its topic, partition and offset. It then calls the
    API only for --wait.
    """
    id = message_id or secrets.token_hex(16)
    if on_kafka and (fields["endpoint"] or secret_file):
        raise UserError("--endpoint and --kafka: give one of them; only the API takes an endpoint")
    if secret_file is not None:
        fields["signing_secret"] = payload_in(secret_file).decode(errors="replace").strip()
    pairs = pairs_of(headers)
    outgoing = Outgoing(source, payload_in(file), id, receivers, event_type, content_type, pairs, fields, wait_s)
    if on_kafka:
        at = asyncio.run(_produced(call.settings, outgoing))
        _print_place(call, outgoing, at, waits=wait_s is not None)
        if wait_s is None:
            return
        waited = call.run(lambda client: _read_and_answered(client, outgoing, at, wait_s))
    else:
        waited = call.run(lambda client: sent(client, outgoing))
    print_state(waited.state, call.output)
    if not call.is_json and wait_s is not None:
        print_answer(waited)
    if waited.late:
        raise RelayError(waited.late)
    if wait_s is not None and waited.failed:
        click.get_current_context().exit(1)


def pairs_of(headers: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    """Names and values of `--header`. Raises UserError."""
    found = []
    for header in headers:
        name, colon, value = header.partition(":")
        try:
            found.append((check_forwardable(name), check_header_value(value.strip())))
        except ValueError as error:
            raise UserError(f"--header {header[:80]!r}: {error}") from None
        if not colon:
            raise UserError(f"--header {header[:80]!r}: write it as 'name: value'")
    return tuple(found)


def payload_in(file: str) -> bytes:
    """The bytes of a file, or of standard input for a dash. Raises UserError."""
    if file == "-":
        return sys.stdin.buffer.read()
    try:
        return Path(file).read_bytes()
    except OSError as error:
        raise UserError(f"{file}: {error.strerror}") from error


async def sent(client: AsyncRelay, outgoing: Outgoing) -> AwaitedAnswer:
    """Send a message, and wait for its end."""
    wait_s = outgoing.wait_s
    until = time.monotonic() + (wait_s or 0)
    state = await client.send(
        outgoing.source_id,
        outgoing.payload,
        receivers=outgoing.receivers,
        id=outgoing.message_id,
        type=outgoing.event_type,
        content_type=outgoing.content_type,
        headers=dict(outgoing.headers),
        awaited=wait_s is not None,
        **outgoing.fields,
    )
    print_warnings(state.warnings or ())
    return AwaitedAnswer(state) if wait_s is None else await _answered(client, state, until, wait_s)


async def _answered(client: AsyncRelay, state: MessageView, until: float, wait_s: float) -> AwaitedAnswer:
    """The end of a message. `until`: when `wait_s` are over, on the monotonic clock."""
    letter = None
    while not was_answered(state):
        rest = until - time.monotonic()
        if rest <= 0:
            return AwaitedAnswer(state, late=_late(state, wait_s))
        try:
            found = await _outcome(client, state, int(rest))
        except DeliveryFailed as failed:
            letter = (failed.dead_letter or "").removeprefix(_LETTERS) or None
            break
        if found is None:
            break
        state = found
        await asyncio.sleep(min(LOOK_EVERY_S, max(0.0, until - time.monotonic())))
    end = await _followed(client, state.source_id, state.message_id, min(until, time.monotonic() + WAY_BACK_S))
    return AwaitedAnswer(end, letter)


def record_of(outgoing: Outgoing, topic: str) -> NewRecord:
    """The record of a sender on Kafka: the payload as it is, all else as headers, and the source_id as key.

    Raises UserError if no relay could read it.
    """
    try:
        message = Message(
            outgoing.source_id,
            outgoing.message_id,
            outgoing.receivers or None,
            outgoing.event_type,
            content_type=outgoing.content_type,
            payload=outgoing.payload,
            headers=outgoing.headers,
            wait_s=ceil(outgoing.wait_s or 0),
            timing=read_timing(outgoing.fields),
        )
        headers = message_headers(message)
        parse_message(outgoing.payload, headers)
    except InvalidRecord as error:
        raise UserError(error.detail) from None
    except UnicodeEncodeError:
        raise UserError("the source, the id and other options must be UTF-8; only the payload may be binary") from None
    return NewRecord(topic, outgoing.source_id.encode(), outgoing.payload, headers)


async def _produced(settings: Settings, outgoing: Outgoing) -> Coordinate:
    """The place of the message's record, once the log has acknowledged it."""
    from relay.run.composition import open_log  # a message over HTTP needs no Kafka client

    record = record_of(outgoing, Topics(settings.topic_prefix).from_sender)
    try:
        async with open_log(settings) as log:
            [at] = await log.append([record])
    except LogUnavailable as error:
        raise RelayError(f"{error}; a `relay dev` has no Kafka") from error
    return at


async def _read_and_answered(client: AsyncRelay, outgoing: Outgoing, at: Coordinate, wait_s: float) -> AwaitedAnswer:
    """The end of a message that was produced at `at`. Raises RelayError if the relay has not read it in time."""
    until = time.monotonic() + wait_s
    while (state := await state_or_none(client, outgoing.source_id, outgoing.message_id)) is None:
        if time.monotonic() >= until:
            raise RelayError(
                f"{client.url} does not know {coordinate_text(at)} after {wait_s:g} s: does that relay read this Kafka?"
            )
        await asyncio.sleep(LOOK_EVERY_S)
    return await _answered(client, state, until, wait_s)


def _print_place(call: ApiOptions, outgoing: Outgoing, at: Coordinate, *, waits: bool) -> None:
    """Prints the coordinate; as JSON only if nothing else is printed."""
    if not call.is_json:
        click.echo(escape_control(f"{outgoing.source_id}  {outgoing.message_id}  {coordinate_text(at)}"))
    elif not waits:
        print_json({"source_id": outgoing.source_id, "message_id": outgoing.message_id, "at": at._asdict()})


async def _outcome(client: AsyncRelay, state: MessageView, wait_s: int) -> MessageView | None:
    """The state after at most `wait_s`, or None once its only delivery has an answer. Raises DeliveryFailed."""
    try:
        found = await client.outcome(state.source_id, state.message_id, wait_s=wait_s)
    except DeliveryFailed:
        raise
    except ClientError as error:
        if isinstance(error, ApiError) and error.status == 410:
            return None  # so long ago that its answer is no longer stored
        if is_passing(error) or (isinstance(error, ApiError) and error.status == 404):
            return state
        raise
    return None if isinstance(found, Answer) else found


async def until_over(client: AsyncRelay, source_id: str, message_id: str, wait_s: float) -> MessageView:
    """The message's state once it has ended. Raises RelayError if that takes longer than `wait_s`."""
    state = await _followed(client, source_id, message_id, time.monotonic() + wait_s)
    if not is_over(state):
        raise RelayError(_late(state, wait_s))
    return state


async def first_tried(client: AsyncRelay, state: MessageView, within_s: float) -> MessageView:
    """The message's state once each delivery was tried or has ended, or after `within_s` seconds."""
    until = time.monotonic() + within_s
    while not all(each.attempts for each in state.deliveries) and not is_over(state):
        if time.monotonic() >= until:
            break
        await asyncio.sleep(LOOK_EVERY_S)
        state = await state_or_none(client, state.source_id, state.message_id) or state
    return state


async def _followed(client: AsyncRelay, source_id: str, message_id: str, until: float) -> MessageView:
    """The message's state once it has ended, or at `until`, on the monotonic clock."""
    state = None
    while True:
        state = await state_or_none(client, source_id, message_id) or state
        if state is not None and is_over(state):
            return state
        if time.monotonic() >= until:
            if state is None:
                raise RelayError(f"the outcome of message {message_id} is unknown")
            return state
        await asyncio.sleep(LOOK_EVERY_S)


def print_answer(waited: AwaitedAnswer) -> None:
    """Prints each answer in full, and where to find failures, which the table does not show."""
    print_answers(waited.state)
    if waited.letter is not None:
        click.echo(f"dead letter: {program()} failed show {waited.letter}")


def _late(state: MessageView, wait_s: float) -> str:
    why = "".join(f"; {reason}" for reason in reasons_to_wait(state))
    return f"message {state.message_id} has no result after {wait_s:g} s; its state is {state.state}{why}"
