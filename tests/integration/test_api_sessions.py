"""Tests of sessions and portal links: their rights, their end, and that they show nothing of other owners."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from relay.api.authentication import MOST_FAILED
from relay.api.routes import ROUTES
from relay.control.records import EntryRecord
from relay.log.port import NewRecord
from relay.state.port import FailedEntry
from tests.integration.api_rig import NOW, Reply, Rig, document, problem, running_api
from tests.integration.api_world import responded
from tests.integration.test_api_keys import ADMIN, JSON, JSON_, SETTING, bearer, letter
from tests.integration.test_api_keys import rig as rig
from tests.integration.test_cli_mistakes import called

HOUR = 3_600.0
TAIL = "/v1/tail"


async def session(rig: Rig, by: str | None = None, **wanted: Any) -> Reply:
    headers = JSON if by is None else JSON | bearer(by)
    return await rig.request("POST", "/v1/sessions", json.dumps(wanted).encode(), headers)


async def token(rig: Rig, by: str | None = None, **wanted: Any) -> str:
    reply = await session(rig, by, **wanted)
    assert reply.status == 201, reply
    return str(document(reply)["token"])


async def link(rig: Rig, key: str, **wanted: Any) -> Reply:
    return await rig.request("POST", "/v1/portal-links", json.dumps(wanted).encode(), JSON | bearer(key))


async def portal(rig: Rig, key: str, **wanted: Any) -> str:
    reply = await link(rig, key, **wanted)
    assert reply.status == 201, reply
    return str(parse_qs(urlsplit(document(reply)["url"]).query)["token"][0])


async def session_of(rig: Rig, text: str) -> Any:
    return document(await rig.request("GET", "/v1/session", headers=bearer(text)))


# --- sessions -------------------------------------------------------------------------------------------------------


async def test_a_session_may_what_its_key_may(rig: Rig) -> None:
    key = await rig.keys.make("receiver:ci", "read:github", now=NOW)
    for text in (await token(rig, key), await token(rig, key=key), await token(rig, None, key=f" {key} ")):
        assert text.startswith("rs_")
        assert (await rig.request("GET", "/v1/receivers/ci", headers=bearer(text))).status == 200
        problem(await rig.request("GET", "/v1/keys", headers=bearer(text)), 403, "forbidden")
        found = await session_of(rig, text)
        assert (found["proof"], found["key"]) == ("session", key.split("_")[1])
        assert found["scopes"] == ["read:github", "receiver:ci"]
        assert found["expires_at"] == "2023-11-15T10:13:20.000Z"  # 12 hours
    found = await session_of(rig, key)
    assert (found["who"], found["proof"], found["expires_at"]) == (f"key:{key.split('_')[1]}", "key", None)
    assert (await rig.request("GET", "/v1/keys", headers=bearer(await token(rig, SETTING)))).status == 200


async def test_the_audit_tells_a_session_from_its_key(rig: Rig) -> None:
    key = await rig.keys.make("admin", now=NOW)
    text = await token(rig, key)
    assert (await rig.request("POST", "/v1/receivers/ci/pause", headers=bearer(text))).status == 200
    paused, made = document(await rig.request("GET", "/v1/audit", headers=ADMIN))["items"]
    assert (paused["what"], paused["who"]) == ("receiver.paused", f"session of key:{key.split('_')[1]}")
    assert (made["what"], made["who"]) == ("session.created", f"key:{key.split('_')[1]}")
    assert made["whom"].startswith("session:")
    told = repr((paused, made, rig.records(rig.topics.audit)))
    assert text[:20] not in told
    assert key.split("_")[2] not in told


async def test_a_session_ends_with_its_time(rig: Rig) -> None:
    text = await token(rig, SETTING, expires_in="1h")
    rig.clock.now += HOUR - 1
    assert (await session_of(rig, text))["proof"] == "session"
    rig.clock.now += 1
    refused = problem(await rig.request("GET", "/v1/session", headers=bearer(text)), 401, "unauthorized")
    assert "time is over" in refused["detail"]


async def test_a_session_ends_at_once_with_its_key(rig: Rig) -> None:
    key = await rig.keys.make("admin", now=NOW)
    text, of_link = await token(rig, key), await portal(rig, key, owner="alice")
    assert (await rig.request("DELETE", f"/v1/keys/{key.split('_')[1]}", headers=ADMIN)).status == 200
    for each in (text, of_link):
        refused = problem(await rig.request("GET", "/v1/session", headers=bearer(each)), 401, "unauthorized")
        assert "key that it was made with is good no more" in refused["detail"]


async def test_a_session_ends_with_the_secret_that_made_it(rig: Rig) -> None:
    key = await rig.keys.make("admin", now=NOW)
    text = await token(rig, key)
    target = f"/v1/keys/{key.split('_')[1]}/rotate"
    rotated = document(await rig.request("POST", target, b'{"overlap": "1m"}', JSON | ADMIN))
    of_new = await token(rig, rotated["key"])
    assert [(await session_of(rig, each))["proof"] for each in (text, of_new)] == ["session", "session"]
    rig.clock.now += 60
    problem(await rig.request("GET", "/v1/session", headers=bearer(text)), 401, "unauthorized")
    assert (await session_of(rig, of_new))["proof"] == "session"


async def test_a_session_is_good_no_longer_than_its_key(rig: Rig) -> None:
    key = await rig.keys.make("admin", now=NOW, expires_at=NOW + 60)
    assert (await session_of(rig, await token(rig, key)))["expires_at"] == "2023-11-14T22:14:20.000Z"
    text = await portal(rig, key, owner="alice", hours=100)
    assert (await session_of(rig, text))["expires_at"] == "2023-11-14T22:14:20.000Z"


async def test_a_session_ends_where_the_key_of_the_settings_is_another() -> None:
    secrets = (b"s" * 32,)
    async with running_api(api_key=SETTING, session_secrets=secrets) as rig:
        text = await token(rig, SETTING)
        assert (await session_of(rig, text))["proof"] == "session"
    async with running_api(api_key=SETTING, session_secrets=(b"new" * 10, *secrets)) as rig:
        assert (await session_of(rig, text))["proof"] == "session"
    async with running_api(api_key="another key of the setting", session_secrets=secrets) as rig:
        problem(await rig.request("GET", "/v1/session", headers=bearer(text)), 401, "unauthorized")
    async with running_api(api_key=SETTING) as rig:
        problem(await rig.request("GET", "/v1/session", headers=bearer(text)), 401, "unauthorized")


async def test_who_logs_out_is_out(rig: Rig) -> None:
    text, other = await token(rig, SETTING), await token(rig, SETTING)
    ended = document(await rig.request("DELETE", "/v1/session", headers=bearer(text)))
    assert ended["ended"] is True
    refused = problem(await rig.request("GET", "/v1/session", headers=bearer(text)), 401, "unauthorized")
    assert "it was ended" in refused["detail"]
    assert (await session_of(rig, other))["proof"] == "session"
    [line, *_] = document(await rig.request("GET", "/v1/audit", headers=ADMIN))["items"]
    assert (line["what"], line["who"]) == ("session.ended", f"session of {'RELAY_API_KEY'}")
    # what others have, too, does not end with it
    for each in (SETTING, await portal(rig, SETTING, owner="alice")):
        assert document(await rig.request("DELETE", "/v1/session", headers=bearer(each)))["ended"] is False
        assert (await rig.request("GET", "/v1/session", headers=bearer(each))).status == 200


async def test_whoever_ends_sessions_without_end_keeps_nobody_else_from_logging_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("relay.control.keys.MOST_ENDED_OF_ONE", 2)
    async with running_api(api_key=SETTING) as rig:
        key = await rig.keys.make("read:github", now=NOW)
        for _ in range(2):
            assert (await rig.request("DELETE", "/v1/session", headers=bearer(await token(rig, key)))).status == 200
        refused = await rig.request("DELETE", "/v1/session", headers=bearer(await token(rig, key)))
        problem(refused, 429, "too-many-requests")
        assert refused.headers["Retry-After"] == str(12 * 3_600)
        other = await rig.request("DELETE", "/v1/session", headers=bearer(await token(rig, SETTING)))
        assert document(other)["ended"] is True


async def test_while_there_is_no_key_sessions_need_none_and_end_with_the_first_one() -> None:
    async with running_api() as rig:
        text, of_link = (
            await token(rig),
            parse_qs(
                urlsplit(document(await rig.post("/v1/portal-links", b'{"owner": "alice"}', **JSON_))["url"]).query
            )["token"][0],
        )
        assert (await session_of(rig, text))["scopes"] == ["admin"]
        assert (await session_of(rig, of_link))["scopes"] == ["owner:alice"]
        problem(await rig.request("GET", "/v1/keys", headers=bearer(of_link)), 403, "forbidden")
        # a token that is none is no better than a wrong key, also where no key is asked for
        for wrong in (text[:-1] + "AA", of_link[:-1] + "AA", "rs_", "rp_x"):
            problem(await rig.request("GET", "/v1/receivers/ci", headers=bearer(wrong)), 401, "unauthorized")
        await rig.keys.make("admin", now=NOW)
        for each in (text, of_link):
            problem(await rig.request("GET", "/v1/session", headers=bearer(each)), 401, "unauthorized")
        problem(await session(rig), 401, "unauthorized")


async def test_a_session_makes_no_session(rig: Rig) -> None:
    text = await token(rig, SETTING)
    problem(await session(rig, text), 403, "forbidden")
    problem(await session(rig, None, key=text), 403, "forbidden")


async def test_guesses_are_limited_as_those_of_keys(rig: Rig) -> None:
    key = await rig.keys.make("admin", now=NOW)
    problem(await session(rig), 401, "unauthorized")  # that was none
    for n in range(MOST_FAILED):
        problem(await session(rig, None, key=f"{key[:-4]}{n:04}"), 401, "unauthorized")
    problem(await session(rig, None, key="wrong"), 429, "too-many-requests")
    problem(await session(rig, "rs_wrong"), 429, "too-many-requests")
    assert (await session(rig, None, key=key)).status == 201


async def test_nothing_is_served_to_a_session_before_it_is_known_which_keys_there_are(rig: Rig) -> None:
    text = await token(rig, SETTING)
    rig.keys.keys.known = False
    problem(await rig.request("GET", "/v1/session", headers=bearer(text)), 503, "unavailable")


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        (b"[]", ""),
        (b'{"expires_in": 0}', "/expires_in"),
        (b'{"expires_in": "8d"}', "/expires_in"),
        (b'{"expires_in": "soon"}', "/expires_in"),
        (b'{"key": 1}', "/key"),
        (b'{"scopes": ["admin"]}', "/scopes"),
    ],
)
async def test_what_is_no_order_for_a_session_makes_none(rig: Rig, body: bytes, pointer: str) -> None:
    refused = problem(await rig.request("POST", "/v1/sessions", body, JSON | ADMIN), 400, "invalid-request")
    assert [error.get("pointer") for error in refused["errors"]] == [pointer]


# --- the portal -----------------------------------------------------------------------------------------------------


async def test_a_link_names_whom_it_is_for_and_ends() -> None:
    async with running_api(api_key=SETTING, public_url="https://relay.example") as rig:
        made = document(await link(rig, SETTING, owner="alice", hours=0.5))
        assert made["url"].startswith("https://relay.example/ui/portal?token=rp_")
        assert (made["owner"], made["receivers"], made["expires_at"]) == ("alice", None, "2023-11-14T22:43:20.000Z")
        text = parse_qs(urlsplit(made["url"]).query)["token"][0]
        found = await session_of(rig, text)
        assert (found["proof"], found["owner"], found["scopes"]) == ("portal", "alice", ["owner:alice"])
        assert found["who"] == "portal for alice of RELAY_API_KEY"
        opened = document(await session(rig, None, key=text))
        assert opened["token"] == text
        assert opened["expires_at"] == made["expires_at"]
        assert text[3:] not in repr(rig.records(rig.topics.audit))
        told = document(await rig.request("GET", "/v1/audit", headers=ADMIN))["items"]
        assert [(line["what"], line["who"]) for line in told] == [
            ("session.created", "portal for alice of RELAY_API_KEY"),
            ("portal.linked", "RELAY_API_KEY"),
        ]
        assert told[1]["facts"]["owner"] == "alice"
        rig.clock.now += HOUR / 2
        problem(await rig.request("GET", "/v1/session", headers=bearer(text)), 401, "unauthorized")


async def test_without_a_public_url_a_link_leads_where_it_was_asked_for(rig: Rig) -> None:
    assert document(await link(rig, SETTING, owner="a"))["url"].startswith(f"{rig.url}/ui/portal?token=")


async def test_owners_make_links_for_themselves_alone(rig: Rig) -> None:
    owners = await rig.keys.make("owner:alice", "read:github", now=NOW)
    text = await portal(rig, owners, owner="alice")
    assert (await session_of(rig, text))["scopes"] == ["owner:alice"]  # and not what else the key may
    assert (await session_of(rig, await portal(rig, await token(rig, owners), owner="alice")))["proof"] == "portal"
    problem(await link(rig, owners, owner="bob"), 403, "forbidden")
    problem(await link(rig, await rig.keys.make("receiver:ci", now=NOW), owner="alice"), 403, "forbidden")
    problem(await link(rig, text, owner="alice"), 403, "forbidden")  # who came by a link


@pytest.mark.parametrize(
    ("wanted", "pointer"),
    [
        ({}, ""),
        ({"owner": ""}, "/owner"),
        ({"owner": "a\x00"}, "/owner"),
        ({"owner": "a", "hours": 0}, "/hours"),
        ({"owner": "a", "hours": -1}, "/hours"),
        ({"owner": "a", "hours": 169}, "/hours"),
        ({"owner": "a", "hours": 1e300}, "/hours"),
        ({"owner": "a", "receivers": []}, "/receivers"),
        ({"owner": "a", "receivers": ["ci"] * 21}, "/receivers"),
        ({"owner": "a", "scopes": ["admin"]}, "/scopes"),
    ],
)
async def test_what_is_no_order_for_a_link_makes_none(rig: Rig, wanted: dict[str, Any], pointer: str) -> None:
    refused = problem(await link(rig, SETTING, **wanted), 400, "invalid-request")
    assert [error.get("pointer") for error in refused["errors"]] == [pointer]


async def test_the_command_prints_a_link_alone_so_that_it_can_be_piped() -> None:
    async with owned_api() as rig:
        words = ("portal", "link", "a", "--hours", "2", "--receiver", "a-two", "--api", rig.url)
        done = await asyncio.to_thread(called, *words, environ={"RELAY_API_KEY": SETTING})
        assert (done.returncode, done.stdout.count("\n")) == (0, 1), done
        assert "receivers of 'a': a-two; until 2023-11-15T00:13:20.000Z" in done.stderr
        text = parse_qs(urlsplit(done.stdout.strip()).query)["token"][0]
        assert (await session_of(rig, text))["receivers"] == ["a-two"]
        done = await asyncio.to_thread(called, *words[:3], "--hours", "9", *words[-2:])
        assert (done.returncode, done.stdout) == (1, "")
        assert "401" in done.stderr


async def test_a_link_names_receivers_of_its_owner_alone() -> None:
    async with owned_api() as rig:
        for name in ("b-one", "nobody", "../x"):
            problem(await link(rig, SETTING, owner="a", receivers=["a-one", name]), 422, "unknown-receiver")


# --- other owners ---------------------------------------------------------------------------------------------------


NAMES = {"a-one": "a", "a-two": "a", "b-one": "b", "nobodys": None}


@asynccontextmanager
async def owned_api() -> AsyncIterator[Rig]:
    """Receivers of two owners, and of none; each has a dead letter, and a message went to all of them."""
    async with running_api(api_key=SETTING) as rig:
        registrar = rig.context.registrar
        assert registrar is not None
        ci, places = rig.directory.receivers.pop("ci"), {}
        for name, owner in NAMES.items():
            rig.directory.receivers[name] = replace(ci, name=name, owner=owner)
            entry: dict[str, object] = {"post_endpoint": f"https://{name}.example/", "lane": "shared"}
            entry |= {"owner": owner} if owner else {}
            value = EntryRecord("api", entry).encode()
            (at,) = await rig.log.append([NewRecord(rig.topics.receiver_config, name.encode(), value)])
            await registrar.registry.reach(at.offset + 1)
            (places[name],) = await rig.log.append([letter(rig, name)])
        await rig.state.index_failed(
            [FailedEntry(name, at, NOW, "rejected", "github", "m-1") for name, at in places.items()]
        )
        query = "&".join(f"receiver={name}" for name in NAMES)
        sent = await rig.request("POST", f"/v1/sources/github/messages?{query}", b"{}", ADMIN | {"ce-id": "m-1"})
        assert sent.status == 202, sent
        for number, name in enumerate(NAMES):
            await responded(rig, name, number)
        yield rig


async def test_the_portal_shows_its_owners_receivers_and_nothing_of_others() -> None:
    """Every GET route, for every receiver: nothing shows or mentions receivers of others."""
    async with owned_api() as rig:
        text = await portal(rig, SETTING, owner="a")
        only = await portal(rig, SETTING, owner="a", receivers=["a-two"])
        for each, own in ((text, {"a-one", "a-two"}), (only, {"a-two"})):
            asked = 0
            for method, path in ROUTES:
                if method != "GET" or not path.startswith("/v1/") or path == TAIL:
                    continue
                for name in NAMES:
                    reply = await rig.request("GET", _filled(path, name), headers=bearer(each))
                    asked += 1
                    shown = reply.text.replace(json.dumps(_filled(path, name).partition("?")[0]), "")
                    assert not [other for other in set(NAMES) - own if other in shown], (path, name, shown)
                    if "{name}" in path:
                        assert reply.status == (200 if name in own else 403), (path, name, reply)
            assert asked > 40
            for name in NAMES:  # it goes on for ever
                url = f"{rig.url}{TAIL}?receiver={name}"
                async with rig.client.get(url, headers=bearer(each)) as response:
                    assert response.status == (200 if name in own else 403), name


def _filled(path: str, name: str) -> str:
    values = {"source_id": "github", "message_id": "m-1", "name": name, "receiver": name, "partition": "0", "id": "x"}
    filled = path
    for key, value in values.items():
        filled = filled.replace(f"{{{key}}}", value)
    example = ROUTES["GET", path].example
    query = "&".join(f"{key}={value}" for key, value in example.query.items() if key in ("by", "since"))
    return filled.replace("{offset}", str(sorted(NAMES).index(name))) + (f"?{query}" if query else "")


async def test_the_portal_lists_and_changes_what_its_link_names() -> None:
    async with owned_api() as rig:
        text = await portal(rig, SETTING, owner="a", receivers=["a-two"])
        listed = document(await rig.request("GET", "/v1/receivers?limit=1", headers=bearer(text)))
        assert ([item["name"] for item in listed["items"]], listed["cursor"]) == (["a-two"], None)
        letters = document(await rig.request("GET", "/v1/failed", headers=bearer(text)))["items"]
        assert [each["receiver"] for each in letters] == ["a-two"]
        for name, status in (("a-two", 200), ("a-one", 403), ("b-one", 403), ("nothing", 403)):
            reply = await rig.request("POST", f"/v1/receivers/{name}/pause", headers=bearer(text))
            assert reply.status == status, name
            reply = await rig.request("PATCH", f"/v1/receivers/{name}", b'{"rate_limit": 5}', JSON | bearer(text))
            assert reply.status == status, name
        wanted = json.dumps({"name": "a-three", "post_endpoint": "https://a.example/", "signature": "none"}).encode()
        problem(await rig.request("POST", "/v1/receivers", wanted, JSON | bearer(text)), 403, "forbidden")
        whole = await portal(rig, SETTING, owner="a")
        made = await rig.request("POST", "/v1/receivers", wanted, JSON | bearer(whole))
        assert made.status == 201, made
        assert document(made)["owner"] == "a"
        problem(await rig.request("GET", "/v1/receivers/a-three", headers=bearer(text)), 403, "forbidden")


@pytest.mark.parametrize("name", [["a-two"], {"a-two": 1}, None, 2])
async def test_a_portal_that_is_limited_to_receivers_registers_none_whatever_its_name_is(name: object) -> None:
    async with owned_api() as rig:
        text = await portal(rig, SETTING, owner="a", receivers=["a-two"])
        wanted = json.dumps({"name": name, "post_endpoint": "https://a.example/", "signature": "none"}).encode()
        problem(await rig.request("POST", "/v1/receivers", wanted, JSON | bearer(text)), 403, "forbidden")
