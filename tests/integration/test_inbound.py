"""Tests of GitHub webhooks at a running relay: from the signed request to the receiver, and the response to a
repeat."""

import hashlib
import hmac
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from io import BytesIO
from pathlib import Path
from typing import Any

from aiohttp import ClientSession

from relay.sink import Sink, samples
from tests.integration.test_waiting import Watcher, is_over
from tests.servers.http import started
from tests.servers.process import relay_dev

SECRET = "It's a Secret to Everybody"
PUSH = samples.load("github.push")


def signed(delivery: str, body: bytes = PUSH.payload) -> dict[str, str]:
    return {
        "Content-Type": "application/json",
        "X-GitHub-Event": "push",
        "X-GitHub-Delivery": delivery,
        "X-Hub-Signature-256": "sha256=" + hmac.new(SECRET.encode(), body, hashlib.sha256).hexdigest(),
    }


@asynccontextmanager
async def client_of_dev(
    cwd: Path, sink: Sink, *, redelivery: str = "failed", largest: str = "1MiB", **of_source: str
) -> AsyncIterator[ClientSession]:
    """A client of a relay that takes webhooks of `github` for the sink. `of_source`: more in its entry."""
    retry = {"base": 0.1, "factor": 1, "cap": 0.1, "max_attempts": 1}
    inbound = {"kind": "github", "secret": "${WEBHOOK_SECRET}", "receivers": ["ci"], "redelivery": redelivery}
    entries = {
        "sources": {"github": {"inbound": inbound, **of_source}},
        "receivers": {"ci": {"post_endpoint": sink.url, "retry": retry}},
    }
    (cwd / "receivers.yaml").write_text(json.dumps(entries))
    environ = {"WEBHOOK_SECRET": SECRET, "RELAY_API_KEY": "a key that GitHub does not have"}
    environ["RELAY_MAX_PAYLOAD_BYTES"] = largest
    async with relay_dev(cwd, environ=environ) as dev:
        key = {"Authorization": f"Bearer {environ['RELAY_API_KEY']}"}
        async with ClientSession(dev.value_of("API"), headers=key) as session:
            yield session


async def post(session: ClientSession, delivery: str, body: bytes = PUSH.payload) -> tuple[int, Any]:
    headers = signed(delivery)
    async with session.post("/v1/in/github", data=body, headers=headers | {"Authorization": ""}) as response:
        return response.status, await response.json(content_type=None)


async def test_github_reaches_a_receiver_with_its_signature_alone(tmp_path: Path) -> None:
    sink = Sink("answer")
    async with started(sink), client_of_dev(tmp_path, sink) as session:
        assert (await post(session, "forged", PUSH.payload + b" "))[0] == 401
        status, view = await post(session, "d-1")
        assert (status, view["message_id"], view["duplicate"]) == (202, "d-1", False)
        state = await Watcher(session).until("d-1", is_over)
        assert (state["type"], state["deliveries"][0]["answer"]["status"]) == ("push", 200)
        status, view = await post(session, "d-1")
        assert (status, view["duplicate"], view["detail"]) == (202, True, None)
        assert "answer" not in view["deliveries"][0]
        async with session.get("/v1/sources/github/messages/forged") as response:
            assert response.status == 404
        async with session.get("/metrics") as response:
            assert 'relay_inbound_refused_total{kind="github",why="wrong"} 1' in await response.text()
    assert [(arrival.message_id, arrival.body) for arrival in sink.received] == [("d-1", PUSH.payload)]


async def test_the_largest_payload_of_github_arrives(tmp_path: Path) -> None:
    sink, push = Sink("answer"), json.loads(PUSH.payload)
    async with started(sink):
        push["commits"] = [push["head_commit"] | {"message": "m" * 10_000}] * 2_450
        body = json.dumps(push).encode()
        assert 24 * 1024**2 < len(body) < 25 * 1024**2
        async with client_of_dev(tmp_path, sink, largest="25MiB") as session:
            headers = signed("d-1", body) | {"Authorization": ""}
            async with session.post("/v1/in/github", data=BytesIO(body), headers=headers) as response:
                assert response.status == 202, await response.text()
            state = await Watcher(session).until("d-1", is_over)
            assert state["deliveries"][0]["answer"]["status"] == 200
    assert [arrival.body == body for arrival in sink.received] == [True]


async def test_what_has_failed_is_sent_once_more_when_github_sends_it_again(tmp_path: Path) -> None:
    sink = Sink("fail", fail_status=400)
    async with started(sink), client_of_dev(tmp_path, sink) as session:
        assert (await post(session, "d-1"))[0] == 202
        await Watcher(session).until("d-1", is_over)
        sink.become("answer")
        status, view = await post(session, "d-1")
        assert (status, view["duplicate"], view["deliveries"][0]["generation"]) == (202, True, 1)
        state = await Watcher(session).until("d-1", lambda view: is_over(view) and view["status"] != "failed")
        assert state["deliveries"][0]["answer"]["status"] == 200
        status, view = await post(session, "d-1")
        assert (status, view["duplicate"], view["detail"]) == (202, True, None)
        # whatever comes behind it: by then a repeat of d-1 would have been here, as they keep their order
        assert (await post(session, "d-2"))[0] == 202
        await Watcher(session).until("d-2", is_over)
    assert [arrival.message_id for arrival in sink.received] == ["d-1", "d-1", "d-2"]


async def test_a_source_that_is_over_its_quota_waits_for_the_next_window(tmp_path: Path) -> None:
    sink = Sink("answer")
    async with started(sink), client_of_dev(tmp_path, sink, quota="2/1d") as session:
        assert [(await post(session, f"d-{n}"))[0] for n in range(3)] == [202, 202, 429]
        async with session.post("/v1/sources/github/messages?receiver=ci", data=b"{}") as response:
            assert response.status == 429
            assert 86_300 < int(response.headers["Retry-After"]) <= 86_400
            assert response.headers["RateLimit-Policy"] == '"source";q=2;w=86400;pk=:Z2l0aHVi:'
            assert response.headers["RateLimit"].startswith('"source";r=0;t=86')
        async with session.get("/metrics") as metrics:
            assert 'relay_over_quota_total{of="source"} 2' in await metrics.text()
