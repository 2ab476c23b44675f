"""Tests of the audit log: a line for each change over the API, by any caller, and for refused requests of known
callers."""

import json
from functools import partial
from typing import Any

import pytest
from structlog.testing import capture_logs

from relay.api import routes
from relay.api.audit import REFUSED_EVERY_S, AuditTrail
from relay.api.routes import ROUTES
from relay.domain.errors import StateUnavailable
from relay.state.port import EndpointHealth
from tests.integration.api_rig import NOW, Reply, Rig, document, problem, running_api
from tests.integration.api_world import KEY, KEY_ID, add_dead_letter, world
from tests.integration.api_world import rig as rig

ADMIN = {"Authorization": f"Bearer {KEY}"}
JSON = {"Content-Type": "application/json"}
ROTATION = {"grace": "1h", "secret": "${DEPLOY_SECRET}"}
ERASED = {"source_id": "shop", "message_id": "m-1"}
RECEIVER = {"name": "new", "post_endpoint": "https://receiver.example/new", "signature": "none"}


async def call(rig: Rig, method: str, target: str, said: Any = None, **headers: str) -> Reply:
    body = b"" if said is None else json.dumps(said).encode()
    return await rig.request(method, target, body, JSON | ADMIN | headers)


async def lines(rig: Rig, query: str = "limit=1000") -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = document(await call(rig, "GET", f"/v1/audit?{query}"))["items"]
    return found


