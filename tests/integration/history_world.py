"""A relay whose history has messages to several receivers, for tests of the routes that read the history."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final, NamedTuple

import pytest
from msgspec import structs

from relay.domain.attempt import Attempt
from relay.domain.coordinate import Coordinate
from relay.history.port import ArrivalFact
from tests.contract.history_facts import NOON, arrival, attempt, ending, put
from tests.fakes.history import MemoryHistory
from tests.integration.api_rig import Reply, Rig, document, running_api
from tests.integration.test_api_keys import ADMIN, SETTING, bearer

KEPT: Final[Any] = {"headers": {"x-event": "push"}, "body": b'{"repository": {"name": "relay", "id": 7}, "a/b": true}'}
_JSON: Final = {"Content-Type": "application/json"}


class World(NamedTuple):
    rig: Rig
    history: MemoryHistory

    async def get(self, target: str, *scopes: str) -> Reply:
        """GET as an administrator, or with a key of `scopes`."""
        headers = bearer(await self.rig.keys.make(*scopes, now=self.rig.clock.time())) if scopes else ADMIN
        return await self.rig.request("GET", target, b"", headers)

    async def ids(self, query: str, *scopes: str) -> list[str]:
        page = document(await self.get(f"/v1/messages?{query}", *scopes))
        return [item["message_id"] for item in page["items"]]


@asynccontextmanager
async def world() -> AsyncIterator[World]:
    """`m-1` went to `ci`, and `deploy`, of alice's, rejected it; `m-2` is on its way to `deploy`; `m-3` of another
    source failed at `ci`; `m-4` was never routed. Each came a second after the other, and it is a minute later."""
    history = MemoryHistory()
    async with running_api(api_key=SETTING, history=history) as rig:
        made = {"name": "deploy", "post_endpoint": "https://deploy.example/", "owner": "alice", "signature": "none"}
        assert (await rig.request("POST", "/v1/receivers", json.dumps(made).encode(), _JSON | ADMIN)).status == 201
        rig.clock.now = NOON + 60
        life = life_of(rig, "deploy")
        await put(
            history,
            arrived(rig, 1, source="github", event_type="push", receivers=("ci", "deploy"), **KEPT),
            arrived(rig, 2, source="github", event_type="pull_request.opened", receivers=("deploy",), size=2_000),
            arrived(rig, 3, source="other", event_type="push", receivers=("ci",), headers={"x-event": "push"}),
            arrived(rig, 4, source="other", event_type=None, content_type=None),
            attempt("m-1", source="github", offset=0, at=2, duration_ms=12.34),
            attempt("m-1", source="github", offset=1, at=2.5, receiver="deploy", status=422, code="rejected",
                    life=life),
            attempt("m-1", source="github", offset=2, at=3, kind="callback"),
            attempt("m-3", source="other", offset=3, at=4, status=503, reason="not now", next_attempt_at=NOON + 6),
            attempt("m-3", source="other", offset=4, at=6, status=None, reason="timeout", attempt=2),
            attempt("m-3", source="other", offset=5, at=7, kind="status", status=404),
            pinged(offset=6, at=8),
            ending("m-1", source="github", offset=0, at=2.1),
            ending("m-1", source="github", offset=0, at=2.6, receiver="deploy", status="failed", reason="rejected",
                   last_status=422, detail="it said no", life=life),
            ending("m-3", source="other", offset=1, at=9, status="failed", reason="exhausted", attempts=2),
        )  # fmt: skip
        yield World(rig, history)


@pytest.fixture
async def at() -> AsyncIterator[World]:
    """The same, for a test."""
    async with world() as found:
        yield found


def arrived(rig: Rig, number: int, **more: Any) -> ArrivalFact:
    """The arrival of a message whose record is not on the log any more."""
    return structs.replace(arrival(number, **more), at=Coordinate(rig.topics.from_sender, 9, number))


def life_of(rig: Rig, name: str) -> str:
    """The id of the life of a receiver that was registered over the API."""
    assert rig.context.registrar is not None
    return rig.context.registrar.registry.life_of(name).id


def pinged(*, offset: int, at: float) -> tuple[Coordinate, Attempt]:
    place, record = attempt("-", offset=offset, at=at, kind="ping", status=204)
    return place, structs.replace(record, source_id=None, message_id=None)
