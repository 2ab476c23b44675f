"""GitLab as `relay sink --as gitlab`: its pipelines API v4, for the project `acme/app` (id 7).

References: https://docs.gitlab.com/api/pipelines/ ("Create a new pipeline", "Get a single pipeline") and
https://docs.gitlab.com/api/pipeline_triggers/ ("Trigger a pipeline with a token").
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

from aiohttp import web

from relay.sink.builds import Build, Phase
from relay.sink.emulators.emulator import Ci, CiError, json_object
from relay.sink.server import as_json

_PROJECT_ID: Final = 7
_PROJECTS: Final = frozenset({str(_PROJECT_ID), "acme/app"})
_NO_PROJECT: Final = "404 Project Not Found"
_USUAL: Final[Mapping[int, object]] = {
    400: {"base": ["Too many pipelines created in the last minute. Try again later."]},
    401: "401 Unauthorized",
    403: "403 Forbidden",
    404: "404 Not Found",
    429: "429 Too Many Requests",
    500: "500 Internal Server Error",
}
_STATUSES: Final[Mapping[Phase, str]] = {"queued": "pending", "running": "running"}
_VARIABLE: Final = re.compile(r"variables\[(\w+)\]")


class GitLab(Ci):
    """Pipelines; a trigger token is the same as the access token."""

    post_path = f"/api/v4/projects/{_PROJECT_ID}/pipeline"
    header = ("PRIVATE-TOKEN", "")

    def routes(self) -> Iterable[web.RouteDef]:
        project = "/api/v4/projects/{id}"
        return (
            web.post(project + "/pipeline", self._create),
            web.post(project + "/trigger/pipeline", self._trigger),
            web.get(project + "/pipelines/{pipeline_id}", self._pipeline),
        )

    def authenticate(self, request: web.Request) -> None:
        name, token = self.credential
        by_header = request.headers.get(name) == token or request.headers.get("Authorization") == f"Bearer {token}"
        if not by_header and not request.path.endswith("/trigger/pipeline"):
            raise CiError(401)

    def refusal(self, status: int, detail: object) -> web.Response:
        if isinstance(detail, str) and detail != _NO_PROJECT:  # a parameter is wrong
            return as_json(status, {"error": detail})
        if status == 405:
            return as_json(405, {"error": "405 Not Allowed"})
        return as_json(status, {"message": detail or _USUAL.get(status, f"{status} Error")})

    async def _create(self, request: web.Request) -> web.Response:
        self._check_project(request)
        given = await _parameters(request)
        variables = given.get("variables", [])
        if not isinstance(variables, list) or not all(_is_variable(each) for each in variables):
            raise CiError(400, "variables is invalid")
        return self._started(request, given, {each["key"]: each["value"] for each in variables})

    async def _trigger(self, request: web.Request) -> web.Response:
        self._check_project(request)
        given = await _parameters(request)
        if not given.get("token"):
            raise CiError(400, "token is missing")
        if given["token"] != self.credential[1]:
            raise CiError(404)
        variables = given.get("variables", {})
        if not isinstance(variables, dict):
            raise CiError(400, "variables is invalid")
        listed = {match[1]: value for name, value in given.items() if (match := _VARIABLE.fullmatch(name))}
        return self._started(request, given, {**variables, **listed})

    def _started(self, request: web.Request, given: Mapping[str, Any], variables: Mapping[str, object]) -> web.Response:
        ref = given.get("ref")
        if not isinstance(ref, str) or not ref:
            raise CiError(400, "ref is missing")
        if ref.startswith("refs/"):  # it takes the name of a branch or tag
            raise CiError(400, {"base": ["Reference not found"]})
        build = self._builds.start(ref, variables)
        return as_json(201, _document(request, build, "created"))

    async def _pipeline(self, request: web.Request) -> web.Response:
        self._check_project(request)
        build = self.numbered(request.match_info["pipeline_id"])
        phase = build.poll()
        return as_json(200, _document(request, build, _STATUSES.get(phase) or build.result))

    def _check_project(self, request: web.Request) -> None:
        if request.match_info["id"] not in _PROJECTS:
            raise CiError(404, _NO_PROJECT)


async def _parameters(request: web.Request) -> dict[str, Any]:
    """The parameters of the query, and of a JSON or form body."""
    given: dict[str, Any] = dict(request.query)
    if not request.body_exists:
        return given
    if request.content_type == "application/json":
        return given | await json_object(request, CiError(400, "The body is not a JSON object"))
    if request.content_type in ("application/x-www-form-urlencoded", "multipart/form-data"):
        return given | dict(await request.post())
    raise CiError(415, f"The provided content-type '{request.content_type}' is not supported.")


def _is_variable(value: object) -> bool:
    return isinstance(value, dict) and all(isinstance(value.get(name), str) for name in ("key", "value"))


def _document(request: web.Request, build: Build, status: str) -> dict[str, object]:
    return {
        "id": build.number,
        "iid": build.number,
        "project_id": _PROJECT_ID,
        "sha": f"{build.number:040x}",
        "ref": build.ref,
        "status": status,
        "source": "api",
        "tag": False,
        "yaml_errors": None,
        "created_at": build.created_at,
        "updated_at": build.created_at,
        "web_url": f"{request.scheme}://{request.host}/acme/app/-/pipelines/{build.number}",
    }
