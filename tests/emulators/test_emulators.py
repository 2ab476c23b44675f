"""Tests of the CI emulators: they accept what the API reference allows, refuse the rest as the originals do, and
build."""

import asyncio
import json
import signal
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Final, NamedTuple

import pytest
from aiohttp import ClientResponse, ClientSession, encode_basic_auth
from click.testing import CliRunner
from yarl import URL

from relay.cli.sink import sink
from relay.sink.builds import CiKnobs
from relay.sink.emulators import EMULATORS, TOKEN, Emulator

JSON: Final = {"Content-Type": "application/json"}
FORM: Final = {"Content-Type": "application/x-www-form-urlencoded"}
BASIC: Final = {"Authorization": encode_basic_auth("relay", TOKEN)}
BEARER: Final = {"Authorization": f"Bearer {TOKEN}"}
GITLAB: Final = {"PRIVATE-TOKEN": TOKEN}
CIRCLE: Final = {"Circle-Token": TOKEN}
RUN: Final = {
    "definition_id": "5034460f-c7c4-4c43-9457-de07e2029e7b",
    "config": {"branch": "main"},
    "checkout": {"branch": "main"},
}


class Call(NamedTuple):
    """A request to an emulator. `body`: a mapping is sent as JSON."""

    ci: str
    method: str
    path: str
    headers: Mapping[str, str]
    body: Any = None


def trigger(body: Any = None, headers: Mapping[str, str] = CIRCLE, path: str = "gh/acme/app/pipeline") -> Call:
    return Call("circleci", "POST", f"/api/v2/project/{path}", headers, body)


def jenkins(path: str, headers: Mapping[str, str], body: Any = None, method: str = "POST") -> Call:
    return Call("jenkins", method, path, headers, body)


def gitlab(path: str, headers: Mapping[str, str], body: Any = None, method: str = "POST") -> Call:
    return Call("gitlab", method, f"/api/v4/projects/{path}", headers, body)


def buildkite(body: Any, headers: Mapping[str, str] = BEARER, path: str = "acme/pipelines/app/builds") -> Call:
    return Call("buildkite", "POST", f"/v2/organizations/{path}", headers, body)


def dispatch(body: Any, headers: Mapping[str, str] = BEARER, path: str = "workflows/ci.yml/dispatches") -> Call:
    return Call("github-actions", "POST", f"/repos/acme/app/actions/{path}", headers, body)


@asynccontextmanager
async def running(ci: str, **knobs: Any) -> AsyncIterator[Emulator]:
    emulator = Emulator(EMULATORS[ci], **knobs)
    await emulator.start()
    try:
        yield emulator
    finally:
        await emulator.stop()


async def send(session: ClientSession, emulator: Emulator, call: Call) -> ClientResponse:
    data = json.dumps(call.body) if isinstance(call.body, dict) else call.body
    headers = {**JSON, **call.headers} if isinstance(call.body, dict) else dict(call.headers)
    url = URL(emulator.origin + call.path, encoded=True)
    response = await session.request(call.method, url, data=data, headers=headers, allow_redirects=False)
    await response.read()
    return response


@pytest.fixture
async def session() -> AsyncIterator[ClientSession]:
    async with ClientSession(skip_auto_headers=["Content-Type"]) as session:
        yield session


