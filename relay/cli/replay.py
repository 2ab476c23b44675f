"""`relay replay`: replays failed or delivered messages, and manages such jobs; `relay failed replay`, `relay failed
discard` and `relay messages cancel`, which select, count, confirm and follow in the same way."""

import asyncio
import re
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any, Final, Literal, TypedDict, Unpack

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from relay.cli.api import ApiOptions, api_command, error_of, if_known
from relay.cli.entries import print_warnings
from relay.cli.options import CommandGroup, FiniteRange, confirm, cursor_option, limit_option, options
from relay.client import ApiError, AsyncRelay, ClientError
from relay.domain.errors import RelayError, UserError
from relay.domain.hop import NO_RECEIVER
from relay.domain.replay_job import OVER
from relay.schema.replays import JobView, OneView, PreviewView

Action = Literal["replay", "discard", "cancel"]

LOOK_S: Final = 0.5
_DONE: Final = {"replay": "replayed", "discard": "discarded", "cancel": "cancelled"}
_COLUMNS: Final = ("JOB", "ACTION", "STATE", "MADE AT", "COUNTED", "SENT", "SKIPPED", "ETA")


class How(TypedDict):
    """How a selection is carried out."""

    dry_run: bool
    yes: bool
    no_wait: bool


class SelectOptions(How, total=False):
    """The options of a command that selects messages, and carries something out."""

    receiver: tuple[str, ...]
    source: tuple[str, ...]
    reason: tuple[str, ...]
    status: tuple[int, ...]
    stage: tuple[str, ...]
    ids: tuple[str, ...]
    since: str | None
    until: str | None
    rate: float | None


choosing: Final = options(
    click.option(
        "--receiver",
        "receiver",
        multiple=True,
        help="Only deliveries to this receiver; `-` selects messages without one.",
    ),
    click.option("--source", "source", multiple=True, help="Only messages of this source."),
    click.option("--reason", "reason", multiple=True, help="Only failures with this reason."),
    click.option(
        "--status", "status", multiple=True, type=int, help="Only deliveries whose last response had this status."
    ),
    click.option(
        "--stage",
        "stage",
        multiple=True,
        type=click.Choice(["from_sender", "to_receiver", "pending", "to_sender"]),
        help="Only failures in this stage.",
    ),
    click.option("--id", "ids", multiple=True, help="Only the message with this id."),
    click.option("--since", help="Only deliveries since this time: RFC 3339, or how long ago, such as 2h."),
    click.option("--until", help="Only deliveries before this time."),
)
carrying_out: Final = options(
    click.option("--rate", type=FiniteRange(min=0, min_open=True), help="Maximum number per second."),
    click.option("--dry-run", is_flag=True, help="Only count them."),
    click.option("--yes", "-y", is_flag=True, help="Do not ask for confirmation."),
    click.option("--no-wait", is_flag=True, help="Start the job, and do not wait for its end."),
    api_command,
)


def split(given: SelectOptions) -> tuple[dict[str, object], How]:
    """The selection for the API, and the options of the command."""
    how: How = {"dry_run": given["dry_run"], "yes": given["yes"], "no_wait": given["no_wait"]}
    chosen = {name: value for name, value in given.items() if name not in how and value not in (None, ())}
    return {name: list(value) if isinstance(value, tuple) else value for name, value in chosen.items()}, how


@click.group(cls=CommandGroup, invoke_without_command=True)
@choosing
@click.option("--all", "everything", is_flag=True, help="Also replay deliveries that succeeded.")
@carrying_out
@click.pass_context
def replay(context: click.Context, call: ApiOptions, /, everything: bool, **given: Unpack[SelectOptions]) -> None:
    """Send failed deliveries again, from the stage that failed; without options, all of them.

    The deliveries are counted first. A job continues on its own, also after restarts; each delivery is sent once.
    """
    if context.invoked_subcommand is None:
        chosen, how = split(given)
        begin(call, "replay", chosen | ({"only_failed": False} if everything else {}), how)


@replay.command("list")
@limit_option
@cursor_option
@api_command
def list_(call: ApiOptions, limit: int, cursor: str | None) -> None:
    """List jobs that replay, discard or cancel."""
    call.show_page(call.run(lambda client: client.replays.page(limit=limit, cursor=cursor)), _COLUMNS, _row)


def _row(job: JobView) -> tuple[str, ...]:
    counted = "-" if job["counted"] is None else f"{job['counted']:,}"
    numbers = (counted, f"{job['sent']:,}", f"{job['skipped']:,}")
    return job["id"], job["action"], job["state"], job["made_at"] or "-", *numbers, job["eta"] or "-"


@replay.command()
@click.argument("job")
@click.option("--wait", is_flag=True, help="Wait until it has ended.")
@api_command
def show(call: ApiOptions, job: str, wait: bool) -> None:
    """Show the progress of JOB."""
    _finish(call, call.run(lambda client: client.replays.get(job)), wait=wait)


