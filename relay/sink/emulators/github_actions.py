"""GitHub Actions as `relay sink --as github-actions`: its REST API, for the workflow `ci.yml` of `acme/app`.

References: https://docs.github.com/en/rest/actions/workflows ("Create a workflow dispatch event") and
https://docs.github.com/en/rest/actions/workflow-runs ("Get a workflow run").
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from aiohttp import web

from relay.sink.builds import Build, Phase, Result
from relay.sink.emulators.emulator import Ci, CiError, json_object
from relay.sink.server import as_json

_REPOSITORY: Final = "/repos/acme/app"
_INPUTS: Final = frozenset({"commit", "environment"})
"""Inputs that the workflow declares."""
_MOST_INPUTS: Final = 25
_KNOWN: Final = frozenset({"ref", "inputs", "return_run_details"})
_FIRST_RUN: Final = 30_433_642
_STATUSES: Final[Mapping[Phase, str]] = {"queued": "queued", "running": "in_progress", "finished": "completed"}
_CONCLUSIONS: Final[Mapping[Result, str]] = {"success": "success", "failed": "failure", "canceled": "cancelled"}
_PAGE: Final = "https://docs.github.com/rest/actions/workflows#create-a-workflow-dispatch-event"
_USUAL: Final = {401: "Bad credentials", 404: "Not Found", 405: "Not Found"}


class GitHubActions(Ci):
    """Runs of one workflow."""

    post_path = f"{_REPOSITORY}/actions/workflows/ci.yml/dispatches"

    def routes(self) -> Iterable[web.RouteDef]:
        return (
            web.post(self.post_path, self._dispatch),
            web.get(_REPOSITORY + "/actions/runs/{run_id:[0-9]+}", self._run),
        )

    def authenticate(self, request: web.Request) -> None:
        if not request.headers.get("User-Agent"):
            raise CiError(
                403, "Request forbidden by administrative rules. Please make sure your request has a User-Agent"
            )
        name, value = self.credential
        if request.headers.get(name) not in (value, value.replace("Bearer", "token")):
            raise CiError(401)
        accepted = request.headers.get("Accept", "*/*")
        if not any(kind in accepted for kind in ("*/*", "application/*", "json")):
            raise CiError(415, "Unsupported 'Accept' header. Must accept 'application/json'.")

    def refusal(self, status: int, detail: object) -> web.Response:
        status = 404 if status == 405 else status
        message = detail or _USUAL.get(status, "Server Error")
        return as_json(status, {"message": message, "documentation_url": _PAGE, "status": str(status)})

    async def _dispatch(self, request: web.Request) -> web.Response:
        body = await json_object(request, CiError(400, "Problems parsing JSON"))
        build = self._builds.start(_ref(body), _inputs(body))
        if not body.get("return_run_details"):
            return web.Response(status=204)
        run_id, run = _FIRST_RUN + build.number, _urls(request, build)
        return as_json(200, {"workflow_run_id": run_id, "run_url": run["url"], "html_url": run["html_url"]})

    async def _run(self, request: web.Request) -> web.Response:
        build = self.numbered(str(int(request.match_info["run_id"]) - _FIRST_RUN))
        phase = build.poll()
        document = {
            "id": _FIRST_RUN + build.number,
            "name": "CI",
            "event": "workflow_dispatch",
            "head_branch": build.ref,
            "run_number": build.number,
            "run_attempt": 1,
            "status": _STATUSES[phase],
            "conclusion": _CONCLUSIONS[build.result] if phase == "finished" else None,
            "created_at": build.created_at,
            "updated_at": build.created_at,
        }
        return as_json(200, document | _urls(request, build))


def _ref(body: Mapping[str, Any]) -> str:
    if unknown := sorted(body.keys() - _KNOWN):
        raise CiError(422, f'Invalid request.\n\n"{unknown[0]}" is not a permitted key.')
    ref = body.get("ref")
    if ref is None:
        raise CiError(422, 'Invalid request.\n\n"ref" wasn\'t supplied.')
    if not isinstance(ref, str):
        raise CiError(422, f"Invalid request.\n\nFor 'properties/ref', {ref!r} is not a string.")
    return ref


def _inputs(body: Mapping[str, Any]) -> dict[str, Any]:
    inputs = body.get("inputs", {})
    if not isinstance(inputs, dict):
        raise CiError(422, "Invalid request.\n\nFor 'properties/inputs', it is not an object.")
    if len(inputs) > _MOST_INPUTS:
        raise CiError(422, f"Invalid inputs: at most {_MOST_INPUTS} are allowed")
    if unknown := sorted(inputs.keys() - _INPUTS):
        raise CiError(422, f"Unexpected inputs provided: {unknown}")
    return inputs


def _urls(request: web.Request, build: Build) -> dict[str, str]:
    run_id = _FIRST_RUN + build.number
    return {
        "url": f"{request.scheme}://{request.host}{_REPOSITORY}/actions/runs/{run_id}",
        "html_url": f"https://github.com/acme/app/actions/runs/{run_id}",
    }
