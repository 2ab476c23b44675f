"""Tests of presets in a running relay: a push at GitHub starts a build in each emulated CI, and the commit gets the
results."""

import asyncio
import hashlib
import hmac
import json
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, ClassVar, Final

import pytest
from aiohttp import ClientResponse, ClientSession, web

from relay.sink import Sink
from relay.sink.builds import Result
from relay.sink.emulators import EMULATORS, Emulator
from relay.sink.github import GitHubEmulator
from relay.sink.github_repository import CommitStatus, GitCommit
from relay.sink.server import LocalServer
from tests.integration.production import Engine
from tests.servers.http import started
from tests.servers.process import relay_dev

TOKEN: Final = "ghp_of_the_relay"
SECRET: Final = "only GitHub and the relay know it"
CIS: Final = tuple(EMULATORS)
ALL_S: Final = 200.0
UNTIL_FINISHED: Final = 10**9
ENVIRON: Final = {"GITHUB_WEBHOOK_SECRET": SECRET, "GITHUB_TOKEN": TOKEN}


class Systems:
    """GitHub and the CIs around a relay."""

    def __init__(self) -> None:
        self.github = GitHubEmulator(TOKEN, branches=("main",))
        self.cis = {name: Emulator(EMULATORS[name]) for name in CIS}

    def receivers_file(self) -> dict[str, Any]:
        """As on docs/ci.md, with a faster poll."""
        receivers = {name: self._receiver(name, ci) for name, ci in self.cis.items()}
        receivers["wrong"] = receivers["gitlab"] | {"headers": {"PRIVATE-TOKEN": "wrong"}}
        inbound = {"secret": "${GITHUB_WEBHOOK_SECRET}"}
        callback = {"allow_origins": [self.github.api], "bearer_token": "${GITHUB_TOKEN}"}
        return {
            "sources": {"github": {"preset": "github", "inbound": inbound, "callback": callback}},
            "receivers": receivers,
        }

    def _receiver(self, name: str, ci: Emulator) -> dict[str, Any]:
        header, value = ci.ci.credential
        return {
            "preset": name,
            "post_endpoint": ci.url,
            "headers": {header: value},
            "sources": ["github"],
            "event_types": ["push"],
            "retry": {"base": 0.1, "factor": 1, "cap": 0.1},
            "poll": {"base": 0.05, "factor": 1, "cap": 0.05},
        }

    async def connect(self, api: str) -> None:
        """Add the webhook, as a user does."""
        async with ClientSession(f"{self.github.url}/", headers={"authorization": f"Bearer {TOKEN}"}) as session:
            config = {"url": f"{api}/v1/in/github", "content_type": "json", "secret": SECRET}
            async with session.post("hooks", json={"events": ["push"], "config": config}) as response:
                assert response.status == 201, await response.text()

    async def final(self, commit: GitCommit) -> Mapping[str, CommitStatus]:
        """The last status of each receiver. Builds are finished once the status of each CI is pending."""
        pending = {f"relay/{name}": "pending" for name in CIS}
        await self.github.until(lambda: pending.items() <= _last_states(commit).items(), ALL_S)
        for ci in self.cis.values():
            ci.builds.finish()
        await self.github.until(lambda: len(commit.statuses) == 2 * len(CIS) + 1, ALL_S)
        return {status.context.removeprefix("relay/"): status for status in commit.statuses}


def _last_states(commit: GitCommit) -> dict[str, str]:
    return {status.context: status.state for status in commit.statuses}


ACCEPTED: Final = {"github-actions": 200}
DESCRIPTIONS: Final = {
    "success": {
        "circleci": "build-and-test: success",
        "jenkins": "app #1: SUCCESS",
        "gitlab": "Pipeline 1: success",
        "buildkite": "Build 1: passed",
        "github-actions": "CI: success",
    },
    "failed": {
        "circleci": "build-and-test: failed",
        "jenkins": "app #2: FAILURE",
        "gitlab": "Pipeline 2: failed",
        "buildkite": "Build 2: failed",
        "github-actions": "CI: failure",
    },
    "canceled": {
        "circleci": "build-and-test: canceled",
        "jenkins": "Cancelled in the queue",
        "gitlab": "Pipeline 3: canceled",
        "buildkite": "Build 3: canceled",
        "github-actions": "CI: cancelled",
    },
}


