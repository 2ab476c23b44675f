"""The local server of `relay listen`: forwards the requests of a relay to a URL, and returns its responses.

Other clients may reach it, too: through a tunnel, or from a page in a browser of this machine. So a POST has to be
signed with the receiver's secret, and a GET has to be for a path that the URL itself returned in a response. A
verification handshake is answered here, once there is a receiver: the URL does not see it.
"""

import re
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Final, NamedTuple
from urllib.parse import unquote, urlsplit

from aiohttp import ClientError, ClientResponse, ClientSession, ClientTimeout, DummyCookieJar, web
from aiohttp.typedefs import Handler
from yarl import URL

from relay.api.origin_check import WebRules
from relay.client.http import cause_of
from relay.domain.requests import PING_TYPE
from relay.domain.signing import verify_standard
from relay.domain.urls import location_url
from relay.sink.app import consent, is_verification, signed_answer
from relay.sink.server import LocalServer

_LARGEST_BODY: Final = 32 * 1024**2
_LARGEST_ANSWER: Final = 2 * 1024**2
_CHUNK: Final = 64 * 1024
_CHALLENGE: Final = re.compile(r"[A-Za-z0-9_-]{16,128}")
_NONCE_BYTES: Final = 24
_MOST_NAMED: Final = 10_000
"""Paths that may be requested; the oldest is dropped first."""
_OF_THE_CONNECTION: Final = frozenset(
    ("host", "connection", "content-length", "transfer-encoding", "keep-alive", "te", "upgrade", "location")
)


class ForwardedRequest(NamedTuple):
    """A POST of the relay's. `attempt`: the first is 1."""

    source_id: str
    message_id: str
    event_type: str
    attempt: str
    body: bytes


class ForwardedResponse(NamedTuple):
    """A forwarded response. `status` None: the URL did not respond, for the reason in `detail`. `took_ms`: the
    request's duration."""

    came: ForwardedRequest
    status: int | None
    took_ms: float
    body: bytes
    detail: str = ""


