"""Buildkite as `relay sink --as buildkite`: its REST API v2, for the pipeline `acme/app`.

Reference: https://buildkite.com/docs/apis/rest-api/builds ("Create a build", "Get a build").
"""

import uuid
from collections.abc import Iterable, Mapping
from typing import Any, Final

from aiohttp import web

from relay.sink.builds import Build, Phase, Result
from relay.sink.emulators.emulator import Ci, CiError, json_object
from relay.sink.server import as_json

_BUILDS: Final = "/v2/organizations/acme/pipelines/app/builds"
_JOBS: Final = 250
_REQUIRED: Final = ("commit", "branch")
_KNOWN: Final = frozenset(
    {
        "author",
        "branch",
        "clean_checkout",
        "commit",
        "env",
        "ignore_pipeline_branch_filters",
        "message",
        "meta_data",
        "pull_request_base_branch",
        "pull_request_id",
        "pull_request_labels",
        "pull_request_repository",
    }
)
_MAPPINGS: Final = ("author", "env", "meta_data")
_STATES: Final[Mapping[Phase, str]] = {"queued": "scheduled", "running": "running"}
_RESULTS: Final[Mapping[Result, str]] = {"success": "passed", "failed": "failed", "canceled": "canceled"}
_USUAL: Final = {
    401: "Authentication required. Please supply a valid API Access Token: "
    "https://buildkite.com/docs/apis/rest-api#authentication",
    404: "No organization found",
    405: "Not Found",
}


class Buildkite(Ci):
    """Builds of one pipeline."""

    post_path = _BUILDS

    def routes(self) -> Iterable[web.RouteDef]:
        return web.post(_BUILDS, self._create), web.get(_BUILDS + "/{number}", self._build)

    def refusal(self, status: int, detail: object) -> web.Response:
        if isinstance(detail, list):
            return as_json(status, {"message": "Validation Failed", "errors": detail})
        return as_json(status, {"message": detail or _USUAL.get(status, "An error occurred")})

    async def _create(self, request: web.Request) -> web.Response:
        body = await json_object(request, CiError(400, "JSON is invalid"))
        errors = [{"field": name, "code": "missing"} for name in _REQUIRED if not body.get(name)]
        errors += [{"field": name, "code": "invalid"} for name in _REQUIRED if not isinstance(body.get(name, ""), str)]
        errors += [{"field": name, "code": "invalid"} for name in _MAPPINGS if not isinstance(body.get(name, {}), dict)]
        errors += [{"field": name, "code": "unknown"} for name in sorted(body.keys() - _KNOWN)]
        if errors:
            raise CiError(422, errors)
        build = self._builds.start(body["branch"], body)
        return as_json(201, _document(request, build, "scheduled") | {"jobs": _jobs(build)})

    async def _build(self, request: web.Request) -> web.Response:
        build = self.numbered(request.match_info["number"], "No build found")
        phase = build.poll()
        document = _document(request, build, _STATES.get(phase) or _RESULTS[build.result])
        jobs = {} if request.query.get("exclude_jobs") == "true" else {"jobs": _jobs(build)}
        return as_json(200, document | jobs)


def _jobs(build: Build) -> list[dict[str, object]]:
    """Those of its pipeline's steps: half of the 500 that an upload may have."""
    return [
        {
            "id": str(uuid.uuid5(uuid.NAMESPACE_URL, f"job/{build.number}/{number}")),
            "type": "script",
            "name": f":python: Tests {number}",
            "command": f"scripts/test.sh {number}",
            "web_url": f"{_web_url(build)}#{number}",
            "soft_failed": False,
            "retried": False,
            "parallel_group_index": number,
            "parallel_group_total": _JOBS,
            "created_at": build.created_at,
        }
        for number in range(_JOBS)
    ]


def _web_url(build: Build) -> str:
    return f"https://buildkite.com/acme/app/builds/{build.number}"


def _document(request: web.Request, build: Build, state: str) -> dict[str, Any]:
    finished = state in _RESULTS.values()
    return {
        "id": build.uuid,
        "url": f"{request.scheme}://{request.host}{_BUILDS}/{build.number}",
        "web_url": _web_url(build),
        "number": build.number,
        "state": state,
        "blocked": False,
        "branch": build.ref,
        "commit": build.inputs["commit"],
        "message": build.inputs.get("message"),
        "env": build.inputs.get("env", {}),
        "meta_data": build.inputs.get("meta_data", {}),
        "source": "api",
        "created_at": build.created_at,
        "scheduled_at": build.created_at,
        "finished_at": build.created_at if finished else None,
    }
