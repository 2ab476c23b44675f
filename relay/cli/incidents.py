"""`relay incidents`: lists causes of failures, and fixes one: fix, test, replay."""

import asyncio
import sys
from collections.abc import Awaitable, Callable
from typing import Final

import click

from relay.cli.api import ApiOptions, api_command
from relay.cli.entries import text_in
from relay.cli.options import ListingGroup, confirm, cursor_option, limit_option
from relay.cli.table import shortened
from relay.client import ApiError, AsyncRelay
from relay.client.mending import Fix, Tested, apply_fix, close_if_over, is_tested_first, replay_letters, test_endpoint
from relay.domain.errors import RelayError
from relay.domain.incident import State
from relay.domain.replay_job import OVER
from relay.schema.incidents import IncidentDetail, IncidentView
from relay.schema.replays import JobView
from relay.telemetry.redaction import escape_control

_COLUMNS: Final = ("INCIDENT", "STATE", "SEVERITY", "PARTY", "OPENED AT", "WAITING", "SUMMARY")
LOOK_S: Final = 0.5
BACK_S: Final = 30.0
"""Time limit for the cause to end after the replay."""
_CALL_S: Final = 600.0
_ELSEWHERE: Final = ("worker", "look", "configure")
"""Actions that are not taken by this command."""


@click.group(cls=ListingGroup)
def incidents() -> None:
    """List causes of failures, show one, and fix it. Without COMMAND: `list`."""


@incidents.command("list")
@click.option(
    "--state",
    "states",
    multiple=True,
    type=click.Choice(["open", "acknowledged", "resolved"]),
    help="Only incidents in this state; repeatable. Default: all that are not resolved.",
)
@click.option(
    "--party",
    "parties",
    multiple=True,
    help="Only incidents of this receiver, source, or part of the relay; repeatable.",
)
@limit_option
@cursor_option
@api_command
def list_(
    call: ApiOptions, states: tuple[State, ...], parties: tuple[str, ...], limit: int, cursor: str | None
) -> None:
    """List incidents, the newest first."""
    wanted = states or ("open", "acknowledged")
    page = call.run(lambda client: client.incidents.page(state=wanted, party=parties, limit=limit, cursor=cursor))
    call.show_page(page, _COLUMNS, _row)


@incidents.command()
@click.argument("incident")
@api_command
def show(call: ApiOptions, incident: str) -> None:
    """Show INCIDENT with its evidence, and what was tried. INCIDENT: its id, or the name of its party."""
    call.show(call.run(lambda client: _find(client, incident)), _print)


@incidents.command()
@click.argument("incident")
@api_command
def ack(call: ApiOptions, incident: str) -> None:
    """Acknowledge INCIDENT: show others that you work on it."""
    one = call.run(lambda client: _find(client, incident, client.incidents.acknowledge))
    call.show(one, lambda one: click.echo(f"{one['id']}: acknowledged by {one['acknowledged_by']}"))


@incidents.command()
@click.argument("incident")
@api_command
def resolve(call: ApiOptions, incident: str) -> None:
    """Resolve INCIDENT by hand. It is reopened if its cause is observed again."""
    one = call.run(lambda client: _find(client, incident, client.incidents.resolve))
    call.show(one, lambda one: click.echo(f"{one['id']}: {one['state']}"))


@incidents.command()
@click.argument("incident")
@click.option(
    "--set-secret", "secret", help="New secret, which the other side checks signatures with; `-` reads it from stdin."
)
@click.option("--set-token", "token", help="New bearer token, which the receiver expects; `-` reads it from stdin.")
@click.option("--set-url", "url", help="New URL of the receiver, or of the callback.")
@click.option(
    "--test/--no-test",
    "tests",
    default=True,
    help="Send a test request before the replay, or the discard. Default: yes.",
)
@click.option("--replay/--no-replay", "replays", default=True, help="Replay its dead letters. Default: yes.")
@click.option("--yes", "-y", is_flag=True, help="Do not ask for confirmation.")
@api_command
def fix(
    call: ApiOptions,
    incident: str,
    secret: str | None,
    token: str | None,
    url: str | None,
    tests: bool,
    replays: bool,
    yes: bool,
) -> None:
    """Fix INCIDENT: apply its fix, test the receiver or callback, and replay what failed. A message that holds up
    others is discarded, if the test passes.

    \b
    relay incidents fix ci --set-secret - < secret.txt
    relay incidents fix billing --yes          # its callback works again: replay the results
    """
    one = call.run(lambda client: _find(client, incident))
    _say(one["summary"])
    wanted = _asked(one, Fix(_given(secret, "--set-secret"), _given(token, "--set-token"), url), yes=yes)
    if one["action"]["kind"] in _ELSEWHERE:
        raise RelayError(f"this cannot be fixed from here. {_next_step(one)}")
    call.run(lambda client: _mend(client, one, wanted, tests=tests, replays=replays, yes=yes), timeout_s=_CALL_S)


async def _mend(client: AsyncRelay, one: IncidentDetail, wanted: Fix, *, tests: bool, replays: bool, yes: bool) -> None:
    first = is_tested_first(one)
    if first:
        await _test(client, one, tests=tests)
    if one["action"]["kind"] == "discard":
        confirm("Discard the message?", yes=yes)
    for change in await apply_fix(client, one, wanted):
        _say(f"fix: {change}")
    if not first:
        await _test(client, one, tests=tests)
    if replays:
        await _replay(client, one, yes=yes)
    await _wait_until_over(client, one["id"])


