"""OAuth 2 client credentials: builds the token request, and reads the token endpoint's response. Pure."""

import re
from typing import Final
from urllib.parse import quote_plus, urlencode

from msgspec import Struct

from relay.domain.egress import OAuth2, basic_authorization
from relay.domain.exchange import Exchange, NoResponse, Request
from relay.domain.secrecy import masked_url

TIMEOUT_S: Final = 10.0
_UNKNOWN_LIFE_S: Final = 3600.0
"""Lifetime of a token whose endpoint does not give one; a 401 ends it, too."""
_LONGEST_S: Final = 86_400.0
_TOKEN: Final = re.compile(r"[!-~]{1,16384}")
_ERROR: Final = re.compile(r"[ -~]{1,64}")
_OURS: Final = frozenset({"no_resources", "no_local_address", "no_proxy"})
"""Kinds of NoResponse that are local failures, at any endpoint."""


class Grant(Struct, frozen=True):
    """A token, and its lifetime in seconds."""

    token: str
    life_s: float


class Refusal(Struct, frozen=True):
    """No token was issued. `kind`: as in NoResponse."""

    kind: str
    detail: str


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
        kind = exchange.kind if exchange.kind in _OURS else "no_token"
        return Refusal(kind, f"{where}: {exchange.kind.replace('_', ' ')}: {exchange.detail}")
    said = exchange.json_object()
    if exchange.status != 200:
        error = said.get("error")
        suffix = f" {error}" if isinstance(error, str) and _ERROR.fullmatch(error) else ""
        return Refusal("no_token", f"{where} answered {exchange.status}{suffix}")
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
