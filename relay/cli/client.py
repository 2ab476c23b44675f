"""The HTTP API as the commands use it."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar
from urllib.parse import quote

import aiohttp

from relay import __version__
from relay.cli.response import Reply, problem_line
from relay.config.entry_types import check_url
from relay.config.own_address import own_url
from relay.config.settings import Settings
from relay.domain.errors import RelayError, UserError
from relay.domain.failure import tls_failure
from relay.domain.forwarding import PREFIX

T = TypeVar("T")

_TIMEOUT_S: Final = 30.0
LONGEST_WAIT_S: Final = 20
"""The wait that one request asks for: well within its own timeout, and those of proxies."""


class ApiFailed(RelayError):
    """The API rejected the request; the message quotes its response."""


class ApiBusy(ApiFailed):
    """The API cannot do it right now: a part of the relay is unavailable or recovering."""


class NoHistory(ApiFailed):
    """The relay has no history to search."""


@dataclass(frozen=True, slots=True)
class ApiResponse:
    """A response of the API; `body` is its JSON."""

    status: int
    body: Any


@dataclass(frozen=True, slots=True)
class Ended:
    """The delivery has ended. `letter`: of a failed one, PARTITION/OFFSET of its dead letter."""

    letter: str | None = None


class Client:
    """Client of the API. Raises ApiFailed if no relay answers at that address, and for rejected requests."""

    def __init__(self, base: str, key: str | None, session: aiohttp.ClientSession) -> None:
        self._base = base.rstrip("/")
        self._headers = {"user-agent": f"relay-cli/{__version__}"} | ({"authorization": f"Bearer {key}"} if key else {})
        self._session = session

    async def call(
        self,
        method: str,
        path: str,
        *,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        params: list[tuple[str, str]] | None = None,
        missing_ok: bool = False,
    ) -> ApiResponse | None:
        """None if the API says 404 and `missing_ok`."""
        reply = await self._reply(method, path, body, self._headers | dict(headers or {}), params)
        return self._judged(reply, f"{method} {path}", missing_ok=missing_ok)

    async def until_ended(
        self,
        method: str,
        path: str,
        wait_s: int,
        *,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        params: list[tuple[str, str]] | None = None,
        missing_ok: bool = False,
    ) -> ApiResponse | Ended | None:
        """As `call`, for a route that waits up to `wait_s` for the end of a message's only delivery.

        An ApiResponse means that it takes longer, or that there are several deliveries.
        """
        wanted = {"prefer": f"wait={min(wait_s, LONGEST_WAIT_S)}"}
        reply = await self._reply(method, path, body, self._headers | wanted | dict(headers or {}), params)
        if "relay-outcome" in reply.headers:
            return Ended(reply.letter)
        if reply.status == 410 and reply.is_problem:
            return Ended()  # so long ago that its answer is no longer stored
        return self._judged(reply, f"{method} {path}", missing_ok=missing_ok)

    def _judged(self, reply: Reply, what: str, *, missing_ok: bool) -> ApiResponse | None:
        status, answer = reply.status, reply.document
        if not isinstance(answer, dict) or 300 <= status < 400:
            if status == 503:  # from a proxy in front of it
                raise ApiBusy(f"{what}: {status} from {self._base}")
            raise self._stranger(status, reply.media_type)
        if status < 400:
            return ApiResponse(status, answer)
        if not reply.is_problem:
            raise self._stranger(status, reply.media_type)
        if status == 404 and missing_ok:
            return None
        failure = ApiBusy if status == 503 else ApiFailed
        if str(answer.get("type")).endswith("/no-history"):
            failure = NoHistory
        if status == 404 and answer.get("detail"):
            raise failure(answer["detail"])  # it names what is missing, and where
        hint = f"; {self.key_hint()}" if status == 401 else ""
        raise failure(f"{what}: {status} {problem_line(answer)}{hint}")

    async def _reply(
        self,
        method: str,
        path: str,
        body: bytes | None,
        headers: Mapping[str, str],
        params: list[tuple[str, str]] | None,
    ) -> Reply:
        try:
            async with self._session.request(
                method, self._base + path, data=body, headers=headers, params=params, allow_redirects=False
            ) as response:
                text = (await response.read()).decode(errors="replace")
                return Reply(response.status, response.headers, response.content_type, text)
        except aiohttp.ClientSSLError as error:
            raise ApiFailed(f"no TLS connection to {self._base}: {tls_failure(str(error))}") from error
        except (aiohttp.ClientConnectionError, TimeoutError) as error:
            raise ApiFailed(f"no relay answers at {self._base}: is `relay dev` or `relay run` up? ({error})") from error
        except (aiohttp.ClientError, ValueError) as error:  # no HTTP, or something that is invalid in a URL or header
            raise ApiFailed(f"{method} {self._base}: {error}") from error

    def key_hint(self) -> str:
        """What to do about a 401."""
        if "authorization" in self._headers:
            return f"RELAY_API_KEY is not a key of the API at {self._base}"
        return "set RELAY_API_KEY to a key of the API"

    def _stranger(self, status: int, media_type: str) -> ApiFailed:
        return ApiFailed(
            f"the server at {self._base} is not a relay (status {status}, {media_type}): is it the URL of the "
            "API? Set it with --api or RELAY_API_URL"
        )

    async def _wanted(self, call: Awaitable[ApiResponse | Ended | None], *fields: str) -> Any:
        """The body of a response, which has these fields; None without a response; Ended unchanged."""
        answer = await call
        if isinstance(answer, Ended):
            return answer
        if answer is not None and not all(name in answer.body for name in fields):
            raise self._stranger(answer.status, "JSON of another kind")
        return answer.body if answer else None

    async def page(self, path: str, asked: Mapping[str, object]) -> Any:
        """A page of a list: `items`, and the `cursor` of the next one, if any. None and empty values are omitted."""
        params = [(name, str(value)) for name, value in asked.items() if value]
        return await self._wanted(self.call("GET", path, params=params), "items", "cursor")

    async def whole_page(self, path: str, asked: Mapping[str, object], limit: int) -> Any:
        """As `page`, with `limit` items: a page of large items ends early, and the rest is requested from there."""
        items, page = list[Any](), dict[str, Any](asked)
        while len(items) < limit:
            page = await self.page(path, {**asked, "limit": limit - len(items), "cursor": page["cursor"]})
            items += page["items"]
            if not page["cursor"]:
                break
        return {**page, "items": items}

    async def message(self, source_id: str, message_id: str, *, wait_s: int | None = None) -> Any:
        """The message's state; None while it is not known. With `wait_s`: Ended, once its only delivery is over."""
        path = message_path(source_id, message_id)
        if wait_s is None:
            return await self._wanted(self.call("GET", path, missing_ok=True), "status", "deliveries")
        waited = self.until_ended("GET", path, wait_s, missing_ok=True)
        return await self._wanted(waited, "status", "deliveries")

    async def overview(self) -> Any:
        """The throughput of each stage, and what needs attention; None if the relay has no overview."""
        return await self._wanted(self.call("GET", "/v1/overview", missing_ok=True), "stages", "parked")

    async def failed(self, *, receiver: str | None = None, limit: int = 50, cursor: str | None = None) -> Any:
        """A page of the newest dead letters, of one receiver or of all: `items`, and the `cursor` of the next one."""
        return await self.whole_page("/v1/failed", {"receiver": receiver, "cursor": cursor}, limit)

    async def failed_at(self, partition: int, offset: int) -> Any:
        """One dead letter, with its headers and payload."""
        return await self._wanted(self.call("GET", f"/v1/failed/{partition}/{offset}"), "payload", "headers")

    async def replays(self, action: str, asked: dict[str, Any]) -> Any:
        """Begin to `replay` or `discard` a selection; with `dry_run`, only preview it."""
        wanted = "counted" if asked.get("dry_run") else "state"
        return await self._wanted(self._post(f"/v1/{action}s", asked), wanted)

    async def job(self, id: str) -> Any:
        return await self._wanted(self.call("GET", f"/v1/replays/{_quoted(id)}"), "state")

    async def jobs(self, *, limit: int, cursor: str | None) -> Any:
        """A page of them, newest first."""
        return await self.page("/v1/replays", {"limit": limit, "cursor": cursor})

    async def stop_job(self, id: str) -> Any:
        return await self._wanted(self._post(f"/v1/replays/{_quoted(id)}/stop"), "state")

    async def act_on_letter(self, action: str, partition: int, offset: int) -> Any:
        """Replay or discard the dead letter at that place."""
        return await self._wanted(self._post(f"/v1/failed/{partition}/{offset}/{action}"), "generation")

    async def act_on_delivery(
        self, action: str, source_id: str, message_id: str, receiver: str, asked: dict[str, Any]
    ) -> Any:
        path = f"{message_path(source_id, message_id)}/deliveries/{_quoted(receiver)}"
        return await self._wanted(self._post(f"{path}/{action}", asked), "generation")

    def _post(self, path: str, body: dict[str, Any] | None = None) -> Awaitable[ApiResponse | None]:
        encoded = json.dumps(body).encode() if body else b""
        return self.call("POST", path, body=encoded, headers={"content-type": "application/json"})

    async def endpoint(
        self,
        name: str,
        action: str | None = None,
        said: dict[str, str] | None = None,
        *,
        callback: bool = False,
        missing_ok: bool = False,
    ) -> Any:
        """A receiver's health, or that of a source's callback; `action`: `pause` or `resume` it first, with `said`."""
        quoted = _quoted(name)
        path = f"/v1/sources/{quoted}/callback" if callback else f"/v1/receivers/{quoted}"
        if action is None:
            return await self._wanted(self.call("GET", path, missing_ok=missing_ok), "condition")
        body, headers = json.dumps(said or {}).encode(), {"content-type": "application/json"}
        return await self._wanted(self.call("POST", f"{path}/{action}", body=body, headers=headers), "condition")

    async def statistics(self, name: str) -> Any:
        """The outcomes of a receiver's attempts within a day."""
        return await self._wanted(self.call("GET", f"/v1/receivers/{_quoted(name)}/stats"), "outcomes", "hours")

    async def test_receiver(self, name: str) -> Any:
        """The request to the receiver, and its response."""
        return await self._wanted(self._post(f"/v1/receivers/{_quoted(name)}/test"), "request", "response", "failure")

    async def keys(
        self, method: str, path: str = "", body: bytes | None = None, *, params: list[tuple[str, str]] | None = None
    ) -> Any:
        """Calls the API's routes of keys; `path`: below their root."""
        quoted = "/".join(map(_quoted, path.split("/"))) if path else ""
        headers = {"content-type": "application/json"} if body is not None else {}
        target = f"/v1/keys/{quoted}".removesuffix("/")
        return await self._wanted(self.call(method, target, body=body, headers=headers, params=params))

    async def portal_link(self, wanted: Mapping[str, Any]) -> Any:
        """A link into the portal of an owner."""
        body, headers = json.dumps(wanted).encode(), {"content-type": "application/json"}
        return await self._wanted(
            self.call("POST", "/v1/portal-links", body=body, headers=headers), "url", "expires_at"
        )

    async def audit(self, *, limit: int, cursor: str | None) -> Any:
        """A page of the audit log, newest first."""
        return await self.page("/v1/audit", {"limit": limit, "cursor": cursor})

    async def register(self, fields: Mapping[str, Any]) -> Any:
        """A new receiver; its `secret`, if one was made, is only in this response."""
        body, headers = json.dumps(fields, default=str).encode(), {"content-type": "application/json"}
        return await self._wanted(self.call("POST", "/v1/receivers", body=body, headers=headers), "settings", "secret")

    async def change_receiver(self, name: str, patch: Mapping[str, Any], tag: str | None = None) -> Any:
        """The receiver after a merge patch; with `tag`, only if that is its etag."""
        body = json.dumps(patch, default=str).encode()
        headers = {"content-type": "application/merge-patch+json"} | _if_match(tag)
        changed = self.call("PATCH", f"/v1/receivers/{_quoted(name)}", body=body, headers=headers)
        return await self._wanted(changed, "settings", "etag")

    async def rotate_receiver(self, name: str, asked: Mapping[str, str], tag: str | None = None) -> Any:
        """The receiver with its new secret, which is only in this response; with `tag`, only if that is its etag."""
        body, headers = json.dumps(asked).encode(), {"content-type": "application/json"} | _if_match(tag)
        path = f"/v1/receivers/{_quoted(name)}/rotate"
        return await self._wanted(self.call("POST", path, body=body, headers=headers), "secret", "former_until")

    async def verify_receiver(self, name: str) -> Any:
        """The result of a handshake with the receiver's URL."""
        return await self._wanted(self._post(f"/v1/receivers/{_quoted(name)}/verify"), "proved", "verification")

    async def reencrypt_secrets(self, cursor: str | None = None, *, dry_run: bool = False) -> Any:
        """A page of re-encrypted entries; `dry_run`: of those that would be."""
        params = [
            ("limit", "200"),
            *([("cursor", cursor)] if cursor else []),
            *([("dry_run", "true")] if dry_run else []),
        ]
        return await self._wanted(self.call("POST", "/v1/secrets/reencrypt", params=params), "outdated", "rewritten")

    async def remove_receiver(self, name: str, tag: str | None = None, *, dry_run: bool = False) -> Any:
        """What will happen to its messages; `dry_run`: it stays."""
        path, params = f"/v1/receivers/{_quoted(name)}", [("dry_run", "true")] if dry_run else []
        return await self._wanted(
            self.call("DELETE", path, headers=_if_match(tag), params=params), "removed", "messages"
        )

    async def registered(self, narrowed: list[tuple[str, str]], cursor: str | None = None) -> Any:
        """A page of all receivers: `items`, and the `cursor` of the next one, if any."""
        params = narrowed + ([("cursor", cursor)] if cursor else [])
        return await self._wanted(self.call("GET", "/v1/receivers", params=params), "items", "cursor")

    async def declare_source(self, fields: Mapping[str, Any]) -> Any:
        """A new source; the `secret` of its callback, if one was made, is only in this response."""
        body, headers = json.dumps(fields, default=str).encode(), {"content-type": "application/json"}
        return await self._wanted(self.call("POST", "/v1/sources", body=body, headers=headers), "settings", "secret")

    async def source(self, source_id: str) -> Any:
        """The source, as it is declared."""
        return await self._wanted(self.call("GET", f"/v1/sources/{_quoted(source_id)}"), "settings", "etag")

    async def change_source(self, source_id: str, patch: Mapping[str, Any], tag: str | None = None) -> Any:
        """The source after a merge patch; with `tag`, only if that is its etag."""
        body = json.dumps(patch, default=str).encode()
        headers = {"content-type": "application/merge-patch+json"} | _if_match(tag)
        changed = self.call("PATCH", f"/v1/sources/{_quoted(source_id)}", body=body, headers=headers)
        return await self._wanted(changed, "settings", "etag")

    async def remove_source(self, source_id: str, tag: str | None = None, *, dry_run: bool = False) -> Any:
        """What will happen to its results; `dry_run`: it stays."""
        path, params = f"/v1/sources/{_quoted(source_id)}", [("dry_run", "true")] if dry_run else []
        removed = self.call("DELETE", path, headers=_if_match(tag), params=params)
        return await self._wanted(removed, "removed", "results")

    async def sources(self, narrowed: list[tuple[str, str]], cursor: str | None = None) -> Any:
        """A page of all declared sources: `items`, and the `cursor` of the next one, if any."""
        params = narrowed + ([("cursor", cursor)] if cursor else [])
        return await self._wanted(self.call("GET", "/v1/sources", params=params), "items", "cursor")

    async def send(
        self,
        source_id: str,
        payload: bytes,
        *,
        receivers: tuple[str, ...] = (),
        message_id: str | None = None,
        event_type: str | None = None,
        content_type: str = "application/json",
        wait_s: int | None = None,
        headers: Iterable[tuple[str, str]] = (),
    ) -> Any:
        """Post a message; returns its state. With `wait_s`: Ended, if its only delivery ends within that time.
        `headers`: the message's own."""
        sent_headers = {"content-type": content_type} | {PREFIX + name: value for name, value in headers}
        if message_id is not None:
            sent_headers["ce-id"] = quote(message_id, safe=" !#$&'()*+,/:;=?@[]~-._", errors="surrogateescape")
        params = [("receiver", name) for name in receivers] + ([("type", event_type)] if event_type else [])
        path = f"/v1/sources/{_quoted(source_id)}/messages"
        sent: Awaitable[ApiResponse | Ended | None]
        if wait_s is None:
            sent = self.call("POST", path, body=payload, headers=sent_headers, params=params)
        else:
            sent = self.until_ended("POST", path, wait_s, body=payload, headers=sent_headers, params=params)
        return await self._wanted(sent, "message_id", "status", "deliveries")