@pytest.mark.parametrize(
    ("call", "status"),
    [
        (trigger({}), 201),
        (trigger({"branch": "topic/x", "parameters": {"commit": "abc"}}), 201),
        (trigger({"tag": "v1"}, path="github/acme/app/pipeline"), 201),
        (trigger(RUN, path="circleci/acme/app/pipeline/run"), 201),
        (jenkins("/job/app/buildWithParameters", BASIC), 201),
        (jenkins("/job/app/buildWithParameters?BRANCH=main", BASIC), 201),
        (jenkins("/job/app/buildWithParameters", BASIC | FORM, "BRANCH=main&COMMIT=abc&OTHER=ignored"), 201),
        (gitlab("7/pipeline", GITLAB, {"ref": "main"}), 201),
        (gitlab("acme%2Fapp/pipeline", BEARER, {"ref": "main", "variables": [{"key": "A", "value": "b"}]}), 201),
        (gitlab("7/pipeline?ref=main", GITLAB), 201),
        (gitlab("7/trigger/pipeline", FORM, f"token={TOKEN}&ref=main&variables[A]=b"), 201),
        (buildkite({"commit": "HEAD", "branch": "main"}), 201),
        (buildkite({"commit": "abc", "branch": "main", "env": {"A": "b"}, "meta_data": {}, "message": "m"}), 201),
        (dispatch({"ref": "refs/heads/main"}), 204),
        (dispatch({"ref": "main", "inputs": {"commit": "abc"}, "return_run_details": True}), 200),
        (dispatch({"ref": "main"}, {"Authorization": f"token {TOKEN}", "Accept": "application/vnd.github+json"}), 204),
    ],
)
async def test_what_the_reference_allows_starts_a_build(session: ClientSession, call: Call, status: int) -> None:
    async with running(call.ci) as emulator:
        response = await send(session, emulator, call)
        assert response.status == status, await response.text()
        assert len(emulator.builds.started) == 1
        assert [arrival.status for arrival in emulator.received] == [status]


