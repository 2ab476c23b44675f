"""A strict emulator of GitHub: it sends the webhooks of a repository, and takes the statuses of its commits.

Routes, checks and headers are those of docs.github.com: /en/webhooks/webhook-events-and-payloads#delivery-headers,
/en/rest/repos/contents, /en/rest/repos/webhooks, /en/rest/commits/statuses, /en/rest/authentication.
"""

import asyncio
import hashlib
import hmac
import time
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import urlencode

import msgspec
from aiohttp import ClientError, ClientSession, ClientTimeout, web

from relay.domain.json_pointer import NOT_JSON
from relay.sink.github_repository import CommitStatus, GitCommit, GitHubError, Repository
from relay.sink.server import LocalServer, as_json

_API_VERSION: Final = "2022-11-28"
_DELIVERY_TIMEOUT_S: Final = 10.0
_MOST_PER_PAGE: Final = 100
_DOCUMENTATION: Final = "https://docs.github.com/rest"
_CONTENT_TYPES: Final = {"json": "application/json", "form": "application/x-www-form-urlencoded"}

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass(frozen=True, slots=True)
class Hook:
    """A webhook of the repository. `content_type`: json or form."""

    id: int
    url: str
    content_type: str
    secret: str | None
    events: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class HookDelivery:
    """A request to a webhook. `guid`: the same for every redelivery. `status_code`: 0 without a response."""

    id: int
    guid: str
    hook: Hook
    event: str
    payload: bytes
    redelivery: bool
    delivered_at: str
    status_code: int = 0


