"""Rights of a caller: the scopes that a route may require (its declaration says which), and the checks of handlers.

The path of a request is checked here, before anything is looked up, so a missing scope reveals nothing about what
exists. If the query or body names the object, the handler checks it with `access_of(request)`."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple, cast

from aiohttp import web

from relay.api.problems import FORBIDDEN, Problem
from relay.api.reading import source_in_path
from relay.control.patch import OwnerScope
from relay.domain.coordinate import Coordinate
from relay.domain.receiver import NO_LIFE, Life
from relay.domain.scope import Access

ANSWER_PATH: Final = "/v1/answers/{token}"
INBOUND_ROUTE: Final = "/v1/in/{source_id}"


@dataclass(frozen=True, slots=True)
class Need:
    """The scopes that a route requires: one of `scopes`, or `admin`."""

    scopes: tuple[str, ...]
    met: Callable[[Access, web.Request], bool]


def _ingest(access: Access, request: web.Request) -> bool:
    return access.may("ingest", source_in_path(request))


def _read(access: Access, request: web.Request) -> bool:
    return access.may("read", source_in_path(request))


def _delivery(access: Access, request: web.Request) -> bool:
    return _sees(access, request, request.match_info["receiver"])


def _sees(access: Access, request: web.Request, receiver: str) -> bool:
    """The owner is looked at whether or not there is such a receiver: both look the same from outside."""
    return access.may("receiver", receiver) or _owns(access, request, receiver)


def _owns(access: Access, request: web.Request, receiver: str) -> bool:
    if not access.owners:
        return access.may("admin")
    owner = request[_TENANT_OF](receiver).owner
    is_meant = access.only is None or receiver in access.only
    return access.may("admin") or (is_meant and owner is not None and access.may("owner", owner))


OPEN: Final = Need((), lambda _access, _request: True)
"""Needs no key: the response reveals nothing, or the request carries a proof of its own."""
ADMIN: Final = Need((), lambda access, _request: access.may("admin"))
INGEST: Final = Need(("ingest:<source>",), _ingest)
READ: Final = Need(("read:<source>",), _read)
RECEIVER: Final = Need(
    ("receiver:<name>", "owner:<id>"), lambda access, request: _sees(access, request, request.match_info["name"])
)
DELIVERY: Final = Need(RECEIVER.scopes, _delivery)
CANCELLER: Final = Need((*INGEST.scopes, *DELIVERY.scopes), lambda *asked: _ingest(*asked) or _delivery(*asked))
"""The sender of a message, or its receiver."""
MONITOR: Final = Need(("metrics",), lambda access, _request: access.may("metrics"))
OWN: Final = Need(RECEIVER.scopes, lambda access, _request: access.has_some("receiver", "owner"))
"""Limited to the caller's own receivers by the handler."""
MESSAGE: Final = Need(
    (*READ.scopes, *RECEIVER.scopes),
    lambda access, request: _read(access, request) or access.has_some("receiver", "owner"),
)
"""Of a message that goes to their receivers, they see those deliveries: the handler sees to that."""
LETTERS: Final = Need(MESSAGE.scopes, lambda access, _request: access.has_some("read", "receiver", "owner"))
"""Limited to the caller's sources and receivers by the handler."""
OWNED: Final = Need(("owner:<id>",), lambda access, request: _owns(access, request, request.match_info["name"]))
OWNERS: Final = Need(OWNED.scopes, lambda access, _request: access.has_some("owner"))
"""Limited to the owner's receivers by the handler; the path names none."""
CALLER: Final = Need(("ingest:<source>", *MESSAGE.scopes, "metrics"), lambda access, _request: bool(access.scopes))
"""About the caller itself: any key is enough."""


class Tenant(NamedTuple):
    """The tenant of a receiver's name. `owner` None: it has none, or there is no such receiver."""

    owner: str | None = None
    life: Life = NO_LIFE


TenantOf = Callable[[str], Tenant]
_ACCESS: Final = web.RequestKey("access", Access)
_TENANT_OF: Final[web.RequestKey[TenantOf]] = web.RequestKey("tenant_of", cast(type[TenantOf], Callable))


def access_of(request: web.Request) -> Access:
    """The caller's rights."""
    return request[_ACCESS]


def is_known(request: web.Request) -> bool:
    """Whether the caller was determined, so that `access_of` has it."""
    return _ACCESS in request


def may_see(request: web.Request, receivers: Iterable[str]) -> bool:
    """Whether the caller may see data about these receivers; about any receiver if there are none."""
    access, names = access_of(request), list(receivers)
    return access.may("admin") or (bool(names) and all(_sees(access, request, name) for name in names))


def may_see_of(request: web.Request, receiver: str, life: str, origin: Coordinate | None = None) -> bool:
    """Whether the caller may see a record about this receiver, and not about a former one of its name. `life`,
    `origin`: the record's (see `Life.has`)."""
    return may_see(request, [receiver]) and (is_admin(request) or life_of(request, receiver).has(life, origin))


def is_admin(request: web.Request) -> bool:
    return access_of(request).may("admin")


def owner_of(request: web.Request, receiver: str) -> str | None:
    """The receiver's owner. None if it has none, or is unknown."""
    return request[_TENANT_OF](receiver).owner


def life_of(request: web.Request, receiver: str) -> Life:
    """The one that the receiver's name has now."""
    return request[_TENANT_OF](receiver).life


def may_read(request: web.Request, source_id: str | None) -> bool:
    """Whether the caller may see data about this source; None stands for an unknown source."""
    access = access_of(request)
    return access.may("admin") if source_id is None else access.may("read", source_id)


def check_meant(request: web.Request, receiver: object) -> None:
    """Raises a Problem if the caller is limited to some receivers of its owner, and this is not one of them."""
    only = access_of(request).only
    if only is not None and not (isinstance(receiver, str) and receiver in only):
        raise forbidden(OWNED)


def check_own(request: web.Request, receivers: Iterable[str]) -> None:
    """Raises a Problem unless the caller `may_see` it."""
    if not may_see(request, receivers):
        raise forbidden(OWN)


def check_access(request: web.Request, access: Access, need: Need | None, tenant_of: TenantOf) -> None:
    """Raises a Problem if `access` lacks the scope that is needed."""
    request[_ACCESS], request[_TENANT_OF] = access, tenant_of
    if need is not None and not need.met(access, request):
        raise forbidden(need)


def forbidden(need: Need) -> Problem:
    """The problem for a missing scope. It is the same whether or not the object exists."""
    return Problem(FORBIDDEN, f"This requires a key with the scope {' or '.join((*need.scopes, 'admin'))}.")


def behalf_of(request: web.Request, most: int) -> OwnerScope | None:
    """None: for an administrator. `most`: receivers that an owner may have."""
    access = access_of(request)
    if access.may("admin"):
        return None
    return OwnerScope(access.owners, most, lambda pattern: access.may("read", pattern))
