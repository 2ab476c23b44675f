"""`POST /v1/receivers/{name}/catch-up`: what follows the last number that a receiver has, in order, with gaps named."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from click.testing import CliRunner
from structlog.testing import capture_logs

from relay.api import catch_up as module
from relay.cli.receivers import receivers
from relay.client import AsyncRelay
from relay.domain.coordinate import Coordinate
from relay.state.port import FailedEntry
from tests.contract.history_facts import NOON, attempt, put
from tests.integration.api_rig import Reply, problem
from tests.integration.history_world import KEPT, World, came, world
from tests.integration.test_api_keys import ADMIN, SETTING, bearer

CATCH_UP = "/v1/receivers/ledger/catch-up"
MADE = {"name": "ledger", "post_endpoint": "https://ledger.example/", "ordering": "receiver", "max_in_flight": 1,
        "owner": "bob", "signature": "none"}  # fmt: skip


@asynccontextmanager
async def ledger() -> AsyncIterator[World]:
    """`ledger` got the messages 11, 12, 14 and 16 under their numbers, 12 at its second attempt; 13 was rejected, 15 is
    tried, and of 17 no attempt is recorded."""
    async with world() as at:
        headers = {"Content-Type": "application/json"} | ADMIN
        assert (await at.rig.request("POST", "/v1/receivers", json.dumps(MADE).encode(), headers)).status == 201
        assert at.rig.context.registrar is not None
        whole, known = at.rig.context.registrar.registry.life_of("ledger"), at.rig.directory.receivers
        known["ledger"] = replace(known["ci"], name="ledger", ordering="receiver", owner="bob", life=whole)
        life = whole.id

        def tried(number: int, offset: int, status: int = 204, **more: Any) -> Any:
            return attempt(f"m-{number}", source="github", offset=offset, at=number + offset / 10, receiver="ledger",
                           status=status, number=number, life=life, **more)  # fmt: skip

        await put(
            at.history,
            *(came(at.rig, n, source="github", receivers=("ledger",), **KEPT) for n in range(11, 18)),
            tried(11, 20),
            tried(12, 21, 503),
            tried(12, 22, 202, attempt=2),
            tried(13, 23, 422, reason="rejected", code="rejected"),
            tried(14, 24),
            tried(15, 25, 503),
            tried(16, 26),
        )
        dead = FailedEntry("ledger", Coordinate("failed_messages", 1, 2), NOON, "rejected", "github", "m-13", number=13)
        await at.rig.state.index_failed([dead])
        yield at


async def caught_up(at: World, after: int, *scopes: str) -> tuple[list[Any], dict[str, Any]]:
    """Of each line the number and message, or the range and reason; and the last line."""
    *lines, end = [json.loads(line) for line in (await post(at, after, *scopes)).body.splitlines()]
    shown = [
        (one["sequence"], one["message_id"]) if "sequence" in one else (one["first"], one["last"], one["reason"])
        for one in lines
    ]
    return shown, end


async def post(at: World, after: object, *scopes: str, path: str = CATCH_UP) -> Reply:
    headers = bearer(await at.rig.keys.make(*scopes, now=at.rig.clock.time())) if scopes else ADMIN
    body = json.dumps({"after": after}).encode()
    return await at.rig.request("POST", path, body, {"Content-Type": "application/json"} | headers)


async def test_what_follows_the_last_number_comes_in_order_with_its_payload() -> None:
    async with ledger() as at:
        lines, end = await caught_up(at, 11)
        assert lines == [(12, "m-12"), (13, 13, "rejected"), (14, "m-14"), (15, 15, "in_progress"), (16, "m-16")]
        assert end == {"delivered": 3, "complete": True, "detail": None, "last": 16}
        first = json.loads((await post(at, 11)).body.splitlines()[0])
        assert (first["payload"], first["payload_kept"]) == (KEPT["body"].decode(), "truncated")


async def test_the_last_number_continues_it() -> None:
    async with ledger() as at:
        assert await caught_up(at, 14) == (
            [(15, 15, "in_progress"), (16, "m-16")],
            {"delivered": 1, "complete": True, "detail": None, "last": 16},
        )
        assert await caught_up(at, 16) == ([], {"delivered": 0, "complete": True, "detail": None, "last": 16})


async def test_the_first_number_may_be_any_and_one_that_nobody_knows_is_named() -> None:
    async with ledger() as at:
        assert (await caught_up(at, 0))[0][0] == (11, "m-11")
        assert (await caught_up(at, 4))[0][:2] == [(5, 10, "unknown"), (11, "m-11")]


async def test_a_response_has_a_limited_count_of_numbers_the_lowest_first(monkeypatch: pytest.MonkeyPatch) -> None:
    async with ledger() as at:
        monkeypatch.setattr(module, "MOST_NUMBERS", 2)
        lines, end = await caught_up(at, 11)
        assert lines == [(12, "m-12"), (13, 13, "rejected")]
        assert (end["complete"], end["last"]) == (False, 13)
        assert (await caught_up(at, 13))[0] == [(14, "m-14"), (15, 15, "in_progress")]


async def test_the_client_asks_until_it_has_all(monkeypatch: pytest.MonkeyPatch) -> None:
    async with ledger() as at:
        monkeypatch.setattr(module, "MOST_NUMBERS", 2)
        async with AsyncRelay(at.rig.url, SETTING) as relay:
            lines = [line async for line in relay.receivers.catch_up("ledger", after=11)]
        assert [line.get("sequence") for line in lines] == [12, None, 14, None, 16]


async def test_a_key_of_the_receiver_or_its_owner_catches_up_and_no_other() -> None:
    async with ledger() as at:
        for scope in ("receiver:ledger", "owner:bob"):
            assert len((await caught_up(at, 11, scope))[0]) == 5
        for scope in ("receiver:ci", "owner:alice", "read:github"):
            assert (await post(at, 11, scope)).status in (403, 404)


@pytest.mark.parametrize("after", [-1, 10**18, 1.5, "12", None])
async def test_what_is_no_number_is_refused(after: object) -> None:
    async with ledger() as at:
        problem(await post(at, after), 400, "invalid-request")


async def test_a_receiver_without_numbers_is_told_so() -> None:
    async with ledger() as at:
        found = problem(await post(at, 1, path="/v1/receivers/ci/catch-up"), 400, "invalid-request")
        assert found["detail"] == "the messages of ci have no numbers: it has no `ordering: receiver`"
        problem(await post(at, 1, path="/v1/receivers/nobody/catch-up"), 404, "not-found")


async def test_the_command_writes_lines_and_where_it_ended() -> None:
    async with ledger() as at:
        words = ["catch-up", "ledger", "--after", "11", "--api", at.rig.url]
        with capture_logs():
            done = await asyncio.to_thread(CliRunner(env={"RELAY_API_KEY": SETTING}).invoke, receivers, words)
        assert done.exception is None, done
        assert done.stderr == "3 messages up to number 16\n"
        assert [json.loads(line).get("sequence") for line in done.stdout.splitlines()] == [12, None, 14, None, 16]
