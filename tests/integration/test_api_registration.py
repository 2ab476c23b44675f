"""Tests of receivers that are created, changed and removed over HTTP, on a real registry and an in-memory log."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pytest
from aiohttp import ClientSession

from relay.api.context import ApiContext
from relay.api.registrar import Registrar
from relay.api.server import ApiServer
from relay.clock import SystemClock
from relay.config.encryption import NO_KEYS, KeyRing
from relay.config.receivers_file import parse_receivers_file
from relay.control.apply import apply_file
from relay.control.patch import Rules
from relay.control.registry import Registry
from relay.domain.control_key import ControlKey, encode_value
from relay.domain.hold import Hold
from relay.domain.hot_receivers import HotLane
from relay.domain.receiver import Receiver
from relay.domain.recipients import receiver_name
from relay.domain.route import LaneRoute
from relay.domain.statistics import NUMBERS, OUTCOMES, Counted
from relay.domain.times import rfc3339
from relay.log.port import NewRecord, TopicState
from relay.state.read_model import LastAttempt, Tally
from tests.integration.api_rig import NOW, Reply, document, pages, problem, running_api
from tests.integration.api_rig import Rig as ApiRig

URL = "https://ci.example/hooks"
ORIGIN = "https://once.example"
"""Messages may name endpoints there."""
CANARY = "canary-4711-canary"
MADE = "whsec_bWFkZS1tYWRlLW1hZGUtbWFkZS1tYWRlLW1hZGU="
RING = KeyRing([b"k" * 32])
JSON = {"Content-Type": "application/json"}


@dataclass
class Rig:
    """`apis`: URLs of two processes' APIs over one log and state. `registries`, `contexts`: theirs."""

    api: ApiRig
    apis: list[str]
    registries: list[Registry]
    contexts: list[ApiContext]

    async def ask(
        self, method: str, path: str, body: object = None, headers: Mapping[str, str] = JSON, of: int = 0
    ) -> Reply:
        """`of`: which process."""
        data = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
        async with (
            ClientSession() as client,
            client.request(method, self.apis[of] + path, data=data, headers=headers) as response,
        ):
            return Reply(response.status, response.headers, await response.read())

    async def create(self, name: str, **fields: object) -> Any:
        reply = await self.ask("POST", "/v1/receivers", {"name": name, "post_endpoint": URL, **fields})
        assert reply.status == 201, reply.text
        return document(reply)

    async def file(self, **receivers: object) -> None:
        file = parse_receivers_file(json.dumps({"receivers": receivers}))
        await apply_file(self.api.log, file, self.api.topics, prune=True)

    def receiver(self, name: str) -> Receiver:
        found = self.registries[0].receiver(name)
        assert found is not None
        return found

    @property
    def on_the_log(self) -> bytes:
        return b"\n".join(record.value or b"" for record in self.api.records(self.api.topics.receiver_config))


@asynccontextmanager
async def running(ring: KeyRing = RING, new_secret: Callable[[], str] = lambda: MADE) -> AsyncIterator[Rig]:
    async with running_api() as api:
        tasks, servers, rig = [], [], Rig(api, [], [], [])
        for number in range(2):
            registry = Registry(api.topics, {"CI_SECRET": "s-4711", "OTHER": "o"}, ring=ring, origins=[ORIGIN])
            tasks.append(asyncio.create_task(registry.follow(api.log)))
            await registry.ready.wait()
            rules = Rules({"CI_SECRET": "s-4711", "OTHER": "o"}, {"CI_SECRET"}, ring)
            registrar = Registrar(
                api.log, api.state, api.topics, registry, SystemClock(), rules, new_secret, owner=f"p-{number}"
            )
            rig.contexts.append(replace(api.context, directory=registry, registrar=registrar))
            server = ApiServer(rig.contexts[-1])
            servers.append(server)
            rig.registries.append(registry)
            rig.apis.append(f"http://127.0.0.1:{await server.start('127.0.0.1', 0)}")
        try:
            yield rig
        finally:
            for server in servers:
                await server.stop()
            for task in tasks:
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    async with running() as rig:
        yield rig


