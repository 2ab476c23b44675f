"""Refuses requests that a foreign page has made a browser send: cross-site requests and DNS rebinding.

A page can POST to any address that its browser reaches (cross-site requests), and can point a name of its own at that
address, so that it may even read (DNS rebinding). The browser reveals both: by the Host header, and by Origin and
Sec-Fetch-Site. Programs send neither of the last two.
"""

from typing import Final

from aiohttp import web

from relay.api.access import ANSWER_PATH, INBOUND_ROUTE
from relay.api.landing import MONITORING, is_for_people
from relay.api.problem_details import Check, template_of
from relay.api.problems import FOREIGN_ORIGIN, UNKNOWN_HOST, UNSUPPORTED, Problem, invalid
from relay.api.reading import MERGE_PATCH
from relay.api.rejection_log import Refusals
from relay.api.responses import JSON
from relay.api.route import READING
from relay.api.web_rules import WebRules

PAYLOAD_ROUTES: Final = frozenset(
    {"/v1/sources/{source_id}/messages", "/v1/sources/{source_id}/messages:batch", ANSWER_PATH, INBOUND_ROUTE}
)
"""Routes whose body is not ours to judge by its type, or that do so themselves."""
_NOT_OURS: Final = "the host that it asks for is no name of this API; RELAY_ALLOWED_HOSTS says what it may be"
_FOREIGN: Final = "a page of another origin has made a browser send it"


def refuse_foreign(rules: WebRules, refusals: Refusals) -> Check:
    """421 for a foreign Host, 403 for a request of a foreign page that changes something or asks the API.

    Probes name the address of a pod, so the monitoring routes are exempt: they reveal nothing worth a rebinding.
    """

    def check(request: web.Request) -> None:
        headers, route = request.headers, template_of(request)
        host = headers.get("Host")
        if route not in MONITORING and not (rules.is_ours(host) and rules.is_ours(request.host)):
            named = request.host if rules.is_ours(host) else host  # it may stand in the target, which goes before Host
            refusals.log("host", request, host=named, problem=_NOT_OURS)
            raise Problem(UNKNOWN_HOST, "The Host is not a name of this API; RELAY_ALLOWED_HOSTS has the allowed ones.")
        changes = request.method not in READING
        origin, site = headers.get("Origin"), headers.get("Sec-Fetch-Site")
        if (changes or is_of_api(route or request.path)) and rules.is_foreign(host, origin, site):
            refusals.log("origin", request, origin=origin, problem=_FOREIGN)
            raise Problem(FOREIGN_ORIGIN, "A page of another origin may not call this API.")
        if changes and route is not None and route not in PAYLOAD_ROUTES and not is_for_people(route):
            _check_type(request)

    return check


def is_of_api(path: str) -> bool:
    """Whether a route, by its template or its path, is one that only programs and our own pages ask."""
    return path.startswith("/v1/")


def _check_type(request: web.Request) -> None:
    """Requests that control the relay have JSON or no body: a form in a page can send neither, nor a patch."""
    empty = not request.body_exists or request.content_length == 0
    if not empty and request.content_type not in (JSON, MERGE_PATCH):
        raise invalid("The body has to be application/json, or empty.", kind=UNSUPPORTED, header="Content-Type")
