"""Requests of the client to the API: with retries, and with the API's problems as errors."""

import os
import time
from collections.abc import AsyncIterator, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from copy import copy
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final, NamedTuple, TypedDict, TypeVar, cast
from urllib.parse import quote, urlsplit

import aiohttp
import msgspec
from tenacity import AsyncRetrying, RetryCallState, retry_if_exception_type, stop_after_attempt, wait_random_exponential
from yarl import URL

from relay import __version__
from relay.client.connections import LoopSessions
from relay.client.errors import (
    ApiError,
    ClientError,
    DeliveryFailed,
    InvalidArgument,
    NotARelay,
    OtherVersion,
    RelayUnreachable,
)
from relay.client.open_words import open_words
from relay.client.sse import SILENT_S, EventReader, ServerSentEvent
from relay.domain.json_pointer import NOT_JSON
from relay.domain.schedule import parse_retry_after
from relay.domain.secrecy import MASK
from relay.domain.shown_exchange import tls_failure

T = TypeVar("T")
Query = Mapping[str, object]
"""Values by parameter. None and empty ones are left out; a list repeats its parameter."""

USUAL_URL: Final = "http://127.0.0.1:8080"
JSON: Final = "application/json"
MERGE_PATCH: Final = "application/merge-patch+json"
_EVENTS: Final = "text/event-stream"
_LINES: Final = "application/x-ndjson"
_NOTHING: Final[Mapping[str, str]] = MappingProxyType({})
_BACKOFF: Final = wait_random_exponential(multiplier=0.2, max=5.0)
_ANSWERS: Final = "/v1/answers/"
_LONGEST_PAUSE_S: Final = 60.0
"""A longer Retry-After is cut to this."""


class Paging(TypedDict, total=False):
    """Which page of a list. `limit`: items of a page. `cursor`: of the page before."""

    limit: int | None
    cursor: str | None


class ApiResponse(NamedTuple):
    """A response with a status below 400."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    url: str
    """URL of the relay."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The receiver's answer to a message. `outcome`: `answered`, or `delivered` if the receiver took it without an
    answer. `status`: the answer's HTTP status, or None if there is none. `truncated`: only its beginning was kept."""

    outcome: str
    status: int | None
    content_type: str | None
    body: bytes = field(repr=False)
    truncated: bool = False

    def json(self) -> Any:
        """The body, decoded. Raises ValueError if it is not JSON."""
        return msgspec.json.decode(self.body)


def answer_of(response: ApiResponse) -> Answer:
    """The answer in a response that has `relay-outcome`."""
    status = response.headers.get("relay-answer-status")
    return Answer(
        response.headers["relay-outcome"],
        None if status is None else int(status),
        response.headers.get("Content-Type"),
        response.body,
        response.headers.get("relay-answer-truncated") == "true",
    )


class _Again(Exception):
    """The request may be repeated. `pause_s`: not before; None: after a backoff. `error`: if there is no try left."""

    def __init__(self, error: Exception, pause_s: float | None = None) -> None:
        super().__init__(str(error))
        self.error = error
        self.pause_s = pause_s


