"""Where a request comes from: the other end of its connection; or, of a page's own call, whoever looks at the page.

Pages call the API over a unix socket that only this process can reach. A header says there for whom, and is believed on
connections of that socket alone: from anywhere else it is a header that nobody reads.
"""

from typing import Final

from aiohttp import web

from relay.api.connection import ApiConnection

VISITOR_ADDRESS: Final = "Relay-Visitor-Address"


def address_of(request: web.Request) -> str | None:
    """An IP address. None: it came over a unix socket, and for nobody that is known."""
    if isinstance(request.protocol, ApiConnection) and request.protocol.is_of_pages:
        return request.headers.get(VISITOR_ADDRESS) or None
    return request.remote or None
