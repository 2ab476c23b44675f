"""Requires a key with the scope that the route declares; no key while none exists and only this machine has access.

Some requests carry a proof of their own and need no key: the token of an answer URL, the signature of a webhook, the
key that a session is made with. `access` says what a key may do.
"""

from typing import Final

from aiohttp import web

from relay.api.access import ADMIN, MONITOR, OPEN, Need, Tenant, check_access, route_of
from relay.api.access import ANSWER_PATH as ANSWER_PATH
from relay.api.access import INBOUND_ROUTE as INBOUND_ROUTE
from relay.api.authentication import MOST_FAILED as MOST_FAILED
from relay.api.authentication import Callers, tenants_in
from relay.api.context import ApiContext
from relay.api.landing import is_for_people
from relay.api.problems import Check
from relay.api.route import declared_of
from relay.domain.scope import Access, may_do_everything

_NOBODY: Final = Access("anybody", frozenset())


def need_of(request: web.Request) -> Need | None:
    """What the request's route takes. None if there is no such route: then a key is all that it takes."""
    declared = declared_of(request)
    if declared is not None:
        return declared.scope
    route = route_of(request)
    if route is None:
        return None if request.path.startswith("/v1/") else OPEN
    return OPEN if is_for_people(route[1]) else ADMIN


def require_access(context: ApiContext, callers: Callers) -> Check:
    """Only who has what the route takes passes."""
    tenant_of = tenants_in(context)

    def check(request: web.Request) -> None:
        need = need_of(request)
        if need is OPEN or (need is MONITOR and not callers.guards_metrics):
            check_access(request, _NOBODY, OPEN, tenant_of)
        else:
            check_access(request, callers.caller(request, with_key=need is MONITOR).access, need, tenant_of)

    return check


def require_no_key(request: web.Request) -> None:
    """Everybody passes: where only our own processes can reach us."""
    check_access(request, may_do_everything("relay"), OPEN, lambda _name: Tenant())
