"""`relay listen`: a temporary receiver that forwards messages to a port of this machine, and prints requests and
responses."""

import asyncio
import os
import re
import secrets
import socket
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import click

from relay.cli.api import api_base, api_client, error_of, key_in
from relay.cli.events import Screen, request_line, response_line
from relay.cli.listener import ForwardedRequest, ForwardedResponse, Listener
from relay.cli.options import WholeRange, api_option, config_option, program, settings_from, types_option
from relay.client import AsyncRelay, ClientError
from relay.config.entry_types import check_url
from relay.config.own_address import is_loopback
from relay.domain.errors import RelayError, UserError
from relay.domain.text import counted
from relay.run.event_loop import run_until_signalled
from relay.schema.attempts import TrialView
from relay.schema.receivers import NewReceiverView
from relay.telemetry.redaction import escape_control

LABEL: Final = "relay-listen"
"""Label of such receivers: the machine and the process that they belong to."""
TIMEOUT_S: Final = 60.0
"""Long enough for a debugger that pauses for a while."""
PROVE_S: Final = 20.0
"""Longest wait for a handshake."""
_AGAIN_S: Final = 0.5
GRACE_S: Final = 20.0
_REQUEST_S: Final = 75.0
_REFUSED: Final = 300


@click.command()
@click.argument("url")
@click.option("--source", "sources", multiple=True, help="Subscribe to this source; repeatable.")
@types_option
@click.option("--receiver", "name", help="Name of the receiver. Default: listen-, and a random suffix.")
@click.option("--port", default=0, type=WholeRange(0, 65535), help="Port to listen on. Default: a free one.")
@click.option(
    "--public-url", help="URL at which a relay on another machine reaches this port, for example through a tunnel."
)
@api_option
@config_option
def listen(
    url: str,
    sources: tuple[str, ...],
    types: tuple[str, ...],
    name: str | None,
    port: int,
    public_url: str | None,
    api: str | None,
    config_file: Path | None,
) -> None:
    """Forward messages to URL, or to a port of this machine, and show each request and response, until Ctrl-C.

    It registers a receiver, whose POSTs reach this command, and removes it at the end. With --source it gets all
    messages of that source; otherwise those that name it.

    \b
    relay listen 3000
    relay listen http://localhost:3000/hook --source github --type 'pull_request.*'
    relay trigger github.push --receiver NAME      (NAME is what relay listen prints)
    """
    settings = settings_from(config_file)
    target, base = target_of(url), api_base(settings, api)
    if types and not sources:
        raise UserError("--type: name the source, too: --source S, or --source '*' for any")
    check_reach(base, public_url)
    name = name or f"listen-{secrets.token_hex(3)}"
    listening = Listening(key_in(settings), base, target, name, sources, types, public_url)
    asyncio.run(run_until_signalled(partial(listening.run, port), grace_s=GRACE_S))


def target_of(text: str) -> str:
    """The URL for a port, or a URL. Raises UserError."""
    if text.isascii() and text.isdigit() and 0 < int(text) < 65_536:
        return f"http://127.0.0.1:{int(text)}/"
    try:
        return check_url(text)
    except ValueError as error:
        raise UserError(f"URL: {text!r}: {error}; for example http://127.0.0.1:3000/hook, or just 3000") from None


def check_reach(base: str, public_url: str | None) -> None:
    """Raises UserError if the relay cannot reach this machine."""
    if public_url is not None:
        try:
            check_url(public_url)
        except ValueError as error:
            raise UserError(f"--public-url: {public_url!r}: {error}") from None
    elif not is_loopback(urlsplit(base).hostname or ""):
        raise UserError(
            f"the relay at {base} is not on this machine, and has to reach this command to forward messages "
            "to it: open a tunnel to a port of this machine, and add --port PORT --public-url https://..."
        )


