"""`relay messages` and `relay attempts`: messages with the status of each delivery, and each HTTP exchange."""

import asyncio
import base64
from collections.abc import Awaitable, Mapping, Sequence
from typing import Final, Unpack

import click

from relay.cli.api import ApiOptions, api_command, newest
from relay.cli.options import FILE_OR_STDIN, CommandGroup, cursor_option, limit_option
from relay.cli.replay import cancel
from relay.cli.send import pairs_of, payload_in
from relay.cli.status import print_state
from relay.cli.table import cells, print_json, shortened, span
from relay.client import ApiError, AsyncRelay
from relay.client.resources import PagedMessageFilters
from relay.domain.errors import UserError
from relay.domain.identity import PROBE
from relay.domain.reasons import REASONS
from relay.domain.state import PROGRESS, STORED, UNSTORED
from relay.pages.compare import DiffPart, of_attempts, of_messages
from relay.schema.attempts import AttemptItem, AttemptPage
from relay.schema.messages import DeliveryItem, MessageItem

BEHIND_S: Final = 10.0
"""Smallest lag of the history that is reported."""
_COLUMNS: Final = ("RECEIVED", "SOURCE", "MESSAGE", "TYPE", "STATE", "SIZE", "DELIVERIES")
_OF_MESSAGE: Final = ("STARTED", "KIND", "RECEIVER", "ATTEMPT", "RESULT", "MS", "OUTCOME", "NEXT", "DETAIL")
_AT_RECEIVER: Final = ("STARTED", "KIND", "SOURCE", "MESSAGE", "ATTEMPT", "RESULT", "MS", "OUTCOME", "NEXT", "DETAIL")
_COLOURS: Final[Mapping[str, str]] = {"good": "green", "bad": "red", "soft": "cyan"}
_USAGE: Final = (
    "give a SOURCE and a MESSAGE_ID, with --receiver or without; or --receiver alone, with --failed or without"
)


class _StoredState(click.Choice[str]):
    """The state of a delivery, without `blocked`, which messages show and the API does not search for either."""

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if value == "blocked":
            self.fail(f"{value!r}, {UNSTORED}", param, ctx)
        return super().convert(value, param, ctx)


@click.group(cls=CommandGroup, invoke_without_command=True)
@click.option("--source", help="Only messages of this source.")
@click.option("--receiver", help="Only messages with a delivery to this receiver.")
@click.option("--owner", help="Only messages with a delivery to a receiver of this owner.")
@click.option("--status", type=click.Choice(PROGRESS), help="Only messages with a delivery in this status.")
@click.option("--state", type=_StoredState(STORED), help="Only messages with a delivery in this state.")
@click.option(
    "--reason", type=click.Choice(list(REASONS)), help="Only messages with a delivery that failed for this reason."
)
@click.option("--type", help="Only messages of this type; a trailing * stands for anything.")
@click.option("--since", metavar="TIME", help="Only messages since this time: RFC 3339, or how long ago, such as 2h.")
@click.option("--until", metavar="TIME", help="Only messages before this time.")
@click.option("--id", help="Only messages whose id, or webhook id, has this prefix.")
@click.option("--header", metavar="NAME:VALUE", help="Only messages with this header; needs stored bodies.")
@click.option(
    "--payload",
    metavar="/POINTER=VALUE",
    help="Only messages with this value in the JSON payload; needs stored bodies.",
)
@limit_option
@cursor_option
@api_command
@click.pass_context
def messages(
    context: click.Context,
    call: ApiOptions,
    /,
    **filters: Unpack[PagedMessageFilters],
) -> None:
    """List messages, newest first. All given filters apply, and only messages visible to the key are listed."""
    if context.invoked_subcommand is not None:
        return
    page = call.run(lambda client: client.messages.page(**filters))
    if filters.get("source") is None:  # the user of `relay dev` has not sent its probe
        page["items"] = [item for item in page["items"] if item["source_id"] != PROBE]
    call.show_page(page, _COLUMNS, _message)
    if (behind_s := page.get("behind_s") or 0.0) > BEHIND_S:
        click.echo(f"the history is {span(behind_s)} behind: newer messages may be missing", err=True)