async def check_round_trips(systems: Systems) -> None:
    """A push whose builds succeed, one whose builds fail, and one whose builds are cancelled."""
    ends: list[tuple[Result, str]] = [("success", "success"), ("failed", "failure"), ("canceled", "error")]
    for result, state in ends:
        for ci in systems.cis.values():
            ci.become(result=result, queued_polls=UNTIL_FINISHED)
        commit = systems.github.push("main", f"Builds: {result}")
        found = dict(await systems.final(commit))
        wrong = found.pop("wrong")
        assert (wrong.state, wrong.description) == ("error", "Not delivered: rejected")
        assert {name: status.state for name, status in found.items()} == dict.fromkeys(CIS, state)
        assert {name: status.description for name, status in found.items()} == DESCRIPTIONS[result]
        linked = {name: status.target_url for name, status in found.items() if name != "jenkins" or state != "error"}
        assert all(url is not None and url.startswith(("http://", "https://")) for url in linked.values()), linked
    for name, ci in systems.cis.items():
        assert [arrival.status for arrival in ci.received if arrival.status != 401] == [ACCEPTED.get(name, 201)] * 3
        assert {build.ref for build in ci.builds.started} <= {"main", "refs/heads/main"}
        assert all(poll.status == 200 for poll in ci.polls), name


async def test_a_push_gets_the_result_of_each_ci(engine: Engine) -> None:
    systems = Systems()
    async with (
        started(systems.github, *systems.cis.values()),
        engine(json.dumps(systems.receivers_file()), **ENVIRON) as api,
    ):
        await systems.connect(api)
        await check_round_trips(systems)


class Forge(LocalServer):
    """Takes commit statuses, and sends a push as its documentation has it. `statuses`: path, authorization, body."""

    preset: ClassVar[str]
    subscription: ClassVar[Mapping[str, Any]]
    pushes: ClassVar[Sequence[str]] = ("a" * 40,)
    """Commits that are pushed; zeros: a branch is deleted."""
    states: ClassVar[tuple[str, ...]]
    """Of a commit whose build fails."""

    def __init__(self) -> None:
        super().__init__()
        self.statuses: list[tuple[str, str, Any]] = []

    def app(self) -> web.Application:
        app = web.Application()
        app.router.add_post(self.status_path("{sha}"), self._add)
        return app

    @property
    def url(self) -> str:
        return f"{self.origin}/git"

    @abstractmethod
    def status_path(self, sha: str) -> str: ...

    @abstractmethod
    def pushed(self, sha: str) -> Mapping[str, object]:
        """The payload of a push."""

    @abstractmethod
    def headers(self, body: bytes) -> Mapping[str, str]: ...

    async def push(self, api: str, sha: str) -> None:
        body = json.dumps(self.pushed(sha)).encode()
        headers = {"Content-Type": "application/json", **self.headers(body)}
        async with (
            ClientSession() as session,
            session.post(f"{api}/v1/in/forge", data=body, headers=headers) as response,
        ):
            assert response.status in (202, 422), await response.text()

    async def wait_for(self, count: int) -> list[tuple[str, str, Any]]:
        return await self.noted(self.statuses, count, ALL_S)

    def refuses(self, status: Mapping[str, Any]) -> bool:
        return False

    async def _add(self, request: web.Request) -> web.Response:
        body = await request.json()
        if self.refuses(body):
            return web.json_response({"message": "refused"}, status=400)
        self.note(self.statuses, (request.path, request.headers["Authorization"], body))
        return web.json_response({"id": len(self.statuses)}, status=201)


class Gitea(Forge):
    preset = "gitea"
    subscription: ClassVar = {"event_types": ["push"]}
    states = ("pending", "failure")

    def status_path(self, sha: str) -> str:
        return f"/git/api/v1/repos/acme/app/statuses/{sha}"

    def pushed(self, sha: str) -> Mapping[str, object]:
        repository = {"full_name": "acme/app", "html_url": f"{self.url}/acme/app"}
        return {"ref": "refs/heads/main", "after": sha, "repository": repository}

    def headers(self, body: bytes) -> Mapping[str, str]:
        return {
            "X-Gitea-Delivery": "f6266f16-1bf3-46a5-9ea4-602e06ead473",
            "X-Gitea-Event": "push",
            "X-Gitea-Signature": hmac.new(SECRET.encode(), body, hashlib.sha256).hexdigest(),
        }


class GitLab(Forge):
    preset = "gitlab"
    subscription: ClassVar = {
        "event_types": ["Push Hook"],
        "filter": {"not": {"pointer": "/checkout_sha", "exact": None}},
    }
    pushes = ("0" * 40, "a" * 40)
    states = ("pending", "failed")

    def status_path(self, sha: str) -> str:
        return f"/git/api/v4/projects/15/statuses/{sha}"

    def pushed(self, sha: str) -> Mapping[str, object]:
        there = {"id": 15, "web_url": f"{self.url}/acme/app", "path_with_namespace": "acme/app"}
        deleted = not int(sha, 16)
        return {
            "object_kind": "push",
            "ref": "refs/heads/main",
            "after": sha,
            "checkout_sha": None if deleted else sha,
            "project_id": 15,
            "project": there,
        }

    def headers(self, body: bytes) -> Mapping[str, str]:
        return {"X-Gitlab-Event": "Push Hook", "X-Gitlab-Token": SECRET}

    def refuses(self, status: Mapping[str, Any]) -> bool:
        """Whether it is not a state, or the one that the status has already."""
        return (
            status["state"] not in ("pending", "running", "success", "failed", "canceled", "skipped")
            or status["state"] in [body["state"] for _, _, body in self.statuses if body["state"] == "pending"]
            or status["ref"] != "main"
        )