@dataclass
class Listening:
    """One run. Events go to stdout, problems with the relay itself to stderr."""

    key: str | None
    base: str
    target: str
    name: str
    sources: tuple[str, ...]
    types: tuple[str, ...]
    public_url: str | None

    def __post_init__(self) -> None:
        self._unaccepted: set[tuple[str, str]] = set()
        """Messages whose last attempt was not accepted."""
        self._screen = Screen()
        self._listener = Listener(self.target, TIMEOUT_S - 5, self._came, self._back, self.public_url)

    async def run(self, port: int, stop: asyncio.Event) -> None:
        """Runs until `stop`. The receiver is removed at the end; if the relay is unavailable then, a warning is
        printed."""
        async with api_client(self.base, self.key, _REQUEST_S) as client:
            await self._listener.start("127.0.0.1", port)
            try:
                await remove_left_over(client)
                url = self.public_url or f"http://127.0.0.1:{self._listener.port}/"
                known = await client.receivers.create(self.name, url, **self._fields())
                self._listener.secret = known["secret"]
                try:
                    await self._begin(client, known)
                    await stop.wait()
                finally:
                    await self._end(client)
            finally:
                await self._listener.stop()

    def _fields(self) -> dict[str, object]:
        """The fields of the receiver. It subscribes to nothing yet: first a ping shows that the relay reaches this
        command, and not another process."""
        return {
            "lane": "shared",
            "timeout": TIMEOUT_S,
            "labels": {LABEL: mark_of(socket.gethostname(), os.getpid())},
            "retry": {"base": 1, "cap": 10, "max_age": "10m"},
        }

    async def _prove(self, client: AsyncRelay, known: NewReceiverView) -> None:
        """Runs the verification, if the relay requires it of receivers that are registered over its API."""
        kind = (known["settings"] or {}).get("verification", "none")
        if kind == "none":
            return
        loop = asyncio.get_running_loop()
        until, why = loop.time() + PROVE_S, ""
        while loop.time() < until:
            try:
                tried = await client.receivers.verify(self.name)
            except ClientError as error:  # the relay's own handshake is in progress
                why = str(error_of(error))
            else:
                if tried["proved"]:
                    return
                why = tried["detail"] or ""
            await asyncio.sleep(_AGAIN_S)
        raise RelayError(f"the verification that the relay requires ({kind}) failed: {escape_control(why)}")

    async def _begin(self, client: AsyncRelay, known: NewReceiverView) -> None:
        await self._prove(client, known)
        tested = await client.receivers.test(self.name)
        if not self._listener.pings:
            raise RelayError(f"the relay at {self.base} cannot reach this command: {_why(tested)}")
        if self.sources:
            subscribed = {"sources": list(self.sources), "event_types": list(self.types or ("*",))}
            await client.receivers.update(self.name, subscribed)
        what = f"messages of {', '.join(self.sources)}" if self.sources else "messages that name it"
        click.echo(f"Listening as receiver {self.name}: {escape_control(what)} go to {self.target}")
        if known["secret"]:
            click.echo(f"Signing secret: {known['secret']}")
        if not self.sources:
            click.echo(f"Try: {program()} trigger github.push --receiver {self.name} --api {self.base}")
        click.echo("Stop with Ctrl-C.")

    async def _end(self, client: AsyncRelay) -> None:
        try:
            removed = await client.receivers.delete(self.name)
        except ClientError as error:
            click.echo(f"{self.name} could not be removed: {error_of(error)}", err=True)
            click.echo(f"relay receivers delete {self.name} does it, or the next relay listen here", err=True)
            return
        left = max(len(self._unaccepted), removed["messages"]["parked"]["retries"])
        click.echo(f"{self.name}: removed, after {counted(self._listener.posts, 'POST')}")
        if left:
            click.echo(f"Not accepted yet: {left}; these end as dead letters (unknown_receiver): relay failed list")

    def _came(self, came: ForwardedRequest) -> None:
        self._screen.show(request_line(came, datetime.now().astimezone()))

    def _back(self, back: ForwardedResponse) -> None:
        of = (back.came.source_id, back.came.message_id)
        if back.status is None or back.status >= _REFUSED:
            self._unaccepted.add(of)
        else:
            self._unaccepted.discard(of)
        self._screen.show(response_line(back, datetime.now().astimezone()))


def mark_of(machine: str, pid: int) -> str:
    return f"{_named(machine)}.{pid}"


def _named(machine: str) -> str:
    return re.sub("[^a-z0-9-]", "-", machine.lower())[:40] or "-"


def is_left_over(mark: str, machine: str, lives: Callable[[int], bool]) -> bool:
    """Whether it belongs to a process of this machine that has ended. `lives`: whether a process with that number
    exists."""
    made_on, _, pid = mark.rpartition(".")
    return made_on == _named(machine) and pid.isdigit() and not lives(int(pid))


async def remove_left_over(client: AsyncRelay) -> None:
    """Removes receivers of `relay listen` commands of this machine that were killed."""
    page = await client.receivers.page(label=[LABEL], limit=100)
    for item in page["items"]:
        if is_left_over(item["labels"].get(LABEL, ""), socket.gethostname(), _lives):
            await client.receivers.delete(item["name"])
            click.echo(f"{item['name']}: removed; its relay listen was killed")


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        pass
    return True


def _why(tested: TrialView) -> str:
    failure, response = tested["failure"], tested["response"]
    if failure is None:
        status = response["status"] if response else "nothing"
        return f"another server answers at {tested['request']['url']}, with {status}"
    hint = ""
    if failure["kind"] == "blocked":
        hint = "; RELAY_ALLOW_PRIVATE_NETWORKS=127.0.0.0/8 of the relay allows it (relay dev does so by default)"
    return escape_control(f"{failure['kind']}: {failure['detail']}{hint}")
