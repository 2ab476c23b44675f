"""A request that was made and what came back, as people may see them: secrets are masked, and all of it is bounded."""

from typing import Final

from relay.domain.exchange import Exchange, NoResponse, Request, Response
from relay.domain.failure import failure_detail
from relay.domain.receiver import Endpoint
from relay.domain.redact import shown_body, shown_request_headers, shown_response_headers, shown_url
from relay.schema.attempts import FailureView, RequestView, ResponseView

SHOWN_BYTES: Final = 4_096
"""Of a body."""


def request_view(request: Request, endpoint: Endpoint) -> RequestView:
    return {
        "method": request.method,
        "url": shown_url(request.url, endpoint),
        "headers": shown_request_headers(request.headers, endpoint),
        "body": request.body.decode(errors="replace"),
    }


def response_view(exchange: Exchange, endpoint: Endpoint) -> ResponseView | None:
    """None if there was no status line."""
    if isinstance(exchange, NoResponse):
        return None
    body, truncated = shown_body(exchange, endpoint, SHOWN_BYTES)
    return {
        "status": exchange.status,
        "headers": shown_response_headers(exchange.headers, endpoint),
        "body": body,
        "truncated": truncated,
    }


def failure_view(exchange: Exchange, endpoint: Endpoint) -> FailureView | None:
    """None where a status line came."""
    if isinstance(exchange, Response):
        return None
    return {"kind": exchange.kind, "detail": failure_detail(exchange, endpoint), "sent": exchange.sent}
