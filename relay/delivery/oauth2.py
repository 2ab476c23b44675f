"""OAuth 2: sends requests with access tokens, which it gets by client credentials.

A token is fetched once for all waiting requests, cached in memory, and renewed before it expires.
"""

import asyncio
import random
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final
from urllib.parse import quote_plus, urlencode

from msgspec import Struct, structs

from relay.domain.egress import Egress, OAuth2, basic_authorization
from relay.domain.exchange import LATE, UNAUTHORIZED, Exchange, NoResponse, Request, Response
from relay.domain.secrecy import MASK, masked_url

_KEPT: Final = 4096
_MARGIN_S: Final = 60.0
"""A token with less remaining time than this is renewed while still in use. Up to twice as much, at random, so that
tokens that were fetched together do not expire together."""
_SPARE_S: Final = 5.0
"""A token with less remaining time is not sent: it could expire on its way."""
_PAUSE_S: Final = 1.0
"""Pause before the next token request after a failure."""
_YOUNG_S: Final = 10.0
"""If a token younger than this is rejected, a new one would be, too."""
TIMEOUT_S: Final = 10.0
_UNKNOWN_LIFE_S: Final = 3600.0
"""Lifetime of a token whose endpoint does not give one; a 401 ends it, too."""
_LONGEST_S: Final = 86_400.0
_TOKEN: Final = re.compile(r"[!-~]{1,16384}")
_ERROR: Final = re.compile(r"[ -~]{1,64}")
_NOT_REACHED: Final = frozenset(
    {"no_resources", "no_local_address", "no_proxy", "unreachable", "dns", "dns_silent", "refused", "tls"}
    | {"connect_timeout", "timeout", "disconnected", "protocol"}
)
"""Kinds of NoResponse that say nothing about the credentials: the token endpoint, or a proxy before it, is away."""


class Grant(Struct, frozen=True):
    """A token, and its lifetime in seconds."""

    token: str
    life_s: float


class Refusal(Struct, frozen=True):
    """No token was issued. `kind`: as in NoResponse."""

    kind: str
    detail: str


@dataclass(slots=True, eq=False)
class _CachedToken:
    """The token, or the last failure, for one endpoint setting. Times are the loop's."""

    token: str | None = None
    since: float = 0.0
    renew_at: float = 0.0
    until: float = 0.0
    refusal: Refusal | None = None
    refused_at: float = 0.0
    fetching: asyncio.Task[None] | None = None


