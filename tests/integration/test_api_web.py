"""Tests of requests that a foreign page in a browser could send, of wrong keys, and of an API without a key."""

import hashlib
import hmac
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

import aiohttp
import msgspec
import pytest
from aiohttp import web
from msgspec import structs
from structlog.testing import capture_logs

from bench.kafka_parts import free_ports
from relay.api.access import ANSWER_PATH, INBOUND_ROUTE
from relay.api.authentication import MOST_FAILED
from relay.api.origin_check import PAYLOAD_ROUTES, WebRules
from relay.api.route import READING
from relay.api.routes import ROUTES, create_app
from relay.config.limits import ApiLimits
from relay.domain.attempt import AttemptResponse
from relay.domain.hop import Hop, result_headers
from relay.domain.identity import DeliveryId
from relay.domain.receiver import Inbound
from relay.log.port import NewRecord
from relay.state.replies import answered
from relay.state.rows import Mark, Stage, delivery_row
from tests.contract.history_facts import arrival, attempt, put
from tests.fakes.history import MemoryHistory
from tests.integration.api_rig import NOW, Rig, document, problem, running_api
from tests.integration.api_rig import rig as rig
from tests.integration.test_api_answers import url as answer_url
from tests.servers.process import RelayProcess

CI = "/v1/sources/app/messages?receiver=ci"
BATCH = "/v1/sources/app/messages:batch?receiver=ci"
PAUSE = "/v1/receivers/ci/pause"
EVIL = "https://evil.example"
HOOK_SECRET = "the secret of the hook"


async def test_dns_rebinding_finds_no_api() -> None:
    async with running_api(web=WebRules(("relay.lan",), "https://relay.example")) as rig:
        for host in ("evil.example", "evil.example:8080", "localhost.evil.example", "10.0.0.1:8080"):
            for method, target in (("GET", "/v1/failed"), ("POST", CI), ("POST", PAUSE), ("GET", "/version")):
                problem(await rig.request(method, target, headers={"Host": host}), 421, "unknown-host")
            for target in ("/livez", "/readyz", "/metrics"):  # probes name the address of a pod
                assert (await rig.get(target, Host=host)).status == 200
        assert rig.records(rig.topics.from_sender) == []
        for host in ("localhost", "127.0.0.1:1", "[::1]:8080", "relay.lan:8080", "relay.example"):
            assert (await rig.get("/v1/failed", Host=host)).status == 200


async def test_the_log_says_which_host_was_asked_for_and_what_to_do() -> None:
    for request, host in (
        (b"GET /v1/failed HTTP/1.1\r\nhost: evil.example\r\n\r\n", "evil.example"),
        (b"GET http://evil.example/v1/failed HTTP/1.1\r\nhost: localhost\r\n\r\n", "evil.example"),
        (b"GET /v1/failed HTTP/1.0\r\n\r\n", None),
    ):
        async with running_api() as rig:
            with capture_logs() as logged:
                assert (await rig.raw(request))[0] == 421
            (told,) = [entry for entry in logged if entry["event"] == "request_refused"]
            assert (told["cause"], told["host"]) == ("host", host)
            assert "RELAY_ALLOWED_HOSTS" in told["problem"]


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": EVIL},
        {"Origin": "null"},
        {"Origin": "http://localhost:3000"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Origin": EVIL, "Sec-Fetch-Site": "same-origin"},
    ],
)
async def test_a_foreign_page_changes_nothing_and_asks_nothing(rig: Rig, headers: dict[str, str]) -> None:
    for target in (CI, BATCH, PAUSE, "/v1/receivers/ci/resume", answer_url()):
        for content_type in ("text/plain", "application/json"):
            sent = headers | {"Content-Type": content_type}
            problem(await rig.request("POST", target, b"{}", sent), 403, "foreign-origin")
    assert rig.records(rig.topics.from_sender) == rig.records(rig.topics.to_sender) == []
    assert document(await rig.get("/v1/receivers/ci"))["paused"] is False
    for target in (
        "/v1/receivers/ci",
        "/v1/failed",
        "/v1/sources/app/messages/m-1?wait=1",
        "/v1/no-such-thing",
        "/%761/failed",
    ):
        for method in ("GET", "OPTIONS"):
            problem(await rig.request(method, target, headers=headers), 403, "foreign-origin")
    assert (await rig.request("GET", "/openapi.json", headers=headers)).status == 200


