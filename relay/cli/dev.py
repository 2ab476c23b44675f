"""`relay dev`: everything in one process, embedded, with a demo receiver and a sender's callback."""

import asyncio
import json
import os
import secrets
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import click

from relay.cli.api import api_client, newest
from relay.cli.events import Lines, Screen, ignore, report_all, shown_on
from relay.cli.options import DIRECTORY, FILE, WholeRange, config_option, program
from relay.cli.send import until_over
from relay.cli.sink import line
from relay.client import AsyncRelay, ClientError
from relay.client.sse import ServerSentEvent
from relay.config.own_address import Exposed, check_exposure, check_key, check_own_key, is_loopback
from relay.config.private_directory import private_directory
from relay.config.receivers_file import ReceiversFile, parse_receivers_file
from relay.config.setting_layers import CONFIG_FILE, load_settings
from relay.config.settings import Settings
from relay.domain.errors import RelayError, UserError
from relay.domain.identity import PROBE
from relay.domain.signing import generate_secret
from relay.domain.text import counted
from relay.embedded.directory import clear, holds_data, user_directory, usual_directory
from relay.embedded.relay import EmbeddedRelay, free_port, stored_secret, with_entries
from relay.run.event_loop import run_loop, run_until_signalled
from relay.run.process import RelayProcess
from relay.sink import ReceivedPost, Sink
from relay.telemetry.logging import configure

DEMO = "demo"
PROBE_S = 30.0
STOP_S = 60.0
MOST_LETTERS = 100
_NOT_LOGGED = frozenset({"dead_letter", "audit"})
"""Events that are not logged on the terminal of the live view, which has dead letters; changes are in the audit."""


@click.command()
@config_option
@click.option(
    "--data-dir", type=DIRECTORY, help="Directory for the data. Default: one for each folder that has a receivers file."
)
@click.option("--fresh", is_flag=True, help="Delete the data of earlier runs first.")
@click.option("--ephemeral", is_flag=True, help="Use a temporary directory instead, and delete it at the end.")
@click.option("--port", type=WholeRange(0, 65535), help="Port of the API. Default: 8080, or a free one.")
@click.option("--receivers", "receivers_file", type=FILE, help="Receivers file to use.")
@click.option("--no-demo", is_flag=True, help="Run without the demo receiver and the demo sender's callback.")
def dev(
    config_file: Path | None,
    data_dir: Path | None,
    fresh: bool,
    ephemeral: bool,
    port: int | None,
    receivers_file: Path | None,
    no_demo: bool,
) -> None:
    """Run everything in one process, embedded, with a demo receiver.

    \b
    +--------------------------------------------------------------------+
    | For development and small installations: one host, no replication, |
    | the backlog has to fit into memory. Durable to fsync.              |
    +--------------------------------------------------------------------+
    """
    given = {CONFIG_FILE: config_file, "api_port": port, "receivers_file": receivers_file}
    settings = load_settings({name: value for name, value in given.items() if value is not None}, os.environ)
    (check_own_key if is_loopback(settings.api_host) else check_key)(settings)
    _check_receivers_file(settings)
    shares = Screen().is_terminal and sys.stderr.isatty()
    configure(settings.log_format, settings.log_level, without=_NOT_LOGGED if shares else ())
    kept_in = data_dir or usual_directory(os.environ, settings.receivers_file)
    if fresh:
        clear(kept_in)
    with _directory(kept_in, ephemeral=ephemeral) as directory:
        exposed = _exposed(settings)
        run_loop(Dev(settings, directory, demo=not no_demo, ephemeral=ephemeral, exposed=exposed).run)


def _exposed(settings: Settings) -> Exposed | None:
    """The error to raise if no key exists, which is known once the embedded log is open."""
    try:
        check_exposure(settings)
    except Exposed as error:
        return error
    return None


def _check_receivers_file(settings: Settings) -> None:
    """A named file has to exist; the default one may be created later, or never."""
    path = settings.receivers_file
    if "receivers_file" in settings.model_fields_set and not path.exists():
        raise UserError(f"--receivers (RELAY_RECEIVERS_FILE): {path} does not exist")


@contextmanager
def _directory(directory: Path, *, ephemeral: bool) -> Iterator[Path]:
    if ephemeral:
        with private_directory() as forgotten:
            yield forgotten
    else:
        try:
            directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            raise UserError(f"--data-dir: {directory} cannot be created: {error.strerror}; choose another") from error
        if not os.access(directory, os.W_OK | os.X_OK):
            raise UserError(f"--data-dir: {directory} cannot be written to; choose another")
        yield directory


