"""`relay receivers`: checks, lists and applies a file, manages receivers over the API, and writes as lines of JSON what
one got."""

import json
import os
from pathlib import Path
from typing import Unpack

import click

from relay.cli.api import ApiOptions, api_command, error_of, with_api
from relay.cli.config import notes_on, print_refused, refusals, verdict_on
from relay.cli.options import FILE, WholeRange, api_option, config_option, output_option, settings_from
from relay.cli.receivers_apply import apply, file_option
from relay.cli.receivers_try import try_
from relay.cli.registered import list_registered
from relay.cli.registered import receivers as receivers
from relay.cli.replay import How, SelectOptions, carrying_out, count_and_begin, split
from relay.cli.table import print_json, print_table
from relay.client import AsyncRelay, ClientError
from relay.config.endpoint_entry import EndpointEntry
from relay.config.filter_entry import order_by
from relay.config.receiver_entry import ReceiverEntry
from relay.config.receivers_file import ReceiversFile, load_receivers_file
from relay.config.redacted_entry import effective, shown_url
from relay.config.references import usable_variables
from relay.config.settings import Settings
from relay.domain.errors import RelayError, UserError
from relay.domain.text import counted
from relay.domain.times import format_duration
from relay.schema.receivers import GapPage
from relay.schema.replays import JobView, PreviewView
from relay.telemetry.redaction import escape_in_json

for _command in (apply, try_):
    receivers.add_command(_command)


@receivers.command()
@click.argument("file", type=FILE, required=False)
@config_option
@output_option
def check(file: Path | None, config_file: Path | None, output: str) -> None:
    """Check FILE (default: the setting receivers_file), and print a summary of it."""
    settings = settings_from(config_file)
    known = load_receivers_file(file or settings.receivers_file)
    keys = _public_keys(known, settings)
    of_file, notes = list(known.notes()), notes_on(known.receivers, settings)
    if output == "json":
        words = {name: _in_words(entry) for name, entry in known.receivers.items()}
        found = {"file": str(known.origin), "receivers": words, "sources": list(known.sources)}
        print_json({**found, "refused": refusals(known, settings), "notes": [*of_file, *notes], "public_keys": keys})
        return
    click.echo(verdict_on(known, settings))
    for name, entry in known.receivers.items():
        click.echo(f"  {name}: {_in_words(entry)}")
    _print_public_keys(keys)
    print_refused(known, settings)
    for note in (*of_file, *notes):
        click.echo(f"note: {note}")
    if notes:
        click.echo("(The notes are about `relay run`. `relay dev` has an answer secret, and sends to this machine.)")


@receivers.command(name="list")
@file_option
@click.option("--registered", is_flag=True, help="Ask the API for all receivers in effect, instead of the file.")
@click.option("--owner", help="Only receivers of this owner; asks the API.")
@click.option(
    "--label",
    "labels",
    multiple=True,
    metavar="NAME[=VALUE]",
    help="Only receivers with this label; asks the API; repeatable.",
)
@click.option(
    "--state",
    "states",
    multiple=True,
    help="Only receivers in this condition, such as offline; asks the API; repeatable.",
)
@api_command
def list_(
    call: ApiOptions,
    file: Path | None,
    registered: bool,
    owner: str | None,
    labels: tuple[str, ...],
    states: tuple[str, ...],
) -> None:
    """List the receivers of the file with their effective settings, or those in effect. Secrets are masked; of
    private keys (whsk_) the public keys are shown, which receivers need."""
    if registered or owner is not None or labels or states:
        list_registered(call, owner, labels, states)
        return
    settings = call.settings
    path = file or settings.receivers_file
    if not path.exists():
        raise UserError(f"{path}: the file does not exist; --registered lists the receivers of a running relay")
    known = load_receivers_file(path)
    keys = _public_keys(known, settings)
    refused = refusals(known, settings)
    if call.is_json:
        print_json(
            {
                name: {
                    **effective(entry),
                    "refused": refused.get(f"receivers.{name}"),
                    "public_keys": keys.get(f"receivers.{name}", []),
                }
                for name, entry in known.receivers.items()
            }
        )
        return
    columns = ("NAME", "ENABLED", "POST_ENDPOINT", "LANE", "ORDERING", "RATE", "RETRY", "ANSWER")
    print_table(columns, [_row(name, entry, f"receivers.{name}" in refused) for name, entry in known.receivers.items()])
    _print_public_keys(keys)
    print_refused(known, settings)
    click.echo(f"(The receivers of {path}; --registered lists all in effect, those of the API, too.)", err=True)


