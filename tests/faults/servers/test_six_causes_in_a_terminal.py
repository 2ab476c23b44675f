"""A user with only a terminal finds out why a message did not arrive, fixes it, and has it delivered: for the six
causes that tests/browser/test_six_causes.py finds with the pages."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from secrets import token_bytes

import pytest

from relay.domain.signing import generate_secret
from tests.browser.dev_relay import DevRelay
from tests.browser.test_six_causes import PATIENT, sink, strict_receiver
from tests.integration.conftest import production
from tests.servers.asking import until
from tests.servers.forking import run
from tests.servers.kafka import Broker
from tests.servers.valkey import ValkeyServer


class Terminal:
    """Runs `relay` as a person does, against the API at `url`; what it prints is kept in words, without its lines."""

    def __init__(self, url: str) -> None:
        self._url = url

    async def run(self, *words: str, stdin: bytes = b"") -> str:
        done = await asyncio.to_thread(run, *words, "--api", self._url, stdin=stdin, together=True)
        return " ".join(done.stdout.split())

    async def until(self, *words: str, says: str) -> str:
        """Run it again and again until it says that; what it said then."""
        said = ""

        async def look() -> bool:
            nonlocal said
            said = await self.run(*words)
            return says in said

        try:
            await until(look)
        except TimeoutError:
            pytest.fail(f"{' '.join(words)} never said {says!r}; but: {said}")
        return said

    async def send(self, message_id: str) -> None:
        sent = ("send", "--source", "shop", "--receiver", "ci", "--id", message_id, "-")
        assert message_id in await self.run(*sent, stdin=b"{}")

    async def delivered(self, message_id: str = "m-1") -> None:
        await self.until("status", "shop", message_id, says="response_received_from_receiver")


@asynccontextmanager
async def a_terminal(directory: Path) -> AsyncIterator[tuple[DevRelay, Terminal]]:
    async with DevRelay(directory) as dev:
        yield dev, Terminal(dev.url)


async def test_a_wrong_secret_is_rotated(tmp_path: Path) -> None:
    async with strict_receiver() as receiver, a_terminal(tmp_path) as (dev, terminal):
        wrong = generate_secret(token_bytes)
        await dev.receiver("ci", receiver.url, secret=wrong, retry={"max_attempts": 1}, breaker=PATIENT)
        await terminal.send("m-1")
        await terminal.until("failed", "list", says="401")
        said = await terminal.run("status", "shop", "m-1")
        assert "401" in said
        assert "It rejected the relay's credentials" in said
        rotated = await terminal.run("receivers", "rotate", "ci", "--grace", "0", "-o", "json")
        receiver.secret = json.loads(rotated)["secret"]
        await terminal.run("replay", "--receiver", "ci", "--yes")
        await terminal.delivered()


async def test_a_private_address_is_changed(tmp_path: Path) -> None:
    async with sink() as receiver, a_terminal(tmp_path) as (dev, terminal):
        await dev.receiver("ci", "https://10.11.12.13/hooks", retry={"max_attempts": 1}, breaker=PATIENT)
        await terminal.send("m-1")
        await terminal.until("failed", "list", says="10.11.12.13")
        assert "RELAY_ALLOW_PRIVATE_NETWORKS" in await terminal.run("status", "shop", "m-1")
        await terminal.run("receivers", "patch", "ci", "--set", f"post_endpoint={receiver.url}")
        await terminal.run("replay", "--receiver", "ci", "--yes")
        await terminal.delivered()


async def test_an_open_breaker_is_closed(tmp_path: Path) -> None:
    async with sink() as receiver, a_terminal(tmp_path) as (dev, terminal):
        receiver.become("fail", fail_status=500)
        often = {"base": 0.2, "factor": 1, "cap": 0.2}
        await dev.receiver("ci", receiver.url, retry=often, breaker={"failures": 2, "window": 60, "open_for": 3_600})
        await terminal.send("m-1")
        await receiver.wait_for(2)
        await terminal.until("top", "--once", says="breaker")
        assert "500" in await terminal.until("status", "shop", "m-1", says="The circuit breaker is open")
        receiver.become("answer")  # the receiver is mended
        await terminal.run("receivers", "resume", "ci")
        await terminal.delivered()


async def test_a_failing_head_is_seen_to(tmp_path: Path) -> None:
    async with strict_receiver() as receiver, a_terminal(tmp_path) as (dev, terminal):
        receiver.stuck.add("m-1")
        often = {"base": 0.5, "factor": 1, "cap": 0.5, "max_attempts": 100}
        await dev.receiver("ci", receiver.url, secret=receiver.secret, retry=often, breaker=PATIENT)
        for message_id in ("m-1", "m-2"):
            await terminal.send(message_id)
        assert "m-1" in await terminal.until("status", "shop", "m-2", says="Behind another message")
        assert "500" in await terminal.run("status", "shop", "m-1")
        await terminal.run("replay", "delivery", "shop", "m-1", "ci", "--discard")
        await terminal.delivered("m-2")
        receiver.stuck.clear()  # and the one that was in front, once the receiver can take it
        await terminal.until("status", "shop", "m-1", says="discarded")
        await terminal.run("replay", "delivery", "shop", "m-1", "ci")
        await terminal.delivered("m-1")


async def test_a_callback_that_refuses_is_mended(tmp_path: Path) -> None:
    async with sink() as receiver, sink() as callback, a_terminal(tmp_path) as (dev, terminal):
        callback.become("reject")
        await dev.receiver("ci", receiver.url)
        await dev.source("shop", callback={"url": callback.url})
        await terminal.send("m-1")
        await callback.wait_for(1)
        await terminal.until("failed", "list", says="callback_rejected")
        assert "callback permanently rejected the result" in await terminal.run("status", "shop", "m-1")
        callback.become("answer")  # the operator of the callback repairs it
        await terminal.run("replay", "--source", "shop", "--yes")
        await terminal.until("status", "shop", "m-1", says="response_delivered_to_sender")
        assert len(receiver.received) == 1


@pytest.mark.kafka
async def test_a_worker_that_is_missing_is_started(
    kafka_broker: Broker, redis_server: ValkeyServer, tmp_path: Path, unique_prefix: str
) -> None:
    roles = "api,from-sender,to-sender,failed-messages,from-receiver-async"
    async with production(kafka_broker, redis_server, tmp_path, unique_prefix) as rig:
        rig.environ["RELAY_API_PORT"] = "0"
        async with rig.relay("run", "--roles", roles) as process:
            terminal = Terminal(json.loads(await process.line_with('"api": "http'))["api"])
            sent = ("send", "--source", "shop", "--receiver", "circleci", "--id", "m-1", "-")
            assert "m-1" in await terminal.run(*sent, stdin=b"{}")
            await terminal.until("top", "--once", says="--roles to-receiver")
            await terminal.until("status", "shop", "m-1", says="Start a worker for it")
            async with rig.relay("run", "--roles", "to-receiver"):
                await terminal.until("status", "shop", "m-1", says="response_delivered_to_sender")
