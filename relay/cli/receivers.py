"""`relay receivers`: checks, lists and applies a receivers file, and manages receivers over the API."""

import os
from pathlib import Path
from typing import Any

import click

from relay.cli.config import (
    api_option,
    config_option,
    notes_on,
    print_refused,
    refusals,
    settings_from,
    verdict_on,
)
from relay.cli.paths import FILE
from relay.cli.receivers_actions import rotate, stats, test, verify
from relay.cli.receivers_apply import apply, file_option
from relay.cli.receivers_register import create, delete, list_registered, patch, show, verified_in_words
from relay.cli.table import output_option, print_json, print_table
from relay.config.durations import format_duration
from relay.config.endpoint_entry import EndpointEntry
from relay.config.filter_entry import order_by
from relay.config.receiver_entry import ReceiverEntry
from relay.config.receivers_file import ReceiversFile, load_receivers_file
from relay.config.redacted_entry import effective, shown_url
from relay.config.references import usable_variables
from relay.config.settings import Settings
from relay.domain.errors import UserError

_callback_option = click.option("--callback", is_flag=True, help="NAME is a source_id: use its callback.")


@click.group()
def receivers() -> None:
    """Check and apply receivers.yaml; register receivers; show their health; pause and resume them."""


for _command in (apply, create, show, patch, rotate, test, stats, verify, delete):
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
    _tell_public_keys(keys)
    print_refused(known, settings)
    for note in notes:
        click.echo(f"note: {note}")


@receivers.command(name="list")
@file_option
@click.option("--registered", is_flag=True, help="Instead of the file's: all in effect, from the API.")
@click.option("--owner", help="Those of this owner, from the API.")
@click.option("--label", "labels", multiple=True, metavar="NAME[=VALUE]", help="With this label, from the API.")
@click.option("--state", "states", multiple=True, help="In this condition, as up or offline, from the API.")
@api_option
@config_option
@output_option
def list_(
    file: Path | None,
    registered: bool,
    owner: str | None,
    labels: tuple[str, ...],
    states: tuple[str, ...],
    api: str | None,
    config_file: Path | None,
    output: str,
) -> None:
    """List the receivers of the file with their effective settings, or those in effect. Secrets are masked; of
    private keys (whsk_) the public keys are shown, which receivers need."""
    narrowed = [*(("label", each) for each in labels), *(("state", each) for each in states)]
    narrowed += [("owner", owner)] if owner is not None else []
    if registered or narrowed:
        list_registered(config_file, api, output, narrowed)
        return
    settings = settings_from(config_file)
    path = file or settings.receivers_file
    if not path.exists():
        raise UserError(f"{path}: the file does not exist; --registered lists the receivers of a running relay")
    known = load_receivers_file(path)
    keys = _public_keys(known, settings)
    refused = refusals(known, settings)
    if output == "json":
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
    _tell_public_keys(keys)
    print_refused(known, settings)


@receivers.command()
@click.argument("name")
@_callback_option
@api_option
@config_option
@click.option("--reason", default="", help="The reason, for other operators.")
@output_option
def pause(name: str, callback: bool, api: str | None, config_file: Path | None, reason: str, output: str) -> None:
    """Send NAME nothing until it is resumed. Its messages wait, and their max_age continues to count."""
    _act(name, "pause", callback, api, config_file, output, {"reason": reason})


@receivers.command()
@click.argument("name")
@_callback_option
@api_option
@config_option
@output_option
def resume(name: str, callback: bool, api: str | None, config_file: Path | None, output: str) -> None:
    """Send to NAME again: after a manual pause, a 410, or an outage so long that it was disabled. A long outage is
    forgotten at once."""
    _act(name, "resume", callback, api, config_file, output)


@receivers.command()
@click.argument("name")
@_callback_option
@api_option
@config_option
@output_option
def health(name: str, callback: bool, api: str | None, config_file: Path | None, output: str) -> None:
    """Show whether NAME is offline, disabled or paused, and since when; its breaker, and its waiting messages."""
    _act(name, None, callback, api, config_file, output)


