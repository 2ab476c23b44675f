"""CircleCI as `relay sink --as circleci`: its API v2, for the project `gh/acme/app`.

Reference: https://circleci.com/docs/api/v2/ ("Trigger a new pipeline", "Get a pipeline by ID", "Get a pipeline's
workflows").
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

from aiohttp import web

from relay.sink.builds import Build
from relay.sink.emulators.emulator import Ci, CiError, json_object
from relay.sink.server import as_json

_PROVIDERS: Final = frozenset({"gh", "github", "bb", "bitbucket", "circleci"})
_PROJECT: Final = ("acme", "app")
_PARAMETERS: Final = frozenset({"commit", "deploy"})
"""Pipeline parameters that the project's configuration declares."""
_UUID: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_USUAL: Final = {401: "You must log in first.", 404: "Project not found", 405: "Method not allowed"}


class CircleCi(Ci):
    """Pipelines with one workflow each."""

    post_path = "/api/v2/project/gh/acme/app/pipeline"
    header = ("Circle-Token", "")

    def routes(self) -> Iterable[web.RouteDef]:
        project = "/api/v2/project/{provider}/{organization}/{project}"
        return (
            web.post(project + "/pipeline", self._trigger),
            web.post(project + "/pipeline/run", self._run),
            web.get("/api/v2/pipeline/{id}", self._pipeline),
            web.get("/api/v2/pipeline/{id}/workflow", self._workflows),
        )

    def refusal(self, status: int, detail: object) -> web.Response:
        return as_json(status, {"message": detail or _USUAL.get(status, "An unexpected error occurred.")})

    async def _trigger(self, request: web.Request) -> web.Response:
        body = await self._body(request, {"branch", "tag", "parameters"})
        return self._started(_ref(body), body)

    async def _run(self, request: web.Request) -> web.Response:
        body = await self._body(request, {"definition_id", "config", "checkout", "parameters"})
        if not _UUID.fullmatch(str(body.get("definition_id"))):
            raise CiError(400, "definition_id: must be a UUID")
        refs = {name: _ref(body[name]) for name in ("config", "checkout") if isinstance(body.get(name), dict)}
        if len(refs) < 2:
            raise CiError(400, "config and checkout: required")
        return self._started(refs["checkout"], body)

    async def _body(self, request: web.Request, known: set[str]) -> dict[str, Any]:
        info = request.match_info
        if info["provider"] not in _PROVIDERS or (info["organization"], info["project"]) != _PROJECT:
            raise CiError(404)
        body = await json_object(request, CiError(400, "The request body is not a JSON object."))
        if unknown := sorted(body.keys() - known):
            raise CiError(400, f"{unknown[0]}: disallowed key")
        return body

    def _started(self, ref: str, body: Mapping[str, Any]) -> web.Response:
        parameters = body.get("parameters", {})
        if not isinstance(parameters, dict):
            raise CiError(400, "parameters: must be an object")
        if unknown := sorted(parameters.keys() - _PARAMETERS):
            raise CiError(400, f"Unexpected argument(s): {', '.join(unknown)}")
        build = self._builds.start(ref, parameters)
        return as_json(
            201, {"number": build.number, "state": "pending", "id": build.uuid, "created_at": build.created_at}
        )

    async def _pipeline(self, request: web.Request) -> web.Response:
        build = self._found(request)
        return as_json(
            200,
            {
                "id": build.uuid,
                "number": build.number,
                "project_slug": "gh/acme/app",
                "state": "created" if build.leave_queue() else "pending",
                "errors": [],
                "created_at": build.created_at,
                "updated_at": build.created_at,
                "trigger": {"type": "api", "received_at": build.created_at, "actor": {"login": "relay"}},
                "vcs": {"provider_name": "GitHub", "branch": build.ref},
            },
        )

    async def _workflows(self, request: web.Request) -> web.Response:
        build = self._found(request)
        phase = build.poll()
        items = [] if phase == "queued" else [_workflow(build, finished=phase == "finished")]
        return as_json(200, {"items": items, "next_page_token": None})

    def _found(self, request: web.Request) -> Build:
        build = self._builds.find(request.match_info["id"])
        if build is None or build.uuid != request.match_info["id"]:
            raise CiError(404, "Pipeline not found")
        return build


def _ref(body: Mapping[str, Any]) -> str:
    given = [body[name] for name in ("branch", "tag") if name in body]
    if len(given) > 1:
        raise CiError(400, "branch and tag are mutually exclusive")
    if not all(isinstance(ref, str) for ref in given):
        raise CiError(400, "branch, tag: must be a string")
    return given[0] if given else "main"


def _workflow(build: Build, *, finished: bool) -> dict[str, object]:
    return {
        "id": build.uuid[::-1],
        "name": "build-and-test",
        "pipeline_id": build.uuid,
        "pipeline_number": build.number,
        "project_slug": "gh/acme/app",
        "status": build.result if finished else "running",
        "created_at": build.created_at,
        "stopped_at": build.created_at if finished else None,
    }
