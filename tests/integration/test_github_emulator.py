"""Tests of the emulated GitHub over HTTP: its webhooks, and the rights to its API."""

import hashlib
import hmac
import json
import signal
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import pytest
import pytest_asyncio
from aiohttp import ClientSession, web

from relay.sink.github import GitHubEmulator
from tests.servers.http import serving, started
from tests.servers.process import RelayProcess

TOKEN = "ghp_of_a_test"
SECRET = "only GitHub and its receiver know it"
FULL_NAME = "Codertocat/Hello-World"


class Receiver:
    """Records webhooks. `statuses`: of the next responses, then 202."""

    def __init__(self) -> None:
        self.received: list[tuple[Mapping[str, str], bytes]] = []
        self.statuses: list[int] = []

    async def handle(self, request: web.Request) -> web.Response:
        self.received.append((request.headers, await request.read()))
        return web.Response(status=self.statuses.pop(0) if self.statuses else 202)


@pytest_asyncio.fixture
async def github() -> AsyncIterator[GitHubEmulator]:
    emulator = GitHubEmulator(TOKEN)
    async with started(emulator):
        yield emulator


@pytest_asyncio.fixture
async def receiver() -> AsyncIterator[tuple[str, Receiver]]:
    found = Receiver()
    async with serving(found.handle) as url:
        yield f"{url}/in", found


@pytest_asyncio.fixture
async def client(github: GitHubEmulator) -> AsyncIterator[ClientSession]:
    async with ClientSession(f"{github.url}/", headers={"authorization": f"Bearer {TOKEN}"}) as own:
        yield own


async def add_hook(client: ClientSession, url: str, **config: str) -> int:
    body = {"events": ["push"], "config": {"url": url, "content_type": "json", "secret": SECRET} | config}
    async with client.post("hooks", json=body) as response:
        view = await response.json()
        assert (response.status, view["config"]["secret"]) == (201, "********")
        return int(view["id"])


async def test_a_push_is_sent_signed_to_the_webhook(
    github: GitHubEmulator, client: ClientSession, receiver: tuple[str, Receiver]
) -> None:
    url, received = receiver
    await add_hook(client, url)
    async with client.put("contents/docs/a.txt", json={"message": "Add", "content": "aGVsbG8="}) as response:
        sha = (await response.json())["commit"]["sha"]
    await github.delivered()
    by_event = {headers["X-GitHub-Event"]: (headers, body) for headers, body in received.received}
    assert sorted(by_event) == ["ping", "push"]
    headers, body = by_event["push"]
    assert headers["X-Hub-Signature-256"] == f"sha256={hmac.new(SECRET.encode(), body, hashlib.sha256).hexdigest()}"
    assert headers["User-Agent"].startswith("GitHub-Hookshot/")
    assert len(headers["X-GitHub-Delivery"]) == 36
    event = json.loads(body)
    assert (event["after"], event["head_commit"]["added"]) == (sha, ["docs/a.txt"])
    assert event["repository"]["statuses_url"].startswith(github.api)


async def test_a_form_has_the_payload_in_a_field(
    github: GitHubEmulator, client: ClientSession, receiver: tuple[str, Receiver]
) -> None:
    url, received = receiver
    await add_hook(client, url, content_type="form")
    await github.delivered()
    headers, body = received.received[0]
    assert headers["Content-Type"] == "application/x-www-form-urlencoded"
    assert body.startswith(b"payload=%7B")


async def test_a_delivery_that_failed_is_repeated_only_on_request(
    github: GitHubEmulator, client: ClientSession, receiver: tuple[str, Receiver]
) -> None:
    url, received = receiver
    hook = await add_hook(client, url)
    await github.delivered()
    received.statuses = [503]
    github.push("master", "Fix")
    await github.delivered()
    async with client.get(f"hooks/{hook}/deliveries") as response:
        newest = (await response.json())[0]
    assert (newest["event"], newest["status_code"], newest["redelivery"]) == ("push", 503, False)
    async with client.post(f"hooks/{hook}/deliveries/{newest['id']}/attempts") as response:
        assert response.status == 202
    await github.delivered()
    first, second = received.received[1:]
    assert first[0]["X-GitHub-Delivery"] == second[0]["X-GitHub-Delivery"]
    assert first[1] == second[1]
    async with client.get(f"hooks/{hook}/deliveries") as response:
        newest = (await response.json())[0]
    assert (newest["status_code"], newest["redelivery"]) == (202, True)


