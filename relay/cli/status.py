"""`relay status`: the status of a message, why it waits, its history as a timeline, and its answers."""

import asyncio
import json
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Final, NamedTuple

import click
import msgspec
from rich.console import Console
from rich.text import Text

from relay.cli.api import ApiOptions, api_command, error_of, if_known
from relay.cli.table import PIPED_WIDTH, print_json, print_table, print_text, span
from relay.client import ApiError, AsyncRelay, ClientError
from relay.domain import state as states
from relay.domain.errors import RelayError
from relay.domain.text import counted
from relay.pages.round_trip import Step, Trip, moment, trips_of
from relay.schema.attempts import AttemptItem
from relay.schema.messages import AnswerView, CallbackView, DeliveryView, MessageView, WaitView
from relay.telemetry.redaction import escape_control, escape_in_json

ANSWER_CHARS = 60
WATCH_EVERY_S = 0.5
SHOWN_ATTEMPTS = 200
_COLUMNS = ("RECEIVER", "STATE", "STATUS", "ATTEMPTS", "LAST", "REASON", "WAITING FOR", "CALLBACK", "ANSWER")
_TIME: Final = len("12:00:00.000")
_OFFSET: Final = len("+59 min 59 s")
_NARROWEST: Final = 40
_MOST: Final = 400
"""Characters of a quoted foreign text."""


@click.command()
@click.argument("source_id")
@click.argument("message_id")
@click.option("--watch", is_flag=True, help="Show each change until the message has ended.")
@api_command
def status(call: ApiOptions, source_id: str, message_id: str, watch: bool) -> None:
    """Show the status of a message, why it waits, its history, and its answers.

    The exit code is 1 if a delivery failed, or the callback with its result.
    """

    async def work(client: AsyncRelay) -> tuple[MessageView | None, _Tried]:
        if watch:
            report = _print_line if call.is_json else lambda state: print_state(state, "table")
            return await watch_until_over(client, source_id, message_id, report), _Tried()
        state = await if_known(client.messages.get(source_id, message_id))
        known = state is not None and not call.is_json
        return state, await _tried(client, source_id, message_id) if known else _Tried()

    state, tried = call.run(work)
    if state is None:
        raise RelayError(f"there is no message {message_id!r} of source {source_id!r}")
    if not watch:
        _show_whole(state, tried, call.output)
    if has_failed(state):
        click.get_current_context().exit(1)


async def state_or_none(client: AsyncRelay, source_id: str, message_id: str) -> MessageView | None:
    """The message's state; None if it is unknown, or while a part of the relay is unavailable."""
    try:
        return await if_known(client.messages.get(source_id, message_id))
    except ClientError as error:
        if error.busy:
            return None
        raise


class _Tried(NamedTuple):
    """The attempts of a message, newest first. None: unknown, for the reason in `note`."""

    attempts: list[AttemptItem] | None = None
    note: str = ""


async def _tried(client: AsyncRelay, source_id: str, message_id: str) -> _Tried:
    try:
        page = await client.messages.attempts_page(source_id, message_id, limit=SHOWN_ATTEMPTS)
    except ClientError as error:  # the message's state is shown all the same
        if isinstance(error, ApiError) and error.kind == "no-history":
            return _Tried(note="attempts are not shown one by one: this relay has no history (set RELAY_HISTORY_URL)")
        return _Tried(note=f"attempts are not shown one by one: {error_of(error)}")
    older = f"only the newest {SHOWN_ATTEMPTS} attempts are shown: `relay attempts` has the others"
    return _Tried(page["items"], older if page["cursor"] else "")


def _show_whole(state: MessageView, tried: _Tried, output: str) -> None:
    if tried.attempts is None or not state.deliveries:
        print_state(state, output)
    else:
        _show_table(state)
        width = min(shutil.get_terminal_size((80, 24)).columns, 100) if sys.stdout.isatty() else PIPED_WIDTH
        for line in timeline(state, tried.attempts, now=time.time(), width=width):
            click.echo(line)
    if tried.note:
        click.echo(escape_control(tried.note))


