"""`relay status`: the status of a message, why it waits, its history, and its answers."""

import asyncio
import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import click
import msgspec

from relay.cli.client import ApiBusy, ApiFailed, Client, NoHistory, message_path, with_client
from relay.cli.config import api_option, config_option, settings_from
from relay.cli.table import output_option, print_json, print_table, print_text
from relay.cli.timeline import timeline
from relay.domain import progress
from relay.schema.messages import MessageView
from relay.telemetry.redaction import escape_control, escape_in_json

ANSWER_CHARS = 60
WATCH_EVERY_S = 0.5
SHOWN_ATTEMPTS = 200
_NO_HISTORY = "attempts are not shown one by one: this relay has no history (set RELAY_HISTORY_URL)"
_COLUMNS = ("RECEIVER", "STATUS", "ATTEMPTS", "LAST", "REASON", "WAITING FOR", "CALLBACK", "ANSWER")


@click.command()
@click.argument("source_id")
@click.argument("message_id")
@click.option("--watch", is_flag=True, help="Continue until it has ended, and show each change.")
@api_option
@config_option
@output_option
def status(
    source_id: str, message_id: str, watch: bool, api: str | None, config_file: Path | None, output: str
) -> None:
    """Show the status of a message, why it waits, its history, and its answers.

    The exit code is 1 if a delivery failed, or the callback with its result.
    """

    async def work(client: Client) -> tuple[Any, _Tried]:
        if watch:
            tell = _print_line if output == "json" else _print_change
            return await watch_until_over(client, source_id, message_id, tell), _Tried()
        state = await client.message(source_id, message_id)
        known = state is not None and output == "table"
        return state, await _tried(client, source_id, message_id) if known else _Tried()

    state, tried = with_client(settings_from(config_file), api, work)
    if state is None:
        raise ApiFailed(f"there is no message {message_id!r} of source {source_id!r}")
    if not watch:
        _show_whole(state, tried, output)
    if has_failed(state):
        click.get_current_context().exit(1)


class _Tried(NamedTuple):
    """The attempts of a message, newest first. None: unknown, for the reason in `note`."""

    attempts: list[Any] | None = None
    note: str = ""


async def _tried(client: Client, source_id: str, message_id: str) -> _Tried:
    path = f"{message_path(source_id, message_id)}/attempts"
    try:
        page = await client.page(path, {"limit": SHOWN_ATTEMPTS})
    except NoHistory:
        return _Tried(note=_NO_HISTORY)
    except ApiFailed as error:  # the message's state is shown all the same
        return _Tried(note=f"attempts are not shown one by one: {error}")
    older = f"only the newest {SHOWN_ATTEMPTS} attempts are shown: `relay attempts` has the others"
    return _Tried(page["items"], older if page["cursor"] else "")


def _show_whole(state: Any, tried: _Tried, output: str) -> None:
    if tried.attempts is None or not state["deliveries"]:
        show(state, output)
    else:
        _show_table(state)
        width = shutil.get_terminal_size((80, 24)).columns
        message = msgspec.convert(state, MessageView)
        for line in timeline(message, tried.attempts, now=time.time(), width=min(width, 100)):
            click.echo(line)
    if tried.note:
        click.echo(escape_control(tried.note))


async def watch_until_over(client: Client, source_id: str, message_id: str, tell: Callable[[Any], None]) -> Any:
    """The message's state once it is over; None if it is not known. `tell` is called with each change of it, except for
    times and texts that change without an event."""
    told = None
    while True:
        try:
            state = await client.message(source_id, message_id)
        except ApiBusy:
            await asyncio.sleep(WATCH_EVERY_S)
            continue
        if state is None:
            return None
        if _essence(state) != told:
            tell(state)
            told = _essence(state)
        if is_over(state):
            return state
        await asyncio.sleep(WATCH_EVERY_S)


def show(state: Any, output: str) -> None:
    """Print a message's state, as JSON or as a table of its deliveries."""
    if output == "json":
        print_json(state)
        return
    _show_table(state)
    print_details(state)


def _show_table(state: Any) -> None:
    duplicate = "  (duplicate)" if state.get("duplicate") else ""
    click.echo(escape_control(f"{state['source_id']}  {state['message_id']}  {state['status']}{duplicate}"))
    if state["deliveries"]:
        print_table(_COLUMNS, [row_of(each) for each in state["deliveries"]])