@replay.command()
@click.argument("job")
@api_command
def stop(call: ApiOptions, job: str) -> None:
    """Stop JOB. What it has done until then stays done."""
    call.show(call.run(lambda client: client.replays.stop(job)), _print_job)


@replay.command()
@click.argument("source")
@click.argument("message_id")
@click.argument("receiver")
@click.option("--all", "everything", is_flag=True, help="Replay it even if it was delivered.")
@click.option("--discard", is_flag=True, help="Discard it instead, and notify its sender.")
@api_command
def delivery(call: ApiOptions, source: str, message_id: str, receiver: str, everything: bool, discard: bool) -> None:
    """Replay one delivery: MESSAGE_ID of SOURCE to RECEIVER."""

    async def work(client: AsyncRelay) -> OneView:
        if discard:
            return await client.messages.discard(source, message_id, receiver)
        return await client.messages.replay(source, message_id, receiver, only_failed=not everything)

    call.show(call.run(work), _print_result)


def acting(action: Action, help: str) -> click.Command:
    """`relay failed replay` or `relay failed discard`."""

    @click.command(
        action, help=f"{help} PLACE, from `relay failed list`, selects single ones; otherwise the options select them."
    )
    @click.argument("places", metavar="[PLACE]...", nargs=-1)
    @choosing
    @carrying_out
    def command(call: ApiOptions, places: tuple[str, ...], **given: Unpack[SelectOptions]) -> None:
        chosen, how = split(given)
        if not places:
            begin(call, action, chosen, how)
            return
        if chosen:
            option = "id" if "ids" in chosen else next(iter(chosen))
            raise UserError(f"PLACE selects them already: leave out --{option}")
        _act_on_places(call, action, [place_of(place) for place in places], how)

    return command


def place_of(text: str) -> tuple[int, int]:
    """Partition and offset. Raises UserError."""
    if re.fullmatch("[0-9]{1,9}/[0-9]{1,18}", text) is None:
        raise UserError(f"PLACE: {text!r} is not PARTITION/OFFSET, such as 3/17")
    partition, _, offset = text.partition("/")
    return int(partition), int(offset)


def _act_on_places(call: ApiOptions, action: Action, places: list[tuple[int, int]], how: How) -> None:
    """Each at once; nothing has to be counted."""
    if how["dry_run"]:
        raise UserError("--dry-run counts a selection by options; it cannot be used with PLACE")
    if action == "discard":
        confirm(f"Discard {len(places):,}?", yes=how["yes"])

    async def work(client: AsyncRelay) -> tuple[list[OneView], list[str]]:
        done, refused = [], []
        act = client.failed.replay if action == "replay" else client.failed.discard
        for partition, offset in places:
            try:
                done.append(await act(partition, offset))
            except ClientError as error:
                refused.append(f"{partition}/{offset}: {error_of(error)}")
        return done, refused

    carry_out(call, work)


def carry_out(call: ApiOptions, work: Callable[[AsyncRelay], Awaitable[tuple[list[OneView], list[str]]]]) -> None:
    """Show what was done. Raises RelayError with what was refused."""
    done, refused = call.run(work)
    call.show(done, _print_results)
    if refused:
        raise RelayError("\n".join(refused))


def _print_results(done: list[OneView]) -> None:
    for each in done:
        _print_result(each)


def _print_result(done: OneView) -> None:
    """The result for one delivery."""
    message = f"{done['source_id'] or '-'} {done['message_id'] or '-'} for {done['receiver'] or '-'}"
    where = f" on {done['topic']}" if done["topic"] else ", as soon as its lane reaches it"
    click.echo(f"{_DONE[done['action']]}: {message}, generation {done['generation']}{where}")


def begin(call: ApiOptions, action: Action, chosen: dict[str, object], how: How) -> None:
    async def preview(client: AsyncRelay) -> PreviewView:
        jobs = client.replays
        count = {"replay": jobs.preview, "discard": jobs.preview_discard, "cancel": jobs.preview_cancel}[action]
        counted = await count(**chosen)
        if not counted["counted"] and counted["complete"]:
            await _check_names(client, chosen)
        print_warnings(map(_no_receiver, counted.get("unknown_receivers", [])))
        return counted

    async def create(client: AsyncRelay) -> JobView:
        jobs = client.replays
        act = {"replay": jobs.create, "discard": jobs.discard, "cancel": jobs.cancel}[action]
        return await act(everything=True, **chosen)  # it was counted, and confirmed

    count_and_begin(call, action, preview, create, how)


async def _check_names(client: AsyncRelay, chosen: Mapping[str, Any]) -> None:
    """Raises RelayError if a selection names a receiver or a source of which the relay knows nothing."""
    for name in chosen.get("receiver", ()):
        if name != NO_RECEIVER and await if_known(client.receivers.get(name)) is None:
            raise RelayError(_no_receiver(name))
    for source_id in chosen.get("source", ()):
        if not await _has_source(client, source_id):
            raise RelayError(f"--source: there is no source named {source_id!r}, and no message of one")