async def watch_until_over(
    client: AsyncRelay, source_id: str, message_id: str, report: Callable[[MessageView], None]
) -> MessageView | None:
    """The message's state once it is over; None if it is not known. `report` is called with each change of it, except
    for times and texts that change without an event."""
    reported = None
    while True:
        try:
            state = await if_known(client.messages.get(source_id, message_id))
        except ClientError as error:
            if not error.busy:
                raise
            await asyncio.sleep(WATCH_EVERY_S)
            continue
        if state is None:
            return None
        if _essence(state) != reported:
            report(state)
            reported = _essence(state)
        if is_over(state):
            return state
        await asyncio.sleep(WATCH_EVERY_S)


def print_state(state: MessageView, output: str) -> None:
    """Print a message's state, as JSON or as a table of its deliveries."""
    if output == "json":
        print_json(state)
        return
    _show_table(state)
    print_details(state)


def _show_table(state: MessageView) -> None:
    duplicate = "  (duplicate)" if state.duplicate else ""
    click.echo(escape_control(f"{state.source_id}  {state.message_id}  {state.state}{duplicate}"))
    if state.deliveries:
        print_table(_COLUMNS, [row_of(each) for each in state.deliveries])


def print_details(state: MessageView) -> None:
    """Print the details: failures, and what deliveries wait for."""
    if state.reason:
        click.echo(escape_control(f"failed: {state.reason}" + (f": {state.detail}" if state.detail else "")))
    for each in state.deliveries:
        for name, words in _details(each):
            click.echo(escape_control(f"{each.receiver} {name}: {words}"))


def row_of(delivery: DeliveryView) -> tuple[str, ...]:
    """A delivery as cells: receiver, state, status, attempts, last HTTP status, reason, what it waits for, how its
    callback is going, answer."""
    return (
        delivery.receiver,
        delivery.state,
        delivery.status,
        str(delivery.attempts),
        str(delivery.last_status or "-"),
        delivery.reason or "-",
        waiting_text(delivery.waiting_for),
        callback_text(delivery.callback),
        answer_text(delivery.answer),
    )


def waiting_text(waiting_for: WaitView | None) -> str:
    """What a delivery waits for, and until when, in a few words."""
    if not waiting_for:
        return "-"
    until = f" until {waiting_for.until}" if waiting_for.until else ""
    return f"{waiting_for.kind}{until}"


def reasons_to_wait(state: MessageView) -> list[str]:
    """For each delivery that waits, a line that says for what, and why."""
    waiting = [(each.receiver, each.waiting_for) for each in state.deliveries if each.waiting_for]
    return [
        f"{receiver} waits: {waiting_text(what)}" + (f" ({what.detail})" if what.detail else "")
        for receiver, what in waiting
    ]


def callback_text(callback: CallbackView | None) -> str:
    """The state of the result's callback, in a few words: state, calls, last HTTP status."""
    if not callback:
        return "-"
    if callback.attempts is None:  # a key for the receiver sees no more
        return str(callback.status)
    last = f", last {callback.last_status}" if callback.last_status else ""
    return f"{callback.status}, {counted(callback.attempts, 'call')}{last}"


def answer_text(answer: AnswerView | None) -> str:
    """The answer in one short line."""
    if not answer:
        return "-"
    body = answer.body if answer.body is not None else "(binary)"
    line = " ".join(body.split())
    return f"{answer.status} {line[:ANSWER_CHARS]}{'...' if len(line) > ANSWER_CHARS else ''}"


def is_over(state: MessageView) -> bool:
    """Whether a message of the API is in its final state."""
    return states.is_over(state.status, _progress(state))


def was_answered(state: MessageView) -> bool:
    """Whether each receiver has answered for good, or has failed to."""
    return states.was_answered(state.status, _progress(state))


def print_answers(state: MessageView) -> None:
    """Print each answer in full."""
    for each in state.deliveries:
        answer = each.answer
        if answer:
            binary = answer.body is None
            kind = f"{answer.content_type or 'no content type'}{', in base64' if binary else ''}"
            click.echo(escape_control(f"{each.receiver} answered {answer.status} ({kind}):"))
            print_text((answer.body_base64 if binary else answer.body) or "")


def has_failed(state: MessageView) -> bool:
    """Whether a delivery of it, or the callback with its result, has failed for good."""
    return states.has_failed(state.status, _progress(state))


