"""`relay demo`: the main job, watched. Real payloads to three kinds of receiver; each message's way as a table."""

import asyncio
import json
import os
import secrets
import tempfile
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import aiohttp
import click

from relay.cli.answer import LOOK_EVERY_S, until_over
from relay.cli.client import Client
from relay.cli.process import run_loop, run_until_signalled
from relay.cli.status import answer_text
from relay.cli.table import print_table
from relay.config.receivers_file import ReceiversFile, parse_receivers_file
from relay.config.settings import load_settings
from relay.domain.errors import RelayError
from relay.domain.signing import generate_secret
from relay.embedded.relay import EmbeddedRelay
from relay.process import Relay
from relay.samples import load
from relay.sink import Arrival, Mode, Sink
from relay.telemetry.logging import configure

SOURCE: Final = "github"
WAIT_S: Final = 45.0


@dataclass(frozen=True, slots=True)
class Case:
    """One kind of receiver, what is sent to it, and how that has to end."""

    receiver: str
    mode: Mode
    does: str
    sample: str
    ends: str
    outcome: str


CASES: Final = (
    Case("ci-now", "answer", "answers in the response", "github.push", "response_delivered_to_sender", "answered"),
    Case(
        "ci-later",
        "later",
        "says 202, and answers to status GETs",
        "github.pull_request.opened",
        "response_delivered_to_sender",
        "answered",
    ),
    Case("ci-broken", "fail", "fails with 500, for good", "github.workflow_run.completed", "failed", "failed"),
)


@click.command()
def demo() -> None:
    """Send real GitHub payloads to three kinds of receiver, and show each message's way.

    Everything runs in this process, on a data directory that is forgotten at the end. Exit code 0 only if two answers
    and one failure notice arrived at the sender's callback, and the dead letter was found.
    """
    configure("auto", "error")
    with tempfile.TemporaryDirectory(prefix="relay-demo-") as directory:
        run_loop(Demo(Path(directory)).run())


class Demo:
    """One run: receivers, a sender's callback, and the relay between them."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._secret = generate_secret(os.urandom)
        self._key = secrets.token_hex(16)
        self._receivers = {case.receiver: Sink(case.mode, secret=self._secret) for case in CASES}
        self._sender = Sink("answer", secret=self._secret)
        self._complete = False

    async def run(self) -> None:
        """Raises RelayError unless everything was seen."""
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
            raise RelayError("the demo ended before everything was seen")

    def _overrides(self) -> dict[str, object]:
        """Nobody else has to do with it, whatever the environment says."""
        nowhere = self._directory / "none.yaml"
        return {"api_host": "127.0.0.1", "api_port": 0, "api_key": self._key, "receivers_file": nowhere}

    def _entries(self, file: ReceiversFile | None) -> ReceiversFile:
        receivers: dict[str, Any] = {}
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
        async def started(relay: Relay) -> None:
            try:
                await self._send_and_watch(relay.api_url or "")
            finally:
                stop.set()

        await engine.run(stop, started)

    async def _send_and_watch(self, url: str) -> None:
        click.echo(f"The relay is up at {url}. Sending, as source {SOURCE!r}:\n")
        for case in CASES:
            click.echo(f"  {case.sample:<30} to {case.receiver:<10} which {case.does}")
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=WAIT_S)) as session:
            client = Client(url, self._key, session)
            async with asyncio.TaskGroup() as tasks:
                journeys = [tasks.create_task(_journey(client, case)) for case in CASES]
            states = [journey.result() for journey in journeys]
            async with asyncio.timeout(WAIT_S):
                await self._sender.wait_for(len(CASES))
                letters = await _letters(client)
        self._show(states, letters)
        problems = self._problems(states, letters)
        if problems:
            raise RelayError("\n".join(problems))
        self._complete = True
        click.echo("\nAll seen: two answers and a failure notice at the sender's callback, and one dead letter.")

    def _show(self, states: list[Any], letters: list[Any]) -> None:
        click.echo("\nEach message's way")
        columns = ("EVENT", "RECEIVER", "POSTS", "STATUS GETS", "STATUS", "ANSWER")
        print_table(columns, [self._way(case, state) for case, state in zip(CASES, states, strict=True)])
        click.echo("\nWhat arrived at the sender's callback")
        columns = ("WEBHOOK-ID", "RECEIVER", "OUTCOME", "STATUS", "SIGNATURE", "BODY")
        print_table(columns, [_result_row(arrival) for arrival in self._sender.received])
        click.echo("\nDead letters")
        columns = ("RECEIVER", "REASON", "CLASS", "ATTEMPTS", "LAST STATUS", "MESSAGE")
        print_table(columns, [_letter_row(letter) for letter in letters])

    def _way(self, case: Case, state: Any) -> tuple[str, ...]:
        sink, delivery = self._receivers[case.receiver], state["deliveries"][0]
        return (
            case.sample,
            case.receiver,
            str(len(sink.received)),
            str(len(sink.polls)),
            delivery["status"] + (f" ({delivery['reason']})" if delivery["reason"] else ""),
            answer_text(delivery["answer"]),
        )

    def _problems(self, states: list[Any], letters: list[Any]) -> list[str]:
        """What was expected and not seen."""
        problems = []
        results = {arrival.headers["relay-receiver"]: arrival for arrival in self._sender.received}
        for case, state in zip(CASES, states, strict=True):
            sink = self._receivers[case.receiver]
            if state["status"] != case.ends:
                problems.append(f"{case.receiver}: the message is {state['status']}, not {case.ends}")
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


async def _journey(client: Client, case: Case) -> Any:
    """Send the case's event, and follow it to its end."""
    sample = load(case.sample)
    sent = await client.send(
        SOURCE, sample.payload, receivers=(case.receiver,), event_type=sample.event_type, message_id=case.sample
    )
    return await until_over(client, SOURCE, sent["message_id"], WAIT_S)


async def _letters(client: Client) -> list[Any]:
    """The dead letters, once there are any: they are listed right after the notice of them is written, not before."""
    while True:
        letters = (await client.failed())["items"]
        if letters:
            return list(letters)
        await asyncio.sleep(LOOK_EVERY_S)


def _result_row(arrival: Arrival) -> tuple[str, ...]:
    headers = arrival.headers
    body = " ".join(arrival.body.decode(errors="replace").split())
    return (
        headers["webhook-id"],
        headers["relay-receiver"],
        headers["relay-outcome"],
        headers.get("relay-answer-status", "-"),
        "verified" if arrival.verified else "WRONG",
        body[:60] or f"(empty; reason: {headers.get('relay-reason', '-')})",
    )


def _letter_row(letter: Any) -> tuple[str, ...]:
    return (
        letter["receiver"],
        letter["reason"],
        letter["class"],
        str(letter["attempts"]),
        str(letter["last_status"] or "-"),
        letter["message_id"],
    )
