"""Receivers that bring their answers to the `relay-answer-url` of a delivery, and what the relay says to that."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from relay.api.answers import AnswersResource
from relay.api.context import ApiContext
from relay.api.problems import ANSWER_CLOSED, Problem
from relay.api.status import StatusReader
from relay.domain.answer_token import issue, read
from relay.domain.errors import NotYet, RelayError
from relay.state.rows import Result
from tests.fakes.strikes import CrashError
from tests.fakes.world import SECRET
from tests.faults.simulation.story import Given

CALLER_S = 3.0
"""How long a receiver needs for its answer, and until it brings it again."""
WAITS_S = 10.0
"""How long it waits for a response, before it brings its answer again."""
Taken = bool | None
"""Whether an answer was taken, or is not wanted any more; None: it is to be repeated."""


@dataclass
class Answering:
    """`api`: of a process of the relay; None where none responds. `given`: answers that were taken. `urls`: tokens of
    all URLs that receivers got."""

    api: Callable[[], Awaitable[ApiContext | None]]
    given: list[Given]
    urls: list[str] = field(default_factory=list)
    tasks: set[asyncio.Task[Taken]] = field(default_factory=set)

    def hand_out(self, url: str, *, is_called: bool) -> None:
        """`is_called`: its receiver brings its answer until the relay takes it, or does not want it any more."""
        token = url.rpartition("/")[2]
        self.urls.append(token)
        if is_called:
            self._spawn(self._bring(token))

    def begin(self, token: str, more: str, *, expired: bool) -> None:
        """As `answer`, meanwhile."""
        self._spawn(self.answer(token, more, expired=expired))

    async def answer(self, token: str, more: str = "", *, expired: bool = False) -> Taken:
        """Once. `more`: in its body. A process that freezes meanwhile goes on with it later."""
        if expired:
            token = issue(SECRET, *read([SECRET], token, 0.0), 1)
        post = self._spawn(self._post(token, more))
        await asyncio.wait([post], timeout=WAITS_S)
        return post.result() if post.done() else None

    async def _bring(self, token: str) -> Taken:
        taken: Taken = None
        while taken is None:
            await asyncio.sleep(CALLER_S)
            taken = await self.answer(token)
        return taken

    async def _post(self, token: str, more: str) -> Taken:
        with suppress(RelayError, NotYet, CrashError):
            context = await self.api()
            if context is not None:
                return await self._taken(AnswersResource(context, StatusReader(context)), token, more)
        return None

    async def _taken(self, resource: AnswersResource, token: str, more: str) -> Taken:
        try:
            delivery, generation = await resource._delivery(token)
            body = json.dumps({"built": delivery.message_id} | ({"more": more} if more else {})).encode()
            is_repeat = await resource.take(delivery, generation, Result("answered", 200, "application/json", body))
        except Problem as problem:
            return False if problem.kind is ANSWER_CLOSED else None
        self.given.append(Given(delivery, body, first=not is_repeat))
        return True

    def _spawn(self, what: Coroutine[Any, Any, Taken]) -> asyncio.Task[Taken]:
        task = asyncio.create_task(what)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        return task

    def stop(self) -> None:
        for task in self.tasks:
            task.cancel()