def _act(
    name: str,
    action: str | None,
    callback: bool,
    api: str | None,
    config_file: Path | None,
    output: str,
    said: dict[str, str] | None = None,
) -> None:
    from relay.cli.client import Client, with_client  # the other commands need no HTTP client

    async def work(client: Client) -> Any:
        return await client.endpoint(name, action, said, callback=callback)

    known = with_client(settings_from(config_file), api, work)
    if output == "json":
        print_json(known)
    else:
        click.echo(f"{name}: {_health(known)}")


def _health(known: dict[str, Any]) -> str:
    paused = _paused(known) if known["paused"] else "not paused"
    failing = f"failing since {known['failing_since']}" if known["failing_since"] else "failing"
    condition = {
        "failing": f"{failing}; ",
        "offline": f"offline, {failing}, and sent nothing but pings; ",
        "disabled": f"disabled since {known['disabled_since']}, {failing}; ",
    }
    parked = known["parked"]["retries"] + known["parked"]["polls"]
    waiting = _waiting(parked, known.get("in_lane"))
    refused = f"refused: {known['refused']}; " if known["refused"] else ""
    if known["condition"] == "unverified":
        refused += f"sent nothing, as it is {verified_in_words(known['verification'])}; "
    return f"{refused}{condition.get(known['condition'], '')}{paused}; breaker {known['breaker']}; {waiting}"


def _waiting(parked: int, in_lane: dict[str, Any] | None) -> str:
    """Parked records wait for their retry; other unfinished ones are in the lane, in progress or waiting."""
    if in_lane is None:
        return f"parked: {parked}"
    where = "its partition of the shared lane, with its neighbours'" if in_lane["lane"] == "shared" else "its lane"
    return f"parked: {parked}; unfinished in {where}: {in_lane['unfinished']}"


def _paused(known: dict[str, Any]) -> str:
    held = known["hold"]
    if held is None:
        return f"paused for {known['paused_for_s']:.0f} s"
    who = {"paused": "by hand", "gone": "for it returned 410", "disabled": "for it was down too long"}
    detail = f" ({held['detail']})" if held["detail"] else ""
    return f"paused until it is resumed, since {held['since']}, {who[held['reason']]}{detail}"


def _public_keys(file: ReceiversFile, settings: Settings) -> dict[str, list[str]]:
    """Newest first, by `receivers.<name>` and `sources.<id>`: of all endpoints with private keys that this command's
    environment has."""
    return file.public_keys(usable_variables(os.environ, settings.secrets_from))


def _tell_public_keys(keys: dict[str, list[str]]) -> None:
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
    subscribed = f"; gets {', '.join(entry.event_types)} of {', '.join(entry.sources)}" if entry.sources else ""
    subscribed += ", by its filter" if entry.filter is not None else ""
    return (
        f"{off}POST {shown_url(entry.post_endpoint)}; {entry.lane} lane; order: {order_by(entry.ordering)}; "
        f"rate: {_rate(entry)}; retry: {_retry(entry)}; answer: {_answer(entry)}{subscribed}"
    )


def _rate(entry: EndpointEntry) -> str:
    return f"{entry.rate_limit}/{format_duration(entry.window_size)}" if entry.rate_limit else "unlimited"


def _retry(entry: EndpointEntry) -> str:
    policy = entry.retry_policy()
    if not policy.jitter:
        return f"every {format_duration(policy.base)}, {policy.max_attempts} times"
    return f"{format_duration(policy.base)} to {format_duration(policy.cap)}, {policy.max_attempts} times"


def _answer(entry: ReceiverEntry) -> str:
    how = "in the response, by status GET or callback" if entry.status_endpoint else "in the response or by callback"
    return f"{how}, {entry.answer} within {format_duration(entry.answer_deadline)}"