def _port(settings: Settings) -> int:
    """The port of the API: a free one if the default is taken; a requested port has to be free."""
    port = free_port(settings.api_host, settings.api_port)
    if port != settings.api_port and "api_port" in settings.model_fields_set:
        raise UserError(
            f"--port (RELAY_API_PORT): {settings.api_port} on {settings.api_host} is not available, probably in use;"
            " choose another one, or 0 for a free one"
        )
    return port


class Dev:
    """One run of `relay dev`."""

    def __init__(
        self, settings: Settings, directory: Path, *, demo: bool, ephemeral: bool, exposed: Exposed | None = None
    ) -> None:
        self._wanted_port = settings.api_port
        self._settings = settings.model_copy(update={"api_port": _port(settings)})
        self._directory = directory
        self._demo = demo
        self._ephemeral = ephemeral
        self._secret = seed = generate_secret(lambda size: stored_secret(directory / "demo_secret")[:size])
        self._screen = Screen()
        logs = demo and not self._screen.is_terminal  # there the live view prints it
        self._receiver = Sink("answer", secret=seed, on_arrival=_print_arrival if logs else None)
        self._sender = Sink("ok", secret=seed, on_arrival=_print_result if logs else None)
        self._engine: EmbeddedRelay | None = None
        self._own_key = secrets.token_urlsafe(32)
        self._called: list[str] = []
        self._exposed = exposed
        names = (PROBE, DEMO, "github") if demo else (PROBE,)
        self._own_gates = {f"{kind}:{name}" for name in names for kind in "rs"} - {"r:github"}

    async def run(self) -> None:
        await self._receiver.start()
        await self._sender.start()
        try:
            self._engine = EmbeddedRelay(
                self._settings,
                self._directory,
                self._entries,
                os.environ,
                logs_attempts=self._is_logged,
                own_key=self._own_key,
                exposed=self._exposed,
            )
            await run_until_signalled(
                partial(self._serve, self._engine),
                grace_s=STOP_S,
                hangup=None if self._screen.is_terminal else self._reload,  # from a terminal that closes, it is the end
            )
        finally:
            await self._receiver.stop()
            await self._sender.stop()

    async def _serve(self, engine: EmbeddedRelay, stop: asyncio.Event) -> None:
        async def started(relay: RelayProcess) -> None:
            try:
                await self._started(relay)
            except (ClientError, RelayError):  # until it is ready, a stop takes the API away
                if not stop.is_set():
                    raise

        await engine.run(stop, started)

    def _reload(self) -> None:
        if self._engine is not None and self._engine.relay is not None:
            self._engine.relay.hangup.set()

    def _entries(self, file: ReceiversFile | None) -> ReceiversFile:
        callback = {"callback": {"url": self._sender.url, "secret": self._secret}}
        receiver = {"post_endpoint": self._receiver.url, "secret": self._secret}
        status = {"status_endpoint": self._receiver.status_url_template}
        sources, receivers = {PROBE: callback}, {PROBE: receiver}
        if self._demo:
            sources |= {"github": callback, DEMO: callback}
            receivers[DEMO] = receiver | status
            declared = () if file is None else file.sources
            self._called = [name for name in ("github", DEMO) if name not in declared]
        added = parse_receivers_file(json.dumps({"sources": sources, "receivers": receivers}), "the demo's entries")
        return with_entries(file, added)

    def _is_logged(self, endpoint_id: str) -> bool:
        """In a terminal the live view prints attempts; the probe and the demo print their own."""
        return not self._screen.is_terminal and endpoint_id not in self._own_gates

    async def _started(self, relay: RelayProcess) -> None:
        url = relay.api_url or ""
        click.echo(self._block(url, relay))
        async with api_client(url, self._own_key, PROBE_S) as client:
            if left := await _left_over(client):
                click.echo(f"Left over: {left}; --fresh starts empty")
            probe = f"probe-{secrets.token_hex(4)}"
            # the smallest JSON, because RELAY_MAX_PAYLOAD_BYTES may be 1
            await client.send(PROBE, b"1", receivers=(PROBE,), id=probe, type="probe")
            state = await until_over(client, PROBE, probe, PROBE_S)
            # its rates are those since an earlier look: since the look at left-over messages, they would have the probe
            await client.overview()
        if state.status != "response_delivered_to_sender":
            raise RelayError(f"the probe message was not delivered: its status is {state.status}")
        await self._show_what_happens(url)

    async def _show_what_happens(self, url: str) -> None:
        """Prints the events of all receivers, until cancelled. Ready once no further event can be missed."""
        show = shown_on(self._screen, Lines(pages=f"{url}/ui" if self._settings.pages else None, api=url))
        ready = False

        def report(event: ServerSentEvent) -> None:
            nonlocal ready
            if event.name == "listening" and not ready:
                ready = True
                self._say_ready(url)
            elif event.data.get("source_id") != PROBE:
                show(event)

        async with api_client(url, self._own_key) as client:
            await report_all(client.tail(reconnect=ignore), report)

    def _say_ready(self, url: str) -> None:
        click.echo("Ready")
        if self._demo:
            click.echo(f"Try: {program()} trigger github.push --receiver {DEMO} --api {url}")

    def _block(self, url: str, relay: RelayProcess) -> str:
        version = self._engine.server.version if self._engine else "?"
        kept = "deleted at the end" if self._ephemeral else "kept"
        lines = [
            ("API", url + port_note(self._wanted_port, url)),
            *([("Pages", f"{url}/ui/")] if self._settings.pages else []),
            ("Metrics", f"{url}/metrics"),
            ("Data", f"{self._directory} ({kept}; every message fsynced; Valkey {version})"),
            *self._former_data(),
            ("Receivers", _file_note(self._settings.receivers_file)),
            ("Keys", _key_note(self._settings, url, made=relay.registry.keys.closed)),
        ]
        if self._demo:
            called = f"source{'s' * (len(self._called) > 1)} {' and '.join(self._called)}"
            lines += [
                ("Demo receiver", f"{DEMO} at {self._receiver.url}"),
                *([("Demo callback", f"of {called}, at {self._sender.url}")] if self._called else []),
                ("Signing secret", self._secret),
            ]
        width = max(len(name) for name, _ in lines)
        return "\n".join(f"{name:<{width}}  {value}" for name, value in lines)

    def _former_data(self) -> list[tuple[str, str]]:
        """The data of a release that had one directory for all folders; None once it was removed or is used again."""
        former = user_directory(os.environ)
        if self._ephemeral or self._directory == former or not holds_data(former):
            return []
        return [
            ("Former data", f"{former}, of an earlier release; {program()} dev --data-dir {former} continues with it")
        ]