async def test_a_receiver_is_made_and_in_force_when_it_is_told(rig: Rig) -> None:
    made = await rig.create("ci", owner="team-1", labels={"env": "prod"})
    assert (made["name"], made["declared_by"], made["owner"], made["labels"]) == (
        "ci",
        "api",
        "team-1",
        {"env": "prod"},
    )
    assert (made["secret"], made["settings"]["secret"], made["settings"]["lane"]) == (MADE, "********", "shared")
    assert rig.receiver("ci").post.signing.secrets == (MADE,)
    reply = await rig.ask("GET", "/v1/receivers/ci")
    shown = document(reply)
    assert (shown["condition"], shown["settings"]["post_endpoint"], shown["declared_by"]) == ("up", URL, "api")
    assert reply.headers["ETag"] == f'"{made["etag"]}"'
    assert MADE not in reply.text
    assert MADE.encode() not in rig.on_the_log


async def test_the_topics_of_a_lane_of_its_own_are_there(rig: Rig) -> None:
    await rig.create("ci", lane="dedicated", partitions=3)
    groups = rig.api.topics.lane_groups("ci")
    assert {
        name: of.spec.partitions for name, of in (await rig.api.log.describe(list(groups))).items()
    } == dict.fromkeys(groups, 3)
    found = problem(await rig.ask("PATCH", "/v1/receivers/ci", {"partitions": 2}), 422, "invalid-receiver")
    [error] = found["errors"]
    assert error["pointer"] == "/partitions"
    assert "has 3 partitions, the request says 2, and none can be removed" in error["detail"]


async def test_a_life_has_the_topic_that_it_began_on(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    await rig.create("ci", owner="team-1")
    assert rig.receiver("ci").life.topic_id == "0"

    described = rig.api.log.describe

    async def meanwhile(topics: Sequence[str]) -> dict[str, TopicState]:
        rig.api.broker.create_again(rig.api.topics.from_sender)
        return await described(topics)

    with monkeypatch.context() as patched:
        patched.setattr(rig.api.log, "describe", meanwhile)
        refused = await rig.ask("POST", "/v1/receivers", {"name": "cd", "post_endpoint": URL, "owner": "team-1"})
    problem(refused, 503, "unavailable")  # its offsets may be of either
    await rig.create("cd", owner="team-1")
    assert rig.receiver("cd").life.topic_id == "1"


async def test_a_change_of_owner_that_is_refused_leaves_the_receiver_paused(rig: Rig) -> None:
    await rig.create("ci", lane="dedicated", partitions=3, owner="alice")
    assert (await rig.ask("POST", "/v1/receivers/ci/pause")).status == 200
    change = {"owner": "bob", "partitions": 2}
    problem(await rig.ask("PATCH", "/v1/receivers/ci", change), 422, "invalid-receiver")
    assert document(await rig.ask("GET", "/v1/receivers/ci"))["condition"] == "paused"
    assert (await rig.ask("PATCH", "/v1/receivers/ci", change | {"partitions": 3})).status == 200
    assert document(await rig.ask("GET", "/v1/receivers/ci"))["condition"] == "up"


@pytest.mark.parametrize(
    ("body", "pointers"),
    [
        ({}, ["/name"]),
        ({"name": "CI", "post_endpoint": URL}, ["/name"]),
        ({"name": 7, "post_endpoint": URL}, ["/name"]),
        ({"name": "ci"}, ["/post_endpoint"]),
        ({"name": "ci", "post_endpoint": URL, "retry": {"cap": 1}, "x": CANARY}, ["/retry/cap", "/x"]),
        ({"name": "ci", "post_endpoint": URL, "secret": [1, f"whsec_{CANARY}"]}, ["/secret/0", "/secret/1"]),
        ({"name": "ci", "post_endpoint": URL, "secret": "${OTHER}"}, ["/secret"]),
        ({"name": "ci", "post_endpoint": URL, "secret": "********"}, ["/secret"]),
        ({"name": "ci", "post_endpoint": URL, "labels": []}, ["/labels"]),
        ({"name": "ci", "post_endpoint": None}, ["/post_endpoint"]),
    ],
)
async def test_mistakes_have_their_places_and_nothing_is_stored(rig: Rig, body: object, pointers: list[str]) -> None:
    reply = await rig.ask("POST", "/v1/receivers", body)
    found = problem(reply, 422, "invalid-receiver")
    assert [error["pointer"] for error in found["errors"]] == pointers
    assert CANARY not in reply.text
    assert rig.on_the_log == b""


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"", "line 1, column 1"),
        (b"[1]", "not a JSON object"),
        (b'{"name": "a", "name": "b"}', "'name' is given twice"),
        (b'{"timeout": NaN}', "NaN is no number"),
        (b'{"name": "\\ud800"}', "no UTF-8 text"),
        (b'{"name": "\xff"}', "no UTF-8 text"),
        (b"[" * 60_000, "nested too deeply"),
        (b'{"rate_limit": ' + b"9" * 5_000 + b"}", "too many digits"),
    ],
)
async def test_a_body_that_is_no_json_object(rig: Rig, body: bytes, why: str) -> None:
    for method, path in (("POST", "/v1/receivers"), ("PATCH", "/v1/receivers/ci")):
        found = problem(await rig.ask(method, path, body), 400, "invalid-request")
        assert why in found["detail"]
    assert rig.on_the_log == b""


