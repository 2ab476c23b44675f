"""A request that was made and what came back, as people may see them: secrets are masked, and all of it is bounded."""

from collections.abc import Mapping
from typing import Final, TypedDict

from relay.domain.exchange import Exchange, NoResponse, Request, Response
from relay.domain.failure import failure_detail
from relay.domain.receiver import Endpoint
from relay.domain.secrecy import MASK, is_secret_name, masked_url, redacted

SHOWN_BYTES: Final = 4_096
"""Of a body."""
MOST_HEADERS: Final = 64
MOST_VALUE: Final = 1_024
"""Characters of a header's value."""
_LOOKED_AT: Final = 2 * SHOWN_BYTES
"""A secret that begins in what is shown is found whole."""


class RequestView(TypedDict):
    """What was sent. The values of headers that the receiver's settings add are masked, as they are there."""

    method: str
    url: str
    headers: dict[str, str]
    body: str


class ResponseView(TypedDict):
    """What came back. `body`: its beginning, as text; `truncated`: there was more."""

    status: int
    headers: dict[str, str]
    body: str
    truncated: bool


class FailureView(TypedDict):
    """Why there is no response. `kind`: as `refused`, `dns`, `timeout`, `blocked`. `sent`: a part of the request went
    out, so that the receiver may have acted on it."""

    kind: str
    detail: str
    sent: bool


def request_view(request: Request, endpoint: Endpoint) -> RequestView:
    own = {name.lower() for name, _ in endpoint.headers}
    return {
        "method": request.method,
        "url": redacted(masked_url(request.url), endpoint.secrets),
        "headers": {
            name: MASK if name.lower() in own else redacted(value, endpoint.secrets) for name, value in request.headers
        },
        "body": request.body.decode(errors="replace"),
    }


def response_view(exchange: Exchange, endpoint: Endpoint) -> ResponseView | None:
    """None where no status line came."""
    if isinstance(exchange, NoResponse):
        return None
    body, cut = _text(exchange, endpoint)
    return {
        "status": exchange.status,
        "headers": _headers(exchange.headers, endpoint),
        "body": body,
        "truncated": cut or exchange.truncated,
    }


def failure_view(exchange: Exchange, endpoint: Endpoint) -> FailureView | None:
    """None where a status line came."""
    if isinstance(exchange, Response):
        return None
    return {"kind": exchange.kind, "detail": failure_detail(exchange, endpoint), "sent": exchange.sent}


def _headers(headers: Mapping[str, str], endpoint: Endpoint) -> dict[str, str]:
    shown = list(headers.items())[:MOST_HEADERS]
    return {name[:MOST_VALUE]: _value(name, value, endpoint) for name, value in shown}


def _value(name: str, value: str, endpoint: Endpoint) -> str:
    if is_secret_name(name):
        return MASK
    return redacted(masked_url(value) if "://" in value else value, endpoint.secrets)[:MOST_VALUE]


def _text(response: Response, endpoint: Endpoint) -> tuple[str, bool]:
    """The beginning of the body, and whether there is more."""
    known = redacted(response.body[:_LOOKED_AT].decode(errors="replace"), endpoint.secrets).encode()
    return known[:SHOWN_BYTES].decode(errors="ignore"), len(known) > SHOWN_BYTES
