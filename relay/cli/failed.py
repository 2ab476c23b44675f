"""`relay failed`: dead letters."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from relay.cli.client import ApiFailed, Client, with_client
from relay.cli.config import api_option, config_option, settings_from
from relay.cli.replay_request import acting, place_of
from relay.cli.table import output_option, print_json, print_table, print_text
from relay.domain.hop import NO_RECEIVER
from relay.telemetry.redaction import escape_control

_COLUMNS = (
    *("PLACE", "RECEIVER", "REASON", "CLASS", "ATTEMPTS", "LAST", "FAILED AT", "SOURCE", "MESSAGE", "DETAIL"),
    "TO REPLAY IT",
)
DETAIL_CHARS = 400
_MOMENTS = frozenset({"relay-first-failed", "relay-accepted-at", "relay-parked-due", "relay-parked-at"})
"""Headers that are Unix milliseconds."""


@click.group()
def failed() -> None:
    """List, show, replay or discard dead letters."""


@failed.command("list")
@click.option("--receiver", help="Only of this receiver; `-`: of messages that never had one.")
@click.option(
    "--limit", type=click.IntRange(1, 1000), default=50, show_default=True, help="At most so many, newest first."
)
@click.option("--cursor", help="Continue after the previous page's cursor.")
@api_option
@config_option
@output_option
def list_(
    receiver: str | None, limit: int, cursor: str | None, api: str | None, config_file: Path | None, output: str
) -> None:
    """List the newest dead letters."""

    async def work(client: Client) -> Any:
        page = await client.failed(receiver=receiver, limit=limit, cursor=cursor)
        named = receiver if receiver != NO_RECEIVER else None
        if named and not (page["items"] or cursor) and await client.endpoint(named, missing_ok=True) is None:
            raise ApiFailed(f"there is no receiver named {named!r}, and no dead letter of one")
        return page

    page = with_client(settings_from(config_file), api, work)
    if output == "json":
        print_json(page["items"])
        return
    print_table(_COLUMNS, [_row(letter) for letter in page["items"]])
    if page["cursor"]:
        click.echo(f"there are more: --cursor {page['cursor']}")


@failed.command()
@click.argument("place")
@api_option
@config_option
@output_option
def show(place: str, api: str | None, config_file: Path | None, output: str) -> None:
    """Show the dead letter at PLACE, as `list` names it: PARTITION/OFFSET on failed_messages."""
    partition, offset = place_of(place)

    async def work(client: Client) -> Any:
        return await client.failed_at(partition, offset)

    letter = with_client(settings_from(config_file), api, work)
    if output == "json":
        print_json(letter)
        return
    for name, value in _facts(letter):
        click.echo(escape_control(f"{name:<12}{value}"))
    click.echo("\nHeaders")
    for name, value in letter["headers"]:
        click.echo(escape_control(f"  {name}: {_moment(value) if name in _MOMENTS else value}"))
    click.echo("\nPayload")
    payload = letter["payload"]
    print_text(payload["body"] if payload["body"] is not None else f"(base64) {payload['body_base64']}")
    click.echo(f"\nTo replay it: {_command(letter)}")


failed.add_command(acting("replay", "Send dead letters again, from the stage that failed."))
failed.add_command(acting("discard", "End dead letters for good, and notify their senders."))


def _command(letter: Any) -> str:
    return f"relay failed replay {letter['partition']}/{letter['offset']}"


def _facts(letter: Any) -> list[tuple[str, str]]:
    """The most important facts, first."""
    last = f", the last got {letter['last_status']}" if letter["last_status"] else ""
    return [
        ("Why", f"{letter['reason']} (class: {letter['class']})"),
        ("Detail", letter["detail"] or "-"),
        ("Failed at", letter["failed_at"] or "-"),
        ("Attempts", f"{letter['attempts']}{last}"),
        ("Receiver", letter["receiver"]),
        ("Source", letter["source_id"] or "-"),
        ("Message", letter["message_id"] or "-"),
        ("Stage", letter["stage"] or "-"),
        ("Place", f"{letter['partition']}/{letter['offset']}"),
    ]


def _moment(text: str) -> str:
    """Unix milliseconds as a time; other values as they are."""
    try:
        moment = datetime.fromtimestamp(int(text) / 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return text
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _row(letter: Any) -> tuple[str, ...]:
    return (
        f"{letter['partition']}/{letter['offset']}",
        letter["receiver"],
        letter["reason"],
        letter["class"],
        str(letter["attempts"]),
        str(letter["last_status"] or "-"),
        letter["failed_at"],
        letter["source_id"] or "-",
        letter["message_id"] or "-",
        _short(letter["detail"] or "-"),
        _command(letter),
    )


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= DETAIL_CHARS else f"{line[:DETAIL_CHARS]}..."
