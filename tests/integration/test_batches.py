"""Tests of batches over real HTTP, on both engines, with one answer for all messages or a status for each.

The SDK of CloudEvents reads them, and the reference implementation verifies their signatures.
"""

import asyncio
import json
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import ClientSession, web
from cloudevents.core.bindings.http import HTTPMessage, from_http
from cloudevents.core.formats.json import JSONFormat
from standardwebhooks import Webhook

from relay.sink import Sink
from tests.integration.production import Engine
from tests.servers.http import serving, started

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
SOURCE = "/v1/sources/github/messages"
COUNT = 20
BAD = "bad-7"


@dataclass
class Strict:
    """A receiver that refuses each batch that contains a bad message."""

    batches: list[list[Any]] = field(default_factory=list)
    accepted: list[str] = field(default_factory=list)

    async def hooks(self, request: web.Request) -> web.Response:
        body = await request.read()
        Webhook(SECRET).verify(body, dict(request.headers))
        assert request.headers["webhook-id"].startswith("batch_")
        assert request.content_type == "application/cloudevents-batch+json"
        events = [_read(event) for event in json.loads(body)]
        assert request.headers["relay-batch"] == str(len(events))
        self.batches.append(events)
        ids = [event.get_id() for event in events]
        if BAD in ids:
            return web.Response(status=422)
        self.accepted += ids
        return web.Response(status=204)


def _read(event: dict[str, Any]) -> Any:
    return from_http(
        HTTPMessage({"content-type": "application/cloudevents+json"}, json.dumps(event).encode()), JSONFormat()
    )


@dataclass
class Batched:
    strict: Strict
    hooks: str
    each: Sink

    def file(self) -> str:
        batch = {"max_events": 8, "linger": "500ms"}
        strict = {"post_endpoint": self.hooks, "secret": SECRET, "batch": batch}
        each = {
            "post_endpoint": self.each.url,
            "status_endpoint": self.each.status_url_template,
            "secret": SECRET,
            "batch": {**batch, "format": "list"},
            "retry": {"base": "200ms", "cap": "1s"},
        }
        return json.dumps({"receivers": {"strict": strict, "each": each}})


@asynccontextmanager
async def receivers() -> AsyncIterator[Batched]:
    strict, app = Strict(), web.Application()
    app.router.add_post("/hooks", strict.hooks)
    each = Sink("answer", secret=SECRET, verdicts=True, fail_first=3, fail_status=503)
    async with serving(app) as url, started(each):
        yield Batched(strict, f"{url}/hooks", each)


async def check(api: str, known: Batched) -> None:
    async with ClientSession(api) as client:
        for name, ids in (("strict", "bad"), ("each", "m")):
            for number in range(COUNT):
                binary = number % 4 == 3
                headers = {"ce-id": f"{ids}-{number}", "ce-type": "push"}
                headers["content-type"] = "application/octet-stream" if binary else "application/json"
                body = b"\xff\x00" if binary else b'{"n": %d}' % number
                async with client.post(SOURCE, params={"receiver": name}, data=body, headers=headers) as response:
                    assert response.status == 202, await response.text()
        statuses: dict[str, set[str]] = defaultdict(set)
        for number in range(COUNT):
            for ids in ("bad", "m"):
                statuses[ids].add(await _settled(client, f"{ids}-{number}"))
        assert statuses["m"] <= {"response_received_from_receiver", "response_delivered_to_sender"}
        batches = await _batches_of(client, "m-0")
    _check_strict(known.strict)
    _check_each(known.each)
    assert batches <= {arrival.batch for arrival in known.each.received}


def _check_strict(strict: Strict) -> None:
    expected = [f"bad-{number}" for number in range(COUNT)]
    assert strict.accepted == [each for each in expected if each != BAD], "in order, and once"
    assert [BAD] in [[event.get_id() for event in batch] for batch in strict.batches]
    assert len(strict.batches) < COUNT
    events = {event.get_id(): event for batch in strict.batches for event in batch}
    assert events["bad-3"].get_data() == b"\xff\x00"
    assert events["bad-4"].get_data() == {"n": 4}


def _check_each(each: Sink) -> None:
    assert all(arrival.verified for arrival in each.received)
    done = [arrival.message_id for arrival in each.received if arrival.status == 200]
    assert done == [f"m-{number}" for number in range(COUNT)]
    assert len({arrival.batch for arrival in each.received}) < COUNT
    assert {arrival.body for arrival in each.received if arrival.message_id == "m-3"} == {b"\xff\x00"}


async def _settled(client: ClientSession, message_id: str) -> str:
    while True:
        async with client.get(f"{SOURCE}/{message_id}") as response:
            (delivery,) = (await response.json())["deliveries"]
        if delivery["status"] not in ("arrived", "delivered_to_receiver") or delivery["state"] == "delivered":
            if message_id == BAD:
                assert delivery["status"] == "failed"
                assert delivery["reason"] == "rejected"
            return str(delivery["status"])
        await asyncio.sleep(0.05)


async def _batches_of(client: ClientSession, message_id: str) -> set[str | None]:
    """The batches that the attempts of a message refer to."""
    while True:
        async with client.get(f"{SOURCE}/{message_id}/attempts") as response:
            assert response.status == 200, await response.text()
            attempts = (await response.json())["items"]
        if found := {each["request"]["headers"]["webhook-id"] for each in attempts if each["kind"] == "post"}:
            return found
        await asyncio.sleep(0.05)


async def test_a_batch_is_sent_in_order_with_one_answer_or_one_for_each(engine: Engine) -> None:
    async with receivers() as known, engine(known.file()) as api:
        await asyncio.wait_for(check(api, known), 90)