@pytest.mark.parametrize(
    ("call", "status", "said"),
    [
        (trigger({}, {}), 401, '{"message":"You must log in first."}'),
        (trigger({}, {"Circle-Token": "wrong"}), 401, "log in"),
        (trigger({}, path="gh/acme/other/pipeline"), 404, '{"message":"Project not found"}'),
        (trigger({}, path="svn/acme/app/pipeline"), 404, "Project not found"),
        (trigger({"branch": "a", "tag": "b"}), 400, "mutually exclusive"),
        (trigger({"branch": 1}), 400, "must be a string"),
        (trigger({"ref": "main"}), 400, "ref: disallowed key"),
        (trigger({"parameters": {"nope": 1}}), 400, "Unexpected argument(s): nope"),
        (trigger("branch=main", CIRCLE | FORM), 400, "JSON"),
        (trigger("[]", CIRCLE | JSON), 400, "JSON"),
        (trigger(RUN | {"definition_id": "x"}, path="gh/acme/app/pipeline/run"), 400, "must be a UUID"),
        (trigger({"definition_id": RUN["definition_id"]}, path="gh/acme/app/pipeline/run"), 400, "required"),
        (Call("circleci", "GET", "/api/v2/pipeline/5034460f-c7c4-4c43-9457-de07e2029e7b", CIRCLE), 404, "not found"),
        (jenkins("/job/app/buildWithParameters", FORM, "BRANCH=main"), 403, "No valid crumb"),
        (jenkins("/job/app/buildWithParameters", BASIC | {"Authorization": "Basic eDp5"}), 401, "Invalid password"),
        (jenkins("/job/app/buildWithParameters", BASIC, method="GET"), 405, "<html>"),
        (jenkins("/job/app/buildWithParameters", BASIC | JSON, "{}"), 400, "Unsupported content type"),
        (jenkins("/job/other/buildWithParameters", BASIC), 404, "<html>"),
        (jenkins("/queue/item/1/api/json", BASIC, method="GET"), 404, "<html>"),
        (jenkins("/queue/item/1/api/json", {}, method="GET"), 403, "Overall/Read"),
        (gitlab("7/pipeline", {}, {"ref": "main"}), 401, '{"message":"401 Unauthorized"}'),
        (gitlab("8/pipeline", GITLAB, {"ref": "main"}), 404, '{"message":"404 Project Not Found"}'),
        (gitlab("7/pipeline", GITLAB, {}), 400, '{"error":"ref is missing"}'),
        (gitlab("7/pipeline", GITLAB, {"ref": "refs/heads/main"}), 400, '{"message":{"base":["Reference not found"]}}'),
        (gitlab("7/pipeline", GITLAB, {"ref": "main", "variables": {"A": "b"}}), 400, "variables is invalid"),
        (gitlab("7/pipeline", GITLAB | {"Content-Type": "text/plain"}, "ref=main"), 415, "not supported"),
        (gitlab("7/pipeline", GITLAB, method="GET"), 405, "405 Not Allowed"),
        (gitlab("7/trigger/pipeline", FORM, "ref=main"), 400, '{"error":"token is missing"}'),
        (gitlab("7/trigger/pipeline", FORM, "token=wrong&ref=main"), 404, '{"message":"404 Not Found"}'),
        (gitlab("7/pipelines/1", GITLAB, method="GET"), 404, '{"message":"404 Not Found"}'),
        (buildkite({"commit": "HEAD", "branch": "main"}, {}), 401, "valid API Access Token"),
        (buildkite({"branch": "main"}), 422, '[{"field":"commit","code":"missing"}]'),
        (buildkite({"commit": 1, "branch": "main"}), 422, '{"field":"commit","code":"invalid"}'),
        (buildkite({"commit": "HEAD", "branch": "main", "env": []}), 422, '{"field":"env","code":"invalid"}'),
        (buildkite({"commit": "HEAD", "branch": "main", "ref": "x"}), 422, '{"field":"ref","code":"unknown"}'),
        (buildkite("{", BEARER | JSON), 400, "JSON is invalid"),
        (buildkite({"commit": "HEAD", "branch": "main"}, path="acme/pipelines/other/builds"), 404, "message"),
        (dispatch({"ref": "main"}, {}), 401, '"message":"Bad credentials"'),
        (dispatch({"ref": "main"}, BEARER | {"User-Agent": ""}), 403, "User-Agent"),
        (dispatch({"ref": "main"}, BEARER | {"Accept": "text/html"}), 415, "Accept"),
        (dispatch({}), 422, "wasn't supplied"),
        (dispatch({"ref": 7}), 422, "is not a string"),
        (dispatch({"ref": "main", "inputs": {"x": "y"}}), 422, "Unexpected inputs provided: ['x']"),
        (dispatch({"ref": "main", "branch": "x"}), 422, "not a permitted key"),
        (dispatch("ref=main", BEARER | FORM), 400, "Problems parsing JSON"),
        (dispatch({"ref": "main"}, path="workflows/other.yml/dispatches"), 404, '"message":"Not Found"'),
        (Call("github-actions", "GET", "/repos/acme/app/actions/runs/7", BEARER), 404, "Not Found"),
    ],
)
async def test_a_wrong_request_is_refused_as_the_original_does(
    session: ClientSession, call: Call, status: int, said: str
) -> None:
    async with running(call.ci) as emulator:
        response = await send(session, emulator, call)
        assert (response.status, said in await response.text()) == (status, True), await response.text()
        assert emulator.builds.started == []


POSTS: Final[Mapping[str, Call]] = {
    "circleci": trigger({"branch": "main"}),
    "jenkins": jenkins("/job/app/buildWithParameters", BASIC),
    "gitlab": gitlab("7/pipeline", GITLAB, {"ref": "main"}),
    "buildkite": buildkite({"commit": "HEAD", "branch": "main"}),
    "github-actions": dispatch({"ref": "main", "return_run_details": True}),
}
"""A valid request of each CI."""


async def _pipeline(post: ClientResponse) -> tuple[str, Callable[[Any], object]]:
    return f"/api/v2/pipeline/{(await post.json())['id']}/workflow", lambda body: [
        item["status"] for item in body["items"]
    ]


async def _jenkins_build(post: ClientResponse) -> tuple[str, Callable[[Any], object]]:
    assert await post.read() == b""
    assert "/queue/item/" in post.headers["Location"]
    return "/job/app/1/api/json", lambda body: body["result"] if not body["building"] else "building"


async def _gitlab_pipeline(post: ClientResponse) -> tuple[str, Callable[[Any], object]]:
    created = await post.json()
    assert created["status"] == "created"
    return f"/api/v4/projects/7/pipelines/{created['id']}", lambda body: body["status"]


