"""Tests of the export of a receiver: each message that it got or missed, with payloads, in lines that can be
resumed."""

import json
from dataclasses import replace
from typing import Any

import pytest
from msgspec import structs

from relay.api import bounds, receiver_export
from relay.cli.receivers import receivers
from relay.client import AsyncRelay
from relay.client.errors import ClientError
from relay.domain.errors import HistoryUnavailable
from relay.domain.message import Message, message_headers
from relay.domain.receiver import Encryption
from relay.log.port import NewRecord
from tests.contract.history_facts import arrival, put
from tests.expecting import present
from tests.integration.api_rig import Reply, problem, run_command, running_api
from tests.integration.history_world import KEPT, World, arrived, world
from tests.integration.history_world import at as at
from tests.integration.test_api_keys import SETTING, bearer

EXPORT = "/v1/receivers/ci/export"


def lines(reply: Reply) -> list[dict[str, Any]]:
    assert (reply.status, reply.headers["Content-Type"]) == (200, "application/x-ndjson")
    return [json.loads(line) for line in reply.body.splitlines()]


async def exported(at: World, query: str = "", *scopes: str) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The messages, and the last line."""
    *found, end = lines(await at.get(f"{EXPORT}{query}", *scopes))
    return found, end


async def sent(at: World, number: int, payload: bytes, **more: Any) -> None:
    """A message whose record is on the log."""
    fact = arrival(number, source="github", receivers=("ci",), size=len(payload), **more)
    message = Message(*fact.message, ("ci",), None, None, "text/plain", payload)
    [place] = await at.rig.log.append(
        [NewRecord(at.rig.topics.from_sender, b"github", payload, message_headers(message))]
    )
    await put(at.history, structs.replace(fact, at=place))


async def test_what_a_receiver_got_and_missed_is_exported_with_payloads(at: World) -> None:
    await sent(at, 5, b"text \xe2\x82\xac")
    await sent(at, 6, b"\xff\x00")
    found, end = await exported(at)
    assert [(one["message_id"], one["delivery"]["state"], one["payload_kept"]) for one in found] == [
        ("m-6", "blocked", "whole"),
        ("m-5", "blocked", "whole"),
        ("m-3", "failed", "gone"),
        ("m-1", "returned", "truncated"),
    ]
    assert [one["payload"] for one in found] == [None, "text €", None, KEPT["body"].decode()]
    assert [one["payload_base64"] for one in found] == ["/wA=", None, None, None]
    assert {one["delivery"]["receiver"] for one in found} == {"ci"}
    assert end == {"exported": 4, "complete": True, "detail": None, "cursor": found[-1]["cursor"]}


async def test_each_line_can_be_continued_after(at: World) -> None:
    found, _ = await exported(at)
    assert len(found) == 2
    await put(at.history, arrived(at.rig, 7, source="github", receivers=("ci",), **KEPT))
    rest, end = await exported(at, f"?after={found[0]['cursor']}")
    assert (rest, end["exported"]) == (found[1:], 1)
    assert (await exported(at, f"?after={found[1]['cursor']}"))[1]["complete"]


@pytest.mark.parametrize(
    ("query", "expected"),
    [("?since=2026-09-21T12:00:03Z", ["m-3"]), ("?until=2026-09-21T12:00:03Z", ["m-1"]), ("?since=10s", [])],
)
async def test_it_can_be_limited_to_a_time(at: World, query: str, expected: list[str]) -> None:
    assert [one["message_id"] for one in (await exported(at, query))[0]] == expected


async def test_a_key_exports_what_it_may_see(at: World) -> None:
    await put(at.history, arrived(at.rig, 7, source="github", receivers=("ci", "deploy"), **KEPT))
    found, _ = await exported(at, "", "receiver:ci")
    assert [one["message_id"] for one in found] == ["m-7", "m-3", "m-1"]
    own = lines(await at.get("/v1/receivers/deploy/export", "owner:alice"))
    assert [one["message_id"] for one in own[:-1]] == ["m-7", "m-2", "m-1"]
    problem(await at.get("/v1/receivers/deploy/export", "owner:bob"), 403, "forbidden")
    problem(await at.get(EXPORT, "read:github"), 403, "forbidden")


@pytest.mark.parametrize(
    ("settings", "kept"),
    [
        ({"encrypt": Encryption(url="https://ci.example/jwks.json")}, "encrypted"),
        ({"payload": "metadata"}, "withheld"),
    ],
)
async def test_a_payload_that_the_receiver_does_not_get_plain_is_not_exported_to_it(
    at: World, settings: dict[str, Any], kept: str
) -> None:
    known = at.rig.directory.receivers
    known["ci"] = replace(known["ci"], **settings)
    found, _ = await exported(at, "", "receiver:ci")
    assert {(one["payload"], one["payload_kept"]) for one in found} == {(None, kept)}
    assert (await exported(at, "", "receiver:ci", "read:github"))[0][-1]["payload"] == KEPT["body"].decode()


async def test_payloads_are_read_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(receiver_export, "BYTES_AT_ONCE", 3_000)
    async with world() as at:
        for number in range(10, 20):
            await sent(at, number, b"x" * 1_000)
        reads, read = list[int](), at.rig.log.read

        async def counted(wanted: Any) -> Any:
            reads.append(len(wanted))
            return await read(wanted)

        monkeypatch.setattr(at.rig.log, "read", counted)
        found, _ = await exported(at)
        assert len(found) == 12
        assert max(reads) == 3


async def test_an_export_that_cannot_go_on_says_where_to_continue(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(receiver_export, "AT_ONCE", 1)
    async with world() as at:
        ask = at.history.messages

        async def away(*args: Any, cursor: str | None = None, **more: Any) -> Any:
            if cursor is not None:
                raise HistoryUnavailable("its disk is full")
            return await ask(*args, cursor=cursor, **more)

        monkeypatch.setattr(at.history, "messages", away)
        [first], end = await exported(at)
        assert (end["complete"], end["detail"], end["cursor"]) == (False, "its disk is full", first["cursor"])
        monkeypatch.setattr(at.history, "messages", ask)
        assert [one["message_id"] for one in (await exported(at, f"?after={end['cursor']}"))[0]] == ["m-1"]


async def test_an_export_ends_soon_after_what_lets_its_caller_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(receiver_export, "AT_ONCE", 1)
    monkeypatch.setattr(bounds, "JUDGED_S", 0)
    async with world() as at:
        ask, keys = at.history.messages, at.rig.keys
        key = await keys.make("receiver:ci", now=at.rig.clock.now)

        async def revoking(*args: Any, cursor: str | None = None, **more: Any) -> Any:
            if cursor is not None:
                await keys.revoke(present(keys.keys.find(key)))
            return await ask(*args, cursor=cursor, **more)

        monkeypatch.setattr(at.history, "messages", revoking)
        [first, end] = lines(await at.rig.request("GET", EXPORT, b"", bearer(key)))
        assert (end["complete"], end["cursor"]) == (False, first["cursor"])
        assert "An API key is required" in end["detail"]


async def test_what_is_wrong_is_refused_before_the_first_line() -> None:
    async with world() as at:
        problem(await at.get("/v1/receivers/nobody/export"), 404, "not-found")
        for query in ("?after=rubbish", "?since=soon", "?since=1h&until=2h", "?limit=1"):
            problem(await at.get(EXPORT + query), 400, "invalid-request")
    async with running_api(history=None) as rig:
        problem(await rig.get(EXPORT), 503, "no-history")


async def test_the_client_continues_after_an_export_that_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(receiver_export, "AT_ONCE", 1)
    monkeypatch.setattr("relay.client.endpoints.RECONNECT_S", 0)
    async with world() as at:
        ask, broken = at.history.messages, [True]

        async def breaks_once(*args: Any, cursor: str | None = None, **more: Any) -> Any:
            if cursor is not None and broken:
                broken.clear()
                raise HistoryUnavailable("its disk is full")
            return await ask(*args, cursor=cursor, **more)

        monkeypatch.setattr(at.history, "messages", breaks_once)
        reasons = list[ClientError]()
        async with AsyncRelay(at.rig.url, SETTING) as client:
            found = [one async for one in client.receivers.export("ci", reconnect=reasons.append)]
        assert [one["message_id"] for one in found] == ["m-3", "m-1"]
        assert ["its disk is full" in str(reason) for reason in reasons] == [True]


async def test_the_command_prints_the_lines(at: World) -> None:
    done = await run_command(at.rig.url, receivers, "export", "ci", "--since", "1h", key=SETTING)
    assert done.exception is None, done
    assert [json.loads(line)["message_id"] for line in done.stdout.splitlines()] == ["m-3", "m-1"]
    assert done.stderr == "2 messages\n"
