"""Tests of the routes that read the history: each filter, and what each scope may see."""

import pytest
from structlog.testing import capture_logs

from relay.domain.identity import DeliveryId, MessageId, webhook_id
from relay.log.port import NewRecord, TopicPartition
from relay.state.rows import Mark, Stage, delivery_row
from tests.contract.history_facts import NOON, arrival, put
from tests.integration.api_rig import document, problem, running_api
from tests.integration.history_world import World, world
from tests.integration.history_world import at as at
from tests.integration.test_api_keys import ADMIN

FOUR = ["m-4", "m-3", "m-2", "m-1"]


# --- messages: shape and filters ------------------------------------------------------------------------------------


async def test_a_message_is_listed_with_its_deliveries(at: World) -> None:
    page = document(await at.get("/v1/messages?source=github&type=push"))
    assert page["cursor"] is None
    assert page["items"] == [
        {
            "source_id": "github",
            "message_id": "m-1",
            "webhook_id": webhook_id("github", "m-1"),
            "type": "push",
            "status": "failed",
            "state": "failed",
            "received_at": "2026-09-21T12:00:01.000Z",
            "size": 100,
            "content_type": "application/json",
            "preview": '{"repository": {"name": "relay", "id": 7}, "a/b": true}',
            "deliveries": [
                {
                    "receiver": "ci",
                    "status": "response_delivered_to_sender",
                    "state": "returned",
                    "generation": 0,
                    "attempts": 1,
                    "last_status": 200,
                    "reason": None,
                    "detail": None,
                    "next_attempt_at": None,
                    "next_at": None,
                    "waiting_for": None,
                    "updated_at": "2026-09-21T12:00:03.020Z",
                },
                {
                    "receiver": "deploy",
                    "status": "failed",
                    "state": "failed",
                    "generation": 0,
                    "attempts": 1,
                    "last_status": 422,
                    "reason": "rejected",
                    "detail": "it said no",
                    "next_attempt_at": None,
                    "next_at": None,
                    "waiting_for": None,
                    "updated_at": "2026-09-21T12:00:02.600Z",
                },
            ],
        }
    ]
    [unrouted] = document(await at.get("/v1/messages?id=m-4"))["items"]
    assert (unrouted["status"], unrouted["deliveries"], unrouted["type"]) == ("arrived", [], None)


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("", FOUR),
        ("source=github", ["m-2", "m-1"]),
        ("source=git", []),
        ("receiver=ci", ["m-3", "m-1"]),
        ("owner=alice", ["m-2", "m-1"]),
        ("owner=alice&receiver=deploy", ["m-2", "m-1"]),
        ("owner=alice&receiver=ci", []),
        ("owner=bob", []),
        ("owner=alice&status=failed", ["m-1"]),
        ("status=failed", ["m-3", "m-1"]),
        ("status=failed&receiver=ci", ["m-3"]),
        ("status=arrived&receiver=deploy", ["m-2"]),
        ("status=response_delivered_to_sender", ["m-1"]),
        ("state=queued", ["m-4", "m-2"]),
        ("state=queued&receiver=deploy", ["m-2"]),
        ("state=failed", ["m-3", "m-1"]),
        ("state=returned&receiver=ci", ["m-1"]),
        ("state=discarded", []),
        ("state=delivered", []),
        ("reason=rejected", ["m-1"]),
        ("reason=rejected&receiver=ci", []),
        ("reason=poison", []),
        ("type=push", ["m-3", "m-1"]),
        ("type=pull_request.*", ["m-2"]),
        ("type=pull_request", []),
        ("since=2026-09-21T12:00:03Z", ["m-4", "m-3"]),
        ("until=2026-09-21T12:00:03Z", ["m-2", "m-1"]),
        ("since=58s&until=57s", ["m-2"]),
        ("since=1h", FOUR),
        ("since=10s", []),
        ("id=m-", FOUR),
        ("id=m-3", ["m-3"]),
        (f"id={webhook_id('other', 'm-3')[:12]}", ["m-3"]),
        ("header=X-Event:push", ["m-3", "m-1"]),
        ("header=x-event:%20push&source=other", ["m-3"]),
        ("header=x-event:pull", []),
        ("payload=/repository/name=relay", ["m-1"]),
        ("payload=/repository/id=7", ["m-1"]),
        ("payload=/a~1b=true", ["m-1"]),
        ("payload=/repository/name=other", []),
        ("source=other&source=github", ["m-2", "m-1"]),
    ],
)
async def test_a_filter_chooses(at: World, query: str, expected: list[str]) -> None:
    assert await at.ids(query) == expected


