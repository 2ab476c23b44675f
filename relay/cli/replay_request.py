"""Shared by `relay replay`, `relay failed replay` and `relay failed discard`: select, count, confirm, follow."""

import asyncio
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from relay.cli.client import ApiFailed, Client, with_client
from relay.cli.config import api_option, config_option, settings_from
from relay.cli.table import output_option, print_json
from relay.config.settings import Settings
from relay.domain.errors import RelayError, UserError

F = TypeVar("F", bound=Callable[..., Any])

LOOK_S: Final = 0.5
OVER: Final = frozenset({"done", "stopped", "failed"})
_DONE: Final = {"replay": "replayed", "discard": "discarded"}

_CHOOSING: Final = (
    click.option("--receiver", "receiver", multiple=True, help="To this receiver; `-`: without one."),
    click.option("--source", "source", multiple=True, help="From this source."),
    click.option("--reason", "reason", multiple=True, help="Failed for this reason."),
    click.option("--status", "status", multiple=True, type=int, help="With this last status."),
    click.option(
        "--stage",
        "stage",
        multiple=True,
        type=click.Choice(["from_sender", "to_receiver", "pending", "to_sender"]),
        help="Failed in this stage.",
    ),
    click.option("--id", "ids", multiple=True, help="This message."),
    click.option("--since", help="Since then: a time, or how long ago: 2h, 1d."),
    click.option("--until", help="Before then."),
)
_CARRYING_OUT: Final = (
    click.option("--rate", type=click.FloatRange(min=0, min_open=True), help="At most this many a second."),
    click.option("--dry-run", is_flag=True, help="Count only."),
    click.option("--yes", "-y", is_flag=True, help="Do not ask."),
    click.option("--no-wait", is_flag=True, help="Do not wait until it ends."),
    api_option,
    config_option,
    output_option,
)


def options(*some: Callable[[F], F]) -> Callable[[F], F]:
    """All of them, in this order."""

    def decorate(command: F) -> F:
        for option in reversed(some):
            command = option(command)
        return command

    return decorate


choosing: Final = options(*_CHOOSING)
carrying_out: Final = options(*_CARRYING_OUT)


def acting(action: str, help: str) -> click.Command:
    """`relay failed replay` or `relay failed discard`."""

    @click.command(action, help=f"{help} With PLACE (as `list` names it) only these, otherwise all that are selected.")
    @click.argument("places", metavar="[PLACE]...", nargs=-1)
    @choosing
    @carrying_out
    def command(places: tuple[str, ...], **given: Any) -> None:
        asked, how = split(given)
        if not places:
            begin(action, asked, **how)
            return
        if asked:
            raise UserError(f"PLACE names them already: leave out --{next(iter(asked)).removesuffix('s')}")
        of_places(action, [place_of(place) for place in places], **how)

    return command


