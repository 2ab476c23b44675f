"""Each of six causes is mended and replayed by one `relay incidents fix`, and a worker that is missing is named."""

import json
from pathlib import Path
from secrets import token_bytes

import pytest

from relay.domain.signing import generate_secret
from tests.browser.test_six_causes import PATIENT, sink, strict_receiver
from tests.faults.servers.test_six_causes_in_a_terminal import Terminal, a_terminal
from tests.integration.conftest import production
from tests.servers.kafka import Broker
from tests.servers.valkey import ValkeyServer

ONCE = {"max_attempts": 1}


async def test_a_wrong_secret(tmp_path: Path) -> None:
    async with strict_receiver() as receiver, a_terminal(tmp_path) as (dev, terminal):
        await dev.receiver("ci", receiver.url, secret=generate_secret(token_bytes), retry=ONCE, breaker=PATIENT)
        await terminal.send("m-1")
        await terminal.until("incidents", "list", says="ci at 127.0.0.1")
        said = await terminal.until("incidents", "show", "ci", says="The receiver rejected our credentials (401)")
        assert "wrong signature" in said
        assert "acknowledged by" in await terminal.run("incidents", "ack", "ci")
        said = await terminal.run("incidents", "fix", "ci", "--set-secret", generate_secret(token_bytes), "--yes")
        assert "the test got 401, so nothing was replayed" in said
        fixing = ("incidents", "fix", "ci", "--set-secret", "-", "--replay", "--yes")
        said = await terminal.run(*fixing, stdin=receiver.secret.encode())
        assert "replay: 1 sent again All back." in said
        await terminal.delivered()
        assert "resolved" in await terminal.run("incidents", "list", "--state", "resolved")


async def test_a_private_address(tmp_path: Path) -> None:
    async with sink() as receiver, a_terminal(tmp_path) as (dev, terminal):
        await dev.receiver("ci", "https://10.11.12.13/hooks", retry=ONCE, breaker=PATIENT)
        await terminal.send("m-1")
        await terminal.until("incidents", "list", says="The relay has not been allowed to call 10.11.12.13")
        said = await terminal.run("incidents", "fix", "ci", "--set-url", receiver.url, "--yes")
        assert "All back." in said
        await terminal.delivered()


async def test_an_open_breaker(tmp_path: Path) -> None:
    async with sink() as receiver, a_terminal(tmp_path) as (dev, terminal):
        receiver.become("fail", fail_status=500)
        often = {"base": 0.2, "factor": 1, "cap": 0.2}
        await dev.receiver("ci", receiver.url, retry=often, breaker={"failures": 2, "window": 60, "open_for": 3_600})
        await terminal.send("m-1")
        await receiver.wait_for(2)
        await terminal.until("incidents", "list", says="its circuit breaker is open")
        receiver.become("answer")  # the receiver is mended
        assert "All back." in await terminal.run("incidents", "fix", "ci", "--yes")
        await terminal.delivered()


async def test_a_failing_head(tmp_path: Path) -> None:
    async with strict_receiver() as receiver, a_terminal(tmp_path) as (dev, terminal):
        receiver.stuck.add("m-1")
        often = {"base": 0.5, "factor": 1, "cap": 0.5, "max_attempts": 100}
        await dev.receiver("ci", receiver.url, secret=receiver.secret, retry=often, breaker=PATIENT)
        for message_id in ("m-1", "m-2"):
            await terminal.send(message_id)
        await terminal.until("incidents", "list", says="1 message waits behind 'm-1' of source 'shop'")
        said = await terminal.run("incidents", "fix", "ci", "--yes")
        assert "test: 200" in said
        assert "fix: discarded m-1 All back." in said
        await terminal.delivered("m-2")


async def test_no_message_of_a_receiver_that_fails_with_each_is_discarded(tmp_path: Path) -> None:
    async with sink() as receiver, a_terminal(tmp_path) as (dev, terminal):
        receiver.become("fail", fail_status=500)
        often = {"base": 0.5, "factor": 1, "cap": 0.5, "max_attempts": 1_000}
        await dev.receiver("ci", receiver.url, retry=often, breaker=PATIENT)
        for message_id in ("m-1", "m-2"):
            await terminal.send(message_id)
        await terminal.until("incidents", "list", says="1 message waits behind 'm-1' of source 'shop'")
        said = await terminal.run("incidents", "fix", "ci", "--yes")
        assert "the test got 500, so nothing was discarded; mend the receiver" in said
        receiver.become("answer")  # it is mended
        for message_id in ("m-1", "m-2"):
            await terminal.delivered(message_id)


async def test_a_callback_that_refuses(tmp_path: Path) -> None:
    async with sink() as receiver, sink() as callback, a_terminal(tmp_path) as (dev, terminal):
        callback.become("reject")
        await dev.receiver("ci", receiver.url)
        await dev.source("shop", callback={"url": callback.url})
        await terminal.send("m-1")
        await terminal.until("incidents", "list", says="1 dead letter can be replayed. The receiver ci is not to")
        said = await terminal.run("incidents", "fix", "shop", "--yes")
        assert "the test got 422, so nothing was replayed" in said
        callback.become("answer")  # it was mended elsewhere
        said = await terminal.run("incidents", "fix", "shop", "--yes")
        assert "test: 200" in said
        assert "replay: 1 sent again All back." in said
        await terminal.until("status", "shop", "m-1", says="response_delivered_to_sender")
        assert len(receiver.received) == 1


@pytest.mark.kafka
async def test_a_worker_that_is_missing(
    kafka_broker: Broker, redis_server: ValkeyServer, tmp_path: Path, unique_prefix: str
) -> None:
    roles = "api,from-sender,to-sender,failed-messages,from-receiver-async"
    async with production(kafka_broker, redis_server, tmp_path, unique_prefix) as rig:
        rig.environ["RELAY_API_PORT"] = "0"
        async with rig.relay("run", "--roles", roles) as process:
            terminal = Terminal(json.loads(await process.line_with('"api": "http'))["api"])
            await terminal.until("incidents", "list", says="relay run --roles to-receiver")
            said = await terminal.run("incidents", "fix", "to-receiver", "--yes")
            assert "this cannot be fixed from here" in said
            async with rig.relay("run", "--roles", "to-receiver"):
                await terminal.until("incidents", "show", "to-receiver", "-o", "json", says='"cleared_at": "20')
