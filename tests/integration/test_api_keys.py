"""Tests of API keys: their scopes on every route."""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, closing
from dataclasses import replace
from itertools import product
from typing import Any

import pytest
from structlog.testing import capture_logs
from yarl import URL

from relay.api import access
from relay.api.access import Need
from relay.api.authentication import MOST_FAILED, Callers
from relay.api.routes import ROUTES
from relay.api.server import ApiServer
from relay.config.limits import ApiLimits
from relay.domain.dead_letter import DeadLetter, dead_letter_headers
from relay.log.port import NewRecord
from relay.state.port import FailedEntry
from tests.integration.api_rig import NOW, Reply, Rig, document, problem, running_api

SETTING = "the key of the setting"
ADMIN = {"Authorization": f"Bearer {SETTING}"}
SCOPES = (
    *("ingest:github", "ingest:other", "read:github", "read:other", "receiver:ci", "receiver:cd"),
    *("owner:alice", "owner:bob", "metrics", "admin"),
)
OWNERS = ("owner:alice", "owner:bob")
OPEN = frozenset({"-", *SCOPES})
JSON = {"Content-Type": "application/json"}
JSON_ = {"Content_Type": "application/json"}
PATHS: Mapping[str, str] = {
    "source_id": "github",
    "message_id": "m-1",
    "name": "ci",
    "receiver": "ci",
    "token": "t",
    "partition": "0",
    "offset": "0",
    "id": "nobody",
    "type": "push",
}
TAKERS: Mapping[Need, frozenset[str]] = {
    access.OPEN: OPEN,
    access.MONITOR: frozenset({"metrics"}),
    access.INGEST: frozenset({"ingest:github"}),
    access.READ: frozenset({"read:github"}),
    # no such message exists; only callers that may read its source get a 404
    access.MESSAGE: frozenset({"read:github"}),
    access.LETTERS: frozenset({"read:github", "read:other", "receiver:ci", "receiver:cd", *OWNERS}),
    access.RECEIVER: frozenset({"receiver:ci", "owner:alice"}),
    access.DELIVERY: frozenset({"receiver:ci", "owner:alice"}),
    access.CANCELLER: frozenset({"ingest:github", "receiver:ci", "owner:alice"}),
    # about all receivers, as no body says otherwise, and about a letter and a job that there are not
    access.OWN: frozenset(),
    access.OWNED: frozenset({"owner:alice"}),
    access.OWNERS: frozenset(OWNERS),
    access.CALLER: frozenset(SCOPES),
    access.ADMIN: frozenset(),
}
"""What a route declares -> the scopes that it takes beside `admin`; `-`: no key at all."""
WITHOUT_KEY: Mapping[str, frozenset[str]] = {
    "GET": frozenset(
        {"/", "/docs", "/openapi.json", "/asyncapi.json", "/problems", "/problems/{name}"}
        | {"/livez", "/readyz", "/version", "/.well-known/jwks.json", "/v1/payloads/{token}"}
    ),
    "POST": frozenset({"/v1/answers/{token}", "/v1/in/{source_id}", "/v1/sessions"}),
    "OPTIONS": frozenset({"/v1/in/{source_id}"}),
}
"""Paths by method. Under /v1, each is guarded by a signature, a token, or the key in its body."""
OTHERWISE: Mapping[tuple[str, str], frozenset[str]] = {
    ("GET", "/v1/failed/{partition}/{offset}"): frozenset(),  # no such letter: only callers that see all get a 404
    ("GET", "/v1/replays"): frozenset({"receiver:ci", "receiver:cd", *OWNERS}),
    ("GET", "/v1/receivers"): frozenset({"receiver:ci", "receiver:cd", *OWNERS}),
    ("POST", "/v1/sources/{source_id}/messages/{message_id}/copies"): frozenset(),  # needs read:<source>, too
    ("POST", "/v1/sessions"): frozenset(SCOPES),  # its proof is the key itself
}


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    async with running_api(api_key=SETTING) as running:
        yield running