async def test_a_star_within_a_type_is_refused() -> None:
    async with running_api() as rig:
        refused = problem(await rig.get("/v1/messages?type=a*b"), 400, "invalid-request")
        assert refused["detail"].startswith("type is 'a*b', ")


@pytest.mark.parametrize("query", ["header=x-event:push", "payload=/a=1"])
async def test_where_no_bodies_are_kept_nobody_is_told_that_there_is_nothing(query: str) -> None:
    async with running_api(keeps_bodies=False) as rig:
        name = query.partition("=")[0]
        refused = problem(await rig.get(f"/v1/messages?{query}"), 400, "invalid-request")
        assert "RELAY_HISTORY_BODIES" in refused["detail"]
        assert [error["parameter"] for error in refused["errors"]] == [name]
        assert document(await rig.get("/v1/messages?source=github"))["items"] == []


async def test_a_list_goes_on_where_it_was_whatever_comes(at: World) -> None:
    first = document(await at.get("/v1/messages?limit=2"))
    assert [item["message_id"] for item in first["items"]] == ["m-4", "m-3"]
    await put(at.history, arrival(5, source="github"))
    rest = document(await at.get(f"/v1/messages?limit=2&cursor={first['cursor']}"))
    assert ([item["message_id"] for item in rest["items"]], rest["cursor"]) == (["m-2", "m-1"], None)


@pytest.mark.parametrize("character", ["x", '"', "ü"])
async def test_a_list_goes_on_behind_ids_of_any_length(at: World, character: str) -> None:
    longest = character * (256 // len(character.encode()))
    names = (longest[1:], longest)
    await put(at.history, *(arrival(n, source=longest, name=name) for n, name in enumerate(names, 5)))
    first = document(await at.get("/v1/messages?limit=1"))
    rest = document(await at.get(f"/v1/messages?limit=1&cursor={first['cursor']}"))
    assert [page["items"][0]["message_id"] for page in (first, rest)] == [longest, longest[1:]]


# --- messages: who sees what ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("scopes", "query", "expected"),
    [
        (("read:github",), "", {"m-2": ["deploy"], "m-1": ["ci", "deploy"]}),
        (("read:git*",), "", {"m-2": ["deploy"], "m-1": ["ci", "deploy"]}),
        (("read:*",), "source=other", {"m-4": [], "m-3": ["ci"]}),
        (("read:nothing",), "", {}),
        (("read:other",), "source=github", {}),
        (("read:other",), "receiver=deploy", {}),
        (("receiver:ci",), "", {"m-3": ["ci"], "m-1": ["ci"]}),
        (("receiver:ci",), "receiver=ci", {"m-3": ["ci"], "m-1": ["ci"]}),
        (("receiver:ci",), "status=failed", {"m-3": ["ci"]}),
        (("receiver:ci",), "reason=rejected", {}),
        (("receiver:ci",), "payload=/repository/name=relay", {"m-1": ["ci"]}),
        (("receiver:nobody",), "", {}),
        (("owner:alice",), "", {"m-2": ["deploy"], "m-1": ["deploy"]}),
        (("owner:alice",), "owner=alice&status=failed", {"m-1": ["deploy"]}),
        (("owner:alice",), "receiver=deploy", {"m-2": ["deploy"], "m-1": ["deploy"]}),
        (("owner:bob",), "", {}),
        (("owner:bob", "owner:alice"), "owner=bob", {}),
        (("read:other", "receiver:deploy"), "", {"m-4": [], "m-3": ["ci"], "m-2": ["deploy"], "m-1": ["deploy"]}),
        (("read:other", "owner:alice"), "status=failed", {"m-3": ["ci"], "m-1": ["deploy"]}),
        (("read:other", "receiver:ci"), "receiver=ci", {"m-3": ["ci"], "m-1": ["ci"]}),
        (("read:other", "receiver:ci"), "header=x-event:push", {"m-3": ["ci"]}),
        (("admin",), "owner=alice", {"m-2": ["deploy"], "m-1": ["deploy"]}),
    ],
)
async def test_a_key_sees_what_is_about_its_own(
    at: World, scopes: tuple[str, ...], query: str, expected: dict[str, list[str]]
) -> None:
    items = document(await at.get(f"/v1/messages?{query}", *scopes))["items"]
    seen = {item["message_id"]: [each["receiver"] for each in item["deliveries"]] for item in items}
    assert (seen, list(seen)) == (expected, list(expected))
    for item in items:
        shown = {each["status"] for each in item["deliveries"]} or {"arrived"}
        assert item["status"] in shown, "the status of a message tells nothing of what is not shown"