async def _buildkite_build(post: ClientResponse) -> tuple[str, Callable[[Any], object]]:
    created = await post.json()
    assert created["state"] == "scheduled"
    return URL(created["url"]).path, lambda body: body["state"]


async def _run(post: ClientResponse) -> tuple[str, Callable[[Any], object]]:
    return URL((await post.json())["run_url"]).path, lambda body: body["conclusion"] or body["status"]


STATUS: Final = {
    "circleci": _pipeline,
    "jenkins": _jenkins_build,
    "gitlab": _gitlab_pipeline,
    "buildkite": _buildkite_build,
    "github-actions": _run,
}
"""From a response to the path of the build, and what says there how it is."""


@pytest.mark.parametrize(
    ("ci", "seen"),
    [
        ("circleci", [[], ["running"], ["failed"]]),
        ("jenkins", ["building", "FAILURE"]),  # its queue is asked elsewhere
        ("gitlab", ["pending", "running", "failed"]),
        ("buildkite", ["scheduled", "running", "failed"]),
        ("github-actions", ["queued", "in_progress", "failure"]),
    ],
)
async def test_a_build_waits_runs_and_ends_as_its_behaviour_says(
    session: ClientSession, ci: str, seen: list[object]
) -> None:
    async with running(ci, result="failed", queued_polls=0 if ci == "jenkins" else 1) as emulator:
        path, word = await STATUS[ci](await send(session, emulator, POSTS[ci]))
        get = Call(ci, "GET", path, POSTS[ci].headers)
        found = [word(await (await send(session, emulator, get)).json()) for _ in range(len(seen) + 1)]
        assert found == [*seen, seen[-1]]
        assert [poll.status for poll in emulator.polls] == [200] * len(found)


async def test_jenkins_points_to_the_item_that_waits_with_the_same_parameters(session: ClientSession) -> None:
    async with running("jenkins", queued_polls=1) as emulator:
        first, again = [await send(session, emulator, POSTS["jenkins"]) for _ in range(2)]
        other = await send(session, emulator, jenkins("/job/app/buildWithParameters?BRANCH=other", BASIC))
        assert [post.status for post in (first, again, other)] == [201, 303, 201]
        assert again.headers["Location"] == first.headers["Location"] != other.headers["Location"]
        emulator.builds.finish()
        assert (await send(session, emulator, POSTS["jenkins"])).status == 201
    assert len(emulator.builds.started) == 3


@pytest.mark.parametrize(
    ("ci", "path", "query", "left_out"),
    [
        ("buildkite", "/v2/organizations/acme/pipelines/app/builds/1", "exclude_jobs=true", "jobs"),
        ("jenkins", "/job/app/1/api/json", "tree=result,number", "artifacts"),
    ],
)
async def test_a_build_is_long_unless_the_query_leaves_parts_out(
    session: ClientSession, ci: str, path: str, query: str, left_out: str
) -> None:
    async with running(ci, queued_polls=0) as emulator:
        await send(session, emulator, POSTS[ci])
        whole, short = [
            await send(session, emulator, Call(ci, "GET", place, dict([emulator.ci.credential])))
            for place in (path, f"{path}?{query}")
        ]
        assert left_out in await whole.json()
        assert left_out not in await short.json()
        assert len(await short.read()) < 1024 < 64 * 1024 < len(await whole.read())


async def test_jenkins_names_the_build_once_it_has_left_the_queue(session: ClientSession) -> None:
    async with running("jenkins", queued_polls=1) as emulator:
        await send(session, emulator, POSTS["jenkins"])
        item = jenkins("/queue/item/1/api/json", BASIC, method="GET")
        build = jenkins("/job/app/1/api/json", BASIC, method="GET")
        assert (await send(session, emulator, build)).status == 404
        assert "executable" not in await (await send(session, emulator, item)).json()
        started = await (await send(session, emulator, item)).json()
        assert started["executable"]["url"] == f"{emulator.origin}/job/app/1/"
        assert (await send(session, emulator, build)).status == 200
        job = jenkins("/job/app/api/json?tree=builds[queueId,number]", BASIC, method="GET")
        assert (await (await send(session, emulator, job)).json())["builds"] == [
            {"_class": "hudson.model.FreeStyleBuild", "number": 1, "queueId": 1}
        ]