class GitHubEmulator(LocalServer):
    """GitHub with one repository, that of the sample payloads.

    `token`: has push access and may administer webhooks. `branches`: the default branch comes first. `on_line` is
    called with a line for each webhook sent and each status set. The clock of its timestamps is the system's.
    """

    def __init__(
        self,
        token: str,
        *,
        branches: tuple[str, ...] = ("master", "changes", "gh-pages"),
        on_line: Callable[[str], None] = lambda _: None,
    ) -> None:
        super().__init__()
        self.repository = Repository(branches, time.time)
        self.deliveries: list[HookDelivery] = []
        self.refused: list[tuple[str, int, str]] = []
        """Path, status and message of each request that was refused."""
        self.token = token
        self._on_line = on_line
        self._hooks: dict[int, Hook] = {}
        self._limited = 0

    def app(self) -> web.Application:
        app = web.Application(middlewares=[self._checked])
        repo = "/repos/{owner}/{repo}"
        app.router.add_put(f"{repo}/contents/{{path:.+}}", self._put_file)
        app.router.add_post(f"{repo}/hooks", self._add_hook)
        app.router.add_get(f"{repo}/hooks/{{hook}}/deliveries", self._list_deliveries)
        app.router.add_post(f"{repo}/hooks/{{hook}}/deliveries/{{delivery}}/attempts", self._redeliver)
        app.router.add_post(f"{repo}/statuses/{{sha}}", self._add_status)
        app.router.add_get(f"{repo}/commits/{{ref:.+}}/status", self._combined)
        app.router.add_get(f"{repo}/commits/{{ref:.+}}/statuses", self._list_statuses)
        return app

    async def start(self, host: str = "127.0.0.1", port: int = 0) -> None:
        await super().start(host, port)
        self._session = ClientSession(timeout=ClientTimeout(total=_DELIVERY_TIMEOUT_S), auto_decompress=False)

    @property
    def api(self) -> str:
        """The root of its REST API."""
        return self.origin

    @property
    def url(self) -> str:
        """The API of the repository."""
        return f"{self.api}/repos/{self.repository.full_name}"

    def limit(self, count: int) -> None:
        """Refuse the next `count` statuses for the secondary rate limit."""
        self._limited = count

    def push(self, branch: str, message: str, path: str = "README.md") -> GitCommit:
        """Add a commit to a branch, and send the event to the webhooks."""
        return self._pushed(self.repository.commit(branch, message, path))

    async def redeliver(self, delivery: HookDelivery) -> HookDelivery:
        """Send it once more, with the same guid, and wait for the response."""
        return await self._send(delivery.hook, delivery.event, delivery.payload, delivery.guid)

    async def delivered(self) -> None:
        """Wait until no webhook is in progress."""
        while self.tasks:
            await asyncio.wait(self.tasks)

    # --- webhooks ---

    def _pushed(self, commit: GitCommit) -> GitCommit:
        payload, guid = self.repository.push_event(commit, self.api), str(uuid.uuid4())
        for hook in self._hooks.values():
            if "push" in hook.events or "*" in hook.events:
                self.begin(self._send(hook, "push", payload, guid))
        return commit

    async def _send(self, hook: Hook, event: str, payload: bytes, guid: str) -> HookDelivery:
        repeated = any(earlier.guid == guid and earlier.hook == hook for earlier in self.deliveries)
        delivery = HookDelivery(len(self.deliveries) + 1, guid, hook, event, payload, repeated, _now())
        place = len(self.deliveries)
        self.deliveries.append(delivery)
        body = payload if hook.content_type == "json" else urlencode({"payload": payload.decode()}).encode()
        status = await self._post(hook.url, body, self._headers(delivery, body))
        self.deliveries[place] = delivery = replace(delivery, status_code=status)
        self._on_line(f"-> {event} {guid} {status or 'failed to connect'}{' redelivery' if repeated else ''}")
        self._changed.set()
        return delivery

    async def _post(self, url: str, body: bytes, headers: dict[str, str]) -> int:
        """The response's status; 0 without one."""
        if self._session is None:
            raise RuntimeError("not started")
        try:
            async with self._session.post(url, data=body, headers=headers, allow_redirects=False) as response:
                return response.status
        except (ClientError, TimeoutError):
            return 0

    def _headers(self, delivery: HookDelivery, body: bytes) -> dict[str, str]:
        headers = {
            "Accept": "*/*",
            "Content-Type": _CONTENT_TYPES[delivery.hook.content_type],
            "User-Agent": "GitHub-Hookshot/044aadd",
            "X-GitHub-Delivery": delivery.guid,
            "X-GitHub-Event": delivery.event,
            "X-GitHub-Hook-ID": str(delivery.hook.id),
            "X-GitHub-Hook-Installation-Target-ID": str(self.repository.id),
            "X-GitHub-Hook-Installation-Target-Type": "repository",
        }
        if delivery.hook.secret is not None:
            for name, digest in (("X-Hub-Signature", hashlib.sha1), ("X-Hub-Signature-256", hashlib.sha256)):
                value = hmac.new(delivery.hook.secret.encode(), body, digest).hexdigest()
                headers[name] = f"{digest().name}={value}"
        return headers

    # --- checks of every request ---

    @web.middleware
    async def _checked(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            self._check(request)
            return await handler(request)
        except GitHubError as refused:
            self.refused.append((request.path, refused.status, refused.message))
            return _error(refused)
        except web.HTTPException as error:  # no such route
            return _error(GitHubError(404 if error.status == 405 else error.status, "Not Found"))

    def _check(self, request: web.Request) -> None:
        if not request.headers.get("User-Agent"):
            raise GitHubError(403, "Request forbidden by administrative rules. A User-Agent header is required.")
        if request.headers.get("X-GitHub-Api-Version", _API_VERSION) != _API_VERSION:
            raise GitHubError(400, "The API version is not supported.")
        scheme, _, given = request.headers.get("Authorization", "").partition(" ")
        if scheme and (scheme.lower() not in ("bearer", "token") or not hmac.compare_digest(given, self.token)):
            raise GitHubError(401, "Bad credentials")
        owner, repo = request.match_info.get("owner"), request.match_info.get("repo")
        if owner is not None and f"{owner}/{repo}".lower() != self.repository.full_name.lower():
            raise GitHubError(404, "Not Found")
        if not scheme and (request.method != "GET" or "hook" in request.match_info):
            raise GitHubError(401, "Requires authentication")

    # --- routes ---

    async def _put_file(self, request: web.Request) -> web.Response:
        commit = self._pushed(self.repository.put_file(request.match_info["path"], await _json(request)))
        content = {"path": commit.path, "name": commit.path.rpartition("/")[2], "type": "file"}
        return _created({"content": content, "commit": {"sha": commit.sha, "message": commit.message}})

    async def _add_hook(self, request: web.Request) -> web.Response:
        try:
            wanted = msgspec.convert(await _json(request), _NewHook)
        except msgspec.ValidationError as error:
            raise GitHubError(422, f"Invalid request.\n\n{error}") from None
        config = wanted.config
        if config.content_type not in _CONTENT_TYPES or not config.url.startswith(("http://", "https://")):
            raise GitHubError(422, "Validation Failed", {"resource": "Hook", "code": "custom", "field": "config"})
        hook = Hook(len(self._hooks) + 1, config.url, config.content_type, config.secret, wanted.events)
        self._hooks[hook.id] = hook
        shown = config if config.secret is None else msgspec.structs.replace(config, secret="*" * 8)
        view = {"type": "Repository", "id": hook.id, "name": "web", "active": True, "events": hook.events}
        view |= {"config": msgspec.structs.asdict(shown), "url": f"{self.api}{request.path}/{hook.id}"}
        self.begin(self._send(hook, "ping", self.repository.ping_event(view, self.api), str(uuid.uuid4())))
        return _created(view)

    async def _list_deliveries(self, request: web.Request) -> web.Response:
        """The newest ones, newest first."""
        hook = self._hook(request)
        try:
            per_page = min(int(request.query.get("per_page", "30")), _MOST_PER_PAGE)
        except ValueError:
            raise GitHubError(422, "Invalid request.\n\nper_page is not an integer.") from None
        found = [delivery for delivery in reversed(self.deliveries) if delivery.hook == hook]
        return as_json(200, [_delivery_view(delivery) for delivery in found[:per_page]])

    async def _redeliver(self, request: web.Request) -> web.Response:
        hook, wanted = self._hook(request), request.match_info["delivery"]
        found = [delivery for delivery in self.deliveries if delivery.hook == hook and str(delivery.id) == wanted]
        if not found:
            raise GitHubError(404, "Not Found")
        self.begin(self.redeliver(found[0]))
        return as_json(202, {})

    def _hook(self, request: web.Request) -> Hook:
        key = request.match_info["hook"]
        if not key.isdecimal() or int(key) not in self._hooks:
            raise GitHubError(404, "Not Found")
        return self._hooks[int(key)]

    async def _add_status(self, request: web.Request) -> web.Response:
        if self._limited:
            self._limited -= 1
            raise GitHubError(
                403, "You have exceeded a secondary rate limit. Please wait a few minutes before you try again."
            )
        sha = request.match_info["sha"]
        status = self.repository.add_status(sha, await _json(request))
        self._on_line(f"<- {status.state} {sha} {status.context}: {status.description or ''}")
        self._changed.set()
        return _created(self._status_view(status, sha))

    async def _combined(self, request: web.Request) -> web.Response:
        commit = self.repository.find(request.match_info["ref"])
        statuses = [self._status_view(status, commit.sha) for status in commit.latest()]
        view = {"state": commit.state(), "sha": commit.sha, "total_count": len(statuses), "statuses": statuses}
        return as_json(200, view | {"repository": {"full_name": self.repository.full_name}})

    async def _list_statuses(self, request: web.Request) -> web.Response:
        commit = self.repository.find(request.match_info["ref"])
        return as_json(200, [self._status_view(status, commit.sha) for status in reversed(commit.statuses)])

    def _status_view(self, status: CommitStatus, sha: str) -> dict[str, Any]:
        return {"url": f"{self.url}/statuses/{sha}", **asdict(status)}


class _HookConfig(msgspec.Struct, forbid_unknown_fields=True):
    url: str
    content_type: str = "form"
    secret: str | None = None
    insecure_ssl: str = "0"


class _NewHook(msgspec.Struct, forbid_unknown_fields=True):
    config: _HookConfig
    name: str = "web"
    events: tuple[str, ...] = ("push",)
    active: bool = True


async def _json(request: web.Request) -> object:
    """The body. Raises GitHubError."""
    try:
        return msgspec.json.decode(await request.read())
    except NOT_JSON:
        raise GitHubError(400, "Problems parsing JSON") from None


def _delivery_view(delivery: HookDelivery) -> dict[str, Any]:
    phrase = HTTPStatus(delivery.status_code).phrase if delivery.status_code else "failed to connect to host"
    return {
        "id": delivery.id,
        "guid": delivery.guid,
        "delivered_at": delivery.delivered_at,
        "redelivery": delivery.redelivery,
        "status": phrase,
        "status_code": delivery.status_code,
        "event": delivery.event,
        "action": None,
    }


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _created(view: dict[str, Any]) -> web.Response:
    response = as_json(201, view)
    if "url" in view:
        response.headers["Location"] = view["url"]
    return response


def _error(refused: GitHubError) -> web.Response:
    view = {"message": refused.message, "documentation_url": _DOCUMENTATION, "status": str(refused.status)}
    response = as_json(refused.status, view | ({"errors": refused.errors} if refused.errors else {}))
    if "rate limit" in refused.message:
        response.headers["Retry-After"] = "1"
    return response