def print_details(state: Any) -> None:
    """Print the details: failures, and what deliveries wait for."""
    for each in state["deliveries"]:
        for name, words in _said(each):
            click.echo(escape_control(f"{each['receiver']} {name}: {words}"))


def row_of(delivery: Any) -> tuple[str, ...]:
    """A delivery as cells: receiver, status, attempts, last HTTP status, reason, what it waits for, how its callback is
    going, answer."""
    return (
        delivery["receiver"],
        delivery["status"],
        str(delivery["attempts"]),
        str(delivery["last_status"] or "-"),
        delivery["reason"] or "-",
        waiting_text(delivery["waiting_for"]),
        callback_text(delivery["callback"]),
        answer_text(delivery["answer"]),
    )


def waiting_text(waiting_for: Any) -> str:
    """What a delivery waits for, and until when, in a few words."""
    if not waiting_for:
        return "-"
    until = f" until {waiting_for['until']}" if waiting_for["until"] else ""
    return f"{waiting_for['kind']}{until}"


def reasons_to_wait(state: Any) -> list[str]:
    """For each delivery that waits, a line that says for what, and why."""
    waiting = [(each["receiver"], each["waiting_for"]) for each in state["deliveries"] if each["waiting_for"]]
    return [
        f"{receiver} waits: {waiting_text(what)}" + (f" ({what['detail']})" if what["detail"] else "")
        for receiver, what in waiting
    ]


def callback_text(callback: Any) -> str:
    """The state of the result's callback, in a few words: state, calls, last HTTP status."""
    if not callback:
        return "-"
    if callback["attempts"] is None:  # a key for the receiver sees no more
        return str(callback["status"])
    calls = f", {callback['attempts']} calls" if callback["attempts"] != 1 else ", 1 call"
    last = f", last {callback['last_status']}" if callback["last_status"] else ""
    return f"{callback['status']}{calls}{last}"


def answer_text(answer: Any) -> str:
    """The answer in one short line."""
    if not answer:
        return "-"
    body = answer["body"] if answer["body"] is not None else "(binary)"
    line = " ".join(body.split())
    return f"{answer['status']} {line[:ANSWER_CHARS]}{'...' if len(line) > ANSWER_CHARS else ''}"


def is_over(state: Any) -> bool:
    """Whether a message of the API is in its final state."""
    return progress.is_over(state["status"], _progress(state))


def was_answered(state: Any) -> bool:
    """Whether each receiver has answered for good, or has failed to."""
    return progress.was_answered(state["status"], _progress(state))


def print_answers(state: Any) -> None:
    """Print each answer in full."""
    for each in state["deliveries"]:
        answer = each["answer"]
        if answer:
            binary = answer["body"] is None
            kind = f"{answer['content_type'] or 'no content type'}{', in base64' if binary else ''}"
            click.echo(escape_control(f"{each['receiver']} answered {answer['status']} ({kind}):"))
            print_text(answer["body_base64"] if binary else answer["body"])


def has_failed(state: Any) -> bool:
    """Whether a delivery of it, or the callback with its result, has failed for good."""
    return progress.has_failed(state["status"], _progress(state))


def _said(delivery: Any) -> list[tuple[str, str]]:
    """Details that do not fit into a cell."""
    waiting_for, callback = delivery["waiting_for"], delivery["callback"]
    said = [("detail", delivery["detail"]), ("what to do", delivery.get("advice"))]
    if waiting_for:
        said.append((f"waits for {waiting_for['kind']} since {waiting_for['since'] or '?'}", waiting_for["detail"]))
    if callback:
        said.append((f"callback {callback['status']}", callback["detail"]))
    return [(name, words) for name, words in said if words]


def _essence(state: Any) -> list[Any]:
    """The part of a state whose change is shown."""
    return [
        [each[name] for name in ("status", "generation", "attempts", "last_status", "reason", "answer")]
        + [(each["waiting_for"] or {}).get("kind"), callback_text(each["callback"])]
        for each in state["deliveries"]
    ]


def _print_change(state: Any) -> None:
    show(state, "table")


def _print_line(state: Any) -> None:
    click.echo(escape_in_json(json.dumps(state, ensure_ascii=False)))


def _progress(state: Any) -> list[progress.DeliveryProgress]:
    return [
        progress.DeliveryProgress(each["status"], each["callback"]["status"] if each["callback"] else None)
        for each in state["deliveries"]
    ]