async def test_its_own_pages_and_programs_may(rig: Rig) -> None:
    assert (await rig.post(CI, Origin=rig.url, Sec_Fetch_Site="same-origin")).status == 202
    assert (await rig.post(PAUSE, b"", Origin=rig.url)).status == 200


async def test_payloads_may_have_any_type_and_control_takes_json_or_nothing(rig: Rig) -> None:
    for content_type in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "a"):
        assert (await rig.post(CI, b"a=b", content_type=content_type)).status == 202
        assert (await rig.post(answer_url(), b"a=b", content_type=content_type)).status == 200
        problem(await rig.post(PAUSE, b"a=b", content_type=content_type), 415, "unsupported-media-type")
    chunked = b"POST /v1/receivers/ci/pause HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n"
    assert (await rig.raw(chunked + b"1\r\nx\r\n0\r\n\r\n"))[0] == 415
    assert document(await rig.get("/v1/receivers/ci"))["paused"] is False
    assert (await rig.post(PAUSE, b"{}", content_type="application/json; charset=utf-8")).status == 200
    assert (await rig.post(PAUSE, b"", content_type="text/plain")).status == 200
    assert (await rig.request("POST", PAUSE)).status == 200


async def test_every_route_that_changes_something_is_guarded(rig: Rig) -> None:
    routes = [route for route in create_app(rig.context).router.routes() if route.method not in READING]
    found = {(route.method, route.resource.canonical) for route in routes if route.resource is not None}
    assert {path for _, path in found} > PAYLOAD_ROUTES
    for method, path in found:
        target = target_of(path, name="ci", source_id="calls", partition="0", offset="0")
        response = await rig.request(method, target, b"x", {"Origin": EVIL})
        problem(response, 403, "foreign-origin")
        if path not in PAYLOAD_ROUTES:
            response = await rig.request(method, target, b"x", {"Content-Type": "text/plain"})
            problem(response, 415, "unsupported-media-type")
    assert ("POST", ANSWER_PATH) in found


# --- every route -------------------------------------------------------------------------------------------------

FOREIGN = ({"Origin": EVIL}, {"Origin": "null"}, {"Sec-Fetch-Site": "cross-site"}, {"Sec-Fetch-Site": "same-site"})
MARKUP = "<script>alert(1)</script>"


def target_of(path: str, **known: str) -> str:
    """The path of a route's template, with the `known` values, and `0` for all others."""
    return re.sub(r"\{(\w+)[^{}]*\}", lambda name: known.get(name[1], "0"), path)


def routes_of(rig: Rig) -> set[tuple[str, str]]:
    """All routes that the API serves or that the access table has."""
    served = [route for route in create_app(rig.context).router.routes() if route.resource is not None]
    return {(route.method, route.resource.canonical) for route in served if route.resource is not None} | set(ROUTES)


async def refuses_foreign_pages(rig: Rig) -> None:
    asked = [(method, path) for method, path in sorted(routes_of(rig)) if path.startswith("/v1/") and method != "*"]
    assert len(asked) > 50
    for place, (method, path) in enumerate(asked):
        for headers in (FOREIGN[place % 4], FOREIGN[(place + 2) % 4]):
            reply = await rig.request(method, target_of(path), b"", headers)
            assert reply.status == 403, f"{method} {path} with {headers} was answered with {reply.status}"
            assert "Access-Control-Allow-Origin" not in reply.headers
            assert method == "HEAD" or b"/problems/foreign-origin" in reply.body


async def test_a_foreign_page_gets_no_route_at_all(rig: Rig) -> None:
    await refuses_foreign_pages(rig)