def bearer(text: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {text}"}


def filled(path: str) -> str:
    return re.sub(r"{(\w+)}", lambda found: PATHS[found[1]], path)


async def create(rig: Rig, **wanted: Any) -> Reply:
    return await rig.request("POST", "/v1/keys", json.dumps(wanted).encode(), JSON | ADMIN)


# --- the matrix -----------------------------------------------------------------------------------------------------


def test_every_route_says_what_it_takes() -> None:
    assert {route.scope for route in ROUTES.values()} == set(TAKERS)


def test_no_other_route_is_open() -> None:
    """The next test would not notice, as it takes what a route declares."""
    found = {(method, path) for (method, path), route in ROUTES.items() if route.scope is access.OPEN}
    assert found == {(method, path) for method, paths in WITHOUT_KEY.items() for path in paths}


@pytest.mark.parametrize("scope", ["-", *SCOPES])
async def test_a_key_gets_what_its_scope_says_and_nothing_else(scope: str) -> None:
    async with running_api(api_key=SETTING, limits=ApiLimits(listen_s=0.01)) as rig:
        rig.directory.receivers["ci"] = replace(rig.directory.receivers["ci"], owner="alice")
        text = await rig.keys.make("metrics" if scope == "-" else scope, now=NOW)
        headers = {} if scope == "-" else bearer(text)
        for (method, path), route in ROUTES.items():
            takers = OTHERWISE.get((method, path), TAKERS[route.scope])
            reply = await rig.request(method, filled(path), b"", headers)
            expected = scope in takers or scope == "admin"
            assert (reply.status not in (401, 403) or "/v1/in/" in path) == expected, (method, path, reply)
            if not expected and scope == "-":
                problem(reply, 401, "unauthorized")
            elif not expected:
                problem(reply, 403, "forbidden")


async def test_nothing_tells_whether_there_is_what_a_key_may_not_see(rig: Rig) -> None:
    headers = bearer(await rig.keys.make("receiver:cd", "ingest:github", "owner:alice", now=NOW))
    reader = bearer(await rig.keys.make("receiver:cd", "read:other", now=NOW))
    sent = await rig.request("POST", "/v1/sources/github/messages?receiver=ci", b"{}", ADMIN | {"ce-id": "m-1"})
    assert sent.status == 202
    [at] = await rig.log.append([letter(rig, "ci")])
    pairs = [
        ("/v1/receivers/ci", "/v1/receivers/nobody"),
        ("/v1/sources/github/messages/m-1", "/v1/sources/github/messages/m-2"),
        ("/v1/failed?receiver=ci", "/v1/failed?receiver=nobody"),
        (f"/v1/failed/{at.partition}/{at.offset}", f"/v1/failed/{at.partition}/{at.offset + 1}"),
    ]
    for there, not_there in pairs:
        replies = [await rig.request("GET", target, b"", headers) for target in (there, not_there)]
        told = [problem(reply, 403, "forbidden") for reply in replies]
        assert told[0] | {"instance": ""} == told[1] | {"instance": ""}
        replies = [await rig.request("GET", target, b"", reader) for target in (there, not_there)]
        assert replies[0].status == replies[1].status
        assert replies[0].body.replace(there.encode(), not_there.encode()) == replies[1].body
    # unknown routes are no secret, and wrong requests get the same problems as before
    problem(await rig.request("GET", "/v1/nothing", b"", headers), 404, "not-found")
    problem(await rig.request("PUT", "/v1/keys", b"", headers), 405, "method-not-allowed")
    problem(await rig.request("GET", "/v1/nothing"), 401, "unauthorized")


async def test_a_path_spelled_otherwise_is_the_same_to_keys(rig: Rig) -> None:
    headers = bearer(await rig.keys.make("ingest:git%2Fhub", now=NOW))
    assert (await rig.request("POST", "/v1/sources/git%2Fhub/messages?receiver=ci", b"1", headers)).status == 403
    assert (await rig.request("POST", "/v1/sources/git%252Fhub/messages?receiver=ci", b"1", headers)).status == 202
    headers = bearer(await rig.keys.make("ingest:git/hub", now=NOW))
    assert (await rig.request("POST", "/v1/sources/git%2Fhub/messages?receiver=ci", b"1", headers)).status == 202
    assert (await rig.request("POST", "/v1/sources/git%252Fhub/messages?receiver=ci", b"1", headers)).status == 403


# --- dead letters ---------------------------------------------------------------------------------------------------


def letter(rig: Rig, receiver: str, source: str = "github") -> NewRecord:
    dead = DeadLetter("rejected", "no", rig.topics.to_receiver(receiver), None, 1, int(NOW * 1000), 400)
    headers = dead_letter_headers(
        (*LETTER_HEADERS, ("ce_source", source.encode()), ("relay-receiver", receiver.encode())), dead
    )
    return NewRecord(rig.topics.failed_messages, source.encode(), b"{}", headers)


LETTER_HEADERS = (("ce_specversion", b"1.0"), ("ce_id", b"m-1"))


async def test_who_reads_a_source_sees_its_dead_letters_whichever_receiver_they_were_for(rig: Rig) -> None:
    letters = [letter(rig, "ci"), letter(rig, "ci", "other"), letter(rig, "cd"), letter(rig, "cd", "gitea")]
    places = await rig.log.append(letters)
    await rig.state.index_failed(
        [
            FailedEntry(name, at, NOW - n, "rejected", source, "m-1")
            for n, (name, source, at) in enumerate(
                zip(("ci", "ci", "cd", "cd"), ("github", "other", "github", "github"), places, strict=True)
            )  # of the last one the index is wrong
        ]
    )
    headers = bearer(await rig.keys.make("read:git*", "read:nothing", now=NOW))
    for query, expected in (("", ["ci", "cd", "cd"]), ("?receiver=ci", ["ci"]), ("?receiver=nobody", [])):
        listed = document(await rig.request("GET", f"/v1/failed{query}", b"", headers))["items"]
        assert [each["receiver"] for each in listed] == expected
    exact = bearer(await rig.keys.make("read:github", now=NOW))
    listed = document(await rig.request("GET", "/v1/failed", b"", exact))["items"]
    assert [(each["receiver"], each["source_id"]) for each in listed] == [("ci", "github"), ("cd", "github")]
    for at, status in zip(places, (200, 403, 200, 403), strict=True):
        target = f"/v1/failed/{at.partition}/{at.offset}"
        assert (await rig.request("GET", target, b"", exact)).status == status
        problem(await rig.request("POST", f"{target}/replay", b"", exact), 403, "forbidden")


@pytest.mark.parametrize("scope", ["receiver:cd", "owner:alice"])
async def test_who_has_a_receiver_sees_its_dead_letters_alone(rig: Rig, scope: str) -> None:
    rig.directory.receivers["cd"] = replace(rig.directory.receivers["cd"], owner="alice")
    places = await rig.log.append([letter(rig, "ci"), letter(rig, "cd")])
    await rig.state.index_failed(
        [FailedEntry(name, at, NOW, "rejected", "github", "m-1") for name, at in zip(("ci", "cd"), places, strict=True)]
    )
    own, other = (f"/v1/failed/{at.partition}/{at.offset}" for at in reversed(places))
    headers = bearer(await rig.keys.make(scope, now=NOW))
    for query in ("", "?receiver=cd"):
        listed = document(await rig.request("GET", f"/v1/failed{query}", b"", headers))["items"]
        assert [each["receiver"] for each in listed] == ["cd"]
    problem(await rig.request("GET", "/v1/failed?receiver=cd&receiver=ci", b"", headers), 403, "forbidden")
    assert document(await rig.request("GET", own, b"", headers))["receiver"] == "cd"
    problem(await rig.request("GET", other, b"", headers), 403, "forbidden")
    assert len(document(await rig.request("GET", "/v1/failed", b"", ADMIN))["items"]) == 2


# --- replays --------------------------------------------------------------------------------------------------------


async def test_a_receivers_key_replays_its_own_and_nothing_else(rig: Rig) -> None:
    own, other = [bearer(await rig.keys.make(f"receiver:{name}", now=NOW)) for name in ("cd", "ci")]

    async def replay(headers: dict[str, str], **body: Any) -> Reply:
        return await rig.request("POST", "/v1/replays", json.dumps(body).encode(), JSON | headers)

    for receiver in (None, "ci", ["cd", "ci"]):
        problem(await replay(own, receiver=receiver), 403, "forbidden")
    job = document(await replay(own, receiver="cd"))
    assert (await replay(ADMIN)).status == 202
    target = f"/v1/replays/{job['id']}"
    for headers, status in ((own, 200), (ADMIN, 200), (other, 403)):
        assert (await rig.request("GET", target, b"", headers)).status == status
    jobs = [document(await rig.request("GET", "/v1/replays", b"", each))["items"] for each in (own, other, ADMIN)]
    assert [sorted(each["id"] == job["id"] for each in found) for found in jobs] == [[True], [], [False, True]]
    problem(await rig.request("POST", f"{target}/stop", b"", other), 403, "forbidden")
    assert document(await rig.request("GET", target, b"", own)) == job
    assert (await rig.request("POST", f"{target}/stop", b"", own)).status == 202
    one = "/v1/sources/github/messages/m-1/deliveries/{}/replay"
    for name, status in (("ci", 403), ("nobody", 403), ("cd", 404)):
        assert (await rig.request("POST", one.format(name), b"", own)).status == status


# --- with a key and without -----------------------------------------------------------------------------------------


async def test_as_long_as_no_key_was_made_everybody_may_call_and_then_never_again() -> None:
    async with running_api() as rig:
        assert (await rig.get("/v1/keys")).status == 200
        made = document(await rig.post("/v1/keys", b'{"scopes": ["admin"], "name": "first"}', **JSON_))
        assert (made["created_by"], made["status"], made["expires_at"]) == ("anybody", "active", None)
        problem(await rig.get("/v1/keys"), 401, "unauthorized")
        problem(await rig.get("/metrics"), 401, "unauthorized")
        headers = bearer(made["key"])
        assert document(await rig.request("GET", "/v1/keys", b"", headers))["items"][0]["id"] == made["id"]
        assert (await rig.request("DELETE", f"/v1/keys/{made['id']}", b"", headers)).status == 200
        problem(await rig.request("GET", "/v1/keys", b"", headers), 401, "unauthorized")
        problem(await rig.get("/v1/keys"), 401, "unauthorized")


async def test_the_first_key_has_to_be_an_administrators() -> None:
    async with running_api() as rig:
        refused = problem(await rig.post("/v1/keys", b'{"scopes": ["read:*"]}', **JSON_), 400, "invalid-request")
        assert refused["errors"][0]["pointer"] == "/scopes"
        assert (await rig.get("/v1/keys")).status == 200
    async with running_api(api_key=SETTING) as rig:
        assert (await create(rig, scopes=["read:*"])).status == 201


async def test_what_others_can_reach_is_never_open_without_a_key() -> None:
    async with running_api(may_be_open=False) as rig:
        problem(await rig.get("/v1/failed"), 401, "unauthorized")
        text = await rig.keys.make("admin", now=NOW)
        assert (await rig.request("GET", "/v1/failed", b"", bearer(text))).status == 200


async def test_the_setting_stays_an_administrators_key_beside_those_that_were_made() -> None:
    async with running_api(api_key=SETTING, own_key="of the process") as rig:
        problem(await rig.get("/metrics"), 401, "unauthorized")
        assert (await rig.request("GET", "/metrics", b"", ADMIN)).status == 200
        made = document(await create(rig, scopes=["metrics"]))
        assert made["created_by"] == "RELAY_API_KEY"
        for headers in (ADMIN, bearer("of the process")):
            assert (await rig.request("GET", "/v1/keys", b"", headers)).status == 200
        problem(await rig.get("/metrics"), 401, "unauthorized")
        assert (await rig.request("GET", "/metrics", b"", bearer(made["key"]))).status == 200


async def test_metrics_take_a_key_as_soon_as_there_is_one_and_may_have_one_that_does_no_more() -> None:
    async with running_api() as rig:
        assert (await rig.get("/metrics")).status == 200
    async with running_api(metrics_key="of the scraper") as rig:
        problem(await rig.get("/metrics"), 401, "unauthorized")
    async with running_api(api_key=SETTING, metrics_key="of the scraper") as rig:
        problem(await rig.get("/metrics"), 401, "unauthorized")
        assert (await rig.request("GET", "/metrics", b"", bearer("of the scraper"))).status == 200
        problem(await rig.request("GET", "/v1/failed", b"", bearer("of the scraper")), 403, "forbidden")
        assert [(await rig.get(path)).status for path in ("/livez", "/readyz")] == [200, 200]


async def test_nothing_is_served_before_it_is_known_which_keys_there_are() -> None:
    async with running_api() as rig:
        text = await rig.keys.make("admin", now=NOW)
        rig.keys.keys.known = False
        rig.keys.keys.closed = False
        problem(await rig.get("/v1/failed"), 503, "unavailable")
        problem(await rig.get("/v1/failed", Authorization="Bearer rk_other_key"), 503, "unavailable")
        assert (await rig.get("/v1/failed", Authorization=f"Bearer {text}")).status == 200
        assert (await rig.get("/livez")).status == 200


# --- invalid keys ---------------------------------------------------------------------------------------------------


async def test_wrong_expired_and_revoked_keys_are_refused(rig: Rig) -> None:
    text = await rig.keys.make("admin", now=NOW, expires_at=NOW + 60)
    assert (await rig.get("/v1/keys", Authorization=f"bearer  {text}")).status == 200
    for wrong in (text[:-1], f"{text}a", text.upper(), text.replace("rk_", "rk_x"), "", "rk__"):
        problem(await rig.get("/v1/keys", Authorization=f"Bearer {wrong}"), 401, "unauthorized")
    problem(await rig.get("/v1/keys", Authorization=f"Basic {text}"), 401, "unauthorized")
    rig.clock.now += 60
    expired = problem(await rig.get("/v1/keys", Authorization=f"Bearer {text}"), 401, "unauthorized")
    assert expired["detail"] == "This key has expired."
    [item] = document(await rig.request("GET", "/v1/keys", b"", ADMIN))["items"]
    assert item["status"] == "expired"
    problem(await rig.request("POST", f"/v1/keys/{item['id']}/rotate", b"", ADMIN), 409, "key-expired")


@asynccontextmanager
async def slow_body(rig: Rig, path: str, key: str, body: bytes) -> AsyncIterator[asyncio.Future[int]]:
    """A POST whose body is sent at the end of the block; then the status of its response is known."""
    head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {key}\r\n"
    head += f"content-type: application/json\r\ncontent-length: {len(body)}\r\nexpect: 100-continue\r\n\r\n"
    reader, writer = await asyncio.open_connection("127.0.0.1", URL(rig.url).port)
    status = asyncio.get_running_loop().create_future()
    with closing(writer):
        writer.write(head.encode())
        assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        yield status
        writer.write(body)
        status.set_result(int((await reader.readline()).split()[1]))


@pytest.mark.parametrize("path", ["/v1/keys", "/v1/sources/github/messages?receiver=ci"])
async def test_a_key_that_is_revoked_before_the_whole_body_came_changes_nothing(rig: Rig, path: str) -> None:
    text = await rig.keys.make("admin", now=NOW)
    async with slow_body(rig, path, text, b'{"scopes": ["admin"], "name": "stays"}') as status:
        await rig.keys.revoke(rig.keys.keys.all()[0])
    assert status.result() == 401
    assert rig.keys.keys.all() == []
    assert rig.records(rig.topics.from_sender) == []


async def test_a_receiver_that_another_owner_gets_before_the_whole_body_came_is_not_changed(rig: Rig) -> None:
    ci = rig.directory.receivers["ci"]
    rig.directory.receivers["ci"] = replace(ci, owner="alice")
    text = await rig.keys.make("owner:alice", now=NOW)
    async with slow_body(rig, "/v1/receivers/ci/pause", text, b'{"reason": "mine"}') as status:
        rig.directory.receivers["ci"] = replace(ci, owner="bob")
    assert status.result() == 403


async def test_guesses_are_limited_and_a_right_key_still_passes(rig: Rig) -> None:
    text = await rig.keys.make("admin", now=NOW)
    guess = bearer(text[:-4] + "aaaa")
    for _ in range(MOST_FAILED):
        problem(await rig.request("GET", "/v1/keys", b"", guess), 401, "unauthorized")
    problem(await rig.request("GET", "/v1/keys", b"", guess), 429, "too-many-requests")
    assert (await rig.request("GET", "/v1/keys", b"", bearer(text))).status == 200


async def test_a_new_secret_takes_the_place_of_the_old_one_when_its_overlap_is_over(rig: Rig) -> None:
    made = document(await create(rig, scopes=["metrics"], name="prometheus"))
    target = f"/v1/keys/{made['id']}/rotate"
    rotated = document(await rig.request("POST", target, b'{"overlap": "1m"}', JSON | ADMIN))
    assert (rotated["id"], rotated["key"] != made["key"]) == (made["id"], True)
    assert rotated["old_secret_until"] == "2023-11-14T22:14:20.000Z"
    keys = [bearer(made["key"]), bearer(rotated["key"])]
    assert [(await rig.request("GET", "/metrics", b"", each)).status for each in keys] == [200, 200]
    rig.clock.now += 60
    assert [(await rig.request("GET", "/metrics", b"", each)).status for each in keys] == [401, 200]
    assert document(await rig.request("POST", target, b"", ADMIN))["old_secret_until"] is not None


# --- when a key was used last ---------------------------------------------------------------------------------------


async def test_a_list_says_when_each_key_was_used_last(rig: Rig) -> None:
    used, unused = [await rig.keys.make("metrics", now=NOW) for _ in range(2)]
    for _ in range(2):
        assert (await rig.request("GET", "/metrics", b"", bearer(used))).status == 200
    assert (await rig.request("GET", "/v1/keys", b"", bearer(used))).status == 403  # it was used all the same
    assert (await rig.request("GET", "/metrics", b"", bearer(unused + "x"))).status == 401
    await rig.server.stop()  # it stores the latest uses, as it does every second
    server = ApiServer(rig.context)
    url = f"http://127.0.0.1:{await server.start('127.0.0.1', 0)}"
    async with rig.client.get(f"{url}/v1/keys", headers=ADMIN) as response:
        found = {item["id"]: item["last_used_at"] for item in (await response.json())["items"]}
    rig.state.away.add("keys_used")
    async with rig.client.get(f"{url}/v1/keys", headers=ADMIN) as response:
        assert [item["last_used_at"] for item in (await response.json())["items"]] == [None, None]
    await server.stop()
    assert found == {used.split("_")[1]: "2023-11-14T22:13:20.000Z", unused.split("_")[1]: None}
    assert rig.state.asked.count("use_keys") == 1


# --- bad input, lists, canary ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        (b"", ""),
        (b"[]", ""),
        (b"{}", ""),
        (b"\xff", None),
        (b'{"scopes": "admin"}', "/scopes"),
        (b'{"scopes": ["admin"], "scope": 1}', "/scope"),
        (b"[" * 60_000, ""),
        (b'{"scopes": []}', "/scopes"),
        (b'{"scopes": ["admin", "fly"]}', "/scopes/1"),
        (b'{"scopes": ["admin"], "expires_in": "soon"}', "/expires_in"),
        (b'{"scopes": ["admin"], "expires_in": -1}', "/expires_in"),
        (b'{"scopes": ["admin"], "expires_in": 0}', "/expires_in"),
        (b'{"scopes": ["admin"], "expires_in": 1e300}', "/expires_in"),
        (b'{"scopes": ["admin"], "name": "' + b"n" * 201 + b'"}', "/name"),
    ],
)
async def test_what_is_no_order_for_a_key_makes_none(rig: Rig, body: bytes, pointer: str | None) -> None:
    refused = problem(await rig.request("POST", "/v1/keys", body, JSON | ADMIN), 400, "invalid-request")
    assert [error.get("pointer") for error in refused["errors"]] == ([] if pointer is None else [pointer])
    assert rig.records(rig.topics.receiver_config) == []