async def test_a_receiver_that_is_away_is_a_failed_delivery(github: GitHubEmulator, client: ClientSession) -> None:
    hook = await add_hook(client, "http://127.0.0.1:9/in")
    await github.delivered()
    async with client.get(f"hooks/{hook}/deliveries") as response:
        assert [delivery["status_code"] for delivery in await response.json()] == [0]


async def test_a_status_is_seen_at_its_commit(github: GitHubEmulator, client: ClientSession) -> None:
    commit = github.push("master", "Fix")
    for state in ("pending", "success"):
        async with client.post(f"statuses/{commit.sha}", json={"state": state, "context": "ci"}) as response:
            assert response.status == 201
            assert response.headers["Location"].endswith(commit.sha)
    async with client.get("commits/master/status") as response:
        view = await response.json()
    assert (view["state"], view["sha"], view["total_count"]) == ("success", commit.sha, 1)
    async with client.get(f"commits/{commit.sha}/statuses") as response:
        assert [status["state"] for status in await response.json()] == ["success", "pending"]


@pytest.mark.parametrize(
    ("headers", "status", "message"),
    [
        ({}, 401, "Requires authentication"),
        ({"authorization": "Bearer another"}, 401, "Bad credentials"),
        ({"authorization": f"Basic {TOKEN}"}, 401, "Bad credentials"),
        ({"authorization": f"token {TOKEN}"}, 201, None),
        ({"authorization": f"Bearer {TOKEN}", "user-agent": ""}, 403, "administrative rules"),
        ({"authorization": f"Bearer {TOKEN}", "x-github-api-version": "1999-01-01"}, 400, "API version"),
    ],
)
async def test_a_status_needs_a_token_and_a_user_agent(
    github: GitHubEmulator, headers: dict[str, str], status: int, message: str | None
) -> None:
    commit = github.push("master", "Fix")
    url = f"{github.url}/statuses/{commit.sha}"
    async with ClientSession() as client, client.post(url, json={"state": "success"}, headers=headers) as response:
        assert response.status == status
        assert message is None or message in (await response.json())["message"]
    assert len(commit.statuses) == (status == 201)


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("POST", "/repos/Codertocat/Other/statuses/x", 404),
        ("POST", f"/repos/{FULL_NAME}/statuses/x", 400),  # the body is no JSON
        ("PUT", f"/repos/{FULL_NAME}/statuses/x", 404),
        ("POST", f"/repos/{FULL_NAME}/hooks/7/deliveries/1/attempts", 404),
        ("GET", f"/repos/{FULL_NAME}/commits/gone/status", 422),
        ("GET", "/elsewhere", 404),
    ],
)
async def test_an_unknown_place_is_refused(github: GitHubEmulator, method: str, path: str, status: int) -> None:
    headers = {"authorization": f"Bearer {TOKEN}"}
    async with (
        ClientSession() as client,
        client.request(method, f"{github.api}{path}", data=b"{", headers=headers) as response,
    ):
        assert response.status == status
        assert (await response.json())["status"] == str(status)


async def test_the_secondary_rate_limit_says_when_to_come_back(github: GitHubEmulator, client: ClientSession) -> None:
    commit = github.push("master", "Fix")
    github.limit(1)
    async with client.post(f"statuses/{commit.sha}", json={"state": "success"}) as response:
        assert (response.status, response.headers["Retry-After"]) == (403, "1")
    async with client.post(f"statuses/{commit.sha}", json={"state": "success"}) as response:
        assert response.status == 201


async def test_the_command_runs_it_until_it_is_stopped(tmp_path: Path) -> None:
    async with RelayProcess("sink", "--as", "github", "--port", "0", "--token", TOKEN, cwd=tmp_path) as command:
        url = (await command.line_with("repository")).split()[1]
        assert await command.line_with("headers") == f"headers          authorization: Bearer {TOKEN}"
        headers = {"authorization": f"Bearer {TOKEN}"}
        async with ClientSession(f"{url}/", headers=headers) as client:
            async with client.put("contents/a.txt", json={"message": "Add", "content": "aGVsbG8="}) as response:
                sha = (await response.json())["commit"]["sha"]
            async with client.post(f"statuses/{sha}", json={"state": "success"}) as response:
                assert response.status == 201
        command.signal(signal.SIGTERM)
        output = await command.finish()
    assert f"<- success {sha}" in output
    assert output.endswith("0 webhooks; 1 x status of 1 commit")
