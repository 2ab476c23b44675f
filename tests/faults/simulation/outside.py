"""Receivers around a relay under test, with mishaps on the way to them and back."""

import asyncio
from collections import defaultdict, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal
from urllib.parse import unquote

from relay.domain.exchange import Exchange, NoResponse, Request, Response
from tests.fakes.surroundings import Surroundings

LOST = NoResponse("disconnected", "lost on the way", sent=True)
PATIENCE_S = 2.0
"""How long the relay under test waits for a response."""


@dataclass(frozen=True, slots=True)
class Mishap:
    """Of one POST. `dropped`: it never arrives. `response_lost`: its response does not. `late`: it arrives after
    `late_s`, and its response never. `turned_away`: it gets this response, and the receiver does not remember it."""

    what: Literal["dropped", "response_lost", "late", "turned_away"]
    late_s: float = 0.0
    response: Exchange = LOST


@dataclass
class Wire(Surroundings):
    """`mishaps`: by message id, of its next POSTs to receivers. `busy_s`: how long a receiver takes for each."""

    mishaps: dict[str, deque[Mishap]] = field(default_factory=lambda: defaultdict(deque))
    busy_s: float = 0.0

    async def _post(self, path: str, request: Request) -> Exchange:
        await asyncio.sleep(self.busy_s if path != "/callback" else 0.0)
        message = dict(request.headers).get("ce-id", "")
        waiting = self.mishaps[message] if path != "/callback" else None
        if not waiting:
            return await super()._post(path, request)
        mishap = waiting.popleft()
        if mishap.what in ("dropped", "turned_away"):
            self.tried[message] += 1
            return mishap.response
        arriving = asyncio.create_task(self._arrive(path, request, mishap.late_s))
        self.tasks.add(arriving)
        arriving.add_done_callback(self.tasks.discard)
        await asyncio.sleep(min(mishap.late_s, PATIENCE_S))
        return LOST

    def _get(self, path: str) -> Response:
        """/build is the second step of an answer that comes later."""
        _, where, message = path.split("/", 2)
        return self._answer(unquote(message)) if where == "build" else super()._get(path)

    async def _arrive(self, path: str, request: Request, late_s: float) -> None:
        await asyncio.sleep(late_s)
        await super()._post(path, request)

    def deliveries(self) -> list[tuple[str, Mapping[str, str], bytes]]:
        """What arrived at receivers: path, headers, body; in order."""
        return [post for post in self.posts if post[0] != "/callback"]

    def callbacks(self) -> list[Mapping[str, str]]:
        """Headers of what came back to the sender, in order."""
        return [headers for path, headers, _ in self.posts if path == "/callback"]
