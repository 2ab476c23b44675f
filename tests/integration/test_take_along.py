"""Tests of export and erasure over real HTTP, on both engines: the messages of a receiver, with payloads, until they
are erased."""

import asyncio
import json

import pytest

from relay.client import ApiError, AsyncRelay
from relay.schema.streams import ExportLine
from relay.sink import Sink
from tests.integration.production import Engine
from tests.servers.http import started

LOOK_EVERY_S = 0.2
DOWN = "http://127.0.0.1:9/"


def receivers_of(up: Sink) -> str:
    entries = {
        "up": {"post_endpoint": up.url},
        "down": {"post_endpoint": DOWN, "retry": {"base": "1s", "cap": "2s"}},
    }
    return json.dumps({"receivers": entries})


async def exported(client: AsyncRelay, receiver: str, wanted: int) -> list[ExportLine]:
    """The export, once the history has that many messages of the receiver."""
    while True:
        found = [line async for line in client.receivers.export(receiver)]
        if len(found) >= wanted:
            return found
        await asyncio.sleep(LOOK_EVERY_S)


async def until_discarded(client: AsyncRelay, message_id: str) -> None:
    while True:
        [delivery] = (await client.messages.get("app", message_id)).deliveries
        if delivery.state == "discarded":
            return
        await asyncio.sleep(LOOK_EVERY_S)


async def check(api: str, up: Sink) -> None:
    async with AsyncRelay(api) as client:
        for id, receiver in (("m-1", "up"), ("m-2", "up"), ("m-3", "down")):
            await client.send("app", f'{{"of": "{id}"}}'.encode(), id=id, receivers=[receiver])
        await up.wait_for(2)
        got, missed = await exported(client, "up", 2), await exported(client, "down", 1)
        assert sorted((line["message_id"], line["payload"]) for line in got) == [
            ("m-1", '{"of": "m-1"}'),
            ("m-2", '{"of": "m-2"}'),
        ]
        assert [(line["message_id"], line["payload"]) for line in missed] == [("m-3", '{"of": "m-3"}')]

        await client.erase(source_id="app", message_id="m-1")
        await client.erase(receiver="down")
        with pytest.raises(ApiError) as gone:
            await client.messages.payload("app", "m-1")
        assert gone.value.status == 410
        assert {line["message_id"]: line["payload_kept"] for line in await exported(client, "up", 2)} == {
            "m-1": "erased",
            "m-2": "whole",
        }
        await until_discarded(client, "m-3")


async def test_what_a_receiver_got_is_exported_until_it_is_erased(engine: Engine) -> None:
    up = Sink("ok")
    async with started(up), engine(receivers_of(up)) as api:
        await asyncio.wait_for(check(api, up), 90)
