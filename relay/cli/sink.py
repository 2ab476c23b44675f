"""`relay sink`: a CI-like test receiver in the terminal."""

import asyncio
import logging
import signal
from collections import Counter
from collections.abc import Coroutine, Iterator
from functools import partial
from typing import Any, Final, TextIO, Unpack

import click
from click.core import ParameterSource

from relay.cli.api import api_base, api_client, error_of, key_in
from relay.cli.options import FiniteRange, WholeRange, api_option, settings_from
from relay.domain.errors import RelayError
from relay.domain.jwe import private_keys
from relay.domain.signing import check_verifier
from relay.domain.text import counted
from relay.sink import Mode, ReceivedPost, Sink
from relay.sink.behaviour import MODES, Knobs
from relay.sink.builds import RESULTS, Result
from relay.sink.emulators import EMULATORS, TOKEN, Emulator
from relay.sink.github import GitHubEmulator
from relay.sink.numbers import NumberCheck
from relay.telemetry.redaction import escape_control

_log = logging.getLogger("relay.sink")
_OF_EMULATORS = frozenset({"result", "token"})
_OF_BOTH = frozenset({"as_", "host", "port", "later_polls"})
_GITHUB = "github"
AGAIN_S: Final = 5.0
"""Seconds until messages that the relay did not have are requested again."""


@click.command()
@click.option("--as", "as_", type=click.Choice(sorted([*EMULATORS, _GITHUB])), help="Emulate this system, strictly.")
@click.option(
    "--result", default="success", show_default=True, type=click.Choice(RESULTS), help="Result of builds (--as)."
)
@click.option("--token", default=TOKEN, show_default=True, help="Accepted credential (--as).")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--port",
    default=9000,
    show_default=True,
    type=WholeRange(0, 65535),
    help="Port to listen on; 0 for a free one.",
)
@click.option("--mode", default="answer", show_default=True, type=click.Choice(MODES), help="How it responds to POSTs.")
@click.option("--delay", "delay_s", default=0.0, type=FiniteRange(0), help="Seconds before each response.")
@click.option("--fail-rate", default=0.0, type=FiniteRange(0, 1), help="Share of POSTs that fail, 0 to 1.")
@click.option("--fail-first", type=WholeRange(0), help="Fail only the first POSTs, this many.")
@click.option(
    "--status",
    "fail_status",
    default=500,
    show_default=True,
    type=WholeRange(200, 599),
    help="HTTP status of failures.",
)
@click.option("--retry-after", type=WholeRange(0), help="Retry-After of failures and 202s, in seconds.")
@click.option("--later-polls", default=2, show_default=True, type=WholeRange(0), help="Status GETs before the answer.")
@click.option(
    "--answer-after",
    "answer_after_s",
    default=0.0,
    type=FiniteRange(0),
    help="Earliest answer in mode later, in seconds.",
)
@click.option("--callback", is_flag=True, help="POST the answer to the relay-answer-url as well.")
@click.option("--handshakes/--no-handshakes", default=True, show_default=True, help="Whether it answers verifications.")
@click.option("--verdicts", is_flag=True, help="Respond to a batch with a status for each message.")
@click.option("--numbered", is_flag=True, help="Check the numbers of `ordering: receiver`, and show gaps.")
@click.option("--catch-up", metavar="NAME", help="Fetch missing messages of this receiver over the API (--numbered).")
@api_option
@click.option("--secret", help="Check signatures with this secret, or public key (whpk_).")
@click.option("--jwk", type=click.File(), help="File with the private JWK, or JWK Set, that decrypts bodies.")
@click.option("--fetch", is_flag=True, help="Fetch the payloads of thin events.")
@click.pass_context
def sink(
    context: click.Context,
    as_: str | None,
    result: Result,
    token: str,
    host: str,
    port: int,
    mode: Mode,
    numbered: bool,
    catch_up: str | None,
    api: str | None,
    secret: str | None,
    jwk: TextIO | None,
    fetch: bool,
    **knobs: Unpack[Knobs],
) -> None:
    """Run a test receiver, like a CI with fault knobs.

    It accepts POSTs at /hooks, responds as --mode says, and has the status of each message at /hooks/MESSAGE_ID.
    GET /received lists the requests; PATCH /behaviour, as with {"mode": "reject"}, changes its behaviour. Stop it with
    Ctrl-C.

    With --as it is a CI instead: it accepts only requests that this CI's API accepts, and refuses others as that does.
    PATCH /behaviour, as with {"result": "failed"}, changes how builds end.

    With --as github it is a sender: GitHub's API for one repository. Add a webhook there, and create a file: the push
    is sent, and the commit takes statuses.
    """
    _refuse_others(context, as_)
    if catch_up is not None and not numbered:
        raise click.UsageError("--catch-up needs --numbered")
    if as_ == _GITHUB:
        asyncio.run(_serve(GitHubEmulator(token, on_line=click.echo), host, port))
        return
    if as_ is not None:
        polls = knobs["later_polls"]
        emulator = Emulator(EMULATORS[as_], token=token, on_arrival=_print, result=result, running_polls=polls)
        asyncio.run(_serve(emulator, host, port))
        return
    keys = None if jwk is None else jwk.read()
    for option, text, check_text in (("--secret", secret, check_verifier), ("--jwk", keys, private_keys)):
        try:
            if text is not None:
                check_text(text)
        except ValueError as error:
            raise click.BadParameter(str(error), param_hint=option) from error
    check = NumberCheck() if numbered else None
    receiver = Sink(mode, secret=secret, jwk=keys, fetch=fetch, on_arrival=partial(_print, check=check), **knobs)
    fetching = None
    if check is not None and catch_up is not None:
        settings = settings_from(None)
        fetching = _fetching(check, catch_up, api_base(settings, api), key_in(settings))
    asyncio.run(_serve(receiver, host, port, fetching))
    if check is not None:
        click.echo(check)


