"""A client of the live tail, and the records that lead to events."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import msgspec
from aiohttp import ClientResponse

from relay.domain.attempt import Attempt, AttemptResponse, encode_attempt
from relay.domain.hop import Hop, result_headers
from relay.domain.identity import DeliveryId
from relay.domain.message import Message, message_headers
from relay.log.port import NewRecord
from tests.integration.api_rig import NOW, Rig

SETTING = "the key of the settings"


@dataclass
class TailReader:
    """A client that reads the events of a response."""

    response: ClientResponse

    async def event(self) -> tuple[str, Any]:
        """Name and data of the next event. Keep-alive comments are skipped."""
        while True:
            lines: list[str] = []
            while line := (await self.response.content.readline()).decode().rstrip("\n"):
                lines.append(line)
            named = dict(line.split(": ", 1) for line in lines if not line.startswith(":"))
            if "event" in named:
                return named["event"], json.loads(named["data"])
            if self.response.content.at_eof():
                raise EOFError

    async def expect(self, name: str) -> Any:
        """The data of the next event. Fails unless it has this name."""
        found, data = await self.event()
        assert found == name, data
        return data


@asynccontextmanager
async def listening(rig: Rig, query: str = "", key: str | None = None) -> AsyncIterator[TailReader]:
    """A client of the live tail, subscribed to all that happens from now on."""
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    async with rig.client.get(f"{rig.url}/v1/tail{query}", headers=headers) as response:
        assert response.status == 200, await response.text()
        assert response.content_type == "text/event-stream"
        tail = TailReader(response)
        assert await tail.expect("listening") == {}
        yield tail


async def send(rig: Rig, id: str, source: str = "github", *receivers: str, type: str | None = "push") -> None:
    message = Message(source, id, receivers or None, type, None, "application/json", b'{"n": 1}')
    record = NewRecord(rig.topics.from_sender, source.encode(), message.payload, message_headers(message))
    await rig.log.append([record])


async def answer(rig: Rig, id: str, receiver: str = "ci", body: bytes = b"built", outcome: Any = "answered") -> None:
    delivery = DeliveryId(receiver, "github", id)
    hop = Hop(delivery, "push", content_type="text/plain", outcome=outcome, answer_status=200)
    await rig.log.append([NewRecord(rig.topics.to_sender, b"github", body, result_headers(hop))])


async def attempt(rig: Rig, id: str, **other: Any) -> None:
    usual = Attempt(
        "post",
        NOW,
        12.34,
        "POST",
        "https://receiver.example/hooks",
        {"ce-id": id},
        "done",
        receiver="ci",
        source_id="github",
        message_id=id,
        response=AttemptResponse(200, {"content-type": "text/plain"}, "built"),
    )
    record = msgspec.structs.replace(usual, **other)
    await rig.log.append([NewRecord(rig.topics.delivery_attempts, b"github", encode_attempt(record))])
