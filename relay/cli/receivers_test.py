"""`relay receivers test`: a signed ping to a receiver, and its response."""

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from relay.cli.config import api_option, config_option
from relay.cli.entry_options import asked
from relay.cli.table import output_option, print_json
from relay.telemetry.redaction import escape_control

if TYPE_CHECKING:
    from relay.cli.client import Client

_PATIENCE_S: Final = 75.0
"""The API waits for a receiver for a minute at most."""


@click.command()
@click.argument("name")
@api_option
@config_option
@output_option
def test(name: str, api: str | None, config_file: Path | None, output: str) -> None:
    """Send NAME one signed relay.ping, even if it is paused, and show request and response. Exit code 1 unless it
    responds with a 2xx."""

    async def work(client: "Client") -> Any:
        return await client.test_receiver(name)

    known = asked(config_file, api, work, patience_s=_PATIENCE_S)
    if output == "json":
        print_json(known)
    else:
        _tell(known)
    response = known["response"]
    if response is None or not 200 <= response["status"] < 300:
        click.get_current_context().exit(1)


def _tell(known: Any) -> None:
    request, response, failure = known["request"], known["response"], known["failure"]
    took = f"in {known['duration_ms']:g} ms"
    _tell_message(">", f"{request['method']} {request['url']}", request)
    click.echo()
    if failure is not None:
        click.echo(f"no response {took}: {escape_control(failure['detail'])}")
        return
    _tell_message("<", f"{response['status']} {took}", response)
    if response["truncated"]:
        click.echo("(there is more)")


def _tell_message(mark: str, first: str, message: Any) -> None:
    for line in (first, *(f"{name}: {value}" for name, value in message["headers"].items())):
        click.echo(f"{mark} {escape_control(line)}")
    if message["body"]:
        click.echo()
        for line in message["body"].splitlines():
            click.echo(escape_control(line))
