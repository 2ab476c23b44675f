"""What a page in a browser could make it send to the API, wrong keys, and where an API is served without a key."""

from pathlib import Path
from typing import Any

import aiohttp
import pytest
from structlog.testing import capture_logs

from bench.kafka_parts import free_ports
from relay.api.app import create_app
from relay.api.auth import ANSWER_PATH, MOST_FAILED
from relay.api.strangers import PAYLOAD_ROUTES, READING
from relay.api.web_rules import WebRules
from tests.integration.api_rig import document, problem, running_api
from tests.integration.test_api_answers import url as answer_url
from tests.servers.process import RelayProcess

CI = "/v1/sources/app/messages?receiver=ci"
BATCH = "/v1/sources/app/messages:batch?receiver=ci"
PAUSE = "/v1/receivers/ci/pause"
EVIL = "https://evil.example"


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


async def test_without_a_host_or_with_one_in_the_target_it_is_not_ours() -> None:
    async with running_api() as rig:
        assert (await rig.raw(b"GET /v1/failed HTTP/1.0\r\n\r\n"))[0] == 421
        assert (await rig.raw(b"GET http://evil.example/v1/failed HTTP/1.1\r\nhost: localhost\r\n\r\n"))[0] == 421


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
async def test_a_foreign_page_changes_nothing_and_asks_nothing(headers: dict[str, str]) -> None:
    async with running_api() as rig:
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


async def test_its_own_pages_and_programs_may() -> None:
    async with running_api() as rig:
        assert (await rig.post(CI, Origin=rig.url, Sec_Fetch_Site="same-origin")).status == 202
        assert (await rig.post(PAUSE, b"", Origin=rig.url)).status == 200


async def test_payloads_may_have_any_type_and_control_takes_json_or_nothing() -> None:
    async with running_api() as rig:
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


async def test_every_route_that_changes_something_is_guarded() -> None:
    async with running_api() as rig:
        routes = [route for route in create_app(rig.context).router.routes() if route.method not in READING]
        found = {(route.method, route.resource.canonical) for route in routes if route.resource is not None}
        assert {path for _, path in found} > PAYLOAD_ROUTES
        for method, path in found:
            target = path.replace("{name}", "ci").replace("{source_id}", "calls").replace("{token}", "t")
            response = await rig.request(method, target, b"x", {"Origin": EVIL})
            problem(response, 403, "foreign-origin")
            if path not in PAYLOAD_ROUTES:
                response = await rig.request(method, target, b"x", {"Content-Type": "text/plain"})
                problem(response, 415, "unsupported-media-type")
        assert ("POST", ANSWER_PATH) in found


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
    ("command", "environ", "said"),
    [
        (("run",), {"RELAY_API_HOST": EVERYWHERE}, ("RELAY_API_HOST", "RELAY_API_KEY", "RELAY_API_INSECURE=true")),
        (("run", "--processes", "2"), {"RELAY_API_HOST": "::"}, ("RELAY_API_HOST", "RELAY_API_KEY")),
        (("run", "--roles", "api"), {"RELAY_API_HOST": "relay.lan"}, ("RELAY_API_HOST", "RELAY_API_KEY")),
        (("dev", "--ephemeral"), {"RELAY_API_HOST": EVERYWHERE}, ("RELAY_API_HOST", "RELAY_API_KEY")),
        (("run",), {"RELAY_API_KEY": "short", "RELAY_API_INSECURE": "true"}, ("RELAY_API_KEY", "16 characters")),
    ],
)
async def test_what_would_be_open_to_others_does_not_start(
    command: tuple[str, ...], environ: dict[str, str], said: tuple[str, ...], tmp_path: Path
) -> None:
    async with RelayProcess(*command, cwd=tmp_path, environ=NOWHERE | environ) as process:
        output = await process.finish()
    assert process.returncode == 2, output
    assert all(word in output for word in said)
    assert "Traceback" not in output
    assert "short'" not in output


@pytest.mark.parametrize(
    "environ",
    [{"RELAY_API_INSECURE": "true"}, {"RELAY_API_KEY": "0123456789abcdef"}, {"RELAY_API_HOST": "127.0.0.1"}],
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
