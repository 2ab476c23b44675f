"""Emulators of the CIs on docs/ci-without-preset.md and docs/expressions.md, made of the references of their APIs."""

import hashlib
import hmac
from abc import abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from aiohttp import ClientSession, web
from aiohttp.typedefs import Handler

from relay.sink.builds import Result
from relay.sink.server import LocalServer, as_json

TOKEN: Final = "of-the-relay"


@dataclass(slots=True)
class OtherBuild:
    """A build. `ref`, `commit`: as requested. `result`: None while it runs."""

    number: int
    ref: str
    commit: str
    answer_url: str | None
    result: Result | None = None


class OtherCi(LocalServer):
    """A CI. `faults`: methods of the next requests, with the status that each gets in place of its response."""

    credential: ClassVar[tuple[str, str]] = ("Authorization", f"Bearer {TOKEN}")
    variables: ClassVar[Mapping[str, str]] = {}
    """Of its entry."""
    results: ClassVar[Mapping[Result, str]]
    """Its words for them."""

    def __init__(self) -> None:
        super().__init__()
        self.builds: list[OtherBuild] = []
        self.faults: list[tuple[str, int]] = []

    def app(self) -> web.Application:
        app = web.Application(middlewares=[self._checked])
        app.router.add_routes(self.routes())
        return app

    @abstractmethod
    def routes(self) -> Iterable[web.RouteDef]: ...

    async def finish(self, result: Result, session: ClientSession) -> None:
        """End the newest build."""
        self.builds[-1].result = result

    async def faults_over(self, timeout_s: float) -> None:
        await self.until(lambda: not self.faults, timeout_s)

    def started(self, ref: str, commit: str = "", answer_url: str | None = None) -> OtherBuild:
        build = OtherBuild(len(self.builds) + 1, ref, commit, answer_url)
        self.note(self.builds, build)
        return build

    def found(self, request: web.Request) -> OtherBuild:
        number = request.match_info["number"]
        return next(build for build in self.builds if str(build.number) == number)

    def said(self, build: OtherBuild, running: str) -> str:
        return running if build.result is None else self.results[build.result]

    @web.middleware
    async def _checked(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        await request.read()
        for fault in self.faults:
            if fault[0] == request.method:
                self.faults.remove(fault)
                self._changed.set()
                return web.Response(
                    status=fault[1], headers={"Retry-After": "0"}, text="<html>", content_type="text/html"
                )
        name, value = self.credential
        return await handler(request) if request.headers.get(name) == value else self.unauthorized()

    def unauthorized(self) -> web.Response:
        return as_json(401, {"message": "Unauthorized"})


class Azure(OtherCi):
    credential = ("Authorization", "Basic OnBhdA==")
    variables: ClassVar = {"PIPELINES_BASIC": "OnBhdA=="}
    results: ClassVar = {"success": "succeeded", "failed": "failed", "canceled": "canceled"}

    def routes(self) -> Iterable[web.RouteDef]:
        runs = "/acme/app/_apis/pipelines/1/runs"
        return web.post(runs, self._run), web.get(runs + "/{number}", self._status)

    def unauthorized(self) -> web.Response:
        return web.Response(status=203, text="<html>Sign in</html>", content_type="text/html")

    async def _run(self, request: web.Request) -> web.Response:
        place = (await request.json())["resources"]["repositories"]["self"]
        return self._view(request, self.started(place["refName"], place["version"]))

    async def _status(self, request: web.Request) -> web.Response:
        return self._view(request, self.found(request))

    def _view(self, request: web.Request, build: OtherBuild) -> web.Response:
        assert request.query["api-version"] == "7.1"
        view = {
            "id": build.number,
            "name": f"20261130.{build.number}",
            "_links": {"web": {"href": "https://a.example"}},
        }
        ended = {"state": "completed", "result": self.said(build, "")}
        return as_json(200, view | ({"state": "inProgress"} if build.result is None else ended))


class TeamCity(OtherCi):
    variables: ClassVar = {"TEAMCITY_TOKEN": TOKEN}
    results: ClassVar = {"success": "SUCCESS", "failed": "FAILURE", "canceled": "UNKNOWN"}

    def routes(self) -> Iterable[web.RouteDef]:
        return (
            web.post("/app/rest/buildQueue", self._queue),
            web.get("/app/rest/builds/id:{number}", self._status),
        )

    async def _queue(self, request: web.Request) -> web.Response:
        wanted = await request.json()
        assert wanted["buildType"] == {"id": "App_Build"}
        return self._view(request, self.started(wanted["branchName"]), {"state": "queued"})

    async def _status(self, request: web.Request) -> web.Response:
        build = self.found(request)
        state = "running" if build.result is None else "finished"
        return self._view(
            request, build, {"state": state, "status": self.said(build, "SUCCESS"), "statusText": "Tests"}
        )

    def _view(self, request: web.Request, build: OtherBuild, fields: Mapping[str, object]) -> web.Response:
        if request.headers["Accept"] != "application/json":
            return web.Response(text=f'<build id="{build.number}"/>', content_type="application/xml")
        return as_json(200, {"id": build.number, "webUrl": f"{self.origin}/build/{build.number}", **fields})


class Drone(OtherCi):
    path: ClassVar = "/api/repos/acme/app/builds"
    variables: ClassVar[Mapping[str, str]] = {"DRONE_TOKEN": TOKEN}
    results: ClassVar = {"success": "success", "failed": "failure", "canceled": "killed"}

    def routes(self) -> Iterable[web.RouteDef]:
        return web.post(self.path, self._create), web.get(self.path + "/{number}", self._status)

    async def _create(self, request: web.Request) -> web.Response:
        if request.query["branch"] == "skip":
            return web.json_response(None)
        return self.view(self.started(request.query["branch"], request.query["commit"]))

    async def _status(self, request: web.Request) -> web.Response:
        return self.view(self.found(request))

    def view(self, build: OtherBuild) -> web.Response:
        return as_json(200, {"id": 100 + build.number, "number": build.number, "status": self.said(build, "pending")})


class Woodpecker(Drone):
    path = "/api/repos/1/pipelines"
    variables: ClassVar = {"WOODPECKER_TOKEN": TOKEN}

    async def _create(self, request: web.Request) -> web.Response:
        branch = (await request.json())["branch"]
        if branch == "skip":
            return web.Response(status=204, headers={"Pipeline-Filtered": "true"})
        return self.view(self.started(branch))


class Argo(OtherCi):
    variables: ClassVar = {"ARGO_TOKEN": TOKEN}
    results: ClassVar = {"success": "Succeeded", "failed": "Failed", "canceled": "Error"}

    def routes(self) -> Iterable[web.RouteDef]:
        there = "/api/v1/workflows/ci"
        return web.post(there + "/submit", self._submit), web.get(there + "/build-{number}", self._status)

    async def _submit(self, request: web.Request) -> web.Response:
        given = dict(each.split("=", 1) for each in (await request.json())["submitOptions"]["parameters"])
        build = self.started(given["ref"], given["commit"])
        return as_json(
            200, {"metadata": {"name": f"build-{build.number}", "namespace": "ci"}, "spec": {}, "status": {}}
        )

    async def _status(self, request: web.Request) -> web.Response:
        build = self.found(request)
        return as_json(
            200, {"metadata": {"name": f"build-{build.number}"}, "status": {"phase": self.said(build, "Running")}}
        )


class CallingCi(OtherCi):
    """One whose jobs call back, and repeat that until it is accepted."""

    path: ClassVar[str]
    reply: ClassVar[tuple[int, str]]
    results: ClassVar = {"success": "success", "failed": "failure", "canceled": "error"}

    def routes(self) -> Iterable[web.RouteDef]:
        return (web.post(self.path, self._take),)

    @abstractmethod
    def read(self, request: web.Request, body: Any) -> OtherBuild: ...

    async def _take(self, request: web.Request) -> web.Response:
        self.read(request, await request.json())
        status, text = self.reply
        return web.Response(status=status, text=text or None)

    async def finish(self, result: Result, session: ClientSession) -> None:
        await super().finish(result, session)
        build = self.builds[-1]
        assert build.answer_url is not None
        async with session.post(build.answer_url, json={"state": self.said(build, "")}) as response:
            assert response.status == 200, await response.text()


class Dispatch(CallingCi):
    path = "/repos/acme/app/dispatches"
    reply = (204, "")
    variables: ClassVar = {"ACTIONS_TOKEN": TOKEN}

    def read(self, request: web.Request, body: Any) -> OtherBuild:
        given = body["client_payload"]
        return self.started(given["ref"], given["commit"], given["answer_url"])


class Tekton(CallingCi):
    path = "/"
    credential = ("X-GitHub-Event", "push")
    reply = (202, '{"eventListener": "github", "namespace": "ci", "eventID": "e-1"}')
    variables: ClassVar = {"TEKTON_SECRET": TOKEN}

    def read(self, request: web.Request, body: Any) -> OtherBuild:
        return self.started(body["ref"], body["after"], request.headers["Relay-Answer-Url"])

    async def _take(self, request: web.Request) -> web.Response:
        signature = hmac.new(TOKEN.encode(), await request.read(), hashlib.sha256).hexdigest()
        assert request.headers["X-Hub-Signature-256"] == f"sha256={signature}"
        return await super()._take(request)


class CodeBuild(CallingCi):
    path = "/prod/builds"
    credential = ("x-api-key", TOKEN)
    reply = (200, '{"build": {"id": "app:1", "buildStatus": "IN_PROGRESS"}}')
    variables: ClassVar = {"CODEBUILD_API_KEY": TOKEN}

    def read(self, request: web.Request, body: Any) -> OtherBuild:
        (variable,) = body["environmentVariablesOverride"]
        return self.started("", body["sourceVersion"], variable["value"])


OTHER_CIS: Final[Mapping[str, type[OtherCi]]] = {
    "azure": Azure,
    "teamcity": TeamCity,
    "drone": Drone,
    "woodpecker": Woodpecker,
    "argo": Argo,
    "dispatch": Dispatch,
    "tekton": Tekton,
    "codebuild": CodeBuild,
}
"""By the name of their entry."""
