"""Tests of the receiver's answer in the response to the sender's request, over real HTTP."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from redis.asyncio import Redis
from yarl import URL

from relay.sink import Sink
from tests.integration.production import Rig
from tests.integration.test_demo import relay
from tests.servers.http import started
from tests.servers.process import RelayProcess, relay_dev
from tests.servers.valkey import ValkeyServer

TIMEOUT_S = 200.0
JSON = {"content-type": "application/json"}
BODY = b'{"n": 1}'
MESSAGE = "/v1/sources/app/messages/m%201"


@dataclass(frozen=True)
class Dev:
    """A running `relay dev`, and the receivers around it."""

    process: RelayProcess
    api: aiohttp.ClientSession
    sinks: dict[str, Sink]

    async def post(self, receiver: str, query: str, prefer: str | None = None) -> "Got":
        """Send the message `m 1`."""
        path, headers = f"/v1/sources/app/messages?receiver={receiver}{query}", JSON | {"ce-id": "m%201"}
        headers |= {"Prefer": prefer} if prefer else {}
        async with self.api.post(path, data=BODY, headers=headers) as response:
            return await got(response)

    async def get(self, path: str, prefer: str | None = None) -> "Got":
        url = URL(path, encoded=True)
        async with self.api.get(url, headers={"Prefer": prefer} if prefer else {}) as response:
            return await got(response)

    async def replay(self, path: str, prefer: str | None = None) -> "Got":
        url = URL(path, encoded=True)
        async with self.api.post(url, headers={"Prefer": prefer} if prefer else {}) as response:
            return await got(response)

    async def answer(self, nth: int, body: bytes) -> None:
        """The receiver `slow` answers the message that it got as number `nth` (1-based)."""
        arrival = (await self.sinks["slow"].wait_for(nth))[nth - 1]
        url = arrival.headers["relay-answer-url"]
        headers = {"content-type": "text/x", "relay-answer-status": "201"}
        async with self.api.post(url, data=body, headers=headers) as response:
            assert response.status == 200


@dataclass(frozen=True)
class Got:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def document(self) -> Any:
        return json.loads(self.body)

    @property
    def heeded(self) -> bool:
        """Whether the preference to wait was applied."""
        return "preference-applied" in self.headers


async def got(response: aiohttp.ClientResponse) -> Got:
    headers = {name.lower(): value for name, value in response.headers.items()}
    return Got(response.status, headers, await response.read())


@pytest.fixture
async def dev(tmp_path: Path) -> AsyncIterator[Dev]:
    """Receivers that answer at once, when asked, by a callback, when the test says so; one that rejects, and one whose
    failures end soon."""
    async with AsyncExitStack() as stack:
        sinks = {
            "now": Sink("answer"),
            "asked": Sink("later", later_polls=1),
            "calls": Sink("later", callback=True),
            "slow": Sink("later"),
            "bad": Sink("reject"),
            "down": Sink("fail", fail_status=503, retry_after=1000),
        }
        await stack.enter_async_context(started(*sinks.values()))
        receivers: dict[str, dict[str, object]] = {name: {"post_endpoint": sink.url} for name, sink in sinks.items()}
        receivers["asked"] |= {"status_endpoint": sinks["asked"].status_url_template, "poll": {"base": 0.1}}
        (tmp_path / "receivers.yaml").write_text(json.dumps({"receivers": receivers}))
        kept = ("--data-dir", str(tmp_path / "data"))
        process = await stack.enter_async_context(relay_dev(tmp_path, *kept))
        timeout = aiohttp.ClientTimeout(total=TIMEOUT_S)
        api = aiohttp.ClientSession(
            process.value_of("API"), timeout=timeout, connector=aiohttp.TCPConnector(force_close=True)
        )
        yield Dev(process, await stack.enter_async_context(api), sinks)


@pytest.mark.parametrize("receiver", ["now", "asked", "calls"])
async def test_the_answer_comes_in_the_response_by_a_get_or_by_a_callback(dev: Dev, receiver: str) -> None:
    answered = await dev.post(receiver, "&wait=25")
    assert (answered.status, answered.headers["relay-answer-status"]) == (200, "200")
    assert (answered.headers["relay-receiver"], answered.headers["relay-outcome"]) == (receiver, "answered")
    assert (answered.headers["content-type"], answered.document["message_id"]) == ("application/json", "m 1")
    assert len(dev.sinks[receiver].received) == 1
    again = await dev.get(f"{MESSAGE}?wait=25")
    assert (again.status, again.body) == (200, answered.body)


async def test_what_takes_longer_is_told_where_to_wait_on(dev: Dev) -> None:
    late = await dev.post("slow", "&wait=0.2")
    assert (late.status, late.headers["location"]) == (202, MESSAGE)
    assert int(late.headers["retry-after"]) > 0
    async with asyncio.TaskGroup() as tasks:
        waiting = [tasks.create_task(dev.get(late.headers["location"], prefer="wait=25")) for _ in range(3)]
        await dev.answer(1, b"\xff\x00 done")
    for one in waiting:
        reply = one.result()
        assert (reply.status, reply.body, reply.heeded) == (200, b"\xff\x00 done", True)
        assert (reply.headers["content-type"], reply.headers["relay-answer-status"]) == ("text/x", "201")


async def test_what_takes_longer_says_what_it_waits_for_by_now(dev: Dev) -> None:
    async with dev.api.post("/v1/receivers/now/pause", json={}) as response:
        assert response.status == 200
    for _ in ("first", "repeated"):
        late = await dev.post("now", "&wait=1")
        assert (late.status, late.document["deliveries"][0]["waiting_for"]["kind"]) == (202, "paused")


async def test_what_failed_says_why_and_where_its_dead_letter_is(dev: Dev) -> None:
    failed = await dev.post("bad", "&wait=25")
    assert (failed.status, failed.headers["content-type"]) == (502, "application/problem+json")
    told = failed.document
    assert (told["reason"], told["last_status"], told["status"]) == ("rejected", 422, 502)
    assert "422" in told["detail"]
    letter = await dev.get(told["dead_letter"])
    assert (letter.document["message_id"], letter.document["payload"]["body"]) == ("m 1", BODY.decode())
    waited = await dev.get(f"{MESSAGE}?wait=25")
    assert (waited.status, waited.document["dead_letter"]) == (502, told["dead_letter"])


async def test_who_replays_may_wait_for_the_answer_too_and_gets_none_of_an_earlier_life(dev: Dev) -> None:
    assert (await dev.post("bad", "&wait=25")).status == 502
    path = f"{MESSAGE}/deliveries/bad/replay?wait=25"
    again = await dev.replay(path)
    assert (again.status, again.headers["relay-generation"], again.document["reason"]) == (502, "1", "rejected")
    dev.sinks["bad"].become("answer")
    mended = await dev.replay(path)
    assert (mended.status, mended.headers["relay-generation"], mended.document["state"]) == (200, "2", "success")
    refused = await dev.replay(path)
    assert (refused.status, refused.document["type"]) == (409, "/problems/not-failed")
    assert (await dev.replay(f"{MESSAGE}/deliveries/bad/replay?wait=x")).status == 400
    assert len(dev.sinks["bad"].received) == 3


async def test_a_replay_that_takes_longer_says_where_to_wait_on(dev: Dev) -> None:
    assert (await dev.post("bad", "&wait=25")).status == 502
    dev.sinks["bad"].become("later", later_polls=0)
    late = await dev.replay(f"{MESSAGE}/deliveries/bad/replay", prefer="wait=1")
    assert (late.status, late.headers["location"], late.document["generation"]) == (202, MESSAGE, 1)
    assert late.heeded
    assert int(late.headers["retry-after"]) > 0


async def test_the_commands_print_the_answer(dev: Dev) -> None:
    send = ("send", "--source", "app", "--wait", "25", "--receiver")
    code, output = await relay(dev.process, *send, "asked", "--id", "m-1", "-", stdin=b"{}")
    assert code == 0, output
    assert "asked answered 200 (application/json):\n{" in output
    assert json.loads(output.splitlines()[-1])["message_id"] == "m-1"
    code, output = await relay(dev.process, *send, "now", "--receiver", "asked", "-o", "json", "-", stdin=b"{}")
    assert code == 0, output
    assert [json.loads(one["answer"]["body"])["state"] for one in json.loads(output)["deliveries"]] == ["success"] * 2
    code, output = await relay(
        dev.process, "trigger", "github.push", "--receiver", "now", "--wait", "25", "--count", "2"
    )
    assert code == 0, output
    assert output.count("now answered 200 (application/json):\n{") == 2


async def test_the_commands_end_with_1_where_it_failed_and_say_why(dev: Dev) -> None:
    send = ("send", "--source", "app", "--receiver", "bad", "--wait", "25", "--id", "m-1")
    code, output = await relay(dev.process, *send, "-", stdin=b"{}")
    assert code == 1
    assert "rejected" in output
    place = output.rpartition("dead letter: relay failed show ")[2].strip()
    code, output = await relay(dev.process, "failed", "show", place)
    assert (code, "m-1" in output) == (0, True)
    code, output = await relay(dev.process, *send, "-o", "json", "-", stdin=b"{}")
    assert (code, json.loads(output)["deliveries"][0]["reason"]) == (1, "rejected")
    code, output = await relay(dev.process, "trigger", "github.push", "--receiver", "bad", "--wait", "25", "-o", "json")
    assert (code, json.loads(output)[0]["status"]) == (1, "failed")


async def test_the_commands_end_with_1_where_it_is_not_there_yet_and_say_so(dev: Dev) -> None:
    send = ("send", "--source", "app", "--receiver", "down", "--wait", "4", "--id", "m-1")
    code, output = await relay(dev.process, *send, "-", stdin=b"{}")
    assert code == 1
    assert "error: message m-1 has no result after 4 s; its state is retrying; down waits:" in output
    code, output = await relay(dev.process, *send, "-o", "json", "-", stdin=b"{}")
    state, _ = json.JSONDecoder().raw_decode(output)
    assert (code, state["status"], "has no result after" in output) == (1, "arrived", True)
    code, output = await relay(dev.process, "trigger", "github.push", "--receiver", "slow", "--wait", "0")
    assert code == 1
    assert "after 0 s" in output


@pytest.mark.kafka
async def test_in_production_one_process_waits_and_others_answer(rig: Rig, redis_server: ValkeyServer) -> None:
    others = "from-sender,to-receiver,from-receiver-async,to-sender,failed-messages"
    async with (
        rig.relay("run", "--processes", "1", "--roles", "api") as front,
        rig.relay("run", "--processes", "2", "--roles", others) as back,
    ):
        url = json.loads(await front.line_with('"started"'))["api"]
        await back.lines_with('"started"', 2)
        timeout = aiohttp.ClientTimeout(total=TIMEOUT_S)
        async with aiohttp.ClientSession(url, timeout=timeout) as api, asyncio.TaskGroup() as tasks:
            names = [name for name in rig.sinks for _ in range(4)]
            asked = [tasks.create_task(waited_for(api, name, f"m-{n}")) for n, name in enumerate(names)]
    for n, (name, task) in enumerate(zip(names, asked, strict=True)):
        reply = task.result()
        assert (reply.status, reply.headers["relay-receiver"], reply.document["message_id"]) == (200, name, f"m-{n}")
    assert set(rig.arrivals().values()) == {1}
    async with Redis.from_url(redis_server.url) as client:
        published = (await client.info("commandstats"))["cmdstat_publish"]["calls"]
    assert published >= len(names), "each end was hinted at"


async def waited_for(api: aiohttp.ClientSession, receiver: str, message_id: str) -> Got:
    """The final response to a message. After each 202, it waits again."""
    path, headers = "/v1/sources/app/messages", JSON | {"ce-id": message_id}
    async with api.post(f"{path}?receiver={receiver}&wait=20", data=b"{}", headers=headers) as response:
        reply = await got(response)
    while reply.status == 202:
        async with api.get(f"{reply.headers['location']}?wait=20") as response:
            reply = await got(response)
    return reply
