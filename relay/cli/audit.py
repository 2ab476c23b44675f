"""`relay audit`: changes made over the API, and by which key."""

from pathlib import Path
from typing import Any, Final

import click

from relay.cli.client import with_client
from relay.cli.config import api_option, config_option, settings_from
from relay.cli.table import output_option, print_json, print_table
from relay.telemetry.redaction import escape_control

_COLUMNS: Final = ("AT", "WHO", "FROM", "WHAT", "WHOM", "OUTCOME", "FACTS")


@click.command()
@click.option("--limit", type=click.IntRange(1, 1000), default=50, show_default=True, help="At most so many.")
@click.option("--cursor", help="Continue after the previous page's cursor.")
@api_option
@config_option
@output_option
def audit(limit: int, cursor: str | None, api: str | None, config_file: Path | None, output: str) -> None:
    """Show changes and rejected requests with their callers, newest first."""
    page = with_client(settings_from(config_file), api, lambda client: client.audit(limit=limit, cursor=cursor))
    if output == "json":
        print_json(page)
        return
    print_table(_COLUMNS, [_row(item) for item in page["items"]])
    if page["cursor"]:
        click.echo(f"more with --cursor {page['cursor']}")


def _row(item: Any) -> tuple[str, ...]:
    facts = ", ".join(f"{name}: {_fact(value)}" for name, value in item["facts"].items())
    name = f" ({item['who_name']})" if item["who_name"] else ""
    cells = (item["at"], item["who"] + name, item["from"] or "-", item["what"], item["whom"] or "-")
    return tuple(escape_control(cell) for cell in (*cells, item["outcome"], facts or "-"))


def _fact(value: Any) -> str:
    return ", ".join(value) if isinstance(value, list) else str(value)
