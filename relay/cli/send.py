"""`relay send`: one message from a file."""

import sys
from pathlib import Path

import click

from relay.cli.await_answer import Outgoing, tell, wait_option
from relay.cli.await_answer import send as send_one
from relay.cli.client import ApiFailed, with_client
from relay.cli.config import api_option, config_option, settings_from
from relay.cli.paths import FILE_OR_STDIN
from relay.cli.status import show
from relay.cli.table import output_option
from relay.domain.errors import UserError
from relay.domain.forwarding import check_forwardable
from relay.domain.headers import check_header_value


@click.command()
@click.option("--source", required=True, help="Its source_id.")
@click.option("--receiver", "receivers", multiple=True, help="Its receiver; repeatable. Default: the subscribers.")
@click.option("--type", "event_type", help="Its event type, such as push.")
@click.option("--id", "message_id", help="Its id, unique per source. Default: a new one.")
@click.option("--content-type", default="application/json", show_default=True)
@click.option("--header", "headers", multiple=True, help="One of its own, as 'x-team: core'; repeatable.")
@wait_option
@api_option
@config_option
@output_option
@click.argument("file", type=FILE_OR_STDIN)
def send(
    source: str,
    receivers: tuple[str, ...],
    event_type: str | None,
    message_id: str | None,
    content_type: str,
    headers: tuple[str, ...],
    wait_s: float | None,
    api: str | None,
    config_file: Path | None,
    output: str,
    file: str,
) -> None:
    """Send one message from FILE, or from standard input if FILE is a dash.

    With --wait, the answer is printed, and the exit code is 1 if a delivery or the callback with its result failed, or
    took
    longer.
    """
    outgoing = Outgoing(source, _payload(file), message_id, receivers, event_type, content_type, _pairs(headers))
    waited = with_client(settings_from(config_file), api, lambda client: send_one(client, outgoing, wait_s))
    show(waited.state, output)
    if output == "table" and wait_s is not None:
        tell(waited)
    if waited.late:
        raise ApiFailed(waited.late)
    if wait_s is not None and waited.failed:
        click.get_current_context().exit(1)


def _pairs(headers: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    found = []
    for header in headers:
        name, colon, value = header.partition(":")
        try:
            found.append((check_forwardable(name), check_header_value(value.strip())))
        except ValueError as error:
            raise UserError(f"--header {header[:80]!r}: {error}") from None
        if not colon:
            raise UserError(f"--header {header[:80]!r}: write it as 'name: value'")
    return tuple(found)


def _payload(file: str) -> bytes:
    if file == "-":
        return sys.stdin.buffer.read()
    try:
        return Path(file).read_bytes()
    except OSError as error:
        raise UserError(f"{file}: {error.strerror}") from error
