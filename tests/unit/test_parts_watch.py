"""What /readyz says of the log and the state: also of one that is silent, before its client gives up."""

import asyncio
from collections.abc import Awaitable, Callable

from relay.domain.errors import LogUnavailable
from relay.watch.readiness import SILENT_S, watch_part
from tests.fakes.virtual_time import LoopClock, run_virtually

Trouble = dict[str, str | None]


async def _watched(look: Callable[[], Awaitable[object]], until_s: float) -> list[str | None]:
    """What was wrong with the log at each second."""
    trouble: Trouble = {}
    watching = asyncio.ensure_future(watch_part(trouble.__setitem__, LoopClock(), "log", 5.0, look))
    said = []
    for _ in range(round(until_s)):
        await asyncio.sleep(1)
        said.append(trouble.get("log"))
    watching.cancel()
    return said


def test_a_log_that_hangs_is_said_to_be_silent_until_it_answers() -> None:
    async def look() -> None:
        await asyncio.sleep(SILENT_S + 4)

    said = run_virtually(_watched(look, 10))
    assert said[1] is None
    assert said[3] == "it has not answered for 3 s"
    assert said[5] == "it has not answered for 3 s"
    assert said[8] is None


def test_a_log_that_is_away_says_why() -> None:
    async def look() -> None:
        raise LogUnavailable("no broker")

    assert run_virtually(_watched(look, 2))[1] == "no broker"
