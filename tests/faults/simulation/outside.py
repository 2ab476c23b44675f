"""Receivers around a relay under test, with mishaps on the way to them and back."""

import asyncio
import json
from collections import defaultdict, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal
from urllib.parse import unquote

from msgspec import structs

from relay.domain.exchange import Exchange, NoResponse, Request, Response
from tests.fakes.batches import messages_in
from tests.fakes.surroundings import Surroundings
from tests.fakes.virtual_time import LoopClock
from tests.faults.simulation.answering import Answering

LOST = NoResponse("disconnected", "lost on the way", sent=True)
PIPELINE = {"state": "created", "project_slug": "gh/a/b", "number": 1}
WORKFLOWS = {"items": [{"name": "build", "status": "success"}]}
PATIENCE_S = 2.0
"""How long the relay under test waits for a response."""

CALLER = "caller"
"""It has no status endpoint, and brings its answers."""
PACED_LATE_S = 6.5
"""A request that waits for its slot starts up to 5 s after its begin. From that it counts how long it may arrive."""


@dataclass(frozen=True, slots=True)
class Mishap:
    """Of one POST. `dropped`: it never arrives. `response_lost`: its response does not. `late`: it arrives after
    `late_s`, and its response never. `turned_away`: it gets this response, and the receiver does not remember it."""

    what: Literal["dropped", "response_lost", "late", "turned_away"]
    late_s: float = 0.0
    response: Exchange = LOST


@dataclass
class Wire(Surroundings):
    """`mishaps`: by message id, of its next POSTs to receivers. `busy_s`: how long a receiver takes for each. `paced`:
    paths of receivers with a rate."""

    mishaps: dict[str, deque[Mishap]] = field(default_factory=lambda: defaultdict(deque))
    busy_s: float = 0.0
    paced: frozenset[str] = frozenset()
    answering: Answering | None = None
    _arriving: set[str] = field(default_factory=set)
    """Messages of batches that were not refused."""
    begun: list[tuple[float, str, str]] = field(default_factory=list)
    """Of each POST in a first life: when it was sent (Unix seconds), path and message id."""

    async def _batch(self, path: str, request: Request) -> Exchange:
        """A connection is refused before any of its messages has arrived, or not at all."""
        messages = [unquote(dict(one.headers)["ce-id"]) for one in messages_in(request)]
        for message in messages:
            if self._refuses_next(message):
                self.tried[message] += 1
                return self.mishaps[message].popleft().response
        self._arriving.update(messages)
        try:
            return await super()._batch(path, request)
        finally:
            self._arriving.difference_update(messages)

    def _refuses_next(self, message: str) -> bool:
        waiting = self.mishaps[message]
        response = waiting[0].response if waiting else None
        return isinstance(response, NoResponse) and not response.sent

    async def _post(self, path: str, request: Request) -> Exchange:
        """A receiver decodes what says which message it is."""
        request = structs.replace(request, headers=tuple((name, unquote(value)) for name, value in request.headers))
        response = await self._met(path, request)
        if path == "/ci" and isinstance(response, Response) and response.status == 200:
            return Response(201, {}, json.dumps({"id": dict(request.headers)["ce-id"].encode().hex()}).encode())
        return response

    async def _met(self, path: str, request: Request) -> Exchange:
        headers = dict(request.headers)
        message = headers.get("ce-id", "")
        if path != "/callback" and headers.get("relay-generation") == "0":
            self.begun.append((LoopClock().time(), path, message))
        await asyncio.sleep(self.busy_s if path != "/callback" else 0.0)
        while message in self._arriving and self._refuses_next(message):
            self.mishaps[message].popleft()
        waiting = self.mishaps[message] if path != "/callback" else None
        if not waiting:
            return await self._take(path, request)
        mishap = waiting.popleft()
        if mishap.what in ("dropped", "turned_away"):
            self.tried[message] += 1
            return mishap.response
        late_s = min(mishap.late_s, PACED_LATE_S) if path in self.paced else mishap.late_s
        arriving = asyncio.create_task(self._arrive(path, request, late_s))
        self.tasks.add(arriving)
        arriving.add_done_callback(self.tasks.discard)
        await asyncio.sleep(min(late_s, PATIENCE_S))
        return LOST

    def _get(self, path: str) -> Response:
        """/build is the second step of an answer that comes later; a CI has a pipeline, and its workflows."""
        _, where, message = path.split("/", 2)
        if where == "api":
            return Response(200, {}, json.dumps(WORKFLOWS if path.endswith("/workflow") else PIPELINE).encode())
        return self._answer(unquote(message)) if where == "build" else super()._get(path)

    async def _arrive(self, path: str, request: Request, late_s: float) -> None:
        await asyncio.sleep(late_s)
        await self._take(path, request)

    async def _take(self, path: str, request: Request) -> Exchange:
        response = await super()._post(path, request)
        if self.answering is not None and (url := dict(request.headers).get("relay-answer-url")):
            self.answering.hand_out(url, is_called=path == f"/{CALLER}")
        return Response(202, {}, b"") if path == f"/{CALLER}" else response

    def deliveries(self) -> list[tuple[str, Mapping[str, str], bytes]]:
        """What arrived at receivers: path, headers, body; in order."""
        return [post for post in self.posts if post[0] != "/callback"]

    def callbacks(self) -> list[Mapping[str, str]]:
        """Headers of what came back to the sender, in order."""
        return [headers for path, headers, _ in self.posts if path == "/callback"]
