"""`relay failed`: dead letters."""

import click

from relay.cli.api import ApiOptions, api_command, if_known, newest
from relay.cli.options import CommandGroup, cursor_option, limit_option, program
from relay.cli.replay import acting, place_of
from relay.cli.table import cells, print_text, shortened
from relay.client import AsyncRelay
from relay.domain.errors import RelayError
from relay.domain.hop import NO_RECEIVER
from relay.domain.text import whole_number
from relay.domain.times import rfc3339
from relay.schema.replays import LetterPage, LetterView, WholeLetter
from relay.telemetry.redaction import escape_control

_COLUMNS = (
    *("PLACE", "RECEIVER", "REASON", "CLASS", "ATTEMPTS", "LAST", "FAILED AT", "SOURCE", "MESSAGE", "DETAIL"),
    "TO REPLAY IT",
)
_MOMENTS = frozenset({"relay-first-failed", "relay-accepted-at", "relay-parked-due", "relay-parked-at"})
"""Headers that are Unix milliseconds."""


@click.group(cls=CommandGroup)
def failed() -> None:
    """List, show, replay or discard dead letters."""


@failed.command("list")
@click.option("--receiver", help="Only of this receiver; `-` selects messages without one.")
@limit_option
@cursor_option
@api_command
def list_(call: ApiOptions, receiver: str | None, limit: int, cursor: str | None) -> None:
    """List the newest dead letters."""

    async def work(client: AsyncRelay) -> LetterPage:
        page = await newest(client.failed.page, limit, cursor, receiver=[] if receiver is None else [receiver])
        is_empty = not (page["items"] or cursor)
        if is_empty and receiver not in (None, NO_RECEIVER) and await if_known(client.receivers.get(receiver)) is None:
            raise RelayError(f"there is no receiver named {receiver!r}, and no dead letter of one")
        return page

    call.show_page(call.run(work), _COLUMNS, _row)


@failed.command()
@click.argument("place")
@api_command
def show(call: ApiOptions, place: str) -> None:
    """Show the dead letter at PLACE, as `list` names it: PARTITION/OFFSET on failed_messages."""
    partition, offset = place_of(place)
    call.show(call.run(lambda client: client.failed.get(partition, offset)), _print)


def _print(letter: WholeLetter) -> None:
    for name, value in _facts(letter):
        click.echo(escape_control(f"{name:<12}{value}"))
    click.echo("\nHeaders")
    for name, value in letter["headers"]:
        click.echo(escape_control(f"  {name}: {_moment(value) if name in _MOMENTS else value}"))
    click.echo("\nPayload")
    payload = letter["payload"]
    if payload["body"] is not None:
        print_text(payload["body"])
    elif payload["body_base64"] is not None:
        print_text(f"(base64) {payload['body_base64']}")
    else:
        print_text("(withheld: the receiver gets no payloads)")
    click.echo(f"\nTo replay it: {_command(letter)}")


failed.add_command(acting("replay", "Send dead letters again, from the stage that failed."))
failed.add_command(acting("discard", "Discard dead letters: close them without a replay, and notify their senders."))


def _command(letter: LetterView) -> str:
    return f"{program()} failed replay {letter['partition']}/{letter['offset']}"


def _facts(letter: LetterView) -> list[tuple[str, str]]:
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
    milliseconds = whole_number(text)
    return text if milliseconds is None else rfc3339(milliseconds / 1000) or text


def _row(letter: LetterView) -> tuple[str, ...]:
    names = ("receiver", "reason", "class", "attempts", "last_status", "failed_at", "source_id", "message_id")
    place, detail = f"{letter['partition']}/{letter['offset']}", shortened(letter["detail"] or "-")
    return (place, *cells(letter, *names), detail, _command(letter))