def _no_receiver(name: str) -> str:
    return f"--receiver: there is no receiver named {name!r}, and nothing to select of one"


async def _has_source(client: AsyncRelay, source_id: str) -> bool:
    """Sources need no entry: one without has messages. True if only an administrator, or a history, would know."""
    try:
        if await if_known(client.sources.get(source_id)) is not None:
            return True
        return bool((await client.messages.page(source=source_id, limit=1))["items"])
    except ApiError:
        return True


def count_and_begin(
    call: ApiOptions,
    action: Action,
    preview: Callable[[AsyncRelay], Coroutine[Any, Any, PreviewView]],
    create: Callable[[AsyncRelay], Coroutine[Any, Any, JobView]],
    how: How,
) -> None:
    """Count, confirm, begin, and follow it to its end."""
    counted = call.run(preview)
    is_over = how["dry_run"] or (not counted["to_send"] and counted["complete"])
    if is_over or not call.is_json:
        call.show(counted, _print_count)
    if is_over:
        return
    more = "" if counted["complete"] else " or more"
    confirm(f"{action.capitalize()} {counted['to_send']:,}{more}?", yes=how["yes"])
    _finish(call, call.run(create), wait=not how["no_wait"])


def _finish(call: ApiOptions, job: JobView, *, wait: bool) -> None:
    """Print a job, and follow it to its end with `--wait`."""
    if wait:
        try:
            job = call.run(lambda client: _followed(client, job))
        except KeyboardInterrupt:
            click.echo(f"\nthe job continues; `relay replay stop {job['id']}` stops it", err=True)
            raise
    call.show(job, _print_job)
    if job["state"] == "failed":
        raise RelayError(f"the job has failed: {job['detail']}")


def _print_job(job: JobView) -> None:
    """A job in a line or two."""
    click.echo(f"job {job['id']}: {job['state']}, {job['sent']:,} {_DONE[job['action']]}{_skipped(job)}")
    if job["state"] not in OVER:
        click.echo(f"`relay replay show {job['id']}` shows its progress")


async def _followed(client: AsyncRelay, job: JobView) -> JobView:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as progress:
        bar = progress.add_task("counting", total=None)
        while job["state"] not in OVER:
            await asyncio.sleep(LOOK_S)
            job = await client.replays.get(job["id"])
            done = job["sent"] + job["skipped"]
            progress.update(bar, description=job["state"], total=job["counted"], completed=done)
    return job


def _print_count(counted: PreviewView) -> None:
    chosen = f"{counted['counted']:,}{'' if counted['complete'] else ' at least'} selected"
    click.echo(f"{chosen}, {counted['to_send']:,} to {counted['action']}{_skipped(counted)}")
    if gone := counted["gone"]:
        records = f"up to {gone['records']:,} records"
        click.echo(f"failures before {gone['before']} are no longer in the log ({records})")
    if old := counted["unremembered"]:
        click.echo(f"{old:,} of them are so old that the relay no longer knows whether they were replayed before")
    if counted["not_found"]:
        click.echo(f"not found: {', '.join(counted['not_found'])}")


def _skipped(job: JobView | PreviewView) -> str:
    if not job["skipped"]:
        return ""
    why = ", ".join(f"{why} {count:,}" for why, count in job["skipped_because"].items())
    return f"; {job['skipped']:,} not ({why})"


@click.command()
@click.argument("message", metavar="[SOURCE MESSAGE_ID]", nargs=-1)
@click.option("--receiver", "receiver", multiple=True, help="Only deliveries to this receiver.")
@click.option("--source", "source", multiple=True, help="Only messages of this source.")
@click.option("--id", "ids", multiple=True, help="Only the message with this id.")
@click.option("--since", help="Only messages sent since this time: RFC 3339, or how long ago, such as 2h.")
@click.option("--until", help="Only messages sent before this time.")
@carrying_out
def cancel(call: ApiOptions, message: tuple[str, ...], **given: Unpack[SelectOptions]) -> None:
    """Cancel deliveries that were not sent yet: of the message SOURCE MESSAGE_ID, or all that the options select.

    A cancelled delivery is never sent. What was sent already, or is being sent, is left alone.
    """
    chosen, how = split(given)
    if not message:
        begin(call, "cancel", chosen, how)
        return
    if len(message) != 2 or chosen.keys() - {"receiver"}:
        raise UserError("give a SOURCE and a MESSAGE_ID, with --receiver or without; or options alone")
    source, message_id = message
    receivers = list(given.get("receiver", ()))

    async def work(client: AsyncRelay) -> tuple[list[OneView], list[str]]:
        names = receivers or [each.receiver for each in (await client.messages.get(source, message_id)).deliveries]
        done, refused = [], []
        for name in names:
            try:
                done.append(await client.messages.cancel(source, message_id, name))
            except ApiError as error:
                if error.status != 409:
                    raise
                refused.append(f"{name}: {error.detail}")
        return done, refused

    carry_out(call, work)
