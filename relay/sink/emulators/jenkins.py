"""Jenkins as `relay sink --as jenkins`: its remote access API, for the job `app` with parameters.

Reference: https://www.jenkins.io/doc/book/using/remote-access-api/ ("Submitting jobs"), with the user's API token, so
that no crumb is needed.
"""

import base64
import re
from collections.abc import Iterable, Mapping
from typing import Final

from aiohttp import web

from relay.sink.builds import Build, Builds, Phase, Result
from relay.sink.emulators.emulator import Ci, CiError
from relay.sink.server import as_json

_USER: Final = "relay"
_JOB: Final = "app"
_PARAMETERS: Final = ("BRANCH", "COMMIT")
"""Names of the parameters that the job declares. Jenkins ignores others."""
_FORMS: Final = frozenset({"application/x-www-form-urlencoded", "multipart/form-data", "application/octet-stream"})
_RESULTS: Final[Mapping[Result, str]] = {"success": "SUCCESS", "failed": "FAILURE"}
_NEWEST: Final = 100
"""Builds that the document of a job lists."""
_ARTIFACTS: Final = tuple(f"TEST-org.example.app.Case{number:04}.xml" for number in range(600))
"""Files that each build archives."""
_WORDS: Final = {
    400: "Nothing is submitted",
    401: "Invalid password/token for user: relay",
    403: "No valid crumb was included in the request",
    404: "Not Found",
    405: "Method Not Allowed",
}


class Jenkins(Ci):
    """Queue items, each of which becomes a build. One with the result `canceled` is cancelled in the queue."""

    post_path = f"/job/{_JOB}/buildWithParameters"
    header = ("Authorization", "Basic ")

    def __init__(self, builds: Builds, token: str) -> None:
        super().__init__(builds, base64.b64encode(f"{_USER}:{token}".encode()).decode())

    def routes(self) -> Iterable[web.RouteDef]:
        return (
            web.post(self.post_path, self._build),
            web.get("/queue/item/{id}/api/json", self._queue_item),
            web.get(f"/job/{_JOB}/api/json", self._job),
            web.get(f"/job/{_JOB}/{{number}}/api/json", self._status),
        )

    def authenticate(self, request: web.Request) -> None:
        given = request.headers.get("Authorization")
        if given is None:  # anonymous: a POST needs a crumb of a session
            raise CiError(403, None if request.method == "POST" else "anonymous is missing the Overall/Read permission")
        if given != self.credential[1]:
            raise CiError(401)

    def refusal(self, status: int, detail: object) -> web.Response:
        words = detail or _WORDS.get(status, "Oops!")
        page = (
            f"<html><head><title>Error {status}</title></head><body><h2>HTTP ERROR {status} {words}</h2></body></html>"
        )
        return web.Response(status=status, text=page, content_type="text/html")

    async def _build(self, request: web.Request) -> web.Response:
        if request.body_exists and request.content_type not in _FORMS:
            raise CiError(400, f"Unsupported content type {request.content_type}")
        given = {**request.query, **await request.post()}
        inputs: dict[str, str] = {name: str(given[name]) for name in _PARAMETERS if name in given}
        waiting = next((each for each in self._builds.started if each.queued_left and each.inputs == inputs), None)
        build = waiting or self._builds.start(str(given.get("BRANCH", "main")), inputs)
        place = f"{_root(request)}/queue/item/{build.number}/"
        return web.Response(status=303 if waiting else 201, headers={"Location": place})

    async def _queue_item(self, request: web.Request) -> web.Response:
        build = self.numbered(request.match_info["id"])
        left = build.leave_queue()
        started = left and build.result != "canceled"
        item: dict[str, object] = {
            "_class": "hudson.model.Queue$LeftItem" if left else "hudson.model.Queue$WaitingItem",
            "id": build.number,
            "blocked": False,
            "buildable": False,
            "stuck": False,
            "params": "".join(f"\n{name}={value}" for name, value in build.inputs.items()),
            "task": {"_class": "hudson.model.FreeStyleProject", "name": _JOB, "url": f"{_root(request)}/job/{_JOB}/"},
            "url": f"queue/item/{build.number}/",
            "why": None if left else "In the quiet period. Expires in 4.9 sec",
        }
        if left:
            item |= {"cancelled": not started, "executable": None}
        if started:
            item["executable"] = {
                "_class": "hudson.model.FreeStyleBuild",
                "number": build.number,
                "url": _build_url(request, build),
            }
        return as_json(200, _pruned(item, request))

    async def _job(self, request: web.Request) -> web.Response:
        begun = [each for each in reversed(self._builds.started) if not each.queued_left and each.result in _RESULTS]
        builds = [_document(request, each, each.poll()) for each in begun[:_NEWEST]]
        return as_json(200, _pruned({"name": _JOB, "builds": builds}, request))

    async def _status(self, request: web.Request) -> web.Response:
        build = self.numbered(request.match_info["number"])
        if build.queued_left or build.result not in _RESULTS:  # it has no number yet, or never gets one
            raise CiError(404)
        return as_json(200, _pruned(_document(request, build, build.poll()), request))


def _pruned(document: Mapping[str, object], request: web.Request) -> Mapping[str, object]:
    """The fields that the query parameter `tree` names, also those of builds; without it, all. Others stay whole."""
    tree = request.query.get("tree", "")
    of_builds = re.search(r"\bbuilds\[(.*?)\]", tree)
    pruned = _named(document, re.sub(r"\[.*?\]", "", tree))
    builds = pruned.get("builds")
    if of_builds is None or not isinstance(builds, list):
        return pruned
    return {**pruned, "builds": [_named(build, of_builds[1]) for build in builds]}


def _named(document: Mapping[str, object], names: str) -> Mapping[str, object]:
    wanted = {"_class", *names.split(",")}
    return {name: value for name, value in document.items() if name in wanted} if names else document


def _root(request: web.Request) -> str:
    return f"{request.scheme}://{request.host}"


def _build_url(request: web.Request, build: Build) -> str:
    return f"{_root(request)}/job/{_JOB}/{build.number}/"


def _document(request: web.Request, build: Build, phase: Phase) -> dict[str, object]:
    finished = phase == "finished"
    return {
        "_class": "hudson.model.FreeStyleBuild",
        "id": str(build.number),
        "number": build.number,
        "queueId": build.number,
        "fullDisplayName": f"{_JOB} #{build.number}",
        "building": not finished,
        "inProgress": not finished,
        "result": _RESULTS[build.result] if finished else None,
        "duration": 1234 if finished else 0,
        "url": _build_url(request, build),
        "artifacts": [{"fileName": name, "relativePath": f"target/reports/{name}"} for name in _ARTIFACTS],
    }