@pytest.mark.parametrize(
    ("name", "planted"),
    [
        ("origin_check.is_of_api", lambda _path: False),
        ("origin_check.is_of_api", lambda path: path != "/v1/attempts/{partition}/{offset}"),
        ("origin_check._FROM_US", frozenset({"same-origin", "none", "same-site"})),
        ("origin_check.WebRules.is_foreign", lambda _rules, _host, _origin, site: site is not None),
        ("origin_check.WebRules.is_foreign", lambda _rules, _host, origin, _site: origin is not None),
    ],
)
async def test_a_planted_way_for_a_foreign_page_is_found(
    monkeypatch: pytest.MonkeyPatch, name: str, planted: object
) -> None:
    monkeypatch.setattr(f"relay.api.{name}", planted)
    async with running_api() as rig:
        with pytest.raises(AssertionError, match="was answered with"):
            await refuses_foreign_pages(rig)


async def shows_markup_to_no_browser(rig: Rig) -> set[str]:
    """Routes that give back what others wrote, otherwise than in JSON, where a page of theirs is in all they wrote."""
    page, delivery = MARKUP.encode(), DeliveryId("ci", "app", "m-1")
    rig.directory.inbound["hooks"] = Inbound("slack", (HOOK_SECRET,), receivers=("ci",))
    sent = await rig.post(CI, page, ce_id="m-1", content_type="text/html", ce_type=quote(MARKUP))
    assert sent.status == 202
    answer = result_headers(Hop(delivery, content_type="text/html", outcome="answered", answer_status=200))
    (at,) = await rig.log.append([NewRecord(rig.topics.to_sender, b"app", page, answer)])
    await answered(rig.state.mark([Mark(delivery_row(delivery), 0, Stage.PUBLISHED, (at.partition, at.offset))]))
    known = {"source_id": "app", "message_id": "m-1", "receiver": "ci", "name": "ci"}
    asked = [
        (method, path, target_of(path, **known), b"") for method, path in sorted(routes_of(rig)) if method == "GET"
    ]
    asked += [(method, path, f"{target}?wait=0", body) for method, path, target, body in asked]
    asked.append(("POST", "/v1/sources/{source_id}/messages", f"{CI}&wait=1", page))
    asked.append(("POST", INBOUND_ROUTE, "/v1/in/hooks", slack_challenge(MARKUP)))
    raw = set[str]()
    for method, path, target, body in asked:
        headers = signed_by_slack(body) if path == INBOUND_ROUTE else {"Content-Type": "text/html", "ce-id": "m-1"}
        if path == "/v1/sources/{source_id}/messages":
            headers["ce-type"] = quote(MARKUP)
        reply = await rig.request(method, target, body, headers)
        assert reply.headers["X-Content-Type-Options"] == "nosniff"
        kind = reply.headers.get("Content-Type", "").partition(";")[0]
        if page not in reply.body or kind in ("application/json", "application/problem+json", "text/event-stream"):
            continue
        raw.add(path)
        sandboxed = reply.headers.get("Content-Security-Policy", "").startswith("sandbox")
        assert sandboxed, f"{method} {path} shows a page of others as one of ours"
        saved = reply.headers.get("Content-Disposition", "").startswith("attachment")
        assert saved or kind == "text/plain", f"{method} {path} shows a page of others"
    return raw


def slack_challenge(text: str) -> bytes:
    return json.dumps({"type": "url_verification", "challenge": text}).encode()


def signed_by_slack(body: bytes) -> dict[str, str]:
    mac = hmac.new(HOOK_SECRET.encode(), b"v0:%d:%b" % (NOW, body), hashlib.sha256).hexdigest()
    return {"X-Slack-Signature": f"v0={mac}", "X-Slack-Request-Timestamp": f"{NOW:.0f}"}


async def pages_of_others() -> set[str]:
    history = MemoryHistory()
    at, tried = attempt("m-1", source="app", offset=0)
    await put(
        history,
        arrival(1, source="app", receivers=("ci",), content_type="text/html", body=MARKUP.encode()),
        (at, structs.replace(tried, response=AttemptResponse(500, {"content-type": "text/html"}, MARKUP))),
    )
    async with running_api(limits=ApiLimits(wait_s=0.01, listen_s=0.01), history=history) as rig:
        return await shows_markup_to_no_browser(rig)