async def test_a_body_of_another_type_or_size(rig: Rig) -> None:
    problem(await rig.ask("POST", "/v1/receivers", {}, {"Content-Type": "text/plain"}), 415, "unsupported-media-type")
    problem(await rig.ask("POST", "/v1/receivers", b" " * 70_000), 413, "too-large")


async def test_a_hot_receiver_is_shown_in_the_lane_that_is_in_effect(rig: Rig) -> None:
    await rig.create("ci")
    records = {
        ControlKey("hot", "ci"): encode_value(HotLane(NOW, 0.9)),
        ControlKey("route", "ci"): encode_value(LaneRoute(1, "dedicated")),
    }
    topic = rig.api.topics.receiver_config
    places = await rig.api.log.append([NewRecord(topic, key.encode(), value) for key, value in records.items()])
    await rig.registries[0].reach(places[-1].offset + 1)
    shown = document(await rig.ask("GET", "/v1/receivers/ci"))
    assert (shown["hot_since"], shown["in_lane"]["lane"]) == (rfc3339(NOW), "dedicated")
    assert shown["settings"]["lane"] == "shared"  # as its entry says
    [item] = document(await rig.ask("GET", "/v1/receivers?lane=dedicated"))["items"]
    assert (item["name"], item["lane"]) == ("ci", "dedicated")


async def test_a_name_is_taken_once(rig: Rig) -> None:
    await rig.create("ci")
    await rig.file(filed={"post_endpoint": URL})
    of_origin = receiver_name(ORIGIN)
    assert await rig.api.state.hold(f"r:{of_origin}", Hold("paused", NOW))
    for name in ("ci", "filed", of_origin):
        reply = await rig.ask("POST", "/v1/receivers", {"name": name, "post_endpoint": URL})
        problem(reply, 409, "receiver-exists")
    [health] = await rig.api.state.endpoints([f"r:{of_origin}"])
    assert health.hold == Hold("paused", NOW), "which is of all that send there"


async def test_what_the_file_declares_is_changed_there_and_what_the_api_made_stays(rig: Rig) -> None:
    await rig.file(filed={"post_endpoint": URL})
    await rig.create("ci")
    for method, body in (("PATCH", {"timeout": 3}), ("DELETE", None)):
        found = problem(await rig.ask(method, "/v1/receivers/filed", body), 409, "declared-in-file")
        assert "change it there" in found["detail"]
    await rig.file()
    assert (await rig.ask("GET", "/v1/receivers/ci")).status == 200
    problem(await rig.ask("PATCH", "/v1/receivers/filed", {"timeout": 3}), 404, "not-found")


async def test_a_patch_changes_what_it_names(rig: Rig) -> None:
    made = await rig.create("ci", retry={"cap": "2h"}, rate_limit=5, secret=CANARY)
    patch = {"retry": {"base": 7}, "rate_limit": None, "headers": {"x-key": CANARY}}
    reply = await rig.ask("PATCH", "/v1/receivers/ci", patch, {"Content-Type": "application/merge-patch+json"})
    assert reply.status == 200, reply.text
    changed = document(reply)
    assert (reply.status, reply.headers["ETag"]) == (200, f'"{changed["etag"]}"')
    assert changed["etag"] != made["etag"]
    settings = changed["settings"]
    assert (settings["retry"]["base"], settings["retry"]["cap"], settings["rate_limit"]) == (7, 7200, None)
    assert rig.receiver("ci").post.signing.secrets == (CANARY,)
    assert rig.receiver("ci").post.headers == (("x-key", CANARY),)
    assert CANARY not in reply.text
    problem(await rig.ask("PATCH", "/v1/receivers/ci", {"post_endpoint": None}), 422, "invalid-receiver")


async def test_a_url_to_which_nothing_would_be_sent_is_a_warning(rig: Rig) -> None:
    blocked = "http://10.0.0.1/made"
    reply = await rig.ask("POST", "/v1/receivers", {"name": "far", "post_endpoint": blocked})
    [warning] = document(reply)["warnings"]
    assert "would send nothing to http://10.0.0.1/made" in warning
    changes = ({"timeout": 3}, {"post_endpoint": URL}, {"post_endpoint": blocked})
    for change, warned in zip(changes, ([warning], [], [warning]), strict=True):
        reply = await rig.ask("PATCH", "/v1/receivers/far", change)
        assert (reply.status, document(reply).get("warnings")) == (200, warned)