def _public_keys(file: ReceiversFile, settings: Settings) -> dict[str, list[str]]:
    """Newest first, by `receivers.<name>` and `sources.<id>`: of all endpoints with private keys that this command's
    environment has."""
    return file.public_keys(usable_variables(os.environ, settings.secrets_from))


def _print_public_keys(keys: dict[str, list[str]]) -> None:
    for name, listed in keys.items():
        for key in listed:
            click.echo(f"public key of {name}: {key}")


def _row(name: str, entry: ReceiverEntry, refused: bool) -> tuple[str, ...]:
    lane = entry.lane if entry.partitions == 1 else f"{entry.lane}/{entry.partitions}"
    enabled = "refused" if refused else "yes" if entry.enabled else "no"
    return (
        name,
        enabled,
        shown_url(entry.post_endpoint),
        lane,
        order_by(entry.ordering),
        _rate(entry),
        _retry(entry),
        _answer(entry),
    )


def _in_words(entry: ReceiverEntry) -> str:
    off = "" if entry.enabled else "switched off; "
    off += "" if entry.verification == "none" else f"to be verified ({entry.verification}); "
    preset = "" if entry.preset is None else f"preset {entry.preset}; "
    subscribed = f"; gets {', '.join(entry.event_types)} of {', '.join(entry.sources)}" if entry.sources else ""
    subscribed += ", by its filter" if entry.filter is not None else ""
    return (
        f"{off}{preset}POST {shown_url(entry.post_endpoint)}; {entry.lane} lane; order: {order_by(entry.ordering)}; "
        f"rate: {_rate(entry)}; retry: {_retry(entry)}; answer: {_answer(entry)}{subscribed}"
    )


def _rate(entry: EndpointEntry) -> str:
    return f"{entry.rate_limit}/{format_duration(entry.window_size)}" if entry.rate_limit else "unlimited"


def _retry(entry: EndpointEntry) -> str:
    policy = entry.retry_policy()
    if not policy.jitter:
        return f"every {format_duration(policy.base)}, {counted(policy.max_attempts, 'time')}"
    return f"{format_duration(policy.base)} to {format_duration(policy.cap)}, {counted(policy.max_attempts, 'time')}"


def _answer(entry: ReceiverEntry) -> str:
    how = (
        "in the response, by status GET or callback"
        if entry.status_endpoint or entry.status_steps
        else "in the response or by callback"
    )
    return f"{how}, {entry.answer} within {format_duration(entry.answer_deadline)}"


# --- messages and gaps of a receiver ------------------------------------------------------------------------------


@receivers.command(name="export")
@click.argument("name")
@click.option("--since", help="Only messages received since this time: RFC 3339, or how long ago, such as 2h.")
@click.option("--until", help="Only messages received before this time.")
@click.option("--after", help="Continue after the line with this cursor.")
@api_option
@config_option
@with_api
def export(call: ApiOptions, name: str, since: str | None, until: str | None, after: str | None) -> None:
    """Write everything that NAME got or missed, with payloads: a line of JSON for each message, the newest first.

    \b
    relay receivers export ci --since 1d > ci.ndjson
    relay receivers export ci | jq 'select(.delivery.state == "failed").message_id'

    If the connection breaks, the command reconnects. After another error, continue with --after and the cursor of the
    last line.
    """
    written, place = 0, after

    async def write(client: AsyncRelay) -> None:
        nonlocal written, place
        items = client.receivers.export(name, since=since, until=until, after=after, reconnect=_reconnecting)
        async for item in items:
            _echo(item)
            written, place = written + 1, item["cursor"]

    try:
        call.run(write)
    except ClientError as error:
        hint = f"; {written:,} lines are written: continue with --after {place}" if written else ""
        raise RelayError(f"{error_of(error)}{hint}") from error
    click.echo(counted(written, "message"), err=True)