@pytest.mark.parametrize(
    ("scopes", "query"),
    [
        (("ingest:github",), ""),
        (("metrics",), ""),
        (("receiver:ci",), "receiver=deploy"),
        (("receiver:ci",), "receiver=nobody"),
        (("owner:alice",), "receiver=ci"),
        (("owner:alice",), "owner=bob"),
        (("read:github",), "owner=alice"),
        (("receiver:deploy",), "owner=alice"),
        (("receiver:ci",), "header=x-event:push"),
    ],
)
async def test_what_is_no_business_of_a_key_is_refused(at: World, scopes: tuple[str, ...], query: str) -> None:
    problem(await at.get(f"/v1/messages?{query}", *scopes), 403, "forbidden")


# --- attempts -------------------------------------------------------------------------------------------------------

M1, M3 = "/v1/sources/github/messages/m-1", "/v1/sources/other/messages/m-3"


async def test_an_attempt_has_what_was_sent_and_what_came_back(at: World) -> None:
    items = document(await at.get(f"{M1}/attempts?receiver=ci"))["items"]
    assert [item["kind"] for item in items] == ["callback", "post"]
    assert items[1] == {
        "partition": 0,
        "offset": 0,
        "kind": "post",
        "receiver": "ci",
        "source_id": "github",
        "message_id": "m-1",
        "generation": 0,
        "attempt": 1,
        "started_at": "2026-09-21T12:00:02.000Z",
        "duration_ms": 12.3,
        "request": {"method": "POST", "url": "https://ci.example/hook", "headers": {"webhook-id": "msg_1"}},
        "response": {"status": 200, "headers": {"content-type": "text/plain"}, "body": "ok", "truncated": False},
        "error": None,
        "outcome": "done",
        "reason": None,
        "detail": None,
        "next_attempt_at": None,
        "code_class": "delivered",
        "rule": None,
        "cut": False,
    }
    assert document(await at.get("/v1/attempts/0/0")) == items[1]
    checked, missed, refused = document(await at.get(f"{M3}/attempts"))["items"]
    assert (checked["kind"], checked["response"]["status"]) == ("status", 404)
    assert (missed["response"], missed["reason"]) == (None, "timeout")
    assert missed["error"] == {"kind": "timeout", "detail": "no answer in 15 s", "sent": True}
    assert refused["next_attempt_at"] == "2026-09-21T12:00:06.000Z"


@pytest.mark.parametrize(
    ("target", "scopes", "expected"),
    [
        (M1, ("admin",), [("callback", "ci"), ("post", "deploy"), ("post", "ci")]),
        (M1, ("read:github",), [("callback", "ci"), ("post", "deploy"), ("post", "ci")]),
        (f"{M1}?receiver=deploy", ("read:github",), [("post", "deploy")]),
        (M1, ("receiver:ci",), [("post", "ci")]),
        (f"{M1}?receiver=deploy", ("receiver:ci",), []),
        (M1, ("owner:alice",), [("post", "deploy")]),
        (M1, ("read:other", "owner:alice", "receiver:ci"), [("post", "deploy"), ("post", "ci")]),
    ],
)
async def test_of_a_messages_attempts_a_key_sees_its_own(
    at: World, target: str, scopes: tuple[str, ...], expected: list[tuple[str, str]]
) -> None:
    path, mark, query = target.partition("?")
    items = document(await at.get(f"{path}/attempts{mark}{query}", *scopes))["items"]
    assert [(item["kind"], item["receiver"]) for item in items] == expected


@pytest.mark.parametrize("what", ["attempts", "payload"])
@pytest.mark.parametrize("scope", ["read:other", "receiver:cd", "owner:bob", "ingest:github", "metrics"])
async def test_nothing_tells_whether_there_is_a_message_that_a_key_may_not_see(
    at: World, what: str, scope: str
) -> None:
    told = [
        problem(await at.get(f"/v1/sources/github/messages/{id}/{what}", scope), 403, "forbidden")
        for id in ("m-1", "m-none")
    ]
    assert told[0] | {"instance": ""} == told[1] | {"instance": ""}


