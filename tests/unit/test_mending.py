"""What fixing an incident changes."""

from typing import Any, cast

import pytest

from relay.client.api import RelayApi
from relay.client.call import Asyncio
from relay.client.mending import Fix, apply_fix, is_tested_first


async def test_messages_that_a_source_sent_wrongly_are_replayed_without_a_call_about_its_callback() -> None:
    """It may have none, or one that an operator has paused."""
    incident: Any = {"kind": "invalid_messages", "party": {"type": "source", "name": "shop"}}
    without_calls = cast(RelayApi[Asyncio], object())
    assert await apply_fix(without_calls, incident | {"action": {"kind": "replay"}}, Fix()) == []


@pytest.mark.parametrize(("kind", "first"), [("failing", True), ("gone", True), ("disabled", True), ("paused", False)])
def test_what_would_get_messages_although_it_may_fail_is_tested_first(kind: str, first: bool) -> None:
    incident: Any = {"kind": kind, "action": {"kind": "resume"}}
    assert is_tested_first(incident) is first
