"""The entries of docs/ci-without-preset.md, and Woodpecker's of docs/expressions.md, with emulators of these CIs: a
push at GitHub starts a build in each, and the commit gets the results."""

import json
import signal
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import yaml
from aiohttp import ClientSession

from bench.kafka_parts import free_ports
from relay.sink.builds import Result
from relay.sink.github import GitHubEmulator
from relay.sink.github_repository import CommitStatus, GitCommit
from tests.documents import ROOT, fences
from tests.servers.http import started
from tests.servers.other_cis import OTHER_CIS, CallingCi, OtherCi
from tests.servers.process import RelayProcess

TOKEN: Final = "ghp_of_the_relay"
SECRET: Final = "only GitHub and the relay know it"
PAGES: Final = ("docs/ci-without-preset.md", "docs/expressions.md")
ALL_S: Final = 100.0
ENTRIES: Final[Mapping[str, Any]] = {
    name: entry
    for page in PAGES
    for fence in fences(ROOT / page)
    if fence.mark is not None and fence.mark.value == "receivers"
    for name, entry in yaml.safe_load(fence.text)["receivers"].items()
    if name != "builds"  # of no CI
}


def test_each_entry_has_an_emulator() -> None:
    assert ENTRIES.keys() == OTHER_CIS.keys()


class Around:
    """GitHub and the CIs around a relay, which can be killed and started again."""

    def __init__(self, folder: Path) -> None:
        self.github = GitHubEmulator(TOKEN, branches=("main", "skip"))
        self.cis: dict[str, OtherCi] = {name: kind() for name, kind in OTHER_CIS.items()}
        self.relay: RelayProcess
        self._folder = folder
        self._port = free_ports(1)[0]

    async def start_relay(self) -> None:
        environ = {"GITHUB_WEBHOOK_SECRET": SECRET, "GITHUB_TOKEN": TOKEN}
        environ |= {name: value for ci in self.cis.values() for name, value in ci.variables.items()}
        options = ("--no-demo", "--port", str(self._port), "--data-dir", "data")
        self.relay = RelayProcess("dev", *options, cwd=self._folder, environ=environ)
        await self.relay.__aenter__()
        await self.relay.line_with("Ready")

    async def connect(self, session: ClientSession) -> None:
        """Write the receivers file, start the relay, and add the webhook."""
        callback = {"allow_origins": [self.github.api], "bearer_token": "${GITHUB_TOKEN}"}
        source = {"preset": "github", "inbound": {"secret": "${GITHUB_WEBHOOK_SECRET}"}, "callback": callback}
        receivers = {name: self._entry(ENTRIES[name], ci) for name, ci in self.cis.items()}
        text = json.dumps({"sources": {"github": source}, "receivers": receivers})
        (self._folder / "receivers.yaml").write_text(text)
        await self.start_relay()
        config = {"url": f"http://127.0.0.1:{self._port}/v1/in/github", "content_type": "json", "secret": SECRET}
        headers = {"authorization": f"Bearer {TOKEN}"}
        async with session.post(
            f"{self.github.url}/hooks", json={"events": ["push"], "config": config}, headers=headers
        ) as response:
            assert response.status == 201, await response.text()

    def _entry(self, entry: Mapping[str, Any], ci: OtherCi) -> dict[str, Any]:
        """The entry at the emulator, with faster waits."""
        parts = urlsplit(entry["post_endpoint"])
        fast = {"base": 0.1, "factor": 1, "cap": 0.1}
        endpoint = ci.origin + parts.path + (f"?{parts.query}" if parts.query else "")
        return {**entry, "post_endpoint": endpoint, "retry": fast, "poll": fast}

    async def all_pending(self, commit: GitCommit) -> None:
        await self.github.until(lambda: set(_states(commit).items()) == {(name, "pending") for name in self.cis}, ALL_S)

    async def ended(self, commit: GitCommit) -> dict[str, CommitStatus]:
        """The last status of each CI, once none is pending."""

        def has_ended() -> bool:
            states = _states(commit)
            return states.keys() == self.cis.keys() and "pending" not in states.values()

        await self.github.until(has_ended, ALL_S)
        return {status.context.removeprefix("relay/"): status for status in commit.statuses}


def _states(commit: GitCommit) -> dict[str, str]:
    return {status.context.removeprefix("relay/"): status.state for status in commit.statuses}


@asynccontextmanager
async def connected(folder: Path) -> AsyncIterator[tuple[Around, ClientSession]]:
    around = Around(folder)
    async with started(around.github, *around.cis.values()), ClientSession() as session, AsyncExitStack() as stack:
        await around.connect(session)
        stack.push_async_callback(lambda: around.relay.__aexit__(None, None, None))
        yield around, session


ENDS: Final[list[tuple[Result, str]]] = [("success", "success"), ("failed", "failure"), ("canceled", "error")]


async def test_a_push_gets_the_result_of_each_ci(tmp_path: Path) -> None:
    async with connected(tmp_path) as (around, session):
        for count, (result, state) in enumerate(ENDS, 1):
            commit = around.github.push("main", f"Builds: {result}")
            await around.all_pending(commit)
            await around.github.delivered()
            await around.github.redeliver(around.github.deliveries[-1])
            for ci in around.cis.values():
                await ci.finish(result, session)
            assert {name: found.state for name, found in (await around.ended(commit)).items()} == dict.fromkeys(
                around.cis, state
            )
            assert {len(ci.builds) for ci in around.cis.values()} == {count}
            assert {ci.builds[-1].commit for ci in around.cis.values()} <= {commit.sha, ""}
            assert {ci.builds[-1].ref for ci in around.cis.values()} <= {"main", "refs/heads/main", ""}


async def test_results_survive_that_the_cis_and_the_relay_are_down(tmp_path: Path) -> None:
    async with connected(tmp_path) as (around, session):
        for ci in around.cis.values():
            ci.faults += [("POST", 429), ("POST", 503)]
            if not isinstance(ci, CallingCi):
                ci.faults += [("GET", status) for status in (502, 429, 404, 500, 302)]
        commit = around.github.push("main", "While all are down")
        await around.all_pending(commit)
        for ci in around.cis.values():
            await ci.faults_over(ALL_S)
        for ci in around.cis.values():
            await ci.stop()
        around.relay.signal(signal.SIGKILL)
        await around.relay.finish()
        for ci in around.cis.values():
            await ci.start(port=ci.port)
        await around.start_relay()
        for ci in around.cis.values():
            await ci.finish("failed", session)
        assert {found.state for found in (await around.ended(commit)).values()} == {"failure"}
        assert {len(ci.builds) for ci in around.cis.values()} == {1}


async def test_a_page_in_place_of_a_response_is_an_error(tmp_path: Path) -> None:
    async with connected(tmp_path) as (around, _):
        for status in (200, 203):
            for ci in around.cis.values():
                ci.faults.append(("POST", status))
            ends = await around.ended(around.github.push("main", f"Sign in: {status}"))
            assert {name: found.state for name, found in ends.items()} == dict.fromkeys(around.cis, "error")
        assert not any(ci.builds for ci in around.cis.values())


async def test_a_branch_that_is_not_built_is_a_success(tmp_path: Path) -> None:
    async with connected(tmp_path) as (around, _):
        commit = around.github.push("skip", "Not to be built")
        there = {"drone": "success", "woodpecker": "success"}
        await around.github.until(lambda: there.items() <= _states(commit).items(), ALL_S)
        assert not [name for name in there if around.cis[name].builds]
