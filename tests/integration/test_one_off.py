"""Tests of messages that name their own endpoint, over real HTTP and on both engines: they are signed, answered, failed
and replayed like any other."""

import asyncio
import base64
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import ClientSession

from relay.sink import Sink
from tests.integration.production import Engine
from tests.servers.http import started

SECRET = "whsec_Y2lyY2xlY2ktY2lyY2xlY2ktY2lyY2xlY2kh"


@asynccontextmanager
async def sinks() -> AsyncIterator[tuple[Sink, Sink]]:
    """A receiver that accepts signed messages, and one that rejects all."""
    good, bad = Sink("answer", secret=SECRET), Sink("fail", fail_status=422)
    async with started(good, bad):
        yield good, bad


def environ(*known: Sink) -> dict[str, str]:
    key = base64.b64encode(os.urandom(32)).decode()
    origins = ",".join(sink.url.removesuffix("/hooks") for sink in known)
    return {"RELAY_ADHOC_ENDPOINTS": origins, "RELAY_SECRETS_KEY": key}


async def check(api: str, good: Sink, bad: Sink) -> None:
    async with ClientSession(api) as client:

        async def send(message_id: str, endpoint: str, **query: str) -> tuple[int, Any]:
            headers = {"ce-id": message_id, "relay-endpoint": endpoint, "relay-signing-secret": SECRET}
            path = "/v1/sources/app/messages"
            async with client.post(path, params=query, headers=headers, data=b'{"a": 1}') as response:
                return response.status, await response.json()

        status, answer = await send("m-1", good.url, wait="20")
        assert status == 200, answer
        [arrived] = good.received
        assert (arrived.message_id, arrived.verified, arrived.body) == ("m-1", True, b'{"a": 1}')

        status, failed = await send("m-2", bad.url, wait="20")
        assert (status, failed["reason"]) == (502, "rejected"), failed
        async with client.get("/v1/sources/app/messages/m-2") as response:
            [delivery] = (await response.json())["deliveries"]
        assert (delivery["state"], delivery["receiver"].startswith("adhoc-127-0-0-1-")) == ("failed", True)
        async with client.get(failed["dead_letter"]) as response:
            letter = await response.text()
        assert SECRET not in letter
        assert "${enc:" in letter
        bad.become("ok")
        async with client.post(f"{failed['dead_letter']}/replay") as response:
            assert response.status == 202, await response.text()
        assert [each.generation for each in await bad.wait_for(2)] == [0, 1]

        status, refused = await send("m-3", "http://127.0.0.1:1/")
        assert (status, refused["type"]) == (422, "/problems/endpoint-not-allowed")


async def test_a_message_goes_to_the_endpoint_that_it_names(engine: Engine) -> None:
    async with sinks() as (good, bad), engine("receivers: {}\n", **environ(good, bad)) as api:
        await asyncio.wait_for(check(api, good, bad), 250)