@pytest.mark.parametrize("patch", [{}, {"timeout": "3s", "secret": CANARY}, {"labels": {"not": None}}])
async def test_what_changes_nothing_is_no_other_version(rig: Rig, patch: dict[str, object]) -> None:
    made = await rig.create("ci", timeout=3, secret=CANARY, labels={"env": "prod"})
    reply = await rig.ask("PATCH", "/v1/receivers/ci", patch, JSON | {"If-Match": f'"{made["etag"]}"'})
    assert (reply.status, document(reply)["etag"]) == (200, made["etag"])
    rotated = await rig.ask("POST", "/v1/receivers/ci/rotate", {"secret": CANARY}, JSON)
    assert (rotated.status, document(rotated)["etag"]) == (200, made["etag"])
    assert rig.receiver("ci").post.signing.secrets == (CANARY,)


async def test_a_change_may_be_of_what_was_looked_at_only(rig: Rig) -> None:
    first = (await rig.create("ci"))["etag"]
    second = document(await rig.ask("PATCH", "/v1/receivers/ci", {"timeout": 3}, JSON | {"If-Match": f'"{first}"'}))[
        "etag"
    ]
    stale = JSON | {"If-Match": f'"{first}"'}
    problem(await rig.ask("PATCH", "/v1/receivers/ci", {"timeout": 4}, stale), 412, "changed-meanwhile")
    problem(await rig.ask("DELETE", "/v1/receivers/ci", None, stale), 412, "changed-meanwhile")
    problem(await rig.ask("PATCH", "/v1/receivers/ci", {}, JSON | {"If-Match": "x"}), 400, "invalid-request")
    assert rig.receiver("ci").post.timeout == 3
    assert (await rig.ask("DELETE", "/v1/receivers/ci", None, {"If-Match": f'"{second}"'})).status == 200


async def test_two_processes_lose_nothing_of_each_others_changes(rig: Rig) -> None:
    await rig.create("ci")
    patches = [{"labels": {f"l{number}": "x"}} for number in range(12)]
    asked = [rig.ask("PATCH", "/v1/receivers/ci", patch, of=number % 2) for number, patch in enumerate(patches)]
    assert {reply.status for reply in await asyncio.gather(*asked)} == {200}
    shown = document(await rig.ask("GET", "/v1/receivers/ci"))
    assert shown["labels"] == {f"l{number}": "x" for number in range(12)}


async def test_of_two_that_make_the_same_one_is_told_that_it_is_taken(rig: Rig) -> None:
    body = {"name": "ci", "post_endpoint": URL}
    replies = await asyncio.gather(*(rig.ask("POST", "/v1/receivers", body, of=of) for of in (0, 1, 0, 1)))
    assert sorted(reply.status for reply in replies) == [201, 409, 409, 409]


async def test_what_becomes_of_messages_is_told_before_a_receiver_is_removed(rig: Rig) -> None:
    await rig.create("ci")
    told = document(await rig.ask("DELETE", "/v1/receivers/ci?dry_run=true"))
    assert (told["removed"], told["messages"]["parked"]) == (False, {"retries": 0, "polls": 0})
    assert told["messages"]["in_lane"] == {"lane": "shared", "unfinished": 0}
    assert (await rig.ask("GET", "/v1/receivers/ci")).status == 200
    assert document(await rig.ask("DELETE", "/v1/receivers/ci"))["removed"] is True
    problem(await rig.ask("GET", "/v1/receivers/ci"), 404, "not-found")
    problem(await rig.ask("DELETE", "/v1/receivers/ci"), 404, "not-found")
    problem(await rig.ask("DELETE", "/v1/receivers/ci?dry_run=1"), 400, "invalid-request")
    await rig.create("ci")  # and it may come back


async def test_the_list_goes_on_where_it_was_whatever_comes_and_goes(rig: Rig) -> None:
    for number in range(5):
        await rig.create(f"r-{number}", lane="dedicated" if number % 2 else "shared")
    await rig.file(filed={"post_endpoint": URL})
    first = document(await rig.ask("GET", "/v1/receivers?limit=3"))
    assert [item["name"] for item in first["items"]] == ["filed", "r-0", "r-1"]
    await rig.ask("DELETE", "/v1/receivers/r-1")
    await rig.create("a")
    await rig.create("r-2a")
    rest = document(await rig.ask("GET", f"/v1/receivers?cursor={first['cursor']}"))
    assert [item["name"] for item in rest["items"]] == ["r-2", "r-2a", "r-3", "r-4"]
    assert rest["cursor"] is None


