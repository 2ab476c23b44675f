"""`relay receivers`: checks, lists and applies a receivers file, and manages receivers over the API."""

import os
from pathlib import Path

import click

from relay.cli.api import ApiOptions, api_command
from relay.cli.config import notes_on, print_refused, refusals, verdict_on
from relay.cli.options import FILE, config_option, output_option, settings_from
from relay.cli.receiver_export import catch_up, export, gaps
from relay.cli.receivers_apply import apply, file_option
from relay.cli.receivers_try import try_
from relay.cli.registered import list_registered
from relay.cli.registered import receivers as receivers
from relay.cli.table import print_json, print_table
from relay.config.endpoint_entry import EndpointEntry
from relay.config.filter_entry import order_by
from relay.config.receiver_entry import ReceiverEntry
from relay.config.receivers_file import ReceiversFile, load_receivers_file
from relay.config.redacted_entry import effective, shown_url
from relay.config.references import usable_variables
from relay.config.settings import Settings
from relay.domain.errors import UserError
from relay.domain.text import counted
from relay.domain.times import format_duration

for _command in (apply, try_, gaps, export, catch_up):
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
    notes = notes_on(known.receivers, settings)
    if output == "json":
        words = {name: _in_words(entry) for name, entry in known.receivers.items()}
        found = {"file": str(known.origin), "receivers": words, "sources": list(known.sources)}
        print_json({**found, "refused": refusals(known, settings), "notes": notes, "public_keys": keys})
        return
    click.echo(verdict_on(known, settings))
    for name, entry in known.receivers.items():
        click.echo(f"  {name}: {_in_words(entry)}")
    _print_public_keys(keys)
    print_refused(known, settings)
    for note in notes:
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