async def test_a_message_that_waits_for_its_first_attempt_has_none(at: World) -> None:
    sent = await at.rig.request("POST", "/v1/sources/app/messages?receiver=ci", b"{}", ADMIN | {"ce-id": "new"})
    assert sent.status == 202
    for scope in ("read:app", "receiver:ci"):
        found = document(await at.get("/v1/sources/app/messages/new/attempts", scope))
        assert found == {"items": [], "cursor": None}
    problem(await at.get("/v1/sources/app/messages/none/attempts", "read:app"), 404, "not-found")


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("", ["ping", "status", "post", "post", "post"]),
        ("failed=true", ["status", "post", "post"]),
        ("failed=false", ["ping", "post"]),
        ("limit=2", ["ping", "status"]),
    ],
)
@pytest.mark.parametrize("scope", ["admin", "receiver:ci"])
async def test_a_receivers_attempts_are_those_at_it(at: World, query: str, expected: list[str], scope: str) -> None:
    page = document(await at.get(f"/v1/receivers/ci/attempts?{query}", scope))
    assert [item["kind"] for item in page["items"]] == expected
    if page["cursor"] is not None:
        rest = document(await at.get(f"/v1/receivers/ci/attempts?cursor={page['cursor']}", scope))
        assert [item["kind"] for item in rest["items"]] == ["post", "post", "post"]


@pytest.mark.parametrize("scope", ["read:*", "receiver:cd", "owner:alice", "metrics"])
async def test_a_receivers_attempts_are_its_own_business(at: World, scope: str) -> None:
    for name in ("ci", "nobody"):
        problem(await at.get(f"/v1/receivers/{name}/attempts", scope), 403, "forbidden")
    assert (await at.get("/v1/receivers/deploy/attempts", "owner:alice")).status == 200


@pytest.mark.parametrize("scope", ["admin", "read:github", "read:*"])
async def test_a_callbacks_attempts_are_those_at_it(at: World, scope: str) -> None:
    page = document(await at.get("/v1/sources/github/callback/attempts", scope))
    assert {item["kind"] for item in page["items"]} == {"callback"}
    assert {item["source_id"] for item in page["items"]} == {"github"}
    well = document(await at.get("/v1/sources/github/callback/attempts?failed=false", scope))
    assert [item["outcome"] for item in well["items"]] == ["done"] * len(well["items"])
    assert document(await at.get("/v1/sources/git*/callback/attempts", "admin"))["items"] == []


@pytest.mark.parametrize("scope", ["read:app", "receiver:ci", "owner:alice", "metrics"])
async def test_a_callbacks_attempts_are_for_readers_of_its_source(at: World, scope: str) -> None:
    problem(await at.get("/v1/sources/github/callback/attempts", scope), 403, "forbidden")


# --- counts ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("by", "began"), [("minute", "12:00"), ("hour", "12:00")])
async def test_counts_are_by_receiver_source_and_span(at: World, by: str, began: str) -> None:
    found = document(await at.get(f"/v1/stats?by={by}&since=1h"))
    assert found["by"] == by
    assert found["until"] == "2026-09-21T12:01:00.000Z"
    assert found["totals"] == {
        "attempts": 4,
        "delivered": 1,
        "failed": 3,
        "success_rate": 0.25,
        "p50_ms": 25.0,
        "p99_ms": 25.0,
    }
    [span] = found["spans"]
    assert span == {
        "at": f"2026-09-21T{began}:00.000Z",
        "outcomes": {"delivered": 1, "not_processed": 2, "rejected": 1},
        **found["totals"],
    }
    points = {(each["receiver"], each["source_id"]): each["points"] for each in found["series"]}
    assert set(points) == {("ci", "github"), ("ci", "other"), ("deploy", "github")}
    [point] = points["ci", "other"]
    assert (point["at"], point["attempts"], point["delivered"]) == (f"2026-09-21T{began}:00.000Z", 2, 0)


@pytest.mark.parametrize(
    ("query", "scopes", "expected"),
    [
        ("receiver=ci", ("admin",), {("ci", "github"), ("ci", "other")}),
        ("source=other", ("admin",), {("ci", "other")}),
        ("receiver=deploy&source=other", ("admin",), set()),
        ("until=2026-09-21T12:00:00Z", ("admin",), set()),
        ("", ("read:github",), {("ci", "github"), ("deploy", "github")}),
        ("", ("receiver:ci",), {("ci", "github"), ("ci", "other")}),
        ("", ("owner:alice",), {("deploy", "github")}),
        ("", ("read:other", "owner:alice"), {("ci", "other"), ("deploy", "github")}),
        ("receiver=ci", ("read:other",), {("ci", "other")}),
    ],
)
async def test_counts_are_of_what_a_key_may_see(
    at: World, query: str, scopes: tuple[str, ...], expected: set[tuple[str, str]]
) -> None:
    found = document(await at.get(f"/v1/stats?{query}", *scopes))
    assert {(each["receiver"], each["source_id"]) for each in found["series"]} == expected
    assert found["totals"]["attempts"] == sum(p["attempts"] for each in found["series"] for p in each["points"])