class Http:
    """The requests of one client to one relay. Raises InvalidArgument for an invalid URL or key.

    A request is repeated after a 429, and a 503 with `Retry-After`; one that is `safe` to repeat also after a broken
    connection, 502 and 504. `tries`: in all. `timeout_s`: of each. `headers`: of each request.
    """

    def __init__(
        self,
        url: str | None,
        key: str | None,
        *,
        tries: int,
        timeout_s: float,
        session: aiohttp.ClientSession | None = None,
        headers: Mapping[str, str] = _NOTHING,
    ) -> None:
        given = url or os.environ.get("RELAY_API_URL") or USUAL_URL
        self.url = checked_url(given, "url" if url else "RELAY_API_URL").rstrip("/")
        usual_key = os.environ.get("RELAY_API_KEY")
        key = key if key is not None else usual_key
        self._key_name = "RELAY_API_KEY" if key == usual_key else "the given key"
        if key and not key.isprintable():
            raise InvalidArgument(f"{self._key_name}: it has a control character, such as a line break at its end")
        self._headers = {"user-agent": f"relay-client/{__version__}"}
        if key:
            self._headers["authorization"] = f"Bearer {key}"
        self._headers.update(headers)
        self._tries = tries
        self._timeout_s = timeout_s
        self._sessions = LoopSessions(self.url, session)

    async def close(self) -> None:
        await self._sessions.close()

    def having(self, headers: Mapping[str, str]) -> "Http":
        """The same connections, with these headers in each request, too."""
        other = copy(self)
        other._headers = self._headers | dict(headers)
        return other

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
        accepted: Collection[int] = (),
        wait_s: float = 0.0,
    ) -> ApiResponse:
        """`accepted`: error statuses that are a response like any other here. `wait_s`: how long the API may take
        before it responds, which adds to the timeout.

        Raises ApiError for what the API refuses, RelayUnreachable if no relay answers."""
        sent = self._headers | dict(headers) | ({} if body is None else {"content-type": content_type})
        tries = AsyncRetrying(
            stop=stop_after_attempt(self._tries),
            wait=_pause,
            retry=retry_if_exception_type(_Again),
            retry_error_callback=_give_up,
        )
        timeout = aiohttp.ClientTimeout(total=self._timeout_s + wait_s)
        return await tries(self._once, method, path, parameters(query), body, sent, timeout, safe, accepted)

    async def _once(
        self,
        method: str,
        path: str,
        query: Sequence[tuple[str, str]],
        body: bytes | None,
        headers: Mapping[str, str],
        timeout: aiohttp.ClientTimeout,
        safe: bool,
        accepted: Collection[int],
    ) -> ApiResponse:
        request = f"{method} {_shown(path)}"
        try:
            asked = await self._asked(method, path, params=query, data=body, headers=headers, timeout=timeout)
            async with asked as response:
                found = await self._read(response)
        except aiohttp.ClientConnectorError as error:  # nothing was sent
            raise _Again(self._unreachable(request, error)) from error
        except (aiohttp.ClientError, TimeoutError) as error:
            unreachable = self._unreachable(request, error)
            raise _Again(unreachable) if safe else unreachable from error
        except ValueError as error:
            raise InvalidArgument(f"{request}: its path or a header cannot be sent: {error}") from error
        if found.status < 300 or found.status in accepted:
            return found
        problem, pause_s = self._refused(found, request), _retry_after(found.headers)
        repeated = found.status == 429 or (found.status == 503 and (safe or pause_s is not None))
        repeated |= safe and found.status in (502, 504) and not isinstance(problem, DeliveryFailed)
        raise _Again(problem, pause_s) if repeated else problem

    async def events(self, path: str, query: Query) -> AsyncIterator[ServerSentEvent]:
        """Server-sent events, until the API ends the stream. Raises as `request`."""
        reader = EventReader()
        async for data in self._stream(path, query, _EVENTS):
            for event in reader.feed(data):
                yield event

    async def lines(self, path: str, query: Query = _NOTHING, body: object = None) -> AsyncIterator[bytes]:
        """Lines of JSON, until the API ends the stream; with a `body`, of a POST. Raises as `request`."""
        parts = list[bytes]()
        async for data in self._stream(path, query, _LINES, body):
            *ends, left = data.split(b"\n")
            for end in ends:
                yield b"".join((*parts, end))
                parts = []
            parts.append(left)

    async def _stream(self, path: str, query: Query, media_type: str, body: object = None) -> AsyncIterator[bytes]:
        method = "GET" if body is None else "POST"
        request = f"{method} {path}"
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=SILENT_S / 2, sock_read=SILENT_S)
        try:
            headers = self._headers | {"accept": media_type}
            asked = await self._asked(
                method, path, params=parameters(query), json=body, headers=headers, timeout=timeout
            )
            async with asked as response:
                if response.status != 200 or response.content_type != media_type:
                    raise self._refused(await self._read(response), request)
                async for data in response.content.iter_any():
                    yield data
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            raise self._unreachable(request, error) from error

    async def _asked(
        self, method: str, path: str, **request: Any
    ) -> AbstractAsyncContextManager[aiohttp.ClientResponse]:
        """The request, which is sent on entering. `path` is percent-encoded, and an id in it may be `..`: it is sent as
        it is. Not a generator: a loop that ends closes those all at once, and a stream needs its response to the end.
        """
        session, url = await self._sessions.current(), URL(str(URL(self.url)) + path, encoded=True)
        return session.request(method, url, allow_redirects=False, **request)

    async def _read(self, response: aiohttp.ClientResponse) -> ApiResponse:
        return ApiResponse(response.status, response.headers, await response.read(), self.url)

    def _unreachable(self, request: str, error: Exception) -> RelayUnreachable:
        match error:
            case aiohttp.ClientSSLError():
                return RelayUnreachable(f"no TLS connection to {self.url}: {tls_failure(str(error))}")
            case aiohttp.ClientPayloadError():
                return RelayUnreachable(f"the response of {self.url} broke off", lost=True)
            case aiohttp.ClientConnectionError() | TimeoutError():
                why = cause_of(error)
                return RelayUnreachable(
                    f"no relay answers at {self.url} ({why}): is `relay dev` or `relay run` running?", lost=True
                )
            case aiohttp.ClientResponseError():  # no HTTP; all of its text would show the URL
                said = error.message.partition("\n")[0].rstrip(":")
                return RelayUnreachable(f"{request.partition(' ')[0]} {self.url}: {said}")
            case _:  # something that is invalid in a URL or header
                return RelayUnreachable(f"{request.partition(' ')[0]} {self.url}: {error}")

    def _refused(self, response: ApiResponse, request: str) -> ClientError:
        """The error of a response with a status from 300 on."""
        try:
            document = msgspec.json.decode(response.body)
        except NOT_JSON:
            document = None
        if not isinstance(document, dict) or "title" not in document or response.status < 400:
            if response.status in (502, 503, 504):  # from a proxy in front of it
                return RelayUnreachable(f"{request}: {response.status} from {self.url}", busy=True)
            return _stranger(response)
        if response.headers.get("relay-outcome") == "failed":
            return DeliveryFailed(response.status, document, request)
        return ApiError(response.status, document, request, self._hint() if response.status == 401 else "")

    def _hint(self) -> str:
        """A hint about a 401."""
        if "authorization" in self._headers:
            return f"; {self._key_name} is not a valid key of the API at {self.url}"
        return "; set RELAY_API_KEY to a key of the API"