async def _test(client: AsyncRelay, one: IncidentDetail, *, tests: bool) -> None:
    """Raises RelayError if the test did not pass."""
    tested = await _tested(client, one) if tests else None
    if tested is None or tested.passed:
        return
    got = f"the test got {tested.detail.partition(':')[0]}"
    if one["action"]["kind"] == "discard":
        raise RelayError(f"{got}, so nothing was discarded; mend the receiver, or discard it with --no-test")
    if is_tested_first(one):
        raise RelayError(f"{got}, so it was not resumed; --no-test resumes it all the same")
    if one["replay"] is None:
        raise RelayError(f"{got}: it still fails")
    raise RelayError(f"{got}, so nothing was replayed; --no-test replays all the same")


async def _tested(client: AsyncRelay, one: IncidentDetail) -> Tested | None:
    try:
        tested = await test_endpoint(client, one)
    except ApiError as error:
        _say(f"test: not possible: {error.detail}")
        return None
    if tested is not None:
        _say(f"test: {tested.detail} {shortened(tested.body)}".strip())
    return tested


async def _replay(client: AsyncRelay, one: IncidentDetail, *, yes: bool) -> None:
    if one["replay"] is None:
        return
    confirm(f"Replay {one['letters']:,}?", yes=yes)
    job = await replay_letters(client, one)
    while job is not None and job["state"] not in OVER:
        await asyncio.sleep(LOOK_S)
        job = await client.replays.get(job["id"])
    if job is not None:
        _say(f"replay: {replayed(job)}")


def replayed(job: JobView) -> str:
    left = f", {job['skipped']:,} left out" if job["skipped"] else ""
    ended = {"failed": f"; then it failed: {job['detail']}", "stopped": "; then it was stopped"}.get(job["state"], "")
    return f"{job['sent']:,} sent again{left}{ended}"


async def _wait_until_over(client: AsyncRelay, id: str) -> None:
    """Waits a limited time until the cause is no longer observed. Raises RelayError."""
    for _ in range(round(BACK_S / LOOK_S)):
        now = await close_if_over(client, id)
        if now is not None and now["merged_into"] is not None:
            raise RelayError(f"its cause is part of another incident now: relay incidents show {now['merged_into']}")
        if now is None or now["state"] == "resolved":
            _say("All back.")
            return
        await asyncio.sleep(LOOK_S)
    raise RelayError(f"its cause is still observed: relay incidents show {id}")


async def _find(
    client: AsyncRelay, incident: str, act: Callable[[str], Awaitable[IncidentDetail]] | None = None
) -> IncidentDetail:
    """Finds an incident by its id, or by the name of its party, and calls `act` with its id. Raises RelayError,
    ApiError."""
    act = act or client.incidents.get
    if incident.startswith("inc_"):
        return await act(incident)
    page = await client.incidents.page(state=("open", "acknowledged"), party=[incident])
    match page["items"]:
        case [one]:
            return await act(one["id"])
        case []:
            raise RelayError(f"there is no unresolved incident of {incident!r}")
        case several:
            found = ", ".join(f"{one['id']} ({one['cause']})" for one in several)
            raise RelayError(f"{incident!r} has several: {found}")


def _asked(one: IncidentDetail, given: Fix, *, yes: bool) -> Fix:
    """The fix with the value that it needs, asked for on the terminal."""
    if yes or any(given) or not sys.stdin.isatty():
        return given
    match one["action"]["kind"]:
        case "secret":
            text = click.prompt("Secret that it checks with (empty if it is fixed there)", default="", hide_input=True)
            return given._replace(secret=text or None)
        case "url":
            return given._replace(url=click.prompt("URL (empty: unchanged)", default="") or None)
        case "callback":
            return given._replace(
                url=click.prompt("URL of the callback (empty if it is fixed there)", default="") or None
            )
    return given


def _given(text: str | None, option: str) -> str | None:
    return None if text is None else text_in("-", option).strip() if text == "-" else text


def _next_step(one: IncidentView) -> str:
    action = one["action"]
    how = action["href"] if action["kind"] in _ELSEWHERE else f"relay incidents fix {one['id']}"
    return f"{action['label']}: {how}"


def _state(one: IncidentView) -> str:
    """Its state, or that its cause has ended, and that it is resolved unless that returns soon."""
    return "clearing" if one["cleared_at"] and one["state"] != "resolved" else one["state"]


def _row(one: IncidentView) -> tuple[str, ...]:
    party = one["party"]
    where = f"{party['type']} {party['name']}"
    return (
        *(one["id"], _state(one), one["severity"], where, one["opened_at"] or "-", f"{one['waiting']:,}"),
        one["summary"],
    )


def _print(one: IncidentDetail) -> None:
    _say(f"{one['cause']}\n{one['summary']}\n")
    evidence = one["evidence"]
    facts = [
        ("Id", one["id"]),
        ("State", _state(one)),
        ("Taken by", one["acknowledged_by"]),
        ("Resolved by", one["resolved_by"]),
        ("Opened", one["opened_at"]),
        ("Last", one["last_at"]),
        ("Waiting", f"{one['waiting']:,}"),
        ("Merged into", one["merged_into"]),
        ("Host", one["host"]),
        ("Response", evidence["status"] or evidence["failure"]),
        ("Detail", evidence["detail"]),
        ("Body", evidence["body"]),
    ]
    for name, value in facts:
        if value not in (None, ""):
            _say(f"{name:<13}{value}")
    for step in one["tried"]:
        _say(f"{'Tried':<13}{step['at']} {step['who']}: {step['what']} {step['whom']}")
    if _state(one) not in ("resolved", "clearing"):
        _say(f"\n{_next_step(one)}")


def _say(text: str) -> None:
    click.echo("\n".join(map(escape_control, text.split("\n"))))