def split(given: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The request to the API, and the options of the command."""
    names = ("receiver", "source", "reason", "status", "stage", "ids")
    asked: dict[str, Any] = {name: list(given.pop(name)) for name in names}
    asked |= {name: given.pop(name) for name in ("since", "until", "rate")}
    return {name: value for name, value in asked.items() if value not in (None, [])}, given


def place_of(text: str) -> tuple[int, int]:
    """Partition and offset. Raises UserError."""
    partition, _, offset = text.partition("/")
    if not (partition.isascii() and partition.isdigit() and offset.isascii() and offset.isdigit()):
        raise UserError(f"PLACE: {text!r} is not PARTITION/OFFSET, such as 3/17")
    return int(partition), int(offset)


def of_places(
    action: str,
    places: list[tuple[int, int]],
    *,
    dry_run: bool,
    yes: bool,
    no_wait: bool,
    api: str | None,
    config_file: Path | None,
    output: str,
) -> None:
    """Each at once; nothing has to be counted."""
    if dry_run:
        raise UserError("--dry-run counts a selection; PLACE names single ones")
    if action == "discard":
        _ask(f"Discard {len(places):,}?", yes=yes)

    async def work(client: Client) -> tuple[list[Any], list[str]]:
        done, refused = [], []
        for partition, offset in places:
            try:
                done.append(await client.act_on_letter(action, partition, offset))
            except ApiFailed as error:
                refused.append(f"{partition}/{offset}: {error}")
        return done, refused

    done, refused = with_client(settings_from(config_file), api, work)
    if output == "json":
        print_json(done)
    else:
        for each in done:
            print_result(each)
    if refused:
        raise RelayError("\n".join(refused))


def print_result(done: Any) -> None:
    """The result for one delivery."""
    message = f"{done['source_id'] or '-'} {done['message_id'] or '-'} for {done['receiver'] or '-'}"
    where = f" on {done['topic']}" if done["topic"] else ", as soon as its lane reaches it"
    click.echo(f"{_DONE[done['action']]}: {message}, life {done['generation']}{where}")


def begin(
    action: str,
    asked: dict[str, Any],
    *,
    dry_run: bool,
    yes: bool,
    no_wait: bool,
    api: str | None,
    config_file: Path | None,
    output: str,
) -> None:
    """Count, confirm, begin, and follow it to its end."""
    settings = settings_from(config_file)
    counted = with_client(settings, api, lambda client: client.replays(action, {**asked, "dry_run": True}))
    if dry_run:
        print_json(counted) if output == "json" else _tell_count(counted)
        return
    if output != "json":
        _tell_count(counted)
    if not counted["to_send"] and counted["complete"]:
        if output == "json":
            print_json(counted)
        return
    _ask(f"{action.capitalize()} {_count(counted)}?", yes=yes)
    job = with_client(settings, api, lambda client: client.replays(action, asked))
    finish(settings, api, job, output, wait=not no_wait)


def finish(settings: Settings, api: str | None, job: Any, output: str, *, wait: bool) -> None:
    """Print a job, and follow it to its end with `--wait`."""
    if wait:
        try:
            job = with_client(settings, api, lambda client: _followed(client, job))
        except KeyboardInterrupt:
            click.echo(f"\nthe job goes on; `relay replay stop {job['id']}` stops it", err=True)
            raise
    print_json(job) if output == "json" else print_job(job)
    if job["state"] == "failed":
        raise RelayError(f"the job has failed: {job['detail']}")


def print_job(job: Any) -> None:
    """A job in a line or two."""
    click.echo(f"job {job['id']}: {job['state']}, {job['sent']:,} {_DONE[job['action']]}{_skipped(job)}")
    if job["state"] not in OVER:
        click.echo(f"`relay replay show {job['id']}` shows its progress")


async def _followed(client: Client, job: Any) -> Any:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as progress:
        bar = progress.add_task("counting", total=None)
        while job["state"] not in OVER:
            await asyncio.sleep(LOOK_S)
            job = await client.job(job["id"])
            done = job["sent"] + job["skipped"]
            progress.update(bar, description=job["state"], total=job["counted"], completed=done)
    return job


def _ask(question: str, *, yes: bool) -> None:
    if yes:
        return
    if not sys.stdin.isatty():
        raise UserError(f"{question} Say so with --yes")
    if not click.confirm(question):
        raise click.Abort


def _tell_count(counted: Any) -> None:
    chosen = f"{counted['counted']:,}{'' if counted['complete'] else ' at least'} selected"
    click.echo(f"{chosen}, {counted['to_send']:,} to {counted['action']}{_skipped(counted)}")
    if gone := counted["gone"]:
        records = f"up to {gone['records']:,} records"
        click.echo(f"failures before {gone['before']} are no longer in the log ({records})")
    if old := counted["unremembered"]:
        click.echo(f"{old:,} of them failed so long ago that earlier replays of them are forgotten")
    if counted["not_found"]:
        click.echo(f"not found: {', '.join(counted['not_found'])}")


def _count(counted: Any) -> str:
    return f"{counted['to_send']:,}{'' if counted['complete'] else ' or more'}"


def _skipped(job: Any) -> str:
    if not job["skipped"]:
        return ""
    why = ", ".join(f"{why} {count:,}" for why, count in job["skipped_because"].items())
    return f"; {job['skipped']:,} not ({why})"
