"""`relay demo`: sends real payloads to three kinds of receiver, and prints each event as it happens."""

import asyncio
import json
import os
import secrets
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import click

from relay.cli.api import api_client
from relay.cli.events import Lines, Screen, ignore, report_all, shown_on
from relay.cli.options import program
from relay.cli.send import LOOK_EVERY_S, until_over
from relay.client import AsyncRelay
from relay.client.sse import ServerSentEvent
from relay.clock import set_within
from relay.config.private_directory import private_directory
from relay.config.receivers_file import ReceiversFile, parse_receivers_file
from relay.config.setting_layers import load_settings
from relay.domain.errors import RelayError
from relay.domain.signing import generate_secret
from relay.embedded.relay import EmbeddedRelay
from relay.run.event_loop import run_loop, run_until_signalled
from relay.run.process import RelayProcess
from relay.schema.messages import MessageView
from relay.schema.replays import LetterView
from relay.sink import Mode, Sink
from relay.sink.samples import load
from relay.telemetry.logging import configure

SOURCE: Final = "github"
WAIT_S: Final = 45.0
STORY_S: Final = 3.0
COLUMNS: Final = 80
LEGEND: Final = (
    "--> a message arrives   <-- response of a receiver, or of the sender's callback\n"
    "<== an answer returns   !!! a dead letter"
)
NEXT: Final = """\
Next, start a relay that runs until Ctrl-C (pages: http://127.0.0.1:8080/ui/):

  {relay} dev

and send to it from another terminal:

  {relay} trigger github.push --receiver demo --wait 10"""


@dataclass(frozen=True, slots=True)
class DemoCase:
    """One kind of receiver, its sample message, and the expected result."""

    receiver: str
    mode: Mode
    does: str
    sample: str
    ends: str
    outcome: str


CASES: Final = (
    DemoCase("ci-now", "answer", "answers in the response", "github.push", "response_delivered_to_sender", "answered"),
    DemoCase(
        "ci-later",
        "later",
        "returns 202, and answers a status GET",
        "github.pull_request.opened",
        "response_delivered_to_sender",
        "answered",
    ),
    DemoCase("ci-broken", "fail", "always returns 500", "github.workflow_run.completed", "failed", "failed"),
)


@click.command()
def demo() -> None:
    """Send real GitHub payloads to three kinds of receiver, and print each event as it happens.

    Everything runs in this process, on a data directory that is forgotten at the end. Exit code 0 only if two answers
    and one failure notice arrived at the sender's callback, and the dead letter was found.
    """
    configure("auto", "error")
    with private_directory() as directory:
        run_loop(Demo(directory).run)