async def test_sums_alone_are_counted_on_request(at: World) -> None:
    found = document(await at.get("/v1/stats?sums=true"))
    assert (found["series"], [each["attempts"] for each in found["spans"]]) == ([], [4])


async def test_counts_of_another_receiver_are_refused(at: World) -> None:
    for scope in ("receiver:cd", "owner:alice", "ingest:other", "metrics"):
        problem(await at.get("/v1/stats?receiver=ci", scope), 403, "forbidden")


async def test_more_points_than_an_answer_may_have_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("relay.api.history.resource.MOST_COUNTS", 2)
    async with world() as at:
        refused = problem(await at.get("/v1/stats"), 400, "invalid-request")
        assert "more than 2 points" in refused["detail"]
        assert len(document(await at.get("/v1/stats?receiver=ci"))["series"]) == 2


# --- how far it is behind, and away ---------------------------------------------------------------------------------


async def test_a_page_says_how_far_the_history_is_behind(at: World) -> None:
    assert document(await at.get("/v1/messages"))["behind_s"] == 0.0
    at.rig.broker.now_ms = lambda: int((NOON + 20) * 1000)
    [place] = await at.rig.log.append([NewRecord(at.rig.topics.to_sender, b"a", b"")])
    assert document(await at.get("/v1/messages"))["behind_s"] == 0.0, "it was looked up within this second"
    at.rig.clock.now += 1
    assert document(await at.get("/v1/messages"))["behind_s"] == 41.0
    await at.history.skip({TopicPartition(place.topic, place.partition): place.offset + 1})
    at.rig.clock.now += 1
    assert document(await at.get("/v1/messages"))["behind_s"] == 0.0
    at.rig.broker.available = False
    at.rig.clock.now += 1
    page = document(await at.get("/v1/messages"))
    assert (len(page["items"]), page["behind_s"]) == (4, None), "what is known is shown while the log is away"


async def test_a_store_that_is_away_is_a_matter_of_time(at: World) -> None:
    at.history.available = False
    for target in ("/v1/messages", f"{M1}/attempts", "/v1/receivers/ci/attempts", "/v1/stats"):
        reply = await at.get(target)
        assert "history" in problem(reply, 503, "unavailable")["detail"]
        assert int(reply.headers["Retry-After"]) > 0


async def test_attempts_are_shown_while_the_state_is_away(at: World) -> None:
    at.rig.state.away |= {"messages", "row_details"}
    assert len(document(await at.get(f"{M1}/attempts"))["items"]) == 3


# --- what a message says of itself ----------------------------------------------------------------------------------


async def test_a_message_says_where_it_is_on_the_log_and_what_to_do(at: World) -> None:
    rig, target = at.rig, "/v1/sources/app/messages/new"
    await rig.request("POST", "/v1/sources/app/messages?receiver=ci", b"{}", ADMIN | {"ce-id": "new"})
    [record] = [each for each in rig.records(rig.topics.from_sender) if each.key == b"app"]
    found = document(await at.get(target))
    assert found["at"] == {"topic": record.topic, "partition": record.partition, "offset": record.offset}
    [waiting] = found["deliveries"]
    assert (waiting["waiting_for"]["kind"], "Start a worker" in waiting["advice"]) == ("no_worker", True)
    delivery = DeliveryId("ci", *MessageId("app", "new"))
    await rig.state.mark([Mark(delivery_row(delivery), 0, Stage.FAILED, (0, 0), 6)])
    [failed] = document(await at.get(target, "receiver:ci"))["deliveries"]
    assert (failed["reason"], "resume and replay" in failed["advice"]) == ("gone", True)


async def test_a_search_that_the_history_cannot_answer_is_logged_with_its_cause() -> None:
    """The worker may go on writing, in another process, with rights or pages of the file that only readers lack."""
    async with world() as at:
        at.history.available = False
        with capture_logs() as logged:
            problem(await at.get("/v1/messages"), 503, "unavailable")
        [entry] = [entry for entry in logged if entry["event"] == "history_unavailable"]
        assert (entry["route"], entry["error"]) == ("/v1/messages", "the history is away")
