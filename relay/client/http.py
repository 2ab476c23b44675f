"""Requests of the client to the API: with retries, and with the API's problems as errors."""

import os
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeVar
from urllib.parse import quote

import aiohttp
import msgspec
from tenacity import AsyncRetrying, RetryCallState, retry_if_exception_type, stop_after_attempt, wait_random_exponential

from relay import __version__
from relay.client.errors import ApiError, DeliveryFailed, RelayUnreachable
from relay.client.sse import SILENT_S, EventReader, ServerSentEvent

T = TypeVar("T")
Query = Mapping[str, object]
"""Values by parameter. None and empty ones are left out; a list repeats its parameter."""

USUAL_URL: Final = "http://127.0.0.1:8080"
JSON: Final = "application/json"
_BACKOFF: Final = wait_random_exponential(multiplier=0.2, max=5.0)
_LONGEST_PAUSE_S: Final = 60.0
"""A longer Retry-After is cut to this."""


class Response(NamedTuple):
    """A response with a status below 400."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class _Again(Exception):
    """The request may be repeated. `pause_s`: not before; None: after a backoff. `error`: if there is no try left."""

    def __init__(self, error: Exception, pause_s: float | None = None) -> None:
        super().__init__(str(error))
        self.error = error
        self.pause_s = pause_s


class Http:
    """One connection pool to one relay.

    A request is repeated after a 429, and a 503 with `Retry-After`; one that is `safe` to repeat also after a broken
    connection, 502 and 504. `tries`: in all. `timeout_s`: of each.
    """

    def __init__(
        self, url: str | None, key: str | None, *, tries: int, timeout_s: float, session: aiohttp.ClientSession | None
    ) -> None:
        self.url = (url or os.environ.get("RELAY_API_URL") or USUAL_URL).rstrip("/")
        key = key if key is not None else os.environ.get("RELAY_API_KEY")
        self._headers = {"user-agent": f"relay-client/{__version__}"}
        if key:
            self._headers["authorization"] = f"Bearer {key}"
        self._tries = tries
        self._timeout = aiohttp.ClientTimeout(total=timeout_s)
        self._given, self._session = session is not None, session

    async def close(self) -> None:
        if self._session is not None and not self._given:
            await self._session.close()
            self._session = None

    async def get(self, kind: type[T], path: str, query: Query | None = None) -> T:
        return decoded(kind, await self.request("GET", path, query=query, safe=True))

    async def post(
        self, kind: type[T], path: str, body: object = None, *, query: Query | None = None, safe: bool = False
    ) -> T:
        encoded = None if body is None else msgspec.json.encode(body)
        return decoded(kind, await self.request("POST", path, query=query, body=encoded, safe=safe))

    async def pages(self, kind: type[T], path: str, query: Query) -> AsyncIterator[T]:
        """The items of a list, page by page as they are needed."""
        cursor: str | None = None
        while True:
            page = await self.get(dict[str, Any], path, {**query, "cursor": cursor})
            for item in page["items"]:
                yield msgspec.convert(item, kind, strict=False)
            cursor = page["cursor"]
            if cursor is None:
                return

    async def request(
        self,
        method: str,
        path: str,
        *,
        query: Query | None = None,
        body: bytes | None = None,
        content_type: str = JSON,
        headers: Iterable[tuple[str, str]] = (),
        safe: bool = False,
    ) -> Response:
        """Raises ApiError for what the API refuses, RelayUnreachable if no relay answers."""
        sent = self._headers | dict(headers) | ({} if body is None else {"content-type": content_type})
        tries = AsyncRetrying(
            stop=stop_after_attempt(self._tries),
            wait=_pause,
            retry=retry_if_exception_type(_Again),
            retry_error_callback=_give_up,
        )
        return await tries(self._once, method, path, parameters(query), body, sent, safe)

    async def _once(
        self,
        method: str,
        path: str,
        query: Sequence[tuple[str, str]],
        body: bytes | None,
        headers: Mapping[str, str],
        safe: bool,
    ) -> Response:
        try:
            async with self._pool().request(
                method,
                self.url + path,
                params=query,
                data=body,
                headers=headers,
                timeout=self._timeout,
                allow_redirects=False,
            ) as response:
                found = Response(response.status, response.headers, await response.read())
        except aiohttp.ClientConnectorError as error:  # nothing was sent
            raise _Again(RelayUnreachable(f"no relay answers at {self.url}: {error}")) from error
        except (aiohttp.ClientError, TimeoutError) as error:
            unreachable = RelayUnreachable(f"{method} {self.url}{path}: {error or 'timeout'}")
            raise _Again(unreachable) if safe else unreachable from error
        if found.status < 300:
            return found
        problem, pause_s = refused(found), _retry_after(found.headers)
        repeated = found.status == 429 or (found.status == 503 and (safe or pause_s is not None))
        repeated |= safe and found.status in (502, 504) and not isinstance(problem, DeliveryFailed)
        raise _Again(problem, pause_s) if repeated else problem

    async def events(self, path: str, query: Query) -> AsyncIterator[ServerSentEvent]:
        """Server-sent events, until the API ends the stream. Raises as `request`."""
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=SILENT_S / 2, sock_read=SILENT_S)
        try:
            async with self._pool().get(
                self.url + path, params=parameters(query), headers=self._headers, timeout=timeout, allow_redirects=False
            ) as response:
                if response.status != 200:
                    raise refused(Response(response.status, response.headers, await response.read()))
                reader = EventReader()
                async for data in response.content.iter_any():
                    for event in reader.feed(data):
                        yield event
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            raise RelayUnreachable(f"GET {self.url}{path}: {error or 'timeout'}") from error

    def _pool(self) -> aiohttp.ClientSession:
        """Made by the first request: a session belongs to the event loop that it is made in."""
        if self._session is None:
            self._session = aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar(), trust_env=True)
        return self._session


def path(template: str, *parts: object) -> str:
    """`template` with each `{}` replaced by a part, percent-encoded: an id may contain a slash."""
    return template.format(*(quote(str(part), safe="") for part in parts))


def parameters(query: Query | None) -> list[tuple[str, str]]:
    """As they are written into the URL."""
    found = []
    for name, value in (query or {}).items():
        values = value if isinstance(value, list | tuple | set | frozenset) else [value]
        found += [
            (name, str(each).lower() if isinstance(each, bool) else str(each))
            for each in values
            if each is not None and each is not False and each != ""
        ]
    return found


def decoded(kind: type[T], response: Response) -> T:
    """The JSON of a response. Fields that a newer relay adds are ignored. Raises RelayUnreachable if it is another
    document: then something else than a relay answers there."""
    try:
        return msgspec.json.decode(response.body, type=kind, strict=False)
    except msgspec.MsgspecError as error:
        raise RelayUnreachable(f"what answered is no relay of this version: {error}") from error


def refused(response: Response) -> ApiError | RelayUnreachable:
    """The error of a response with a status from 300 on."""
    try:
        document = msgspec.json.decode(response.body)
    except msgspec.MsgspecError:
        document = None
    if not isinstance(document, dict) or "title" not in document:
        return RelayUnreachable(f"what answered is no relay: status {response.status}")
    if response.headers.get("relay-outcome") == "failed":
        return DeliveryFailed(response.status, document)
    return ApiError(response.status, document)


def _retry_after(headers: Mapping[str, str]) -> float | None:
    text = headers.get("Retry-After", "")
    return min(float(text), _LONGEST_PAUSE_S) if text.isascii() and text.isdigit() else None


def _pause(state: RetryCallState) -> float:
    error = state.outcome.exception() if state.outcome is not None else None
    if isinstance(error, _Again) and error.pause_s is not None:
        return error.pause_s
    return float(_BACKOFF(state))


def _give_up(state: RetryCallState) -> Response:
    error = state.outcome.exception() if state.outcome is not None else None
    raise error.error if isinstance(error, _Again) else RelayUnreachable("gave up")
