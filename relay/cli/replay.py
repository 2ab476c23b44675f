"""`relay replay`: replays failed or delivered messages, and manages such jobs."""

from pathlib import Path
from typing import Any

import click

from relay.cli.client import with_client
from relay.cli.config import api_option, config_option, settings_from
from relay.cli.replay_request import begin, carrying_out, choosing, finish, print_job, print_result, split
from relay.cli.table import output_option, print_json, print_table

_COLUMNS = ("JOB", "ACTION", "STATE", "MADE AT", "COUNTED", "SENT", "SKIPPED", "ETA")


@click.group(invoke_without_command=True)
@choosing
@click.option("--all", "everything", is_flag=True, help="Delivered messages, too, not only failed ones.")
@carrying_out
@click.pass_context
def replay(context: click.Context, /, everything: bool, **given: Any) -> None:
    """Send failed deliveries again, from the stage that failed; without options, all of them.

    The deliveries are counted first. A job continues on its own, also after restarts; each delivery is sent once.
    """
    if context.invoked_subcommand is None:
        asked, how = split(given)
        begin("replay", asked | ({"only_failed": False} if everything else {}), **how)


@replay.command("list")
@click.option(
    "--limit", type=click.IntRange(1, 1000), default=50, show_default=True, help="At most so many, newest first."
)
@click.option("--cursor", help="Continue after the previous page's cursor.")
@api_option
@config_option
@output_option
def list_(limit: int, cursor: str | None, api: str | None, config_file: Path | None, output: str) -> None:
    """List jobs that replay or discard."""
    found = with_client(settings_from(config_file), api, lambda client: client.jobs(limit=limit, cursor=cursor))
    if output == "json":
        print_json(found)
        return
    print_table(_COLUMNS, [_row(job) for job in found["items"]])
    if found["cursor"]:
        click.echo(f"there are more: --cursor {found['cursor']}")


@replay.command()
@click.argument("job")
@click.option("--wait", is_flag=True, help="Wait until it has ended.")
@api_option
@config_option
@output_option
def show(job: str, wait: bool, api: str | None, config_file: Path | None, output: str) -> None:
    """Show the progress of JOB."""
    settings = settings_from(config_file)
    found = with_client(settings, api, lambda client: client.job(job))
    finish(settings, api, found, output, wait=wait)


@replay.command()
@click.argument("job")
@api_option
@config_option
@output_option
def stop(job: str, api: str | None, config_file: Path | None, output: str) -> None:
    """Stop JOB. Messages that it has sent stay sent."""
    found = with_client(settings_from(config_file), api, lambda client: client.stop_job(job))
    print_json(found) if output == "json" else print_job(found)


@replay.command()
@click.argument("source")
@click.argument("message_id")
@click.argument("receiver")
@click.option("--all", "everything", is_flag=True, help="Also if it was delivered.")
@click.option("--discard", is_flag=True, help="End it for good instead, and notify its sender.")
@api_option
@config_option
@output_option
def delivery(
    source: str,
    message_id: str,
    receiver: str,
    everything: bool,
    discard: bool,
    api: str | None,
    config_file: Path | None,
    output: str,
) -> None:
    """Replay one delivery: MESSAGE_ID of SOURCE to RECEIVER."""
    action, asked = ("discard", {}) if discard else ("replay", {"only_failed": not everything})
    done = with_client(
        settings_from(config_file),
        api,
        lambda client: client.act_on_delivery(action, source, message_id, receiver, asked),
    )
    print_json(done) if output == "json" else print_result(done)


def _row(job: Any) -> tuple[str, ...]:
    counted = "-" if job["counted"] is None else f"{job['counted']:,}"
    numbers = (counted, f"{job['sent']:,}", f"{job['skipped']:,}")
    return job["id"], job["action"], job["state"], job["made_at"], *numbers, job["eta"] or "-"
