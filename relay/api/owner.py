"""On behalf of which owners a request changes receivers, or of an administrator."""

from aiohttp import web

from relay.api.access import access_of
from relay.control.owned import OwnerScope


def behalf_of(request: web.Request, most: int) -> OwnerScope | None:
    """None: for an administrator. `most`: receivers that an owner may have."""
    access = access_of(request)
    if access.may("admin"):
        return None
    return OwnerScope(access.owners, most, lambda pattern: access.may("read", pattern))