def api_base(settings: Settings, api: str | None) -> str:
    """The URL of the API: `--api`, else RELAY_API_URL, else the address of a relay with these settings on this machine.

    Raises UserError for an invalid URL.
    """
    if api is None:
        return settings.api_url or own_url(settings.api_host, settings.api_port)
    try:
        return check_url(api)
    except ValueError as error:
        raise UserError(f"--api: {api!r}: {error}; for example http://127.0.0.1:{settings.api_port}") from None


def with_client(
    settings: Settings, api: str | None, work: Callable[[Client], Awaitable[T]], *, patience_s: float = _TIMEOUT_S
) -> T:
    """Run `work(client)` against the API at `api`, or at the URL of the settings; a request may take `patience_s`."""
    base = api_base(settings, api)
    key = settings.api_key.get_secret_value() if settings.api_key else None

    async def main() -> T:
        timeout = aiohttp.ClientTimeout(total=patience_s)
        async with aiohttp.ClientSession(timeout=timeout) as session:
            return await work(Client(base, key, session))

    return asyncio.run(main())


def _if_match(tag: str | None) -> dict[str, str]:
    return {} if tag is None else {"if-match": f'"{tag}"'}


def message_path(source_id: str, message_id: str) -> str:
    """The API's path of a message."""
    return f"/v1/sources/{_quoted(source_id)}/messages/{_quoted(message_id)}"


def receiver_path(name: str) -> str:
    """The API's path of a receiver."""
    return f"/v1/receivers/{_quoted(name)}"


def _quoted(text: str) -> str:
    """For a path; bytes of the command line that are not UTF-8 are kept, and the API rejects them."""
    return quote(text, safe="", errors="surrogateescape")