@receivers.command(name="catch-up")
@click.argument("name")
@click.option("--after", type=WholeRange(min=0), required=True, help="The last number that the receiver has.")
@api_option
@config_option
@with_api
def catch_up(call: ApiOptions, name: str, after: int) -> None:
    """Write the messages behind the last number that NAME has, in the order of their numbers.

    \b
    relay receivers catch-up ci --after 1204 > missed.ndjson

    For a receiver with `ordering: receiver` that was restored from a backup. Numbers without a delivered message are
    in lines with `first`, `last` and `reason`.
    """
    written, last = 0, after

    async def write(client: AsyncRelay) -> None:
        nonlocal written, last
        async for item in client.receivers.catch_up(name, after=after):
            _echo(item)
            if "sequence" in item:
                written, last = written + 1, item["sequence"]
            else:
                last = item["last"]

    try:
        call.run(write)
    except ClientError as error:
        hint = f"; continue with --after {last}" if last != after else ""
        raise RelayError(f"{error_of(error)}{hint}") from error
    click.echo(f"{counted(written, 'message')} up to number {last}", err=True)


def _echo(item: object) -> None:
    click.echo(escape_in_json(json.dumps(item, ensure_ascii=False, separators=(",", ":"))))


def _reconnecting(error: ClientError) -> None:
    click.echo(f"{error_of(error)}; continuing", err=True)


@receivers.command()
@click.argument("name")
@click.option("--first", type=WholeRange(min=1), help="Only this number and higher ones.")
@click.option("--last", type=WholeRange(min=1), help="Only this number and lower ones.")
@click.option("--replay", is_flag=True, help="Send the messages in these gaps again.")
@carrying_out
def gaps(
    call: ApiOptions, name: str, first: int | None, last: int | None, replay: bool, **given: Unpack[SelectOptions]
) -> None:
    """List the numbers that NAME did not get, and why. NAME has `ordering: receiver`."""
    chosen, how = split(given)
    if replay:
        _replay(call, name, first, last, given.get("rate"), how)
        return
    if unused := [option for option, value in {**how, **chosen}.items() if value]:
        raise UserError(f"--{unused[0].replace('_', '-')} is for --replay")
    call.show(call.run(lambda client: gaps_between(client, name, first, last)), lambda page: _print_gaps(name, page))


async def gaps_between(client: AsyncRelay, name: str, first: int | None, last: int | None) -> GapPage:
    """All gaps from `first` to `last`, in one page."""
    page = await client.receivers.gaps_page(name, after=(first or 1) - 1)
    items, cursor = page["items"], page["cursor"]
    while cursor is not None:
        more = await client.receivers.gaps_page(name, cursor=cursor)
        items, cursor = items + more["items"], more["cursor"]
    if last is not None:
        items = [{**gap, "last": min(gap["last"], last)} for gap in items if gap["first"] <= last]
    return GapPage(numbered=page["numbered"], items=items, cursor=None)


def _print_gaps(name: str, page: GapPage) -> None:
    if not page["numbered"]:
        click.echo(f"{name}: only receivers with `ordering: receiver` have numbered messages, and so gaps")
    elif not page["items"]:
        click.echo(f"{name} has no gaps")
    else:
        rows = [(str(gap["first"]), str(gap["last"]), gap["reason"], gap["failed_at"] or "-") for gap in page["items"]]
        print_table(("FIRST", "LAST", "REASON", "FAILED AT"), rows)
        missing = sum(gap["last"] - gap["first"] + 1 for gap in page["items"])
        click.echo(f"{counted(missing, 'message')}; `relay receivers gaps {name} --replay` sends them again")


def _replay(call: ApiOptions, name: str, first: int | None, last: int | None, rate: float | None, how: How) -> None:
    async def preview(client: AsyncRelay) -> PreviewView:
        return await client.receivers.preview_replay_gaps(name, first=first, last=last)

    async def create(client: AsyncRelay) -> JobView:
        return await client.receivers.replay_gaps(name, first=first, last=last, rate=rate)

    count_and_begin(call, "replay", preview, create, how)