class Listener(LocalServer):
    """Forwards requests: after `start`, `port` accepts them until `stop`. `on_request` is called before a POST is
    forwarded, `on_response` after it. `secret`: of the relay's signatures; until it is set, nothing is accepted.
    `pings`: number of pings of the relay that were answered here, unseen by the URL. `public_url`: URL at which other
    machines reach it."""

    advice = "choose another --port"
    ends_with_client = False

    def __init__(
        self,
        target: str,
        timeout_s: float,
        on_request: Callable[[ForwardedRequest], None],
        on_response: Callable[[ForwardedResponse], None],
        public_url: str | None = None,
    ) -> None:
        super().__init__()
        self._target = target
        self._timeout_s = timeout_s
        self._on_request = on_request
        self._on_response = on_response
        self._rules = WebRules(public_url=public_url)
        self._named: OrderedDict[str, None] = OrderedDict()
        """Paths, with their queries, at which a response announced an answer."""
        self.secret: str | None = None
        self.pings = 0
        self.posts = 0

    def app(self) -> web.Application:
        app = web.Application(client_max_size=_LARGEST_BODY, middlewares=[self._refuse_strangers])
        app.router.add_post("/", self._post)
        app.router.add_route("OPTIONS", "/", self._consent)
        app.router.add_get("/{path:.*}", self._get)
        return app

    async def start(self, host: str = "127.0.0.1", port: int = 0) -> None:
        await super().start(host, port)
        timeout = ClientTimeout(total=self._timeout_s)
        self._session = ClientSession(timeout=timeout, cookie_jar=DummyCookieJar(), auto_decompress=False)

    @web.middleware
    async def _refuse_strangers(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """A request of a page in a browser has an Origin, or a foreign Host."""
        if not (self._rules.is_ours(request.headers.get("Host")) and self._rules.is_ours(request.host)):
            return _refused(HTTPStatus.MISDIRECTED_REQUEST, "the requested host is not this one")
        if "Origin" in request.headers:
            return _refused(HTTPStatus.FORBIDDEN, "the request comes from a page in a browser")
        return await handler(request)

    async def _post(self, request: web.Request) -> web.Response:
        body = await request.read()
        if self.secret is None or not verify_standard([self.secret], request.headers, body, time.time()):
            return _refused(HTTPStatus.UNAUTHORIZED, "it is not signed with the secret of this receiver")
        source_id, message_id, event_type = (_header(request, name) for name in ("ce-source", "ce-id", "ce-type"))
        if event_type == PING_TYPE:
            self.pings += 1
            return web.Response(status=204)
        if is_verification({"ce-type": event_type}):
            return _answered(signed_answer(body, self.secret, secrets.token_urlsafe(_NONCE_BYTES)))
        came = ForwardedRequest(source_id, message_id, event_type, request.headers.get("relay-attempt", "1"), body)
        self.posts += 1
        self._on_request(came)
        began = time.monotonic()
        response, detail = await self._passed_on("POST", self._target, body, request.headers)
        took_ms = (time.monotonic() - began) * 1000
        answer = response.body if isinstance(response.body, bytes) else b""
        self._on_response(ForwardedResponse(came, None if detail else response.status, took_ms, answer, detail))
        return response

    async def _get(self, request: web.Request) -> web.Response:
        """Forwards a GET, only of a path that a 202 named for its answer."""
        challenge = request.query.get("challenge", "") if request.path == "/" else ""
        if self.secret is not None and _CHALLENGE.fullmatch(challenge):
            return web.Response(text=challenge)
        if request.raw_path not in self._named:
            return _refused(HTTPStatus.NOT_FOUND, "no answer has named this path")
        at = urlsplit(self._target)
        url = f"{at.scheme}://{at.netloc}{request.raw_path}"
        response, _ = await self._passed_on("GET", url, b"", request.headers)
        return response

    async def _consent(self, request: web.Request) -> web.Response:
        """Consents if the receiver is ours."""
        if self.secret is None:
            return _refused(HTTPStatus.NOT_FOUND, "there is no receiver yet")
        return web.Response(headers=consent({name.lower(): value for name, value in request.headers.items()}))

    async def _passed_on(
        self, method: str, url: str, body: bytes, headers: Mapping[str, str]
    ) -> tuple[web.Response, str]:
        """The response; a 502 with the reason if there is none: the relay retries that."""
        try:
            if self._session is None:
                raise ClientError("it has ended")
            async with self._session.request(
                method,
                URL(url, encoded=method == "GET"),
                data=body or None,
                headers=_kept(headers),
                allow_redirects=False,
            ) as answer:
                passed = await _read(answer)
                kept = _kept(answer.headers) | self._location(answer.status, answer.headers)
                return web.Response(status=answer.status, body=passed, headers=kept), ""
        except (ClientError, TimeoutError, OSError) as error:
            why = cause_of(error)
            return web.Response(status=502, text=f"relay listen: {why}"), why

    def _location(self, status: int, headers: Mapping[str, str]) -> dict[str, str]:
        """The `Location` of a later answer, rewritten to this command, because the relay polls the address that it
        POSTed to."""
        found = headers.get("Location")
        if found is None:
            return {}
        url = location_url(self._target, found)
        # elsewhere, or a response that the relay would not poll for
        if url is None or status >= HTTPStatus.MULTIPLE_CHOICES:
            return {"Location": found}
        path = urlsplit(url)._replace(scheme="", netloc="").geturl() or "/"
        self._named[path] = None
        self._named.move_to_end(path)
        if len(self._named) > _MOST_NAMED:
            self._named.popitem(last=False)
        return {"Location": path}


def _answered(proof: bytes | None) -> web.Response:
    if proof is None:
        return _refused(HTTPStatus.BAD_REQUEST, "this is no handshake")
    return web.Response(body=proof, content_type="application/json")


def _refused(status: HTTPStatus, why: str) -> web.Response:
    return web.Response(status=status, text=f"relay listen: {why}")


async def _read(answer: ClientResponse) -> bytes:
    found = bytearray()
    while len(found) < _LARGEST_ANSWER and (chunk := await answer.content.read(_CHUNK)):
        found += chunk
    return bytes(found)


def _kept(headers: Mapping[str, str]) -> dict[str, str]:
    """The headers of the message, without those of the connection."""
    return {name: value for name, value in headers.items() if name.lower() not in _OF_THE_CONNECTION}


def _header(request: web.Request, name: str) -> str:
    return unquote(request.headers.get(name, ""))