async def _left_over(client: AsyncRelay) -> str:
    """The data of earlier runs in the data directory; empty if there is none."""
    overview = await client.overview()
    unfinished = overview["parked"] + sum(stage["lag"] or 0 for stage in overview["stages"])
    letters = (await newest(client.failed.page, MOST_LETTERS, None))["items"]
    page = await client.receivers.page(declared_by="api")
    made = len(page["items"])
    found = [
        (unfinished, f"up to {counted(unfinished, 'unfinished message')}"),  # after a kill, some count twice
        (len(letters), counted(len(letters), "dead letter", more=len(letters) == MOST_LETTERS)),
        (made, f"{counted(made, 'receiver', more=bool(page['cursor']))} registered over the API"),
    ]
    return ", ".join(text for count, text in found if count)


def port_note(wanted: int, url: str) -> str:
    """What the line of the API adds where `wanted` was not to be had; 0: any port."""
    if not wanted or url.endswith(f":{wanted}"):
        return ""
    return f"  (port {wanted} is in use; in other terminals: export RELAY_API_URL={url})"


def _file_note(path: Path) -> str:
    return (
        f"{path}, read again when it changes"
        if path.exists()
        else f"{path} does not exist; it is read as soon as it does"
    )


def _key_note(settings: Settings, url: str, *, made: bool) -> str:
    if made or settings.api_key is not None:
        return f"required, in RELAY_API_KEY; list them: {program()} keys list --api {url}"
    create = f"{program()} keys create --scope admin --api {url}"
    return f"not required: any program on this machine may use the API; to change that: {create}"


def _print_arrival(arrival: ReceivedPost) -> None:
    if arrival.source_id != PROBE:
        click.echo(f"{DEMO}    {line(arrival)}")


def _print_result(arrival: ReceivedPost) -> None:
    headers = arrival.headers
    if headers.get("relay-source") != PROBE:
        what = f"{headers.get('relay-outcome')} {headers.get('relay-answer-status', headers.get('relay-reason', ''))}"
        signed = "verified" if arrival.verified else "NOT verified"
        click.echo(
            f"sender  <- {headers.get('relay-message-id')} from {headers.get('relay-receiver')}: {what} {signed}"
        )