def _details(delivery: DeliveryView) -> list[tuple[str, str]]:
    """Details that do not fit into a cell."""
    waiting_for, callback = delivery.waiting_for, delivery.callback
    details = [("detail", delivery.detail), ("what to do", delivery.advice)]
    if delivery.replaced_by:
        details.append(("replaced by", delivery.replaced_by))
    if waiting_for:
        details.append((f"waits for {waiting_for.kind} since {waiting_for.since or '?'}", waiting_for.detail))
    if callback:
        details.append((f"callback {callback.status}", callback.detail))
    return [(name, words) for name, words in details if words]


def _essence(state: MessageView) -> list[tuple[object, ...]]:
    """The part of a state whose change is shown."""
    return [
        (
            *(each.state, each.status, each.generation, each.attempts, each.last_status, each.reason, each.answer),
            *(each.waiting_for.kind if each.waiting_for else None, callback_text(each.callback)),
        )
        for each in state.deliveries
    ]


def _print_line(state: MessageView) -> None:
    click.echo(escape_in_json(json.dumps(msgspec.to_builtins(state), ensure_ascii=False)))


def _progress(state: MessageView) -> list[states.DeliveryProgress]:
    return [
        states.DeliveryProgress(each.status, each.callback.status if each.callback else None)
        for each in state.deliveries
    ]


def timeline(message: MessageView, attempts: Sequence[AttemptItem], *, now: float, width: int) -> list[str]:
    """Lines of at most `width` columns (40 at least). `attempts`: in any order. `now`: Unix seconds."""
    writer = _Writer(moment(message.received_at), max(width, _NARROWEST))
    for trip in trips_of(message, attempts, now):
        writer.add(trip)
    return writer.lines


class _Writer:
    def __init__(self, began: float | None, width: int) -> None:
        self.lines: list[str] = []
        self._began = began
        self._width = width
        self._console = Console(width=width)

    def add(self, trip: Trip) -> None:
        if self.lines:
            self.lines.append("")
        self._wrapped("", f"to {trip.view.receiver}, times in UTC:")
        day = ""
        for life in trip.lives:
            if life.generation:
                self._wrapped("  ", f"replay {life.generation}:")
            for step in life.steps:
                day = self._new_day(step.at, day)
                self._step(step)
        if trip.view.advice:
            self._wrapped("  What to do: ", trip.view.advice)

    def _new_day(self, at: float | None, day: str) -> str:
        """The times do not show it, so its begin has a line."""
        if at is None or (today := _moment(at).date().isoformat()) == day:
            return day
        self.lines.append(f"  {today}")
        return today

    def _step(self, step: Step) -> None:
        when = "" if step.at is None else _clock(step.at)
        after = "" if step.at is None or self._began is None else f"+{span(max(0.0, step.at - self._began))}"
        lead = f"  {when:<{_TIME}} {after:>{_OFFSET}}  "
        first, *others = _words(step)
        self._wrapped(lead, first)
        for words in others:
            self._wrapped(" " * len(lead) + "  ", words)

    def _wrapped(self, lead: str, words: str) -> None:
        """`words` behind `lead`, and in the lines after it below each other."""
        found = Text(escape_control(words)).wrap(self._console, self._width - len(lead), overflow="fold")
        for number, line in enumerate(found):
            self.lines.append(f"{lead if number == 0 else ' ' * len(lead)}{line.plain.rstrip()}".rstrip())


def _words(step: Step) -> Iterator[str]:
    """The title, and the details."""
    if step.is_due:
        yield f"{step.title}; it is due"
    elif step.next_at is not None:
        yield f"{step.title}, until {_clock(step.next_at)}"
    elif step.seconds is not None:
        yield f"{step.title} ({span(step.seconds)})"
    else:
        yield step.title
    if step.detail:
        line = " ".join(step.detail.split())
        yield f"because {line[:_MOST]}" if step.kind == "wait" else line[:_MOST]
    for attempt in step.attempts[-1:]:
        if attempt["next_attempt_at"]:
            yield f"the next one was set for {_clock(moment(attempt['next_attempt_at']) or 0.0)}"


def _clock(seconds: float) -> str:
    return _moment(seconds).time().isoformat(timespec="milliseconds")


def _moment(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)
