"""Tests of delayed messages and deadlines over real HTTP, on both engines; also of delays beyond the time that a lane
holds a message in memory."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from aiohttp import ClientSession

from relay.sink import Sink
from tests.integration.production import Engine
from tests.servers.http import started

DELAY_S = 4.0
HELD = {"RELAY_HOLD_MAX": "500ms"}
"""Messages that wait longer are parked."""


@dataclass
class Timed:
    """A receiver that accepts, one that fails, and a callback."""

    sinks: dict[str, Sink]

    def file(self) -> str:
        retry = {"base": 1, "factor": 1, "cap": 1, "max_attempts": 1_000}
        entries = {
            name: {"post_endpoint": sink.url, "retry": retry, "breaker": {"failures": 1_000}}
            for name, sink in self.sinks.items()
            if name != "callback"
        }
        entries["good"]["coalesce"] = {"key": "/doc", "window": "2s"}
        callback = {"url": self.sinks["callback"].url}
        return json.dumps({"sources": {"app": {"callback": callback}}, "receivers": entries})

    def arrived(self, name: str) -> list[str]:
        return [each.message_id for each in self.sinks[name].received]

    def headers(self, name: str, message_id: str) -> Mapping[str, str]:
        [found] = [each.headers for each in self.sinks[name].received if each.message_id == message_id]
        return found


@asynccontextmanager
async def timed() -> AsyncIterator[Timed]:
    sinks = {"good": Sink("ok"), "bad": Sink("fail", fail_status=404), "callback": Sink("ok")}
    async with started(*sinks.values()):
        yield Timed(sinks)


@dataclass
class Sender:
    client: ClientSession

    async def send(self, receiver: str, message_id: str, body: bytes = b"{}", **timing: str) -> Any:
        query, headers = {"receiver": receiver, **timing}, {"ce-id": message_id, "content-type": "application/json"}
        async with self.client.post("/v1/sources/app/messages", params=query, headers=headers, data=body) as response:
            assert response.status == 202, await response.text()
            return await response.json()

    async def delivery(self, message_id: str) -> Any:
        async with self.client.get(f"/v1/sources/app/messages/{message_id}") as response:
            assert response.status == 200, await response.text()
            [found] = (await response.json())["deliveries"]
            return found


async def cancels(sender: Sender, known: Timed) -> None:
    """One, and then many by a job; what was sent is refused."""
    for message_id in ("c-1", "c-2", "c-3"):
        await sender.send("good", message_id, delay="1h")
    await listed_as_delayed(sender, "c-1")
    one = "/v1/sources/app/messages/{}/deliveries/good/cancel"
    async with sender.client.post(one.format("c-1")) as response:
        assert response.status == 202, await response.text()
    async with sender.client.post(one.format("now")) as response:
        assert response.status == 409, await response.text()
    async with sender.client.post("/v1/cancels", json={"receiver": "good", "ids": ["c-2", "c-3"]}) as response:
        assert response.status == 202, await response.text()
        job = response.headers["Location"]
    async with asyncio.timeout(70):
        while True:
            if await _all_cancelled(sender, job):
                break
            await asyncio.sleep(0.2)  # a job has no event to wait for
    assert (await sender.delivery("c-2"))["reason"] == "cancelled"
    assert (await _json(sender.client, job))["sent"] == 2


async def erasure(sender: Sender) -> None:
    """An erasure ends a delayed message at once."""
    targets = {"erased-1": {"source_id": "app", "message_id": "erased-1"}, "erased-2": {"receiver": "good"}}
    for message_id, target in targets.items():
        await sender.send("good", message_id, b'{"name": "Bob"}', delay="1h")
        await listed_as_delayed(sender, message_id)
        async with sender.client.post("/v1/erasures", json=target) as response:
            assert response.status == 201, await response.text()
            job = (await response.json())["cancels"]
        async with asyncio.timeout(70):
            while True:
                if (await sender.delivery(message_id))["state"] == "discarded":
                    break
                await asyncio.sleep(0.2)  # a row has no event to wait for
        assert job is None or (await _json(sender.client, job))["action"] == "cancel"
        assert (job is None) == ("message_id" in target)


async def listed_as_delayed(sender: Sender, message_id: str) -> None:
    """Wait until the history has the message, and its lane has parked it."""
    async with asyncio.timeout(70):
        while True:
            found = await _json(sender.client, f"/v1/messages?source=app&state=queued&id={message_id}")
            waits = [each for item in found["items"] for each in item["deliveries"] if each["waiting_for"]]
            if [each["waiting_for"]["kind"] for each in waits] == ["delayed"]:
                break
            await asyncio.sleep(0.2)  # neither has an event to wait for
    assert waits[0]["state"] == "queued"
    assert waits[0]["next_attempt_at"] == waits[0]["waiting_for"]["until"] is not None


async def replacements(sender: Sender, known: Timed) -> None:
    """Only the newest message of each key is sent, and the others name the one that replaced them."""
    for number in range(3):
        await sender.send("good", f"s-{number}", supersede="doc", delay="3s")
        await sender.send("good", f"w-{number}", b'{"doc": "a"}')
    older = dict.fromkeys(("s-0", "s-1", "w-0", "w-1")).keys()
    async with asyncio.timeout(70):
        while True:
            replaced = [await sender.delivery(each) for each in older]
            notices = replaced_notices(known)
            if older <= notices.keys() and {"s-2", "w-2"} <= set(known.arrived("good")):
                break
            await asyncio.sleep(0.2)  # a row has no event to wait for
    assert {each["state"] for each in replaced} == {"discarded"}
    assert [notices[each] for each in older] == [each["replaced_by"] for each in replaced]
    assert (notices["s-1"], notices["w-1"]) == ("s-2", "w-2")
    assert not older & set(known.arrived("good"))


def replaced_notices(known: Timed) -> Mapping[str, str]:
    """Message id -> the newer one that its failure notice names."""
    notices = [json.loads(each.body) for each in known.sinks["callback"].received if each.headers.get("relay-reason")]
    return {each["message_id"]: each["replaced_by"] for each in notices if each["reason"] == "replaced"}


async def _all_cancelled(sender: Sender, job: str) -> bool:
    states = {(await sender.delivery(each))["state"] for each in ("c-1", "c-2", "c-3")}
    return states == {"discarded"} and (await _json(sender.client, job))["state"] == "done"


async def _json(client: ClientSession, path: str) -> Any:
    async with client.get(path) as response:
        return await response.json()


async def check(api: str, known: Timed) -> None:
    async with ClientSession(api) as client:
        sender = Sender(client)
        begun = asyncio.get_running_loop().time()
        await sender.send("good", "later", delay=f"{DELAY_S}s")
        await sender.send("good", "now")
        await sender.send("bad", "in-time", deadline="2")
        await known.sinks["good"].wait_for(1)
        assert known.arrived("good") == ["now"]
        delivery = await sender.delivery("later")
        assert (delivery["state"], delivery["waiting_for"]["kind"]) == ("queued", "delayed")
        await known.sinks["good"].wait_for(2)
        assert known.arrived("good") == ["now", "later"]
        assert asyncio.get_running_loop().time() - begun >= DELAY_S
        assert known.headers("good", "later")["relay-out-of-order"] == "true"
        await cancels(sender, known)
        await replacements(sender, known)
        [notice] = [
            each for each in await known.sinks["callback"].wait_for(12) if each.headers.get("relay-reason") == "expired"
        ]
        assert (notice.headers["relay-message-id"], notice.headers["relay-reason"]) == ("in-time", "expired")
        delivery = await sender.delivery("in-time")
        assert (delivery["state"], delivery["reason"]) == ("failed", "expired")
        assert "its deadline" in delivery["detail"]
        await erasure(sender)


async def test_messages_are_sent_at_their_time_or_not_at_all(engine: Engine) -> None:
    async with timed() as known, engine(known.file(), **HELD) as api:
        await asyncio.wait_for(check(api, known), 200)