async def test_what_others_wrote_is_on_no_route_a_page_of_ours() -> None:
    messages = "/v1/sources/{source_id}/messages"
    assert await pages_of_others() == {
        messages,
        f"{messages}/{{message_id}}",
        f"{messages}/{{message_id}}/payload",
        INBOUND_ROUTE,
    }


def unguarded(body: bytes, content_type: str | None, headers: Mapping[str, str]) -> web.Response:
    return web.Response(body=body, headers={"Content-Type": content_type or "text/html", **headers})


@pytest.mark.parametrize(
    ("name", "planted"),
    [
        ("history.payload.foreign_response", unguarded),
        ("waiters.foreign_response", unguarded),
        ("inbound.foreign_response", unguarded),
        ("responses._SANDBOX", "default-src 'none'"),
        ("responses.PLAIN", frozenset({"text/html", "text/plain"})),
        (
            "route.json_response",
            lambda status, body: web.Response(status=status, body=msgspec.json.encode(body), content_type="text/html"),
        ),
    ],
)
async def test_a_planted_page_of_others_is_found(monkeypatch: pytest.MonkeyPatch, name: str, planted: object) -> None:
    monkeypatch.setattr(f"relay.api.{name}", planted)
    with pytest.raises(AssertionError, match="a page of others"):
        await pages_of_others()


# --- keys -------------------------------------------------------------------------------------------------------


async def test_wrong_keys_are_limited_and_told_once_and_the_right_one_still_passes() -> None:
    async with running_api(api_key="the right key") as rig:
        with capture_logs() as logged:
            for _ in range(MOST_FAILED):
                problem(await rig.get("/v1/failed", Authorization="Bearer guess"), 401, "unauthorized")
            limited = await rig.get("/v1/failed", Authorization="Bearer guess")
            problem(limited, 429, "too-many-requests")
            assert 1 <= int(limited.headers["Retry-After"]) <= 60
            assert (await rig.get("/v1/failed", Authorization="Bearer the right key")).status == 200
            problem(await rig.get("/v1/failed"), 401, "unauthorized")
        (told,) = [entry for entry in logged if entry["event"] == "request_refused"]
        assert (told["cause"], told["remote"], told["path"]) == ("key", "127.0.0.1", "/v1/failed")
        assert "guess" not in str(logged)
        rig.clock.now += 60
        problem(await rig.get("/v1/failed", Authorization="Bearer guess"), 401, "unauthorized")


EVERYWHERE = "0.0.0.0"  # noqa: S104
NOWHERE = {"RELAY_KAFKA_BOOTSTRAP_SERVERS": "127.0.0.1:1", "RELAY_REDIS_URL": "redis://127.0.0.1:1/0"}


@pytest.mark.parametrize(
    "environ",
    [
        {"RELAY_API_INSECURE": "true"},
        {"RELAY_API_KEY": "0123456789abcdef"},
        {"RELAY_API_HOST": "127.0.0.1"},
        {"RELAY_API_HOST": "::", "RELAY_API_INSECURE": "true"},  # includes IPv4
    ],
)
async def test_what_is_meant_or_has_a_key_starts(environ: dict[str, str], tmp_path: Path) -> None:
    environ = {"RELAY_API_HOST": EVERYWHERE, "RELAY_API_PORT": str(free_ports(1)[0])} | environ
    async with RelayProcess("run", "--processes", "1", cwd=tmp_path, environ=NOWHERE | environ) as process:
        await process.line_with("waiting")  # for Kafka, which is nowhere; the API is open by then
        async with aiohttp.ClientSession() as session:
            url = f"http://127.0.0.1:{environ['RELAY_API_PORT']}"
            async with session.get(f"{url}/livez", headers={"Host": "10.9.8.7"}) as response:
                assert response.status == 200
            async with session.get(f"{url}/v1/failed", headers={"Host": "10.9.8.7"}) as response:
                found: Any = await response.json()
                assert found["type"] == "/problems/unknown-host"
