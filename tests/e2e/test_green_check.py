"""From a push at GitHub to the status of its commit: the webhook, the build at a Buildbot, and the result.

GitHub is emulated, the Buildbot is a real one. Relay and Buildbot are killed while builds are in progress.
"""

import signal
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest
import pytest_asyncio
import yaml
from aiohttp import ClientSession

from bench.kafka_parts import free_ports
from relay.sink.github import GitHubEmulator
from relay.sink.github_repository import GitCommit
from tests.e2e.buildbot import CANCELLED, FAILURE, INSTALLED, SUCCESS, Buildbot, result_of, running_buildbot
from tests.servers.process import RelayProcess

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not INSTALLED, reason="no Buildbot: make e2e"),
    pytest.mark.timeout(600),
]

BRANCHES: Final = ("master", "next", "fix/slow-start", "feature/a", "feature/b")
PUSHES: Final = 50
TOKEN: Final = "ghp_of_the_relay"
SECRET: Final = "only GitHub and the relay know it"
ALL_S: Final = 240.0
STATES: Final = {SUCCESS: "success", FAILURE: "failure", CANCELLED: "error"}


def with_presets(github: str, buildbot: str) -> dict[str, Any]:
    """Entries that say where, and with which credential. `github`, `buildbot`: the origins."""
    return {
        "sources": {
            "github": {
                "preset": "github@1",
                "inbound": {"secret": "${GITHUB_WEBHOOK_SECRET}"},
                "callback": {"bearer_token": "${GITHUB_TOKEN}", "allow_origins": [github]},
            }
        },
        "receivers": {
            "buildbot": {
                "preset": "buildbot@1",
                "post_endpoint": f"{buildbot}/api/v2/forceschedulers/force",
                "sources": ["github"],
                "event_types": ["push"],
                "ordering": {"by": "/ref"},
                "retry": {"base": 0.5, "factor": 1.5, "cap": 3},
                "poll": {"base": 0.5, "cap": 2},
            }
        },
    }


def without_presets(github: str, buildbot: str) -> dict[str, Any]:
    """Entries that find a build by the message's id, so that none is started twice, and link the status to it."""
    entries = with_presets(github, buildbot)
    receiver, source = entries["receivers"]["buildbot"], entries["sources"]["github"]
    del receiver["preset"], source["preset"]
    bsid = "${{ steps[0].body.buildsets[0].bsid }}"
    receiver["request"] = {
        "json": {
            "jsonrpc": "2.0",
            "method": "force",
            "id": 1,
            "params": {
                "branch": "${{ payload.ref.replace('refs/heads/', '') }}",
                "revision": "${{ payload.after }}",
                "reason": "${{ message.webhook_id }}",
            },
        }
    }
    receiver["outcomes"] = [{"when": "response.status == 200 && has(body.result)", "is": "accepted"}]
    receiver["status_steps"] = [
        {
            "url": f"{buildbot}/api/v2/buildsets?reason__contains=${{{{ message.webhook_id }}}}",
            "until": "size(body.buildsets) > 0",
            "unknown": "size(body.buildsets) == 0",
        },
        {"url": f"{buildbot}/api/v2/buildsets/{bsid}", "until": "body.buildsets[0].complete"},
        {
            "url": f"{buildbot}/api/v2/buildrequests?buildsetid={bsid}",
            "until": "size(body.buildrequests) > 0",
            "answer": {
                "json": {
                    "results": "${{ steps[1].body.buildsets[0].results }}",
                    "buildset": bsid,
                    "request": "${{ body.buildrequests[0].buildrequestid }}",
                }
            },
        },
    ]
    answered = "delivery.outcome == 'answered'"
    source["inbound"]["kind"] = "github"
    source["keep"] = {"url": "payload.repository.statuses_url", "sha": "payload.after"}
    source["callback"] |= {
        "url": "${{ keep.url.replace('{sha}', keep.sha) }}",
        "progress": ["accepted"],
        "request": {
            "json": {
                "state": "${{ delivery.outcome == 'accepted' ? 'pending'"
                f" : !({answered}) ? 'error' : answer.body.results == 0 ? 'success'"
                " : answer.body.results == 2 ? 'failure' : 'error' }}",
                "description": f"${{{{ {answered} ? 'Buildset ' + string(answer.body.buildset) : 'Queued' }}}}",
                "target_url": f"{buildbot}/#/"
                f"${{{{ {answered} ? 'buildrequests/' + string(answer.body.request) : 'builders' }}}}",
                "context": "relay/buildbot",
            }
        },
    }
    return entries


