"""Calls of our own HTTP API, over a unix socket of this process, with the visitor's token."""

import json
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from aiohttp import ClientError, ClientResponse, ClientSession, ClientTimeout, DummyCookieJar, UnixConnector
from yarl import URL

from relay.api.connection import VISITOR_ADDRESS
from relay.domain.errors import RelayError

Query = Mapping[str, str | Sequence[str]]

_BASE: Final = "http://localhost"
_PATIENCE: Final = ClientTimeout(total=70.0)
"""A test of a receiver takes up to a minute."""
_ENDLESS: Final = ClientTimeout(total=None, sock_connect=5.0)
_MOST_AT_ONCE: Final = 256


@dataclass(frozen=True, slots=True)
class ApiResult:
    """What the API said to a call that went well. `value`: of JSON; None where there is no body, or another one."""

    status: int
    headers: Mapping[str, str]
    body: bytes = field(repr=False)

    @property
    def value(self) -> Any:
        is_json = self.headers.get("Content-Type", "").partition(";")[0] in ("application/json", "")
        return json.loads(self.body) if self.body and is_json else None


class ApiProblem(RelayError):
    """The API refused: problem details (RFC 9457). `kind`: the last part of `type`. `errors`: mistakes and their
    places."""

    def __init__(
        self, status: int, kind: str, title: str, detail: str, errors: Sequence[Mapping[str, str]] = ()
    ) -> None:
        super().__init__(f"{title}: {detail}")
        self.status = status
        self.kind = kind
        self.title = title
        self.detail = detail
        self.errors = errors


def path(template: str, *parts: object) -> str:
    """`template` with each `{}` replaced by a part, percent-encoded: an id may have a slash in it."""
    return template.format(*(quote(str(part), safe="") for part in parts))


class ApiClient:
    """The API, to one caller. `token` None: without a key. `address`: where they come from, None: not known. Everything
    raises ApiProblem."""

    def __init__(self, session: ClientSession, token: str | None, address: str | None) -> None:
        self._session = session
        self._address = address
        self._headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        if address:
            self._headers[VISITOR_ADDRESS] = address

    def of(self, token: str) -> "ApiClient":
        """The same visitor with another token."""
        return ApiClient(self._session, token, self._address)

    async def get(self, target: str, query: Query | None = None) -> Any:
        """The decoded JSON of the response."""
        return (await self.call("GET", target, query=query)).value

    async def call(
        self,
        method: str,
        target: str,
        *,
        query: Query | None = None,
        body: object = None,
        content: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        also: Collection[int] = (),
    ) -> ApiResult:
        """`target`: a path as it goes over the wire (see `path`). `body`: sent as JSON; `content`: as it is. `also`:
        statuses that are no problem here."""
        sent = {**(headers or {}), **self._headers}
        if body is not None:
            content = json.dumps(body).encode()
            sent.setdefault("Content-Type", "application/json")
        try:
            async with self._session.request(
                method, _url(target, query), data=content, headers=sent, timeout=_PATIENCE, allow_redirects=False
            ) as response:
                return await _answer(response, also)
        except (TimeoutError, ClientError, OSError) as error:
            raise _silent() from error

    async def events(self, target: str, query: Query | None = None) -> AsyncIterator[tuple[str, Any]]:
        """Server-sent events, as (name, data of JSON), until the API ends them."""
        sent = {**self._headers, "Accept": "text/event-stream"}
        try:
            async with self._session.get(_url(target, query), headers=sent, timeout=_ENDLESS) as response:
                if response.status != 200:
                    await _answer(response, ())
                name = "message"
                lines: list[str] = []
                async for raw in response.content:
                    line = raw.decode().rstrip("\r\n")
                    if not line and lines:
                        yield name, json.loads("\n".join(lines))
                        name, lines = "message", []
                    elif line.startswith("event:"):
                        name = line[6:].strip()
                    elif line.startswith("data:"):
                        lines.append(line[5:].removeprefix(" "))
        except (TimeoutError, ClientError, OSError) as error:
            raise _silent() from error


class OwnApi:
    """The API of this process, on `socket`. Each visitor gets a client of their own."""

    def __init__(self, socket: Path) -> None:
        self._socket = socket
        self._session: ClientSession | None = None

    async def start(self) -> None:
        connector = UnixConnector(str(self._socket), limit=_MOST_AT_ONCE)
        self._session = ClientSession(connector=connector, cookie_jar=DummyCookieJar(), auto_decompress=False)

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    def of(self, token: str | None, address: str | None) -> ApiClient:
        """For a visitor with this token, from this address; only while started."""
        if self._session is None:
            raise RuntimeError("not started")
        return ApiClient(self._session, token, address)


def _url(target: str, query: Query | None) -> URL:
    url = URL(_BASE + target, encoded=True)
    return url.update_query({name: _values(value) for name, value in (query or {}).items()})


def _values(value: str | Sequence[str]) -> str | list[str]:
    return value if isinstance(value, str) else list(value)


async def _answer(response: ClientResponse, also: Collection[int]) -> ApiResult:
    body = await response.read()
    if response.status < 400 or response.status in also:
        return ApiResult(response.status, response.headers, body)
    try:
        said = json.loads(body)
        kind = str(said["type"]).rpartition("/")[2]
        raise ApiProblem(response.status, kind, str(said["title"]), str(said["detail"]), said.get("errors") or ())
    except (ValueError, KeyError, TypeError) as error:
        raise ApiProblem(response.status, "unknown", "The API refused", f"It answered {response.status}.") from error


def _silent() -> ApiProblem:
    return ApiProblem(503, "unavailable", "The API does not answer", "It may be starting, or ending. Try again.")
