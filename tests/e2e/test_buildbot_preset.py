"""The presets `github` and `buildbot`: each push is built by a real Buildbot, and its commit gets the result."""

import json
from pathlib import Path
from typing import Final

import pytest
from aiohttp import ClientSession

from bench.kafka_parts import free_ports
from relay.sink.github import GitHubEmulator
from relay.sink.github_repository import GitCommit
from tests.e2e.buildbot import INSTALLED, running_buildbot
from tests.servers.process import RelayProcess

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not INSTALLED, reason="no Buildbot: make e2e")]

TOKEN: Final = "ghp_of_the_relay"
SECRET: Final = "only GitHub and the relay know it"
PUSHES: Final = 6


def expected(commit: GitCommit) -> str:
    """`master.cfg` has the builds of other commits fail."""
    return "success" if commit.sha[0] in "01234567" else "failure"


def states(commit: GitCommit) -> list[str]:
    return [status.state for status in commit.statuses]


async def test_a_push_is_built_and_its_commit_gets_the_result(tmp_path: Path) -> None:
    github = GitHubEmulator(TOKEN, branches=("main", "topic/x"))
    await github.start()
    try:
        async with running_buildbot(tmp_path / "buildbot", free_ports(1)[0]) as buildbot:
            entries = {
                "sources": {
                    "github": {
                        "preset": "github",
                        "inbound": {"secret": SECRET},
                        "callback": {"bearer_token": TOKEN, "allow_origins": [github.api]},
                    }
                },
                "receivers": {
                    "buildbot": {
                        "preset": "buildbot",
                        "post_endpoint": f"{buildbot.url}/api/v2/forceschedulers/force",
                        "sources": ["github"],
                        "event_types": ["push"],
                        "poll": {"base": 0.2, "cap": 0.5},
                    }
                },
            }
            (tmp_path / "receivers.yaml").write_text(json.dumps(entries))
            async with RelayProcess("dev", "--port", "0", "--ephemeral", cwd=tmp_path) as relay:
                await relay.line_with("Ready")
                hook = {"url": f"{relay.value_of('API')}/v1/in/github", "content_type": "json", "secret": SECRET}
                headers = {"authorization": f"Bearer {TOKEN}"}
                async with (
                    ClientSession(f"{github.url}/", headers=headers) as session,
                    session.post("hooks", json={"events": ["push"], "config": hook}) as response,
                ):
                    assert response.status == 201, await response.text()
                pushed = [github.push(("main", "topic/x")[at % 2], f"Commit {at}") for at in range(PUSHES)]
                await github.until(lambda: all(states(each)[-1:] == [expected(each)] for each in pushed), 60.0)
            builds = (await buildbot.get("buildsets"))["buildsets"]
    finally:
        await github.stop()
    assert {expected(each) for each in pushed} == {"success", "failure"}
    assert len(builds) == PUSHES
    for commit in pushed:
        assert {status.context for status in commit.statuses} == {"relay/buildbot"}
        assert set(states(commit)[:-1]) <= {"pending"}