async def test_what_there_is_not_is_not_found_by_administrators(rig: Rig) -> None:
    for method, target in (("DELETE", "/v1/keys/none"), ("POST", "/v1/keys/none/rotate")):
        problem(await rig.request(method, target, b"", ADMIN), 404, "not-found")
    for query in ("cursor=x", "limit=0", "limit=1001", "page=2"):
        problem(await rig.request("GET", f"/v1/keys?{query}", b"", ADMIN), 400, "invalid-request")


async def test_a_list_goes_on_where_it_was_whatever_comes_and_goes(rig: Rig) -> None:
    made = []
    for _ in range(5):
        rig.clock.now += 1
        made.append(document(await create(rig, scopes=["metrics"]))["id"])
    page = document(await rig.request("GET", "/v1/keys?limit=2", b"", ADMIN))
    assert [item["id"] for item in page["items"]] == [made[4], made[3]]
    await rig.request("DELETE", f"/v1/keys/{made[3]}", b"", ADMIN)
    await create(rig, scopes=["metrics"])
    rest = document(await rig.request("GET", f"/v1/keys?cursor={page['cursor']}", b"", ADMIN))
    assert ([item["id"] for item in rest["items"]], rest["cursor"]) == ([made[2], made[1], made[0]], None)


async def test_a_secret_is_told_once_and_kept_nowhere(rig: Rig) -> None:
    with capture_logs() as logged:
        made = document(await create(rig, scopes=["admin"], name="n\x1b"))
        rotated = document(await rig.request("POST", f"/v1/keys/{made['id']}/rotate", b"", ADMIN))
        texts = [made["key"], rotated["key"]]
        told = [await rig.request("GET", "/v1/keys", b"", bearer(text)) for text in texts]
        told.append(await rig.request("GET", "/v1/nothing", b"", bearer(texts[0])))
        told.append(await rig.request("GET", "/v1/keys", b"", bearer(texts[0] + "x")))
        told.append(await rig.request("DELETE", f"/v1/keys/{made['id']}", b"", ADMIN))
    records = rig.records(rig.topics.receiver_config)
    assert len(records) >= 4
    seen = [repr(records), repr(logged), *(repr(reply) for reply in told), repr(rig.context)]
    for text in (*texts, *(text.split("_")[2] for text in texts)):
        assert not any(text in each for each in seen)
    digests = [json.loads(each.value)["digest"] for each in records if each.value and b"digest" in each.value]
    assert len(digests) == 2
    assert not any(digest in each for digest in digests for each in seen[1:])
    assert [each["what"] for each in logged if each["event"] == "audit"] == [
        *("key.created", "key.rotated", "key.revoked")
    ]
    assert "\x1b" not in repr(seen)


async def metrics_take_a_key_where_there_is_one() -> None:
    for api_key, metrics_key, made in product((None, SETTING), (None, "of the scraper"), (False, True)):
        async with running_api(api_key=api_key, metrics_key=metrics_key) as rig:
            if made:
                await rig.keys.make("metrics", now=NOW)
            status = (await rig.get("/metrics")).status
        assert status == (401 if api_key or metrics_key or made else 200), "open although there is a key"


async def test_metrics_take_a_key_whichever_kind_there_is() -> None:
    await metrics_take_a_key_where_there_is_one()


@pytest.mark.parametrize(
    "planted",
    [
        lambda callers: False,
        lambda callers: callers.is_closed,
        lambda callers: bool({"api", "metrics"} & callers._given.keys()),
        lambda callers: callers.is_closed or "metrics" in callers._given,
    ],
)
async def test_metrics_that_are_open_although_there_is_a_key_are_found(
    monkeypatch: pytest.MonkeyPatch, planted: Callable[[Callers], bool]
) -> None:
    monkeypatch.setattr(Callers, "guards_metrics", property(planted))
    with pytest.raises(AssertionError, match="although there is a key"):
        await metrics_take_a_key_where_there_is_one()
