"""`relay attempts`: each HTTP exchange about a message, or with a receiver."""

from pathlib import Path
from typing import Any, Final

import click

from relay.cli.client import message_path, receiver_path, with_client
from relay.cli.config import api_option, config_option, settings_from
from relay.cli.table import output_option, print_json, print_table
from relay.domain.errors import UserError

_OF_MESSAGE: Final = ("STARTED", "KIND", "RECEIVER", "ATTEMPT", "RESULT", "MS", "OUTCOME", "NEXT", "DETAIL")
_AT_RECEIVER: Final = ("STARTED", "KIND", "SOURCE", "MESSAGE", "ATTEMPT", "RESULT", "MS", "OUTCOME", "NEXT", "DETAIL")
_DETAIL_CHARS: Final = 400
_USAGE: Final = (
    "give a SOURCE and a MESSAGE_ID, with --receiver or without; or --receiver alone, with --failed or without"
)


@click.command()
@click.argument("source_id", required=False)
@click.argument("message_id", required=False)
@click.option("--receiver", help="To this receiver; alone: for all its messages.")
@click.option("--failed", is_flag=True, help="With --receiver alone: only failures.")
@click.option(
    "--limit", type=click.IntRange(1, 1000), default=50, show_default=True, help="At most so many, newest first."
)
@click.option("--cursor", help="Continue after the previous page's cursor.")
@api_option
@config_option
@output_option
def attempts(
    source_id: str | None,
    message_id: str | None,
    receiver: str | None,
    failed: bool,
    limit: int,
    cursor: str | None,
    api: str | None,
    config_file: Path | None,
    output: str,
) -> None:
    """List attempts, newest first: POSTs, status GETs, callbacks and pings, with their outcomes.

    For one message (SOURCE_ID MESSAGE_ID), or all to a receiver (--receiver NAME). `-o json` has headers and bodies.
    """
    of_message = source_id is not None and message_id is not None
    at_receiver = source_id is None and receiver is not None
    if not (at_receiver or (of_message and not failed)):
        raise UserError(_USAGE)
    asked: dict[str, object] = {"cursor": cursor}
    if source_id is not None and message_id is not None:
        path = f"{message_path(source_id, message_id)}/attempts"
        asked["receiver"] = receiver
    else:
        path = f"{receiver_path(receiver or '')}/attempts"
        asked["failed"] = "true" if failed else None
    page = with_client(settings_from(config_file), api, lambda client: client.whole_page(path, asked, limit))
    if output == "json":
        print_json(page["items"])
        return
    print_table(_OF_MESSAGE if of_message else _AT_RECEIVER, [_row(each, of_message) for each in page["items"]])
    if page["cursor"]:
        click.echo(f"there are more: --cursor {page['cursor']}")


def _row(each: Any, of_message: bool) -> tuple[str, ...]:
    about = (each["receiver"],) if of_message else (each["source_id"], each["message_id"])
    life = f"{each['generation']}." if each["generation"] else ""
    return (
        each["started_at"] or "-",
        each["kind"],
        *(word or "-" for word in about),
        f"{life}{each['attempt']}",
        result_of(each),
        f"{each['duration_ms']:g}",
        f"{each['outcome']} ({each['reason']})" if each["reason"] else each["outcome"],
        each["next_attempt_at"] or "-",
        _short(each["detail"] or (each["error"] or {}).get("detail") or "-"),
    )


def result_of(each: Any) -> str:
    """The status, or why there is none."""
    if each["response"] is not None:
        return str(each["response"]["status"])
    return each["error"]["kind"] if each["error"] is not None else "-"


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _DETAIL_CHARS else f"{line[:_DETAIL_CHARS]}..."