class Demo:
    """One run: receivers, a sender's callback, and the relay between them."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._secret = generate_secret(os.urandom)
        self._key = secrets.token_hex(16)
        self._receivers = {case.receiver: Sink(case.mode, secret=self._secret) for case in CASES}
        self._sender = Sink("ok", secret=self._secret)
        self._complete = False

    async def run(self) -> None:
        """Raises RelayError unless all expected results arrived."""
        sinks = (*self._receivers.values(), self._sender)
        for sink in sinks:
            await sink.start()
        try:
            settings = load_settings(self._overrides(), os.environ)
            engine = EmbeddedRelay(settings, self._directory / "data", self._entries, os.environ)
            await run_until_signalled(partial(self._play, engine), grace_s=10.0)
        finally:
            for sink in sinks:
                await sink.stop()
        if not self._complete:
            raise RelayError("the demo ended before all events arrived")

    def _overrides(self) -> dict[str, object]:
        """Independent of the environment: no other relay is involved."""
        nowhere, key = self._directory / "none.yaml", self._key
        return {"api_host": "127.0.0.1", "api_port": 0, "api_key": key, "receivers_file": nowhere, "attempt_log": 1}

    def _entries(self, file: ReceiversFile | None) -> ReceiversFile:
        receivers: dict[str, dict[str, object]] = {}
        for name, sink in self._receivers.items():
            receivers[name] = {
                "post_endpoint": sink.url,
                "secret": self._secret,
                "retry": {"base": 0.3, "cap": 1, "max_attempts": 3},
                "poll": {"base": 0.3, "cap": 1},
            }
        receivers["ci-later"]["status_endpoint"] = self._receivers["ci-later"].status_url_template
        sources = {SOURCE: {"callback": {"url": self._sender.url, "secret": self._secret}}}
        return parse_receivers_file(json.dumps({"sources": sources, "receivers": receivers}), "the demo's entries")

    async def _play(self, engine: EmbeddedRelay, stop: asyncio.Event) -> None:
        async def started(relay: RelayProcess) -> None:
            try:
                await self._send_and_watch(relay.api_url or "")
            finally:
                stop.set()

        await engine.run(stop, started)

    async def _send_and_watch(self, url: str) -> None:
        click.echo(f"The relay runs at {url}. Messages of the source {SOURCE!r}:\n")
        for case in CASES:
            click.echo(f"  {case.sample:<30}{case.receiver:<10} {case.does}")
        click.echo(f"\n{LEGEND}\n")
        story = Story()
        async with api_client(url, self._key, WAIT_S) as client, asyncio.TaskGroup() as tasks:
            watching = tasks.create_task(report_all(client.tail(reconnect=ignore), story.report))
            async with asyncio.timeout(WAIT_S):
                await story.begun.wait()
                states, letters = await self._send_all(client)
            await set_within(story.ended, STORY_S)  # the printed events are no proof: that follows below
            watching.cancel()
        self._sum_up(states)
        problems = self._problems(states, letters)
        if problems:
            raise RelayError("\n".join(problems))
        self._complete = True
        click.echo("\nAll results arrived: two answers and a failure notice, with one dead letter.")
        click.echo(f"\n{NEXT.format(relay=program())}")

    async def _send_all(self, client: AsyncRelay) -> tuple[list[MessageView], list[LetterView]]:
        """The messages' states in the end, and the dead letters."""
        async with asyncio.TaskGroup() as tasks:
            journeys = [tasks.create_task(_journey(client, f"event-{n}", case)) for n, case in enumerate(CASES, 1)]
        await self._sender.wait_for(len(CASES))
        return [journey.result() for journey in journeys], await _letters(client)

    def _sum_up(self, states: list[MessageView]) -> None:
        click.echo("\nResults:\n")
        results = {arrival.headers["relay-receiver"]: arrival for arrival in self._sender.received}
        for case, state in zip(CASES, states, strict=True):
            sink, delivery = self._receivers[case.receiver], state.deliveries[0]
            result = results.get(case.receiver)
            reason = f" ({delivery.reason})" if delivery.reason else ""
            how = f"POSTs: {len(sink.received)}, status GETs: {len(sink.polls)}, {delivery.status}{reason}"
            click.echo(f"  {case.receiver:<10} {how}")
            if result is not None:
                signed = "verified" if result.verified else "WRONG"
                click.echo(f"{'':<13}result at the sender: {result.headers['relay-outcome']}, signature {signed}")

    def _problems(self, states: list[MessageView], letters: list[LetterView]) -> list[str]:
        """The results that are missing."""
        problems = []
        results = {arrival.headers["relay-receiver"]: arrival for arrival in self._sender.received}
        for case, state in zip(CASES, states, strict=True):
            sink = self._receivers[case.receiver]
            if state.status != case.ends:
                problems.append(f"{case.receiver}: the message is {state.status}, not {case.ends}")
            if any(arrival.body != load(case.sample).payload for arrival in sink.received):
                problems.append(f"{case.receiver}: the payload was changed on the way")
            if not all(arrival.verified for arrival in sink.received):
                problems.append(f"{case.receiver}: a signature did not verify")
            result = results.get(case.receiver)
            if result is None or result.headers["relay-outcome"] != case.outcome or not result.verified:
                problems.append(f"{case.receiver}: no verified result {case.outcome!r} at the sender's callback")
        if [letter["receiver"] for letter in letters] != ["ci-broken"]:
            problems.append(f"expected one dead letter, of ci-broken; found {len(letters)}")
        return problems


async def _journey(client: AsyncRelay, message_id: str, case: DemoCase) -> MessageView:
    """Send the case's event, and follow it to its end."""
    sample = load(case.sample)
    sent = await client.send(SOURCE, sample.payload, receivers=(case.receiver,), type=sample.event_type, id=message_id)
    return await until_over(client, SOURCE, sent.message_id, WAIT_S)


async def _letters(client: AsyncRelay) -> list[LetterView]:
    """The dead letters, once there are any: they are listed shortly after their notice is written."""
    while True:
        letters = (await client.failed.page())["items"]
        if letters:
            return letters
        await asyncio.sleep(LOOK_EVERY_S)


class Story:
    """Prints events as they happen. `begun`: events are printed from now on; `ended`: all were printed."""

    def __init__(self) -> None:
        self._show = shown_on(Screen(columns=COLUMNS), Lines(stays=False))
        self._results = self._letters = 0
        self.begun, self.ended = asyncio.Event(), asyncio.Event()

    def report(self, event: ServerSentEvent) -> None:
        if event.name == "listening":
            self.begun.set()
        self._show(event)
        self._results += event.name == "attempt" and event.data["kind"] == "callback"
        self._letters += event.name == "failed"
        if self._results >= len(CASES) and self._letters:
            self.ended.set()
