"""What fixing an incident changes."""

from typing import Any, cast

from relay.client.api import RelayApi
from relay.client.call import Asyncio
from relay.client.mending import Fix, apply_fix


async def test_messages_that_a_source_sent_wrongly_are_replayed_without_a_call_about_its_callback() -> None:
    """It may have none, or one that an operator has paused."""
    incident: Any = {"kind": "invalid_messages", "party": {"type": "source", "name": "shop"}}
    without_calls = cast(RelayApi[Asyncio], object())
    assert await apply_fix(without_calls, incident | {"action": {"kind": "replay"}}, Fix()) == []
