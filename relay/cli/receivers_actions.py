"""`relay receivers test|verify|rotate|stats`: actions on a receiver over the API."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from relay.cli.config import api_option, config_option
from relay.cli.entry_options import asked, match_option
from relay.cli.receivers_register import verified_in_words
from relay.cli.table import output_option, print_json, print_table
from relay.domain.errors import UserError
from relay.telemetry.redaction import escape_control

if TYPE_CHECKING:
    from relay.cli.client import Client

_TEST_TIMEOUT_S: Final = 75.0
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

    known = asked(config_file, api, work, patience_s=_TEST_TIMEOUT_S)
    if output == "json":
        print_json(known)
    else:
        _print_exchange(known)
    response = known["response"]
    if response is None or not 200 <= response["status"] < 300:
        click.get_current_context().exit(1)


def _print_exchange(known: Any) -> None:
    request, response, failure = known["request"], known["response"], known["failure"]
    took = f"in {known['duration_ms']:g} ms"
    _print_message(">", f"{request['method']} {request['url']}", request)
    click.echo()
    if failure is not None:
        click.echo(f"no response {took}: {escape_control(failure['detail'])}")
        return
    _print_message("<", f"{response['status']} {took}", response)
    if response["truncated"]:
        click.echo("(there is more)")


def _print_message(mark: str, first: str, message: Any) -> None:
    for line in (first, *(f"{name}: {value}" for name, value in message["headers"].items())):
        click.echo(f"{mark} {escape_control(line)}")
    if message["body"]:
        click.echo()
        for line in message["body"].splitlines():
            click.echo(escape_control(line))


@click.command()
@click.argument("name")
@api_option
@config_option
@output_option
def verify(name: str, api: str | None, config_file: Path | None, output: str) -> None:
    """Make the handshake of NAME's verification now, and print the result; exit code 1 if it failed. The relay also
    retries on its own, less and less often."""

    async def work(client: "Client") -> Any:
        return await client.verify_receiver(name)

    known = asked(config_file, api, work)
    seen = known["verification"]
    needed = seen["state"] != "not_required"
    if output == "json":
        print_json(known)
    elif not needed:
        click.echo(f"{name}: needs no verification (verification: none)")
    else:
        click.echo(f"{name}: {verified_in_words(seen)}")
        if seen["state"] == "verified" and not known["proved"]:
            click.echo(f"this handshake failed: {known['detail']}")
    if needed and not known["proved"]:
        raise click.exceptions.Exit(1)


@click.command()
@click.argument("name")
@click.option("--grace", default="1d", show_default=True, help="How long the former secret signs, too; 0: not at all.")
@click.option(
    "--secret-from", "source", metavar="FILE", help="The new secret, in a file; - is stdin. Default: a generated one."
)
@match_option
@api_option
@config_option
@output_option
def rotate(
    name: str, grace: str, source: str | None, tag: str | None, api: str | None, config_file: Path | None, output: str
) -> None:
    """Give NAME, which was registered over the API, a new signing secret, and show it, only this once."""
    wanted = {"grace": grace} | ({} if source is None else {"secret": _secret_in(source)})

    async def work(client: "Client") -> Any:
        return await client.rotate_receiver(name, wanted, tag)

    known = asked(config_file, api, work)
    if output == "json":
        print_json(known)
        return
    former = known["former_until"]
    click.echo(f"{name}: the former secret signs {f'along until {former}' if former else 'no longer'}")
    if known["secret"]:
        click.echo(f"secret, shown only this once: {known['secret']}")
    if known["public_key"]:
        click.echo(f"public key: {known['public_key']}")


def _secret_in(source: str) -> str:
    try:
        return (sys.stdin.read() if source == "-" else Path(source).read_text(encoding="utf-8")).strip()
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is not UTF-8"
        raise UserError(f"--secret-from {source}: cannot be read: {why}") from None


_STATS_COLUMNS: Final = ("HOUR", "ATTEMPTS", "SUCCESS", "P50", "P99", "OUTCOMES")


@click.command()
@click.argument("name")
@api_option
@config_option
@output_option
def stats(name: str, api: str | None, config_file: Path | None, output: str) -> None:
    """Show the outcomes of NAME's attempts within a day, and the durations of its responses."""

    async def work(client: "Client") -> Any:
        return await client.statistics(name)

    known = asked(config_file, api, work)
    if output == "json":
        print_json(known)
        return
    click.echo(_last(known["last_response"]))
    hours = [hour for hour in known["hours"] if hour["attempts"]]
    print_table(_STATS_COLUMNS, [*(_row(hour["hour"], hour) for hour in hours), _row("24 hours", known)])


def _last(last: Any) -> str:
    if last is None:
        return "last response: none within a day"
    what = last["status"] if last["failure"] is None else f"none ({last['failure']})"
    return f"last response: {what}, in {last['duration_ms']:g} ms, at {last['at']}"


def _row(what: str, counted: Any) -> tuple[str, ...]:
    rate = counted["success_rate"]
    outcomes = ", ".join(f"{count} {name}" for name, count in counted["outcomes"].items() if count)
    times = (_at_most(counted["p50_ms"]), _at_most(counted["p99_ms"]))
    return (what, str(counted["attempts"]), "-" if rate is None else f"{rate:.1%}", *times, outcomes or "-")


def _at_most(milliseconds: float | None) -> str:
    return "-" if milliseconds is None else f"<= {milliseconds:g} ms"