def _refuse_others(context: click.Context, as_: str | None) -> None:
    """Raises click.UsageError for an option of the other kind of receiver."""
    others = context.params.keys() - _OF_EMULATORS - _OF_BOTH if as_ else _OF_EMULATORS
    if as_ == _GITHUB:
        others |= {"result", "later_polls"}
    options = {parameter.name: parameter.opts[0] for parameter in context.command.params}
    for name in sorted(others):
        if context.get_parameter_source(name) == ParameterSource.COMMANDLINE:
            option = options[name]
            raise click.UsageError(f"{option} has no effect with --as {as_}" if as_ else f"{option} needs --as")


async def _fetching(check: NumberCheck, name: str, url: str, key: str | None) -> None:
    """Fetches missing messages, until cancelled; again after a while if the relay does not have them yet."""
    from relay.client import ClientError  # costs the imports of a client

    problem = ""
    async with api_client(url, key) as client:
        while True:
            await check.found_missing.wait()
            check.found_missing.clear()
            try:
                async for found in check.fetch(lambda after: client.receivers.catch_up(name, after=after)):
                    click.secho(found, fg="yellow")
            except ClientError as error:
                if str(error) != problem:
                    click.echo(f"--catch-up {name}: {error_of(error)}", err=True)
                problem = str(error)
            if check.missing:
                await asyncio.sleep(AGAIN_S)
                check.found_missing.set()


async def _serve(
    receiver: Sink | Emulator | GitHubEmulator, host: str, port: int, beside: Coroutine[Any, Any, None] | None = None
) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for signum in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(signum, stop.set)
    await receiver.start(host, port)
    for line in _addresses(receiver):
        click.echo(line)
    task = None if beside is None else loop.create_task(beside)
    try:
        if task is not None:
            task.add_done_callback(lambda _: stop.set())
        await stop.wait()
    finally:
        if task is not None:
            task.cancel()
            await asyncio.wait([task])
        await receiver.stop()
    click.echo(summary(receiver))
    if task is not None and not task.cancelled() and (error := task.exception()) is not None:
        _log.error("catch_up_failed", exc_info=error)
        raise RelayError(f"--catch-up: unexpected error, {type(error).__name__}: {error}") from error


def _addresses(receiver: Sink | Emulator | GitHubEmulator) -> Iterator[str]:
    if isinstance(receiver, GitHubEmulator):
        yield f"repository       {receiver.url}"
        yield f"headers          authorization: Bearer {receiver.token}"
        return
    yield f"post_endpoint    {receiver.url}"
    if isinstance(receiver, Sink):
        yield f"status_endpoint  {receiver.status_url_template}"
    else:
        name, value = receiver.ci.credential
        yield f"headers          {name}: {value}"


def _print(arrival: ReceivedPost, check: NumberCheck | None = None) -> None:
    colour = "red" if arrival.status is None or arrival.status >= 400 or arrival.verified is False else "green"
    click.secho(line(arrival), fg=colour)  # click leaves the colour out where there is no terminal
    for found in check.look(arrival) if check is not None else ():
        click.secho(found, fg="yellow")


def line(arrival: ReceivedPost) -> str:
    """One arrival, e.g. `<- push gh-1 attempt 1 200 verified`."""
    verdict = {True: " verified", False: " NOT verified", None: ""}[arrival.verified]
    verdict += "" if arrival.batch is None else f" in {escape_control(arrival.batch)}"
    what = escape_control(arrival.event_type or "-")
    which = escape_control(arrival.message_id or arrival.webhook_id or "-")
    return f"<- {what} {which} attempt {arrival.attempt} {arrival.status or arrival.met}{verdict}"


def summary(receiver: Sink | Emulator | GitHubEmulator) -> str:
    """A summary in one line."""
    if isinstance(receiver, GitHubEmulator):
        statuses = sum(len(commit.statuses) for commit in receiver.repository.commits.values())
        commits = counted(len(receiver.repository.commits), "commit")
        return f"{counted(len(receiver.deliveries), 'webhook')}; {statuses} x status of {commits}"
    outcomes = Counter(str(arrival.status or arrival.met) for arrival in receiver.received)
    messages = len({(arrival.source_id, arrival.message_id) for arrival in receiver.received})
    parts = ", ".join(f"{count} x {outcome}" for outcome, count in sorted(outcomes.items()))
    posts = f"{counted(len(receiver.received), 'POST')} of {counted(messages, 'message')}"
    return f"{posts}{f': {parts}' if parts else ''}; {counted(len(receiver.polls), 'status GET')}"
