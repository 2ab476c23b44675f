"""`relay messages`: lists messages, newest first, with the status of each delivery."""

from pathlib import Path
from typing import Any, Final

import click

from relay.cli.client import with_client
from relay.cli.config import api_option, config_option, settings_from
from relay.cli.table import output_option, print_json, print_table
from relay.domain.progress import ON_RECORD
from relay.domain.reasons import REASONS

BEHIND_S: Final = 10.0
"""Smallest lag of the history that is reported."""
_COLUMNS: Final = ("RECEIVED", "SOURCE", "MESSAGE", "TYPE", "STATUS", "SIZE", "DELIVERIES")


@click.command()
@click.option("--source", help="From this source.")
@click.option("--receiver", help="With a delivery to this receiver.")
@click.option("--owner", help="With a delivery to a receiver of this owner.")
@click.option("--status", type=click.Choice(ON_RECORD), help="With a delivery in this status.")
@click.option("--reason", type=click.Choice(list(REASONS)), help="With a delivery that failed for this reason.")
@click.option("--type", "type_", help="Of this type; a trailing * stands for anything.")
@click.option("--since", metavar="TIME", help="Since then: how long ago (1h, 2d), or RFC 3339.")
@click.option("--until", metavar="TIME", help="Before then.")
@click.option("--id", "id_", help="Prefix of the id, or of the webhook id.")
@click.option("--header", metavar="NAME:VALUE", help="A header of the message; needs stored bodies.")
@click.option("--payload", metavar="/POINTER=VALUE", help="A value in the JSON payload; needs stored bodies.")
@click.option(
    "--limit", type=click.IntRange(1, 1000), default=50, show_default=True, help="At most so many, newest first."
)
@click.option("--cursor", help="Continue after the previous page's cursor.")
@api_option
@config_option
@output_option
def messages(
    api: str | None, config_file: Path | None, output: str, type_: str | None, id_: str | None, **asked: Any
) -> None:
    """List messages, newest first. All given filters apply, and only messages visible to the key are listed."""
    wanted = {**asked, "type": type_, "id": id_}
    page = with_client(settings_from(config_file), api, lambda client: client.page("/v1/messages", wanted))
    if output == "json":
        print_json(page["items"])
    else:
        print_table(_COLUMNS, [_row(item) for item in page["items"]])
        if page["cursor"]:
            click.echo(f"there are more: --cursor {page['cursor']}")
    if (page.get("behind_s") or 0.0) > BEHIND_S:
        click.echo(f"the history is {page['behind_s']:.0f} s behind: newer messages may be missing", err=True)


def _row(item: Any) -> tuple[str, ...]:
    return (
        item["received_at"] or "-",
        item["source_id"],
        item["message_id"],
        item["type"] or "-",
        item["status"],
        str(item["size"]),
        "; ".join(map(_delivery, item["deliveries"])) or "-",
    )


def _delivery(each: Any) -> str:
    """In a few words, as `ci failed (exhausted, HTTP 503)`."""
    last = f"HTTP {each['last_status']}" if each["last_status"] else None
    why = ", ".join(filter(None, (each["reason"], last)))
    return f"{each['receiver']} {each['status']}" + (f" ({why})" if why else "")