messages.add_command(cancel)


@messages.command()
@click.argument("source")
@click.argument("message_id")
@click.option("--edit", is_flag=True, help="Edit the payload in $EDITOR first.")
@click.option("--payload", "file", type=FILE_OR_STDIN, help="File with the new payload; - is stdin.")
@click.option(
    "--header",
    "headers",
    multiple=True,
    help="Header of the copy, as 'x-team: core'; repeatable. Replaces all headers.",
)
@click.option("--type", "event_type", help="Event type of the copy.")
@click.option("--content-type", help="Content type of the payload.")
@click.option("--receiver", "receivers", multiple=True, help="Receiver of the copy; repeatable.")
@api_command
def resend(
    call: ApiOptions,
    source: str,
    message_id: str,
    edit: bool,
    file: str | None,
    headers: tuple[str, ...],
    event_type: str | None,
    content_type: str | None,
    receivers: tuple[str, ...],
) -> None:
    """Send the message MESSAGE_ID of SOURCE again as a copy with a new id. Without options, nothing else changes.

    The copy refers to the original. To repeat a failed delivery under its own id, use `relay replay delivery`.
    """
    payload = None if file is None else payload_in(file)
    pairs = dict(pairs_of(headers)) if headers else None
    if edit:
        payload = _edited(_text(call.run(lambda client: client.messages.payload(source, message_id)).body, payload))
    view = call.run(
        lambda client: client.messages.copy(
            source,
            message_id,
            payload_base64=None if payload is None else base64.b64encode(payload).decode(),
            headers=pairs,
            type=event_type,
            content_type=content_type,
            receivers=list(receivers) or None,
        )
    )
    print_state(view, call.output)


@messages.command()
@click.argument("source")
@click.argument("message_id")
@click.argument("other_id")
@api_command
def diff(call: ApiOptions, source: str, message_id: str, other_id: str) -> None:
    """Show the lines in which OTHER_ID, a message of SOURCE, differs from MESSAGE_ID: type, receivers and payload.

    Exit code 1 if there is a difference. `relay attempts ... --diff` compares attempts.
    """

    async def body(client: AsyncRelay, id: str) -> bytes | None:
        try:
            return (await client.messages.payload(source, id)).body
        except ApiError as error:
            if error.kind == "payload-gone":
                return None
            raise

    async def work(client: AsyncRelay) -> list[DiffPart]:
        ids = (message_id, other_id)
        before, after, *payloads = await asyncio.gather(
            *(client.messages.get(source, id) for id in ids), *(body(client, id) for id in ids)
        )
        return of_messages(before, after, (payloads[0], payloads[1]))

    _print_diff(call, call.run(work))


def _print_diff(call: ApiOptions, parts: Sequence[DiffPart]) -> None:
    """The parts that differ; the exit code is that of `diff`."""
    if call.is_json:
        lines = {
            part.title.lower(): None if part.lines is None else [each.text for each in part.lines] for part in parts
        }
        print_json(lines)
    else:
        for part in parts:
            says = "too large to be compared" if part.lines is None else "" if part.lines else "no difference"
            click.secho(f"{part.title}{says and ': '}{says}", bold=True)
            for line in part.lines or ():
                click.secho(line.text, fg=_COLOURS.get(line.tone))
    if any(part.lines != [] for part in parts):
        click.get_current_context().exit(1)


def _text(original: bytes, given: bytes | None) -> str:
    """The text to edit: the given payload, or that of the original. Raises UserError if it is no text."""
    try:
        return (original if given is None else given).decode()
    except UnicodeDecodeError:
        raise UserError("the payload is not text: give the new one with --payload FILE") from None


def _edited(text: str) -> bytes:
    """Raises UserError if the editor was left without saving."""
    found = click.edit(text, extension=".json", require_save=True)
    if found is None:
        raise UserError("nothing was sent, because nothing was saved in the editor")
    return found.encode()


def _message(item: MessageItem) -> tuple[str, ...]:
    known = cells(item, "received_at", "source_id", "message_id", "type", "state", "size")
    return (*known, "; ".join(map(_delivery, item["deliveries"])) or "-")