@dataclass(eq=False)
class Tokens:
    """The tokens of a transport. `ask`: sends a request. `now`: the loop's time. `jitter`: uniform sample of [0, 1)."""

    ask: Callable[[Request], Awaitable[Exchange]]
    now: Callable[[], float]
    jitter: Callable[[], float] = random.random
    _held: dict[Egress, _CachedToken] = field(default_factory=dict)

    def cached(self, egress: Egress) -> str | None:
        """The token for requests with `egress`; None if it has to be fetched first."""
        held, now = self._held.get(egress), self.now()
        if held is None or held.token is None or now >= held.until:
            return None
        if now >= held.renew_at and not self._is_pausing(held, now):
            self._fetch(egress, held)
        return held.token

    async def fetched(self, egress: Egress) -> str | Refusal:
        """The token, fetched if necessary; or why there is none."""
        held = self._held.pop(egress, None) or _CachedToken()
        if len(self._held) >= _KEPT:
            del self._held[next(iter(self._held))]
        self._held[egress] = held
        if not self._is_pausing(held, self.now()):
            await asyncio.shield(self._fetch(egress, held))  # other tasks may wait for it, too
        # without either, it was rejected in the meantime
        rejected = Refusal("no_token", "the receiver has just rejected the access token")
        return held.refusal or held.token or rejected

    def refused(self, egress: Egress, token: str) -> bool:
        """`token` was answered with a 401. Returns whether the request is worth repeating with another token."""
        held = self._held.get(egress)
        if held is None or held.token != token:
            return True
        if self.now() - held.since < _YOUNG_S:
            return False
        held.token = None
        return True

    async def close(self) -> None:
        fetching = [held.fetching for held in self._held.values() if held.fetching is not None]
        await asyncio.gather(*fetching, return_exceptions=True)
        self._held.clear()

    def _is_pausing(self, held: _CachedToken, now: float) -> bool:
        return held.refusal is not None and now - held.refused_at < _PAUSE_S

    def _fetch(self, egress: Egress, held: _CachedToken) -> asyncio.Task[None]:
        if held.fetching is None:
            held.fetching = asyncio.get_running_loop().create_task(self._fetch_one(egress, held))
        return held.fetching

    async def _fetch_one(self, egress: Egress, held: _CachedToken) -> None:
        oauth2 = egress.oauth2
        if oauth2 is None:
            raise AssertionError("called for an endpoint without OAuth 2")
        begun = self.now()  # the lifetime counts from the request, because the token is issued after it
        try:
            found = grant_of(await self.ask(_by(egress, token_request(oauth2))), oauth2)
        finally:
            held.fetching = None
        if isinstance(found, Grant):
            self._keep(held, found, begun)
        else:
            held.refusal, held.refused_at = found, self.now()

    def _keep(self, held: _CachedToken, grant: Grant, begun: float) -> None:
        margin_s = min(_MARGIN_S, grant.life_s / 4) * (1 + self.jitter())
        held.token, held.since, held.refusal = grant.token, self.now(), None
        held.renew_at = begun + grant.life_s - margin_s
        held.until = begun + grant.life_s - min(_SPARE_S, grant.life_s / 10)


def _by(egress: Egress, request: Request) -> Request:
    """Token requests use the receiver's connection settings, except its pins, which are for another server."""
    tls = replace(egress.tls, pinned=()) if egress.tls is not None else None
    return structs.replace(request, egress=Egress(tls, egress.proxy))


Done = Callable[[Exchange], None]


class Authorized:
    """Sends requests with an access token. `send`: sends a request unchanged. If a response repeats the token, it is
    masked."""

    def __init__(self, send: Callable[[Request, Done], None], tokens: Tokens) -> None:
        self._send = send
        self._tokens = tokens
        self._waiting: set[asyncio.Task[None]] = set()

    def send(self, request: Request, egress: Egress, done: Done) -> None:
        """As `Transport.send`. `egress`: of the request, with OAuth 2. A header `Authorization` of the request takes
        precedence."""
        if any(name.lower() == "authorization" for name, _ in request.headers):
            self._send(structs.replace(request, egress=replace(egress, oauth2=None)), done)
            return
        token = self._tokens.cached(egress)
        if token is not None:
            self._go(request, egress, token, done)
            return
        task = asyncio.get_running_loop().create_task(self._when_fetched(request, egress, done))
        self._waiting.add(task)
        task.add_done_callback(self._waiting.discard)

    async def close(self) -> None:
        await self._tokens.close()
        await asyncio.gather(*self._waiting, return_exceptions=True)

    async def _when_fetched(self, request: Request, egress: Egress, done: Done) -> None:
        loop = asyncio.get_running_loop()
        begun = loop.time()
        try:
            async with asyncio.timeout(request.timeout_s):
                token = await self._tokens.fetched(egress)
        except TimeoutError:
            token = Refusal("timeout", f"the token endpoint gave no answer within {request.timeout_s:g} s")
        except Exception as error:
            loop.call_soon(done, NoResponse("failed", f"{type(error).__name__}: {error}", sent=False))
            raise
        waited_s = loop.time() - begun
        if isinstance(token, Refusal):
            loop.call_soon(done, NoResponse(token.kind, token.detail, sent=False))
        elif waited_s >= request.start_within_s:
            loop.call_soon(done, NoResponse(LATE, "it had to wait for an access token", sent=False))
        else:
            rest_s = max(request.timeout_s - waited_s, 0.001)
            within_s = request.start_within_s - waited_s
            self._go(structs.replace(request, timeout_s=rest_s, start_within_s=within_s), egress, token, done)

    def _go(self, request: Request, egress: Egress, token: str, done: Done) -> None:
        headers = (*request.headers, ("authorization", f"Bearer {token}"))
        bare = structs.replace(request, headers=headers, egress=replace(egress, oauth2=None))
        self._send(bare, partial(self._on_reply, egress, token, done))

    def _on_reply(self, egress: Egress, token: str, done: Done, exchange: Exchange) -> None:
        if isinstance(exchange, Response):
            if exchange.status == 401 and self._tokens.refused(egress, token):
                done(NoResponse(UNAUTHORIZED, "it answered 401 to its access token; a new one is fetched", sent=False))
                return
            exchange = _without(token, exchange)
        done(exchange)


