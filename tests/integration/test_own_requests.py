"""Test of a CI with its own format of requests and responses: a PUT starts the build, and polling finds its result. The
relay is a process on the embedded engine."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from tests.integration.test_demo import relay
from tests.servers.process import RelayProcess, relay_dev

ENTRY: dict[str, Any] = {
    "request": {
        "method": "PUT",
        "headers": {"x-branch": "${{ payload.branch }}"},
        "json": {"ref": "${{ payload.branch }}", "id": "${{ message.id }}"},
    },
    "outcomes": [
        {"when": "response.status == 201 && body.state == 'pending'", "is": "accepted"},
        {"when": "response.status == 201 && body.state == 'refused'", "is": "rejected"},
    ],
    "poll": {"base": "100ms"},
    "retry": {"base": 1, "cap": 1},
}


class Ci:
    """`ticket`: its response to the next PUT."""

    def __init__(self) -> None:
        self.ticket = '{"id": 7, "state": "pending"}'
        self.started: list[tuple[Any, str]] = []
        self.asked = 0
        app = web.Application()
        app.router.add_put("/builds", self._start)
        app.router.add_get("/builds/7", self._status)
        app.router.add_put("/moved", self._moved)
        self.server = TestServer(app)

    async def _start(self, request: web.Request) -> web.Response:
        self.started.append((await request.json(), request.headers["x-branch"]))
        return web.Response(status=201, text=self.ticket, content_type="application/json")

    async def _status(self, request: web.Request) -> web.Response:
        self.asked += 1
        return web.Response(status=202) if self.asked == 1 else web.json_response({"result": "green"})

    async def _moved(self, request: web.Request) -> web.Response:
        return web.Response(status=307, headers={"location": str(self.server.make_url("/builds"))})


@pytest.fixture
async def ci() -> AsyncIterator[Ci]:
    ci = Ci()
    await ci.server.start_server()
    yield ci
    await ci.server.close()


@pytest.fixture
async def dev(tmp_path: Path, ci: Ci) -> AsyncIterator[RelayProcess]:
    url = str(ci.server.make_url("/builds"))
    receivers = {
        "ci": {**ENTRY, "post_endpoint": url, "status_endpoint": url + "/{response.id}"},
        "moved": {**ENTRY, "post_endpoint": str(ci.server.make_url("/moved")), "retry": {"max_attempts": 1}},
    }
    (tmp_path / "receivers.yaml").write_text(json.dumps({"receivers": receivers}))
    async with relay_dev(tmp_path) as process:
        yield process


async def sent(dev: RelayProcess, payload: bytes, receiver: str = "ci", id: str = "m-1") -> dict[str, Any]:
    """The delivery, once it has ended."""
    command = ("send", "--source", "github", "--receiver", receiver, "--id", id, "-o", "json", "--wait", "30", "-")
    _, output = await relay(dev, *command, stdin=payload)
    [delivery] = json.loads(output[output.index("{") :])["deliveries"]  # after warnings
    return dict(delivery)


async def test_the_result_of_a_build_is_brought_back_and_not_its_ticket(dev: RelayProcess, ci: Ci) -> None:
    delivery = await sent(dev, b'{"branch": "main"}')
    assert json.loads(delivery["answer"]["body"]) == {"result": "green"}
    assert ci.started == [({"ref": "main", "id": "m-1"}, "main")]
    assert (ci.asked, delivery["attempts"]) == (2, 1)


async def test_nothing_is_sent_of_a_message_that_does_not_fit(dev: RelayProcess, ci: Ci) -> None:
    for payload, error in (
        (b"no json", "the payload is not JSON"),
        (b"{}", "request.headers.x-branch: `payload.branch`: there is no field 'branch'"),
        (b'{"branch": "main\\r\\nx-admin: 1"}', "request.headers.x-branch: the value cannot be a header"),
    ):
        delivery = await sent(dev, payload, id=f"m-{len(payload)}")
        assert (delivery["status"], delivery["reason"], delivery["attempts"]) == ("failed", "invalid", 0)
        assert error in delivery["detail"]
        assert ci.started == []


async def test_a_build_that_may_have_begun_is_not_started_again(dev: RelayProcess, ci: Ci) -> None:
    refused = "by outcomes[1]: response.status == 201 && body.state == 'refused'"
    for number, (ci.ticket, reason, error) in enumerate(
        (
            ("<html>", "invalid", "the response's body is not JSON"),
            ('{"id": 7}', "invalid", "there is no field 'state'"),
            ('{"state": "refused"}', "rejected", refused),
        )
    ):
        delivery = await sent(dev, b'{"branch": "main"}', id=f"m-{number}")
        assert (delivery["status"], delivery["reason"], delivery["attempts"]) == ("failed", reason, 1)
        assert error in delivery["detail"]
        assert len(ci.started) == number + 1


async def test_a_redirect_is_not_followed(dev: RelayProcess, ci: Ci) -> None:
    delivery = await sent(dev, b'{"branch": "main"}', "moved")
    assert (delivery["reason"], delivery["last_status"]) == ("exhausted", 307)
    assert ci.started == []
