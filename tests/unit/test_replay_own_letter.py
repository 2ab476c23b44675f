"""Replay and discard of one delivery: the dead letter that was checked is the one that is acted on."""

import json
from types import SimpleNamespace
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import make_mocked_request

from relay.api.access import OPEN, Tenant, check_access
from relay.api.replay_one import ReplayResource
from relay.domain.identity import DeliveryId
from relay.domain.receiver import Life
from relay.domain.scope import Access, Scope
from relay.replay.plan import ReplayPlan
from relay.schema.replays import One
from relay.state.rows import Row, Stage

DELIVERY = DeliveryId("ci", "shop", "m-1")
OWN = Life("own")


class _Service:
    """The first look finds a letter of the present life, any later one a letter of a former life of the name."""

    def __init__(self) -> None:
        self.executor = self
        self.looks = 0
        self.acted_on: list[str] = []

    async def rows(self, deliveries: list[DeliveryId]) -> dict[DeliveryId, Row]:
        return dict.fromkeys(deliveries, Row(Stage.FAILED, generation=3))

    async def letter_of(self, _delivery: DeliveryId, _row: Row) -> Any:
        self.looks += 1
        life = OWN.id if self.looks == 1 else "former"
        return SimpleNamespace(life=life, dead=SimpleNamespace(origin=None), is_of_sender=False)

    async def do(self, _action: str, letter: Any, *, same_life: bool) -> ReplayPlan:
        assert same_life
        self.acted_on.append(letter.life)
        out: Any = SimpleNamespace(generation=4, record=SimpleNamespace(topic="to_receiver"))
        return ReplayPlan(out=(out,))


def _request() -> web.Request:
    ids = {"source_id": "shop", "message_id": "m-1", "receiver": "ci"}
    request = make_mocked_request("POST", "/v1/sources/shop/messages/m-1/deliveries/ci/replay", match_info=ids)
    access = Access("a tenant", frozenset({Scope("receiver", "ci")}))
    check_access(request, access, OPEN, lambda _name: Tenant("tenant", OWN))
    return request


@pytest.mark.parametrize("action", ["replay", "discard"])
async def test_what_was_checked_is_acted_on(action: str) -> None:
    service: Any = _Service()
    context: Any = SimpleNamespace(limits=SimpleNamespace(wait_s=1.0), replays=service)
    nothing: Any = None
    resource = ReplayResource(context, nothing, nothing)
    handler: Any = getattr(ReplayResource, f"{action}_delivery")
    body = (One(),) if action == "replay" else ()
    response = await handler.__wrapped__(resource, _request(), *body)
    assert json.loads(response.body)["action"] == action
    assert service.acted_on == [OWN.id]