async def test_circleci_has_a_pipeline_pending_until_its_workflows_exist(session: ClientSession) -> None:
    async with running("circleci") as emulator:
        pipeline = (await (await send(session, emulator, POSTS["circleci"])).json())["id"]
        get = Call("circleci", "GET", f"/api/v2/pipeline/{pipeline}", CIRCLE)
        states = [(await (await send(session, emulator, get)).json())["state"] for _ in range(2)]
        assert states == ["pending", "created"]


@pytest.mark.parametrize("ci", EMULATORS)
async def test_faults_come_in_the_cis_own_form(session: ClientSession, ci: str) -> None:
    async with running(ci, fail_status=503, retry_after=7) as emulator:
        refused = await send(session, emulator, POSTS[ci])
        assert (refused.status, refused.headers["Retry-After"]) == (503, "7")
        assert emulator.builds.started == []
        emulator.become(fail_after_start=True)
        assert (await send(session, emulator, POSTS[ci])).status == 503
        assert len(emulator.builds.started) == 1
        emulator.become(fail_status=None, retry_after=None, vanish=True)
        path, _ = await STATUS[ci](await send(session, emulator, POSTS[ci]))
        get = Call(ci, "GET", path.replace("/1/", "/2/"), POSTS[ci].headers)
        assert (await send(session, emulator, get)).status == 404


@pytest.mark.parametrize("ci", EMULATORS)
async def test_its_behaviour_is_changed_over_http(session: ClientSession, ci: str) -> None:
    async with AsyncExitStack() as stack:
        emulator = await stack.enter_async_context(running(ci))
        response = await session.patch(f"{emulator.origin}/behaviour", json={"result": "failed"}, headers=JSON)
        assert (response.status, emulator.behaviour.result) == (200, "failed")
        wrong = await session.patch(f"{emulator.origin}/behaviour", json={"result": "maybe"}, headers=JSON)
        assert (wrong.status, emulator.behaviour.result) == (400, "failed")
        await send(session, emulator, POSTS[ci])
        received = await (await session.get(f"{emulator.origin}/received")).json()
        assert received["posts"] == 1


def test_every_knob_is_a_field() -> None:
    assert set(CiKnobs.__annotations__) == {*Emulator(EMULATORS["jenkins"]).behaviour.__dataclass_fields__}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--as", "gitlab", "--mode", "later"], "--mode has no effect with --as"),
        (["--as", "gitlab", "--fail-rate", "0.5"], "--fail-rate has no effect with --as"),
        (["--as", "github", "--result", "failed"], "--result has no effect with --as github"),
        (["--result", "failed"], "--result needs --as"),
        (["--as", "travis"], "'travis' is not one of"),
    ],
)
def test_the_command_refuses_options_of_the_other_kind(arguments: list[str], said: str) -> None:
    result = CliRunner().invoke(sink, arguments)
    assert (result.exit_code, said in result.output) == (2, True), result.output


async def test_the_command_runs_an_emulator_until_it_is_stopped(session: ClientSession) -> None:
    arguments = ("--as", "gitlab", "--port", "0", "--token", "t0", "--result", "failed", "--later-polls", "0")
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", "from relay.cli.sink import sink; sink()", *arguments), stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    try:
        url = (await process.stdout.readline()).decode().split()[1]
        assert await process.stdout.readline() == b"headers          PRIVATE-TOKEN: t0\n"
        response = await session.post(url, json={"ref": "main"}, headers=JSON | {"PRIVATE-TOKEN": "t0"})
        assert response.status == 201
        process.send_signal(signal.SIGTERM)
        rest, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert rest.decode().splitlines()[-1] == "1 POST of 1 message: 1 x 201; 0 status GETs"
