"""The client address of a request: the peer of its connection, or for a call of a page, the visitor's address.

Pages call the API over a unix socket that only this process can reach. A header has the visitor's address; it counts on
that socket only, and is ignored everywhere else.
"""

from typing import Final

from aiohttp import web

from relay.api.connection import ApiConnection

VISITOR_ADDRESS: Final = "Relay-Visitor-Address"


def address_of(request: web.Request) -> str | None:
    """An IP address, or None for a request over a unix socket without a known visitor."""
    if isinstance(request.protocol, ApiConnection) and request.protocol.is_of_pages:
        return request.headers.get(VISITOR_ADDRESS) or None
    return request.remote or None