async def test_each_change_is_told_with_who_what_whom_and_from_where(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("relay.replay.cancel._ROUTED_S", 0.0)  # no worker routes messages here
    async with world() as rig:
        one = await add_dead_letter(rig, "failed-2")
        other = await add_dead_letter(rig, "failed-3")
        letters = [f"/v1/failed/{at.partition}/{at.offset}" for at in (one, other)]
        delivery = "/v1/sources/github/messages/failed-1/deliveries/ci"
        unsent = "/v1/sources/github/messages/sent-1/deliveries/ci"
        changes: list[tuple[str, str, Any, str, str, dict[str, Any]]] = [
            ("POST", "/v1/secrets/reencrypt", None, "secrets.reencrypted", "", {"rewritten": 1}),
            ("POST", "/v1/receivers", RECEIVER, "receiver.created", "new", {"fields": sorted(RECEIVER)}),
            ("PATCH", "/v1/receivers/new", {"rate_limit": 5}, "receiver.changed", "new", {"fields": ["rate_limit"]}),
            ("POST", "/v1/receivers/made/rotate", ROTATION, "receiver.rotated", "made", {"grace_s": 3600.0}),
            ("DELETE", "/v1/receivers/new", None, "receiver.removed", "new", {}),
            ("POST", "/v1/receivers/ci/verify", None, "receiver.verified", "ci", {"proved": False}),
            ("POST", "/v1/receivers/ci/pause", {"reason": "why"}, "receiver.paused", "ci", {"reason": "why"}),
            ("POST", "/v1/receivers/ci/resume", None, "receiver.resumed", "ci", {}),
            ("POST", "/v1/receivers/ci/test", None, "receiver.tested", "ci", {}),
            ("POST", "/v1/sources", {"source_id": "new/one"}, "source.created", "new/one", {"fields": ["source_id"]}),
            ("PATCH", "/v1/sources/shop", {"failures": False}, "source.changed", "shop", {"fields": ["failures"]}),
            ("POST", "/v1/sources/shop/callback/rotate", ROTATION, "callback.rotated", "shop", {"grace_s": 3600.0}),
            ("DELETE", "/v1/sources/shop", None, "source.removed", "shop", {}),
            ("POST", "/v1/sources/calls/callback/pause", None, "callback.paused", "calls", {}),
            ("POST", "/v1/sources/calls/callback/resume", None, "callback.resumed", "calls", {}),
            ("POST", "/v1/sources/calls/callback/test", None, "callback.tested", "calls", {}),
            ("POST", f"{letters[0]}/replay", None, "delivery.replayed", letters[0][11:], {}),
            ("POST", f"{letters[1]}/discard", None, "delivery.discarded", letters[1][11:], {}),
            ("POST", f"{delivery}/replay", None, "delivery.replayed", "github/failed-1/ci", {}),
            ("POST", f"{unsent}/cancel", None, "delivery.cancelled", "github/sent-1/ci", {}),
            ("POST", "/v1/replays", {"source": "shop"}, "replay.started", "", {"sources": ["shop"]}),
            ("POST", "/v1/replays", {"receiver": "ci"}, "replay.started", "", {"receivers": ["ci"]}),
            ("POST", "/v1/discards", {}, "discard.started", "", {}),
            ("POST", "/v1/cancels", {}, "cancel.started", "", {}),
            ("POST", "/v1/replays/{id}/stop", None, "replay.stopped", "", {}),
            ("POST", "/v1/keys", {"scopes": ["metrics"], "name": "n"}, "key.created", "", {"scopes": ["metrics"]}),
            ("POST", f"/v1/keys/{KEY_ID}/rotate", None, "key.rotated", KEY_ID, {"overlap_s": 86_400.0}),
            ("POST", "/v1/portal-links", {"owner": "o"}, "portal.linked", "portal:", {"owner": "o"}),
            ("POST", "/v1/sessions", None, "session.created", "session:", {}),
            ("PUT", "/v1/event-types/push", {}, "type.declared", "push", {}),
            ("DELETE", "/v1/event-types/push", None, "type.removed", "push", {}),
            ("POST", "/v1/erasures", ERASED, "payloads.erased", "shop", {"message_id": "m-1"}),
            ("DELETE", f"/v1/keys/{KEY_ID}", None, "key.revoked", KEY_ID, {"name": "an older one"}),
        ]
        # these need a session, an incident, or a payload in the history
        others = {"session.ended", "incident.acknowledged", "incident.resolved", "message.copied"}
        assert {verb for _, _, _, verb, _, _ in changes} == {
            each.verb for each in ROUTES.values() if each.verb
        } - others
        id = ""
        for method, target, said, verb, whom, facts in changes:
            reply = await call(rig, method, target.format(id=id), said)
            assert reply.status < 400, (target, reply)
            id = document(reply).get("id", id)
            [line] = await lines(rig, "limit=1")
            told = f"{line['whom'].partition(':')[0]}:" if whom.endswith(":") else line["whom"]
            assert (line["what"], told, line["outcome"]) == (verb, whom or id, "done")
            assert (line["who"], line["who_name"], line["from"]) == ("RELAY_API_KEY", None, "127.0.0.1")
            assert (line["status"], line["at"]) == (reply.status, "2023-11-14T22:13:20.000Z")
            assert line["facts"].items() >= facts.items()
        assert len(await lines(rig)) == len(changes)


async def test_who_is_told_by_the_keys_id_and_name_or_as_anybody() -> None:
    async with running_api() as rig:
        await rig.post("/v1/receivers/ci/pause", b"")
        made = document(
            await rig.post("/v1/keys", b'{"scopes": ["admin"], "name": "ops"}', Content_Type=JSON["Content-Type"])
        )
        bearer = f"Bearer {made['key']}"
        await rig.post("/v1/receivers/ci/resume", b"", Authorization=bearer)
        told = document(await rig.get("/v1/audit", Authorization=bearer))["items"]
        assert [(line["who"], line["who_name"]) for line in told] == [
            *((f"key:{made['id']}", "ops"), ("anybody", None), ("anybody", None)),
        ]


async def test_what_changes_nothing_leaves_no_line(rig: Rig) -> None:
    for method, target, said in (
        ("GET", "/v1/keys", None),
        ("DELETE", "/v1/receivers/made?dry_run=true", None),
        ("POST", "/v1/secrets/reencrypt?dry_run=true", None),
        ("POST", "/v1/replays", {"receiver": "ci", "dry_run": True}),
        ("POST", "/v1/keys", {"scopes": []}),
        ("DELETE", "/v1/keys/none", None),
        ("POST", "/v1/receivers", {"name": "x"}),
        ("POST", "/v1/sources/github/messages?receiver=ci", {}),
    ):
        await call(rig, method, target, said)
    await rig.post("/v1/receivers/ci/pause")  # by an unknown caller
    await rig.post("/v1/receivers/ci/pause", Authorization=f"Bearer {KEY}", Origin="https://other.example")
    assert await lines(rig) == []


async def test_what_somebody_known_may_not_do_is_told_but_not_each_time(rig: Rig) -> None:
    text = await rig.keys.make("receiver:cd", now=NOW)
    for target in ("/v1/receivers/ci/pause", "/v1/receivers/ci/pause", "/v1/receivers/nobody/pause", "/v1/replays"):
        reply = await rig.request("POST", target, b"", {"Authorization": f"Bearer {text}"})
        problem(reply, 403, "forbidden")
    told = await lines(rig)
    assert [(line["what"], line["whom"], line["facts"]) for line in told] == [
        ("replay.started", "", {}),
        ("receiver.paused", "nobody", {}),
        ("receiver.paused", "ci", {}),
    ]
    assert {(line["outcome"], line["status"]) for line in told} == {("refused", 403)}
    rig.clock.now += REFUSED_EVERY_S
    await rig.request("POST", "/v1/receivers/ci/pause", b"", {"Authorization": f"Bearer {text}"})
    assert (await lines(rig, "limit=1"))[0]["facts"] == {"before": 1}


async def test_what_failed_in_between_is_told_as_unknown(rig: Rig) -> None:
    rig.state.away.add("lease")
    problem(await call(rig, "PATCH", "/v1/receivers/made", {"rate_limit": 5}), 503, "unavailable")
    [line] = await lines(rig)
    assert (line["what"], line["outcome"], line["status"]) == ("receiver.changed", "unknown", 503)


async def test_what_was_done_is_told_as_done_whatever_came_after_it(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    async def away(_owners: object) -> list[EndpointHealth]:
        raise StateUnavailable("refused")

    monkeypatch.setattr(rig.state, "endpoints", away)
    problem(await call(rig, "POST", "/v1/receivers/ci/pause"), 503, "unavailable")
    [line] = await lines(rig)
    assert (line["what"], line["outcome"], line["status"]) == ("receiver.paused", "done", 503)


async def test_an_answer_does_not_hide_what_was_done_while_the_log_takes_no_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(routes, "AuditTrail", partial(AuditTrail, patience_s=0.01, again_s=0.01))
    async with world() as rig:
        spec = rig.broker.specs.pop(rig.topics.audit)
        with capture_logs() as logged:
            assert (await call(rig, "POST", "/v1/keys", {"scopes": ["metrics"]})).status == 201
        assert [each["event"] for each in logged] == ["audit", "audit_line_late"]
        reply = problem(await call(rig, "GET", "/v1/audit"), 503, "unavailable")
        assert "relay topics apply" in reply["detail"]
        rig.broker.specs[rig.topics.audit] = spec
        assert (await call(rig, "POST", "/v1/receivers/ci/pause")).status == 200
        assert [line["what"] for line in await lines(rig)] == ["receiver.paused", "key.created"]


async def test_the_list_goes_on_where_it_was_while_lines_come(rig: Rig) -> None:
    for _ in range(4):
        await call(rig, "POST", "/v1/receivers/ci/pause")
    ids = [line["id"] for line in await lines(rig)]
    page = document(await call(rig, "GET", "/v1/audit?limit=2"))
    assert [line["id"] for line in page["items"]] == ids[:2]
    await call(rig, "POST", "/v1/receivers/ci/resume")
    rest = document(await call(rig, "GET", f"/v1/audit?limit=2&cursor={page['cursor']}"))
    assert ([line["id"] for line in rest["items"]], rest["cursor"]) == (ids[2:], None)
    for query in ("limit=0", "cursor=x", "cursor=-1", "where=me"):
        problem(await call(rig, "GET", f"/v1/audit?{query}"), 400, "invalid-request")


async def test_no_secret_is_in_a_line(rig: Rig) -> None:
    wanted = RECEIVER | {"bearer_token": "tell-nobody-1", "signature": "none"}
    with capture_logs() as logged:
        await call(rig, "POST", "/v1/receivers", wanted)
        made = document(await call(rig, "POST", "/v1/keys", {"scopes": ["metrics"], "name": "a\x1bb"}))
        await call(rig, "PATCH", "/v1/receivers/made", {"post_endpoint": "https://u:tell-nobody-2@receiver.example/"})
    told = repr((logged, await lines(rig), rig.records(rig.topics.audit)))
    for secret in ("tell-nobody", made["key"].split("_")[2], "\x1b"):
        assert secret not in told


async def test_lines_are_filtered_by_who_what_and_whom(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ci", "cd"):
        for verb in ("pause", "resume"):
            await call(rig, "POST", f"/v1/receivers/{name}/{verb}")
    await call(rig, "POST", "/v1/sources", {"source_id": "new"})

    async def found(query: str) -> list[tuple[str, str]]:
        return [(line["what"], line["whom"]) for line in await lines(rig, query)]

    of_ci = [("receiver.resumed", "ci"), ("receiver.paused", "ci")]
    of_cd = [("receiver.resumed", "cd"), ("receiver.paused", "cd")]
    assert await found("what=receiver.") == of_cd + of_ci
    assert await found("what=receiver.paused") == [of_cd[1], of_ci[1]]
    assert await found("whom=ci") == of_ci
    assert await found("who=RELAY_API_KEY&whom=ci&what=receiver.resumed") == of_ci[:1]
    assert await found("who=somebody") == []
    assert await found("what=receiver") == []
    monkeypatch.setattr("relay.api.audit.MOST_READ", 1)
    cursor, pages = "", list[list[str]]()
    while len(pages) < 9:
        page = document(await call(rig, "GET", f"/v1/audit?whom=ci{cursor}"))
        pages.append([line["what"] for line in page["items"]])
        if page["cursor"] is None:
            break
        cursor = f"&cursor={page['cursor']}"
    assert pages == [[], [], [], ["receiver.resumed"], ["receiver.paused"]]
