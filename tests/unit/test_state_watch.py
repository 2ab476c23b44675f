"""Problems of the state's servers are logged when they are new."""

import asyncio
from collections.abc import Sequence

import pytest
from structlog.testing import capture_logs

from relay.domain.errors import StateUnavailable, UserError
from relay.watch.readiness import StateWatch
from tests.fakes.state import MemoryState
from tests.integration.api_rig import StandingClock


class _State(MemoryState):
    found: Sequence[str] | Exception = ()

    async def problems(self) -> list[str]:
        if isinstance(self.found, Exception):
            raise self.found
        return list(self.found)


@pytest.mark.parametrize("failure", [StateUnavailable("away"), UserError("the login is rejected")])
async def test_a_policy_that_changes_while_it_runs_is_logged_once(failure: Exception) -> None:
    state, policy = _State(), "maxmemory-policy is allkeys-lru: it may drop rows"
    looks: list[list[str] | Exception] = [
        ["91% of maxmemory is used"],
        failure,
        ["92.5% of maxmemory is used", policy],
        ["93% of maxmemory is used", policy],
        [],
        [policy],
    ]

    class Clock(StandingClock):
        async def sleep(self, seconds: float) -> None:
            if not looks:
                raise asyncio.CancelledError
            state.found = looks.pop(0)

    watch = StateWatch(state, Clock())
    with capture_logs() as logged:
        await watch.look()
        with pytest.raises(asyncio.CancelledError):
            await watch.run()
    assert [line["problem"] for line in logged] == ["91% of maxmemory is used", policy, policy]