@pytest.mark.parametrize("kind", [Gitea, GitLab])
async def test_a_push_at_another_forge_gets_the_result(kind: type[Forge], tmp_path: Path) -> None:
    forge, ci = kind(), Emulator(EMULATORS["gitlab"], queued_polls=UNTIL_FINISHED, result="failed")
    async with started(forge, ci):
        callback = {"allow_origins": [forge.origin], "bearer_token": TOKEN}
        entries = {
            "sources": {"forge": {"preset": forge.preset, "inbound": {"secret": SECRET}, "callback": callback}},
            "receivers": {
                "ci": {
                    "preset": "gitlab",
                    "post_endpoint": ci.url,
                    "headers": dict([ci.ci.credential]),
                    "sources": ["forge"],
                    **forge.subscription,
                    "poll": {"base": 0.05, "factor": 1, "cap": 0.05},
                }
            },
        }
        (tmp_path / "receivers.yaml").write_text(json.dumps(entries))
        async with relay_dev(tmp_path) as process:
            for sha in forge.pushes:
                await forge.push(process.value_of("API"), sha)
            await forge.wait_for(1)
            ci.builds.finish()
            found = await forge.wait_for(2)
    assert [build.ref for build in ci.builds.started] == ["main"]
    assert {(path, token) for path, token, _ in found} == {(forge.status_path("a" * 40), f"Bearer {TOKEN}")}
    assert tuple(body["state"] for _, _, body in found) == forge.states
    assert {body.get("context") or body["name"] for _, _, body in found} == {"relay/ci"}
    assert found[-1][2]["target_url"].endswith("/acme/app/-/pipelines/1")


async def test_a_build_at_jenkins_is_found_although_its_queue_item_is_forgotten(tmp_path: Path) -> None:
    ci = Emulator(EMULATORS["jenkins"], result="failed")
    ci.builds.start("other", {})
    ci.become(result="success", poll_status=404)
    async with started(ci):
        entry = {
            "preset": "jenkins",
            "post_endpoint": ci.url,
            "headers": dict([ci.ci.credential]),
            "poll": {"base": 0.05, "factor": 1, "cap": 0.05},
        }
        (tmp_path / "receivers.yaml").write_text(json.dumps({"receivers": {"ci": entry}}))
        async with relay_dev(tmp_path) as process, ClientSession(process.value_of("API")) as session:
            push = {"ref": "refs/heads/main", "after": "a" * 40}
            sent = session.post("/v1/sources/a/messages", params={"receiver": "ci", "wait": "60"}, json=push)
            async with asyncio.TaskGroup() as tasks:
                answer = tasks.create_task(_json_of(sent))
                await ci.until(lambda: any(poll.message_id.startswith("/job/app/api/json") for poll in ci.polls), ALL_S)
                ci.builds.finish()
                ci.become(poll_status=None)
    assert answer.result()["description"] == "app #2: SUCCESS"
    assert {poll.status for poll in ci.polls if poll.message_id.startswith("/queue/")} == {404}


async def _json_of(request: AbstractAsyncContextManager[ClientResponse]) -> Any:
    async with request as response:
        assert response.status == 200, await response.text()
        return await response.json()


async def test_a_token_goes_to_no_other_origin_whatever_a_payload_says(tmp_path: Path) -> None:
    attacker, receiver = Sink("ok"), Sink("answer")
    async with started(attacker, receiver):
        callback = {"allow_origins": ["http://127.0.0.1:9"], "bearer_token": TOKEN}
        entries = {
            "sources": {"github": {"preset": "github", "inbound": {"secret": SECRET}, "callback": callback}},
            "receivers": {"ci": {"post_endpoint": receiver.url}},
        }
        (tmp_path / "receivers.yaml").write_text(json.dumps(entries))
        payload = {"after": "a" * 40, "repository": {"statuses_url": f"{attacker.url}/{{sha}}"}}
        async with relay_dev(tmp_path) as process:
            url = f"{process.value_of('API')}/v1/sources/github/messages?receiver=ci"
            async with ClientSession() as session, session.post(url, json=payload) as response:
                assert response.status == 202, await response.text()
            dead = json.loads(await process.line_with('"dead_letter"'))
    assert (dead["stage"], dead["reason"]) == ("to_sender", "invalid")
    assert "no origin that it may lead to" in dead["detail"]
    assert len(receiver.received) == 1
    assert attacker.received == []