def _delivery(each: DeliveryItem) -> str:
    """A delivery in a few words, such as `ci failed (exhausted, HTTP 503)`."""
    last = f"HTTP {each['last_status']}" if each["last_status"] else None
    wait, next_at = each["waiting_for"], each["next_attempt_at"]
    blocked_by = wait.kind if wait is not None and each["state"] == "blocked" else None
    next_one = f"next at {next_at}" if next_at is not None else None
    newer = f"by {each['replaced_by']}" if "replaced_by" in each else None
    why = ", ".join(filter(None, (blocked_by, each["reason"], newer, last, next_one)))
    return f"{each['receiver']} {each['state']}" + (f" ({why})" if why else "")


@click.command()
@click.argument("source_id", required=False)
@click.argument("message_id", required=False)
@click.option("--receiver", help="Only attempts at this receiver; without a message, for all its messages.")
@click.option("--failed", is_flag=True, help="Only failures; needs --receiver and no message.")
@click.option("--diff", "compared", nargs=2, type=int, metavar="N M", help="Compare attempts N and M of the message.")
@limit_option
@cursor_option
@api_command
def attempts(
    call: ApiOptions,
    source_id: str | None,
    message_id: str | None,
    receiver: str | None,
    failed: bool,
    compared: tuple[int, int] | None,
    limit: int,
    cursor: str | None,
) -> None:
    """List attempts, newest first: POSTs, status GETs, callbacks and pings, with their outcomes.

    For one message (SOURCE_ID MESSAGE_ID), or all to a receiver (--receiver NAME). `-o json` has headers and bodies.
    """
    of_message = source_id is not None and message_id is not None
    at_receiver = source_id is None and receiver is not None
    if not (at_receiver or (of_message and not failed)) or (compared and not of_message):
        raise UserError(_USAGE)

    async def page(client: AsyncRelay, limit: int, cursor: str | None) -> AttemptPage:
        if source_id is not None and message_id is not None:
            return await client.messages.attempts_page(
                source_id, message_id, receiver=receiver, limit=limit, cursor=cursor
            )
        return await client.receivers.attempts_page(receiver or "", failed=failed, limit=limit, cursor=cursor)

    def work(client: AsyncRelay) -> Awaitable[AttemptPage]:
        return newest(lambda limit, cursor: page(client, limit, cursor), limit, cursor)

    found = call.run(work)
    if compared:
        before, after = (_numbered(found["items"], number) for number in compared)
        _print_diff(call, of_attempts(before, after))
        return
    call.show_page(found, _OF_MESSAGE if of_message else _AT_RECEIVER, lambda each: _attempt(each, of_message))


def _numbered(items: Sequence[AttemptItem], number: int) -> AttemptItem:
    """The newest POST with this number. Raises UserError unless it is at one receiver."""
    found = [each for each in items if each["kind"] == "post" and each["attempt"] == number]
    if not found:
        raise UserError(f"there is no attempt {number} among the newest {len(items)}: --limit shows more")
    if len({each["receiver"] for each in found}) > 1:
        raise UserError(f"several receivers have an attempt {number}: give one with --receiver")
    return found[0]


def _attempt(each: AttemptItem, of_message: bool) -> tuple[str, ...]:
    about = ("receiver",) if of_message else ("source_id", "message_id")
    life = f"{each['generation']}." if each["generation"] else ""
    return (
        *cells(each, "started_at", "kind", *about),
        f"{life}{each['attempt']}",
        result_of(each),
        f"{each['duration_ms']:g}",
        f"{each['outcome']} ({each['reason']})" if each["reason"] else each["outcome"],
        each["next_attempt_at"] or "-",
        shortened(each["detail"] or (each["error"]["detail"] if each["error"] else _by(each["rule"]))),
    )


def _by(rule: str | None) -> str:
    return "-" if rule is None else f"by {rule}"


def result_of(each: AttemptItem) -> str:
    """The status, or why there is none."""
    if each["response"] is not None:
        return str(each["response"]["status"])
    return each["error"]["kind"] if each["error"] is not None else "-"
