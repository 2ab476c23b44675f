"""`relay status`: where a message is, and its answers."""

from pathlib import Path
from typing import Any

import click

from relay.cli.client import ApiFailed, Client, with_client
from relay.cli.config import api_option, config_option, settings_from
from relay.cli.table import output_option, print_json, print_table
from relay.domain import progress

ANSWER_CHARS = 60


@click.command()
@click.argument("source_id")
@click.argument("message_id")
@api_option
@config_option
@output_option
def status(source_id: str, message_id: str, api: str | None, config_file: Path | None, output: str) -> None:
    """Show where a message is, and its answers."""

    async def work(client: Client) -> Any:
        return await client.message(source_id, message_id)

    state = with_client(settings_from(config_file), api, work)
    if state is None:
        raise ApiFailed(f"nobody knows a message {message_id!r} of source {source_id!r}")
    show(state, output)


def show(state: Any, output: str) -> None:
    """Print a message's state, as JSON or as a table of its deliveries."""
    if output == "json":
        print_json(state)
        return
    duplicate = "  (duplicate)" if state.get("duplicate") else ""
    click.echo(f"{state['source_id']}  {state['message_id']}  {state['status']}{duplicate}")
    if state["deliveries"]:
        print_table(
            ("RECEIVER", "STATUS", "ATTEMPTS", "LAST", "REASON", "ANSWER"),
            [row_of(each) for each in state["deliveries"]],
        )


def row_of(delivery: Any) -> tuple[str, ...]:
    """A delivery as cells: receiver, status, attempts, last HTTP status, reason, answer."""
    return (
        delivery["receiver"],
        delivery["status"],
        str(delivery["attempts"]),
        str(delivery["last_status"] or "-"),
        delivery["reason"] or "-",
        answer_text(delivery["answer"]),
    )


def answer_text(answer: Any) -> str:
    """The answer in one short line."""
    if not answer:
        return "-"
    body = answer["body"] if answer["body"] is not None else "(binary)"
    line = " ".join(body.split())
    return f"{answer['status']} {line[:ANSWER_CHARS]}{'...' if len(line) > ANSWER_CHARS else ''}"


def is_over(state: Any) -> bool:
    """Whether nothing more will happen to a message that the API tells of."""
    return progress.is_over(state["status"], _progress(state))


def has_failed(state: Any) -> bool:
    """Whether anything about it went wrong for good: a delivery, or the way of its result to the sender."""
    return progress.has_failed(state["status"], _progress(state))


def _progress(state: Any) -> list[progress.Progress]:
    return [
        progress.Progress(each["status"], each["callback"]["status"] if each["callback"] else None)
        for each in state["deliveries"]
    ]
