"""Refuses requests that a foreign page has made a browser send: cross-site requests and DNS rebinding. Decides which
hosts and origins are the API's own, and logs refused requests.

A page can POST to any address that its browser reaches (cross-site requests), and can point a name of its own at that
address, so that it may even read (DNS rebinding). The browser reveals both: by the Host header, and by Origin and
Sec-Fetch-Site. Programs send neither of the last two.
"""

import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Final, NamedTuple
from urllib.parse import urlsplit

from aiohttp import web

from relay.api.access import ANSWER_PATH, INBOUND_ROUTE
from relay.api.body import MERGE_PATCH
from relay.api.connection import address_of
from relay.api.landing import LIVE, MONITORING, is_for_people
from relay.api.problem_details import Check, path_of, template_of
from relay.api.problems import FOREIGN_ORIGIN, UNKNOWN_HOST, UNSUPPORTED, Problem, invalid
from relay.api.responses import JSON
from relay.api.route import READING
from relay.clock import Clock
from relay.config.own_address import is_loopback
from relay.domain.urls import DEFAULT_PORTS
from relay.telemetry.logging import get_logger
from relay.telemetry.throttle import Throttle

_EVERY_S: Final = 60.0
_OVERALL: Final = 20
_CALLERS: Final = 1_000

_log = get_logger("relay.api")


class Refusals:
    """What was refused, for people who look for the cause."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._throttle = Throttle(every_s=_EVERY_S, overall=_OVERALL, keys=_CALLERS)

    def log(self, cause: str, request: web.Request, **facts: object) -> None:
        """`cause`: `host`, `origin`, `key` or `signature`."""
        before = self._throttle.admit((cause, address_of(request)), self._clock.monotonic())
        if before is not None:
            _log.warning(
                "request_refused",
                cause=cause,
                remote=address_of(request),
                path=path_of(request)[:200],
                before=before,
                **facts,
            )


_HOST: Final = re.compile(r"(?:\[([0-9a-f:.]{2,45})\]|([^\s\[\]:/?#@\\]{1,255}))(?::([0-9]{1,5}))?", re.IGNORECASE)
_FROM_US: Final = frozenset({"same-origin", "none"})
_KNOWN_AT_ONCE: Final = 256


class Authority(NamedTuple):
    """Host and port of a request or a URL. `port` None: not given."""

    host: str
    port: int | None


class WebRules:
    """The hosts and origins of the API. `names`: exact, or `*.example.com` for all below it."""

    def __init__(self, names: Iterable[str] = (), public_url: str | None = None) -> None:
        lowered = [name.lower() for name in names]
        self._suffixes = tuple(name[1:] for name in lowered if name.startswith("*."))
        self._names = {name for name in lowered if not name.startswith("*.")}
        self._public = _origin(public_url) if public_url else None
        if self._public is not None:
            self._names.add(self._public[1].host)
        self.is_ours = lru_cache(_KNOWN_AT_ONCE)(self._is_ours)  # each request asks, mostly for the same one

    def _is_ours(self, host: str | None) -> bool:
        """Whether `host`, of a Host header, is a name of this API. None: the request has no such header."""
        authority = _authority(host) if host is not None else None
        if authority is None:
            return False
        name = authority.host
        return name in self._names or name.endswith(self._suffixes) or is_loopback(name)

    def is_foreign(self, host: str | None, origin: str | None, fetch_site: str | None) -> bool:
        """Whether a page of another origin than the API's own has made its browser send this request."""
        if fetch_site is not None and fetch_site.strip().lower() not in _FROM_US:
            return True
        if origin is None:
            return False
        found, own = _origin(origin), _authority(host) if host is not None else None
        if found is None or own is None:  # `null`: a page whose origin is kept from us
            return True
        scheme, wanted = found
        # A proxy that ends TLS in front of us passes Host on as it came; which scheme it had is not ours to see.
        same_host = wanted == Authority(own.host, DEFAULT_PORTS[scheme] if own.port is None else own.port)
        return not same_host and found != self._public


def _authority(text: str) -> Authority | None:
    match = _HOST.fullmatch(text)
    if match is None:
        return None
    literal, name, port = match.groups()
    return Authority((literal or name.removesuffix(".")).lower(), None if port is None else int(port))


def _origin(url: str) -> tuple[str, Authority] | None:
    """Scheme and authority, with the scheme's own port where none is given."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return None
    authority = _authority(parts.netloc)
    if authority is None or parts.scheme not in DEFAULT_PORTS:
        return None
    host, port = authority
    return parts.scheme, Authority(host, DEFAULT_PORTS[parts.scheme] if port is None else port)


PAYLOAD_ROUTES: Final = frozenset(
    {"/v1/sources/{source_id}/messages", "/v1/sources/{source_id}/messages:batch", ANSWER_PATH, INBOUND_ROUTE}
)
"""Routes whose body is not ours to judge by its type, or that do so themselves."""
_NOT_OURS: Final = "the host that it asks for is no name of this API; RELAY_ALLOWED_HOSTS says what it may be"
_FOREIGN: Final = "a page of another origin has made a browser send it"


def refuse_foreign(rules: WebRules, refusals: Refusals) -> Check:
    """421 for a foreign Host, 403 for a request of a foreign page that changes something, asks the API, or holds a
    place of a live page.

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
        is_for_scripts = is_of_api(route or request.path) or (route or "").startswith(LIVE)
        if (changes or is_for_scripts) and rules.is_foreign(host, origin, site):
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