def _without(token: str, response: Response) -> Response:
    raw = token.encode()
    if raw in response.body:
        response = structs.replace(response, body=response.body.replace(raw, MASK.encode()))
    if any(token in value for value in response.headers.values()):
        headers = {name: value.replace(token, MASK) for name, value in response.headers.items()}
        response = structs.replace(response, headers=headers)
    return response


# --- the token endpoint -------------------------------------------------------------------------------------------


def token_request(oauth2: OAuth2) -> Request:
    """The POST for a token (RFC 6749, sections 2.3.1 and 4.4.2), without an endpoint's own settings."""
    fields = {"grant_type": "client_credentials", "scope": oauth2.scope, "audience": oauth2.audience}
    headers = [("content-type", "application/x-www-form-urlencoded"), ("accept", "application/json")]
    if oauth2.auth == "basic":
        login = f"{quote_plus(oauth2.client_id)}:{quote_plus(oauth2.client_secret)}"
        headers.append(("authorization", basic_authorization(login)))
    else:
        fields |= {"client_id": oauth2.client_id, "client_secret": oauth2.client_secret}
    body = urlencode({name: value for name, value in fields.items() if value is not None})
    return Request("POST", oauth2.token_url, tuple(headers), body.encode(), TIMEOUT_S)


def grant_of(exchange: Exchange, oauth2: OAuth2) -> Grant | Refusal:
    """The result of `exchange` with the token endpoint. A Refusal never contains a token."""
    where = f"the token endpoint {masked_url(oauth2.token_url)}"
    if isinstance(exchange, NoResponse):
        kind = exchange.kind if exchange.kind in _NOT_REACHED else "no_token"
        return Refusal(kind, f"{where}: {exchange.kind.replace('_', ' ')}: {exchange.detail}")
    said = exchange.json_object()
    if exchange.status != 200:
        error = said.get("error")
        suffix = f" {error}" if isinstance(error, str) and _ERROR.fullmatch(error) else ""
        kind = "token_unavailable" if exchange.status >= 500 or exchange.status in (408, 429) else "no_token"
        return Refusal(kind, f"{where} answered {exchange.status}{suffix}")
    token, token_type = said.get("access_token"), said.get("token_type", "Bearer")
    if exchange.truncated:
        return Refusal("no_token", f"{where}: its answer is longer than RELAY_ANSWER_BODY_CAP, or was cut off")
    if not isinstance(token, str) or not _TOKEN.fullmatch(token):
        return Refusal("no_token", f"{where}: its answer has no usable access_token")
    if not isinstance(token_type, str) or token_type.lower() != "bearer":
        return Refusal("no_token", f"{where}: its token is not of type Bearer")
    return Grant(token, _life_s(said.get("expires_in")))


def _life_s(said: object) -> float:
    try:
        seconds = float(said) if isinstance(said, int | float | str) else _UNKNOWN_LIFE_S
    except (ValueError, OverflowError):
        return _UNKNOWN_LIFE_S
    return min(max(seconds, 0.0), _LONGEST_S) if seconds == seconds else _UNKNOWN_LIFE_S  # not for NaN