@dataclass(slots=True)
class Systems:
    """Everything between a push and its status. `hook`: the id of the webhook at GitHub."""

    github: GitHubEmulator
    buildbot: Buildbot
    folder: Path
    port: int
    relay: RelayProcess
    stack: AsyncExitStack
    pushed: list[GitCommit]
    in_doubt: set[str]
    """Commits whose first status may have been in flight when the relay was killed: it is not sent again."""

    async def start_relay(self) -> None:
        environ = {"GITHUB_WEBHOOK_SECRET": SECRET, "GITHUB_TOKEN": TOKEN}
        options = ("--no-demo", "--port", str(self.port), "--data-dir", str(self.folder / "data"))
        self.relay = RelayProcess("dev", *options, cwd=self.folder, environ=environ)
        await self.stack.enter_async_context(self.relay)
        await self.relay.line_with("Ready")

    async def kill_relay(self) -> None:
        self.relay.signal(signal.SIGKILL)
        await self.relay.finish()
        self.in_doubt |= {commit.sha for commit in self.pushed if not commit.statuses}

    async def add_hook(self) -> None:
        config = {"url": f"http://127.0.0.1:{self.port}/v1/in/github", "content_type": "json", "secret": SECRET}
        headers = {"authorization": f"Bearer {TOKEN}"}
        async with (
            ClientSession(headers=headers) as session,
            session.post(f"{self.github.url}/hooks", json={"events": ["push"], "config": config}) as response,
        ):
            assert response.status == 201
        await self.github.delivered()
        assert self.github.deliveries[0].status_code == 200, "the ping"

    def push(self, count: int) -> None:
        for number in range(len(self.pushed), len(self.pushed) + count):
            self.pushed.append(self.github.push(BRANCHES[number % len(BRANCHES)], f"Change thing {number}"))

    async def redeliver(self) -> int:
        """Have GitHub repeat what it could not deliver, as an operator does; returns the number."""
        await self.github.delivered()
        arrived = {delivery.guid for delivery in self.github.deliveries if delivery.status_code == 202}
        missing = {each.guid: each for each in self.github.deliveries[1:] if each.guid not in arrived}
        for delivery in missing.values():
            assert (await self.github.redeliver(delivery)).status_code == 202
        return len(missing)

    def finished(self) -> int:
        return sum(commit.state() != "pending" for commit in self.pushed)

    async def until_finished(self, count: int) -> None:
        await self.github.until(lambda: self.finished() >= count, ALL_S)


@asynccontextmanager
async def running_systems(folder: Path, entries: Callable[[str, str], dict[str, Any]]) -> AsyncIterator[Systems]:
    """`entries`: of the receivers file."""
    async with AsyncExitStack() as stack:
        github = GitHubEmulator(TOKEN, branches=BRANCHES)
        await github.start()
        stack.push_async_callback(github.stop)
        ci_port, relay_port = free_ports(2)
        buildbot = await stack.enter_async_context(running_buildbot(folder / "ci", ci_port))
        (folder / "receivers.yaml").write_text(yaml.safe_dump(entries(github.api, buildbot.url)))
        systems = Systems(github, buildbot, folder, relay_port, RelayProcess(cwd=folder), stack, [], set())
        await systems.start_relay()
        await systems.add_hook()
        yield systems


@pytest_asyncio.fixture(params=[with_presets, without_presets])
async def systems(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Systems]:
    async with running_systems(tmp_path, request.param) as running:
        yield running


async def test_each_commit_gets_its_own_result(systems: Systems) -> None:
    """Through the death of the relay, and of Buildbot, while builds are in progress."""
    systems.push(20)
    await systems.until_finished(4)
    await systems.kill_relay()
    systems.push(5)
    await systems.github.delivered()
    await systems.start_relay()
    repeated = await systems.redeliver()
    systems.github.limit(2)
    systems.push(10)
    await systems.until_finished(systems.finished() + 4)
    await systems.buildbot.stop(signal.SIGKILL)
    systems.push(5)
    await systems.buildbot.start()
    systems.push(5)
    await systems.until_finished(systems.finished() + 2)
    await systems.kill_relay()
    await systems.buildbot.stop(signal.SIGTERM)
    await systems.start_relay()
    systems.push(5)
    await systems.buildbot.start()
    repeated += await systems.redeliver()
    await systems.until_finished(PUSHES)
    await check(systems, repeated)


async def check(systems: Systems, repeated: int) -> None:
    """Each commit has the result of its own build, and was pending before that."""
    builds = await builds_by_commit(systems.buildbot)
    limited = {path.rpartition("/")[2] for path, _, _ in systems.github.refused}
    may_lack_pending, pending = systems.in_doubt | limited, 0
    for commit in systems.pushed:
        [build] = builds[commit.sha]
        assert build.results in (result_of(commit.sha), CANCELLED), commit
        states = [status.state for status in commit.statuses]
        assert states == sorted(states, key=lambda state: state != "pending"), commit
        assert set(states) - {"pending"} == {STATES[build.results]}, commit
        assert "pending" in states or commit.sha in may_lack_pending, commit
        pending += "pending" in states
        assert {status.context for status in commit.statuses} == {"relay/buildbot"}
        assert commit.statuses[-1].description == f"Buildset {build.buildset}"
        assert commit.statuses[-1].target_url in (None, f"{systems.buildbot.url}/#/buildrequests/{build.request}")
    assert len(builds) == len({commit.sha for commit in systems.pushed}) == PUSHES
    assert {(status, message[:38]) for _, status, message in systems.github.refused} == {
        (403, "You have exceeded a secondary rate lim")
    }
    finals = Counter(commit.statuses[-1].state for commit in systems.pushed)
    statuses = sum(len(commit.statuses) for commit in systems.pushed)
    print(  # noqa: T201
        f"{PUSHES} pushes on {len(BRANCHES)} branches, {repeated} of them repeated by GitHub; {len(builds)} builds;"
        f" {statuses} statuses, {pending} commits pending first, then {dict(finals)}; none lost, wrong or built twice"
    )


@dataclass(frozen=True, slots=True)
class Build:
    buildset: int
    request: int
    results: int


async def builds_by_commit(buildbot: Buildbot) -> dict[str, list[Build]]:
    requests = (await buildbot.get("buildrequests"))["buildrequests"]
    by_set = {request["buildsetid"]: request["buildrequestid"] for request in requests}
    found: dict[str, list[Build]] = {}
    for buildset in (await buildbot.get("buildsets"))["buildsets"]:
        build = Build(buildset["bsid"], by_set[buildset["bsid"]], buildset["results"])
        found.setdefault(buildset["sourcestamps"][0]["revision"], []).append(build)
    return found
