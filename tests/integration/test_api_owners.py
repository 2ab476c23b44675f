"""Tests of owners' keys: they register, change and remove their receivers, and learn nothing of others'."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

import pytest

from relay.api.server import ApiServer
from relay.domain.hold import Hold
from relay.domain.identity import OWN_SOURCE
from relay.domain.recipients import receiver_name
from relay.domain.statistics import NUMBERS, Counted
from relay.log.port import NewRecord
from relay.state.port import FailedEntry
from relay.state.read_model import LastAttempt, LastResponse, Tally
from tests.integration.api_rig import NOW, Reply, document, problem
from tests.integration.test_api_keys import bearer, letter
from tests.integration.test_api_registration import JSON, ORIGIN, URL, Rig, running

FIELDS = {"post_endpoint": URL}


@dataclass
class Owners:
    """`rig`: its first process requires keys. `keys`: of alice, of bob, of both, and of an administrator."""

    rig: Rig
    keys: dict[str, dict[str, str]]

    async def ask(self, who: str, method: str, path: str, body: object = None, **headers: str) -> Reply:
        return await self.rig.ask(method, path, body, JSON | self.keys[who] | headers)

    async def create(self, who: str, name: str, **fields: object) -> Reply:
        return await self.ask(who, "POST", "/v1/receivers", FIELDS | {"name": name} | fields)


@asynccontextmanager
async def owning(most: int = 1_000) -> AsyncIterator[Owners]:
    async with running() as rig:
        api = rig.api
        keys = {
            "alice": ("owner:alice", "read:git*"),
            "bob": ("owner:bob",),
            "both": ("owner:alice", "owner:bob"),
            "admin": ("admin",),
        }
        made = {who: bearer(await api.keys.make(*scopes, now=NOW)) for who, scopes in keys.items()}
        context = replace(rig.contexts[0], owner_receivers=most)
        server = ApiServer(context)
        rig.apis[0] = f"http://127.0.0.1:{await server.start('127.0.0.1', 0)}"
        try:
            yield Owners(rig, made)
        finally:
            await server.stop()


@pytest.fixture
async def owners() -> AsyncIterator[Owners]:
    async with owning() as found:
        yield found


async def test_an_owner_registers_changes_and_removes_receivers(owners: Owners) -> None:
    made = document(await owners.create("alice", "ci", labels={"env": "prod"}))
    assert (made["owner"], made["settings"]["lane"], made["declared_by"]) == ("alice", "shared", "api")
    assert document(await owners.create("alice", "cd", owner="alice"))["owner"] == "alice"
    changed = document(await owners.ask("alice", "PATCH", "/v1/receivers/ci", {"rate_limit": 7}))
    assert (changed["settings"]["rate_limit"], changed["owner"]) == (7, "alice")
    for action in ("pause", "resume"):
        assert (await owners.ask("alice", "POST", f"/v1/receivers/ci/{action}")).status == 200
    assert (await owners.ask("alice", "POST", "/v1/receivers/ci/rotate", {"secret": "another-one-4711"})).status == 200
    assert (await owners.ask("alice", "DELETE", "/v1/receivers/ci?dry_run=true")).status == 200
    assert (await owners.ask("alice", "DELETE", "/v1/receivers/ci")).status == 200
    problem(await owners.ask("alice", "PATCH", "/v1/receivers/ci", {"rate_limit": 7}), 404, "not-found")
    lines = document(await owners.ask("admin", "GET", "/v1/audit"))["items"]
    assert [(line["what"], line["whom"]) for line in lines[-2:]] == [
        *(("receiver.created", "cd"), ("receiver.created", "ci")),
    ]
    assert len({line["who"] for line in lines}) == 1


async def test_an_owner_does_not_have_kept_credentials_sent_elsewhere(owners: Owners) -> None:
    await owners.create("admin", "ci", owner="alice", bearer_token="the relay's own")
    elsewhere = {"post_endpoint": "https://elsewhere.example/"}
    found = problem(await owners.ask("alice", "PATCH", "/v1/receivers/ci", elsewhere), 409, "credentials-needed")
    assert [error["pointer"] for error in found["errors"]] == ["/bearer_token"]
    assert (await owners.ask("alice", "PATCH", "/v1/receivers/ci", elsewhere | {"bearer_token": "hers"})).status == 200


async def test_it_is_theirs_whatever_they_say(owners: Owners) -> None:
    for fields in ({"owner": "bob"}, {"owner": ""}, {"owner": 7}, {"owner": ["alice"]}):
        problem(await owners.create("alice", "ci", **fields), 403, "forbidden")
    assert problem(await owners.create("both", "ci"), 422, "invalid-receiver")["errors"][0]["pointer"] == "/owner"
    assert document(await owners.create("both", "ci", owner="bob"))["owner"] == "bob"
    for who, owner in (("bob", "alice"), ("bob", None), ("both", "alice")):
        problem(await owners.ask(who, "PATCH", "/v1/receivers/ci", {"owner": owner}), 403, "forbidden")
    assert document(await owners.ask("admin", "PATCH", "/v1/receivers/ci", {"owner": "alice"}))["owner"] == "alice"
    problem(await owners.ask("bob", "PATCH", "/v1/receivers/ci", {"rate_limit": 7}), 403, "forbidden")


async def test_what_is_anothers_looks_as_what_there_is_not(owners: Owners) -> None:
    await owners.create("bob", "ci")
    await owners.create("admin", "plain")
    for method, path, body in (
        ("PATCH", "", {"rate_limit": 7}),
        ("DELETE", "", None),
        ("DELETE", "?dry_run=true", None),
        ("GET", "", None),
        ("POST", "/pause", None),
        ("POST", "/rotate", None),
        ("POST", "/test", None),
        ("POST", "/verify", None),
    ):
        names = ("ci", "plain", "nobody")
        replies = [await owners.ask("alice", method, f"/v1/receivers/{name}{path}", body) for name in names]
        told = [problem(reply, 403, "forbidden") | {"instance": ""} for reply in replies]
        assert told[0] == told[1] == told[2]


@pytest.mark.parametrize(
    ("fields", "pointers"),
    [
        ({"lane": "dedicated"}, ["/lane"]),
        ({"lane": "dedicated", "partitions": 3}, ["/lane"]),
        ({"sources": ["gitea", "hooks", "*"], "event_types": ["*"]}, ["/sources/1", "/sources/2"]),
        ({"sources": ["g*"], "event_types": ["*"]}, ["/sources/0"]),
        ({"bearer_token": "${CI_SECRET}"}, ["/bearer_token"]),  # which an administrator may refer to
        ({"secret": "${CI_SECRET}"}, ["/secret"]),
    ],
)
async def test_what_only_an_administrator_may_say_is_refused_with_its_place(
    owners: Owners, fields: dict[str, Any], pointers: list[str]
) -> None:
    found = problem(await owners.create("alice", "ci", **fields), 422, "invalid-receiver")
    assert [error["pointer"] for error in found["errors"]] == pointers
    await owners.create("alice", "ci")
    found = problem(await owners.ask("alice", "PATCH", "/v1/receivers/ci", fields), 422, "invalid-receiver")
    assert [error["pointer"] for error in found["errors"]] == pointers
    assert (await owners.ask("admin", "PATCH", "/v1/receivers/ci", fields)).status == 200


async def test_they_subscribe_to_what_their_key_may_read(owners: Owners) -> None:
    wanted = {"sources": ["git*", "gitea", OWN_SOURCE], "event_types": ["push"]}
    assert (await owners.create("alice", "ci", **wanted)).status == 201
    given = {"sources": ["x"], "event_types": ["a", "b"], "filter": {"pointer": "/n", "gt": 3}}
    assert (await owners.create("admin", "cd", owner="bob", **given)).status == 201
    for patch, status in (
        ({"rate_limit": 5}, 200),  # what others gave them stays theirs
        ({"event_types": ["a"]}, 200),
        ({"event_types": ["*"]}, 422),
        ({"filter": None}, 422),
        ({"sources": ["y"]}, 422),
        ({"sources": None, "event_types": None, "filter": None}, 200),
        ({"sources": ["x"], "event_types": ["a"]}, 422),
    ):
        assert (await owners.ask("bob", "PATCH", "/v1/receivers/cd", patch)).status == status, patch


async def test_what_an_administrator_asked_for_stays(owners: Owners) -> None:
    await owners.create("admin", "ci", owner="alice", lane="dedicated", partitions=2, verification="challenge")
    for patch, pointer in (
        ({"lane": "shared", "partitions": None}, "/lane"),
        ({"partitions": 3}, "/partitions"),
        ({"verification": "none"}, "/verification"),
        ({"verification": None}, "/verification"),
    ):
        found = problem(await owners.ask("alice", "PATCH", "/v1/receivers/ci", patch), 422, "invalid-receiver")
        assert [error["pointer"] for error in found["errors"]] == [pointer]
    assert (await owners.ask("alice", "PATCH", "/v1/receivers/ci", {"rate_limit": 5})).status == 200


async def test_an_owner_cannot_hold_up_the_shared_lane_for_long(owners: Owners) -> None:
    for field, most, more in (("timeout", "60s", "61s"), ("max_in_flight", 500, 501)):
        found = problem(await owners.create("alice", "greedy", **{field: more}), 422, "invalid-receiver")
        assert [error["pointer"] for error in found["errors"]] == [f"/{field}"]
        assert (await owners.create("alice", f"at-{field.replace('_', '-')}", **{field: most})).status == 201
    await owners.create("admin", "ci", owner="alice", timeout="5m", max_in_flight=900)
    await owners.create("admin", "cd", owner="alice", lane="dedicated")
    for name, patch, status in (
        ("ci", {"rate_limit": 5}, 200),
        ("ci", {"timeout": "6m"}, 422),
        ("ci", {"timeout": "4m"}, 200),
        ("ci", {"timeout": "5m"}, 422),
        ("ci", {"max_in_flight": 901}, 422),
        ("ci", {"timeout": "30s", "max_in_flight": 5}, 200),
        ("cd", {"timeout": "6m", "max_in_flight": 5_000}, 200),
    ):
        assert (await owners.ask("alice", "PATCH", f"/v1/receivers/{name}", patch)).status == status, (name, patch)


async def test_the_next_owner_of_a_receiver_does_not_see_what_the_former_ones_endpoint_did(owners: Owners) -> None:
    await owners.create("admin", "ci", owner="alice")
    response = LastResponse(NOW, 500, {"x-said": "alices"}, "alices", truncated=False)
    last = Tally("r:ci", Counted((1,) * NUMBERS), LastAttempt(NOW, 500, None, 0.5), response)
    await owners.rig.api.state.tally("p", 1, [last])
    assert (await owners.ask("alice", "POST", "/v1/receivers/ci/pause", {"reason": "alices"})).status == 200
    await owners.ask("admin", "PATCH", "/v1/receivers/ci", {"rate_limit": 7})
    assert document(await owners.ask("alice", "GET", "/v1/receivers/ci/last-response"))["body"] == "alices"
    assert (await owners.ask("admin", "PATCH", "/v1/receivers/ci", {"owner": "bob"})).status == 200
    problem(await owners.ask("bob", "GET", "/v1/receivers/ci/last-response"), 404, "not-found")
    assert document(await owners.ask("bob", "GET", "/v1/receivers/ci/stats"))["attempts"] == 0
    shown = document(await owners.ask("bob", "GET", "/v1/receivers/ci"))
    assert (shown["condition"], shown["hold"]) == ("up", None)


async def test_a_request_to_the_former_owners_endpoint_does_not_hold_the_next_ones(owners: Owners) -> None:
    state = owners.rig.api.state
    late = Hold("gone", await state.time() - 1)
    await owners.create("admin", "ci", owner="alice")
    assert not await state.hold("r:ci", late), "the name may have been another's before"
    assert (await owners.ask("admin", "PATCH", "/v1/receivers/ci", {"owner": "bob"})).status == 200
    assert not await state.hold("r:ci", late)


async def test_a_name_is_free_or_not_and_nothing_more_is_told(owners: Owners) -> None:
    await owners.create("alice", "mine")
    await owners.create("admin", "plain")
    await owners.rig.file(filed={"post_endpoint": URL, "signature": "none"})
    for registry in owners.rig.registries:
        await registry.reach(len(owners.rig.api.records(owners.rig.api.topics.receiver_config)))
    await owners.create("bob", "was-bobs")
    await owners.ask("bob", "DELETE", "/v1/receivers/was-bobs")
    api = owners.rig.api
    [at] = await api.log.append([letter(api, "long-gone")])
    await api.state.index_failed([FailedEntry("long-gone", at, NOW, "rejected", "github", "m-1")])
    told = {
        problem(await owners.create("alice", name), 409, "receiver-exists")["detail"]
        for name in ("mine", "plain", "filed", "was-bobs", "long-gone", receiver_name(ORIGIN))
    }
    assert told == {"This name is not free."}
    assert (await owners.create("bob", "was-bobs")).status == 201


async def test_an_owner_has_no_more_receivers_than_so_many() -> None:
    async with owning(most=2) as owners:
        for name in ("a", "b"):
            assert (await owners.create("alice", name)).status == 201
        problem(await owners.create("alice", "c"), 409, "too-many-receivers")
        assert (await owners.create("bob", "c")).status == 201
        assert (await owners.create("admin", "d", owner="alice")).status == 201
        await owners.ask("alice", "DELETE", "/v1/receivers/a")
        problem(await owners.create("alice", "e"), 409, "too-many-receivers")
        await owners.ask("alice", "DELETE", "/v1/receivers/b")
        assert (await owners.create("alice", "e")).status == 201


async def test_a_list_has_their_own_and_a_cursor_tells_no_other_name(owners: Owners) -> None:
    for number in range(6):
        await owners.create(("alice", "bob")[number % 2], f"r-{number}")
    await owners.create("admin", "r-1b", owner="alice", lane="dedicated")
    await owners.create("admin", "r-0a", lane="dedicated")

    async def listed(who: str, query: str = "") -> tuple[list[str], str | None]:
        page = document(await owners.ask(who, "GET", f"/v1/receivers?{query}"))
        return [item["name"] for item in page["items"]], page["cursor"]

    assert await listed("alice") == (["r-0", "r-1b", "r-2", "r-4"], None)
    assert await listed("bob") == (["r-1", "r-3", "r-5"], None)
    assert (await listed("both"))[0] == ["r-0", "r-1", "r-1b", "r-2", "r-3", "r-4", "r-5"]
    assert (await listed("both", "owner=bob"))[0] == ["r-1", "r-3", "r-5"]
    assert len((await listed("admin"))[0]) == 8
    names, cursor = await listed("alice", "limit=2")
    assert names == ["r-0", "r-1b"]
    assert cursor is not None
    assert await listed("alice", f"limit=2&cursor={cursor}") == (["r-2", "r-4"], None)
    for owner in ("bob", "nobody"):
        problem(await owners.ask("alice", "GET", f"/v1/receivers?owner={owner}"), 403, "forbidden")


async def test_a_key_of_receivers_lists_these(owners: Owners) -> None:
    for number in range(4):
        await owners.create(("alice", "bob")[number % 2], f"r-{number}")
    keys = owners.rig.api.keys
    scopes = {"named": ("receiver:r-3", "receiver:r-1", "receiver:r-9"), "mixed": ("receiver:r-1", "owner:alice")}
    owners.keys |= {who: bearer(await keys.make(*some, now=NOW)) for who, some in scopes.items()}

    async def listed(who: str, query: str = "") -> tuple[list[str], str | None]:
        page = document(await owners.ask(who, "GET", f"/v1/receivers?{query}"))
        return [item["name"] for item in page["items"]], page["cursor"]

    assert await listed("named") == (["r-1", "r-3"], None)
    assert await listed("mixed") == (["r-0", "r-1", "r-2"], None)
    assert (await listed("mixed", "owner=alice"))[0] == ["r-0", "r-2"]
    names, cursor = await listed("named", "limit=1")
    assert names == ["r-1"]
    assert await listed("named", f"limit=1&cursor={cursor}") == (["r-3"], None)
    problem(await owners.ask("named", "GET", "/v1/receivers?owner=bob"), 403, "forbidden")


async def test_an_owner_sees_and_mends_what_is_refused_here(owners: Owners) -> None:
    await owners.create("alice", "ci")
    value = {"declared_by": "api", "entry": FIELDS | {"lane": "shared", "owner": "alice", "secret": "${NOBODY_HAS_IT}"}}
    record = NewRecord(owners.rig.api.topics.receiver_config, b"other", json.dumps(value).encode())
    [at] = await owners.rig.api.log.append([record])
    for registry in owners.rig.registries:
        await registry.reach(at.offset + 1)
    shown = document(await owners.ask("alice", "GET", "/v1/receivers/other"))
    assert (shown["condition"], shown["owner"]) == ("refused", "alice")
    assert (await owners.ask("bob", "GET", "/v1/receivers/other")).status == 403
    patch = {"secret": "a-secret-of-their-own"}
    assert (await owners.ask("alice", "PATCH", "/v1/receivers/other", patch)).status == 200