@pytest.mark.parametrize(
    ("query", "names"),
    [
        ("owner=one", ["a", "b"]),
        ("owner=nobody", []),
        ("label=env", ["a", "b"]),
        ("label=env=prod", ["a"]),
        ("label=env=prod&owner=two", []),
        ("declared_by=file", ["filed"]),
        ("state=paused", ["c"]),
        ("state=paused&state=up", ["a", "b", "c", "filed"]),
        ("prefix=a", ["a"]),
        ("prefix=fi&state=up", ["filed"]),
        ("prefix=d", []),
        ("lane=dedicated", ["b", "filed"]),
        ("lane=shared&prefix=c", ["c"]),
    ],
)
async def test_the_list_is_narrowed(rig: Rig, query: str, names: list[str]) -> None:
    await rig.create("a", owner="one", labels={"env": "prod"})
    await rig.create("b", owner="one", labels={"env": "test"}, lane="dedicated")
    await rig.create("c", owner="two")
    await rig.file(filed={"post_endpoint": URL})
    assert (await rig.ask("POST", "/v1/receivers/c/pause")).status == 200
    found = document(await rig.ask("GET", f"/v1/receivers?{query}"))
    assert [item["name"] for item in found["items"]] == names
    each = pages(partial(rig.ask, "GET"), f"/v1/receivers?{query}&limit=1")
    assert [item["name"] async for page in each for item in page["items"]] == names


async def test_the_list_tells_what_goes_to_each_receiver_where_that_is_asked_for(rig: Rig) -> None:
    await rig.create("a", lane="dedicated", rate_limit=5)
    await rig.create("b")
    plain = document(await rig.ask("GET", "/v1/receivers"))["items"]
    assert [(item["breaker"], "traffic" in item) for item in plain] == [("closed", False)] * 2
    counted = [0] * NUMBERS
    counted[OUTCOMES.index("delivered")], counted[OUTCOMES.index("rejected")], counted[len(OUTCOMES) + 3] = 3, 1, 4
    told = Tally("r:a", Counted(tuple(counted)), LastAttempt(NOW, 204, None, 0.05))
    await rig.api.state.tally("p", 1, [told])
    found = document(await rig.ask("GET", "/v1/receivers?traffic=true"))["items"]
    a, b = (item["traffic"] for item in found)
    assert (a["attempts"], a["success_rate"], a["p99_ms"], len(a["hours"])) == (4, 0.75, 50, 24)
    assert a["last_response"]["status"] == 204
    assert (a["rate"]["limit"], a["unfinished"], a["parked"]) == (5, 0, 0)
    assert a["rate"]["used"] == pytest.approx(4 / (NOW % 3600))
    assert (b["attempts"], b["success_rate"], b["rate"]["limit"], b["last_response"]) == (0, None, None, None)


@pytest.mark.parametrize(
    "query",
    [
        "limit=0",
        "limit=x",
        "limit=1001",
        "state=x",
        "declared_by=x",
        "cursor=%C3%A9",
        "cursor=_w",
        "x=1",
        "lane=x",
        "prefix=A",
        "traffic=x",
    ],
)
async def test_a_list_that_cannot_be(rig: Rig, query: str) -> None:
    problem(await rig.ask("GET", f"/v1/receivers?{query}"), 400, "invalid-request")


async def test_without_a_key_secrets_are_refused_and_references_are_not() -> None:
    async with running(NO_KEYS) as rig:
        for secret in ({}, {"secret": CANARY}):
            reply = await rig.ask("POST", "/v1/receivers", {"name": "ci", "post_endpoint": URL, **secret})
            assert "RELAY_SECRETS_KEY" in problem(reply, 409, "no-secrets-key")["detail"]
            assert CANARY not in reply.text
        assert rig.on_the_log == b""
        await rig.create("referring", secret="${CI_SECRET}")
        await rig.create("unsigned", signature="none")
        assert rig.receiver("referring").post.signing.secrets == ("s-4711",)


async def test_while_the_state_is_away_nothing_is_changed(rig: Rig) -> None:
    rig.api.state.away.add("lease")
    problem(await rig.ask("POST", "/v1/receivers", {"name": "ci", "post_endpoint": URL}), 503, "unavailable")
    assert rig.on_the_log == b""