def cause_of(error: Exception) -> str:
    """Why there is no response, without the words of the HTTP library."""
    if isinstance(error, aiohttp.ClientConnectorDNSError):
        return "its host name cannot be resolved"
    if isinstance(error, aiohttp.ClientConnectorError) and error.errno:
        return os.strerror(error.errno).lower()
    return str(error) or "timeout"


def path(template: str, *parts: object) -> str:
    """`template` with each `{}` replaced by a part, percent-encoded: an id may contain a slash. Bytes of a command line
    that are not UTF-8 are kept, and the API rejects them. Raises InvalidArgument for an empty part."""
    if "" in parts:
        raise InvalidArgument(f"a name or id is empty, in {template}")
    return template.format(*(quote(str(part), safe="", errors="surrogateescape") for part in parts))


def _shown(path: str) -> str:
    """`path` without the token of an answer URL: any reader of the error could answer."""
    before, answers, _token = path.partition(_ANSWERS)
    return f"{before}{answers}{MASK}" if answers else path


def checked_url(url: str, name: str) -> str:
    """`url`, if requests can be sent there. `name`: what gave it. Raises InvalidArgument."""
    try:
        parts = urlsplit(url)
        valid = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0 and url.isprintable()
    except (AttributeError, ValueError):  # it is no text
        valid = False
    if not valid:
        raise InvalidArgument(f"{name}: {url!r} is not an http or https URL, such as {USUAL_URL}")
    return url


def parameters(query: Query | None) -> list[tuple[str, str]]:
    """The parameters as they are written into the URL."""
    found = []
    for name, value in (query or {}).items():
        values = value if isinstance(value, list | tuple | set | frozenset) else [value]
        found += [
            (name, str(each).lower() if isinstance(each, bool) else str(each))
            for each in values
            if each is not None and each is not False
        ]
    return found


def decoded(kind: type[T], response: ApiResponse) -> T:
    """The JSON of a response. Fields that a newer relay adds are ignored. Raises NotARelay for another document: then
    another server answers at that URL, or a relay of another version."""
    try:
        return cast("T", msgspec.json.decode(response.body, type=open_words(kind), strict=False))
    except NOT_JSON as error:
        raise _stranger(response) from error


def _stranger(response: ApiResponse) -> NotARelay:
    media_type = response.headers.get("Content-Type", "no type").partition(";")[0]
    seen = f"status {response.status}, {media_type}"
    if response.headers.get("Server") == "relay":
        return OtherVersion(
            f"the relay at {response.url} is of another version, whose response ({seen}) this one ({__version__}) does "
            "not know: use the version that its GET /version names"
        )
    return NotARelay(f"the server at {response.url} is not a relay ({seen}): is it the URL of the API?")


def _retry_after(headers: Mapping[str, str]) -> float | None:
    pause_s = parse_retry_after(headers.get("Retry-After"), time.time())
    return None if pause_s is None else min(pause_s, _LONGEST_PAUSE_S)


def _pause(state: RetryCallState) -> float:
    error = state.outcome.exception() if state.outcome is not None else None
    if isinstance(error, _Again) and error.pause_s is not None:
        return error.pause_s
    return float(_BACKOFF(state))


def _give_up(state: RetryCallState) -> ApiResponse:
    error = state.outcome.exception() if state.outcome is not None else None
    raise error.error if isinstance(error, _Again) else RelayUnreachable("gave up")
