"""When to render a part of a page again: on events of the API's live tail."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any, Final, Protocol

from relay.pages.api_client import ApiProblem, Query

TAIL: Final = "/v1/tail"
LINGER_S: Final = 5.0
"""The history is a moment behind what happens: so long it is looked at again and again."""
IDLE_S: Final = 15.0
"""Between two renderings without events: some may have been missed."""
_AGAIN_S: Final = 30.0
"""Until it is asked again that could not be listened to."""
_HAPPENINGS: Final = frozenset({"message", "attempt", "answer", "failed", "skipped"})


class Api(Protocol):
    def events(self, target: str, query: Query | None = None) -> AsyncIterator[tuple[str, Any]]: ...


class Wakes:
    """`run` listens, for ever; `wait` returns when the next rendering is due. If it cannot listen (all places are
    taken, the log is away), one is due each `every_s`."""

    def __init__(self, api: Api, query: Query, every_s: float) -> None:
        self._api = api
        self._query = query
        self._every_s = every_s
        self._listens = False
        self._quiet_from = 0.0
        self._woken = asyncio.Event()

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                async for name, _ in self._api.events(TAIL, self._query):
                    if not self._listens or name in _HAPPENINGS:
                        self._quiet_from = loop.time() + LINGER_S
                        self._woken.set()
                    self._listens = name != "away"
                self._listens = False  # each listener has to ask again now and then
                await asyncio.sleep(self._every_s)
            except ApiProblem:
                self._listens = False
                await asyncio.sleep(_AGAIN_S)

    async def wait(self, ended: asyncio.Event) -> None:
        """Until the next look, or until `ended` is set."""
        is_quiet = self._listens and asyncio.get_running_loop().time() >= self._quiet_from
        self._woken.clear()
        waits = [asyncio.ensure_future(ended.wait())]
        if is_quiet:
            waits.append(asyncio.ensure_future(self._woken.wait()))
        try:
            await asyncio.wait(
                waits, timeout=IDLE_S if is_quiet else self._every_s, return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            for each in waits:
                each.cancel()
