"""The history contract on the in-memory history, and its simulated outages."""

import pytest
import pytest_asyncio

from relay.domain.errors import HistoryUnavailable
from tests.contract.history_contract import HistoryContract
from tests.fakes.history import MemoryHistory


class TestMemoryHistory(HistoryContract):
    @pytest_asyncio.fixture
    async def history(self) -> MemoryHistory:
        return MemoryHistory()


async def test_while_it_is_away_every_call_says_so() -> None:
    history = MemoryHistory()
    history.available = False

    with pytest.raises(HistoryUnavailable):
        await history.next_offsets()
