"""Test of the live tail of a relay on Kafka and Redis."""

import asyncio
import json

import pytest

from relay.client import AsyncRelay
from tests.integration.production import Rig, messages

pytestmark = pytest.mark.kafka


async def test_every_message_is_told_with_what_becomes_of_it(rig: Rig) -> None:
    sent = messages(60)
    wanted = {message.message_id for message in sent}
    told: dict[str, set[str]] = {name: set() for name in ("message", "attempt", "answer")}
    async with rig.relay("run", "--processes", "1") as running:
        api = json.loads(await running.line_with('"started"'))["api"]
        async with asyncio.timeout(60), AsyncRelay(api) as relay:
            async for name, data in relay.tail():
                if name == "listening":
                    await rig.produce(sent)
                elif name in told:
                    told[name].add(data["message_id"])
                if all(found >= wanted for found in told.values()):
                    break
