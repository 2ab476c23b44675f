"""Checks whether receivers and callbacks can be reached: name, address, connection, certificate. No request is made.

Each endpoint is reached as an attempt would, by the same code, with its own TLS and proxy settings.
"""

import asyncio
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Final, NamedTuple
from urllib.parse import urlsplit

from relay.checks.context import Check, CheckContext, KnownEntries
from relay.delivery.egress import transport_of
from relay.delivery.lean_transport import LeanTransport
from relay.domain.diagnosis import Checked, error, fine, skipped, warning
from relay.domain.egress import Egress
from relay.domain.exchange import NoResponse
from relay.domain.receiver import Endpoint
from relay.domain.secrecy import masked_url

MOST: Final = 200
"""Most endpoints per check."""
AT_ONCE: Final = 20
LIMIT_S: Final = 14.0
SOON_S: Final = 14 * 86_400.0
_DAY_S: Final = 86_400.0
STAGES: Final = ("dns", "address", "connection", "tls")
_SETTING: Final = re.compile(r"RELAY_[A-Z_]+=\S+[^\s;,]")


class Target(NamedTuple):
    """A destination: scheme, host and port of `url`. `subject`: its owner, for operators."""

    subject: str
    url: str
    egress: Egress | None


Reached = float | NoResponse | None
"""The seconds until the server's certificate expires, None without TLS; or why there is no connection."""


@Check("dns", also=("address", "connection", "tls"), per_receiver=True, limit_s=18.0)
async def look_at_endpoints(case: CheckContext) -> list[Checked]:
    """Each receiver, status endpoint, callback and token endpoint: the name of its host, whether the relay may send to
    the address, whether a server accepts a connection there, and its certificate."""
    targets = targets_of(await case.known())
    transport = transport_of(case.settings, AT_ONCE)
    await transport.start()
    try:
        found = await _reached(transport, targets[:MOST], case.clock.wall)
    finally:
        await transport.close()
    return judge(found, len(targets))


def targets_of(known: KnownEntries) -> list[Target]:
    """Each host of a receiver or source once."""
    found = (target._replace(url=_origin_of(target.url)) for target in _all_of(known))
    return list(dict.fromkeys(found))


def _origin_of(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}/"


def _all_of(known: KnownEntries) -> Iterator[Target]:
    for name, receiver in known.receivers.items():
        yield from _of_endpoint(name, receiver.post)
        if receiver.status_endpoint is not None:
            yield Target(name, receiver.status_endpoint, receiver.post.egress)
    for source_id, source in known.sources.items():
        if source.callback is not None:
            yield from _of_endpoint(f"callback of {source_id}", source.callback)


def _of_endpoint(subject: str, endpoint: Endpoint) -> Iterator[Target]:
    yield Target(subject, endpoint.url, endpoint.egress)
    if endpoint.egress is not None and endpoint.egress.oauth2 is not None:
        yield Target(subject, endpoint.egress.oauth2.token_url, endpoint.egress)


async def _reached(
    transport: LeanTransport, targets: Sequence[Target], wall: Callable[[], float]
) -> Mapping[Target, Reached]:
    """The results within the time."""
    seats = asyncio.Semaphore(AT_ONCE)
    found: dict[Target, Reached] = {}

    async def reach(target: Target) -> None:
        async with seats:
            outcome = await transport.reach(target.url, target.egress)
        found[target] = outcome - wall() if isinstance(outcome, float) else outcome

    with suppress(TimeoutError):
        async with asyncio.timeout(LIMIT_S), asyncio.TaskGroup() as tasks:
            for target in targets:
                tasks.create_task(reach(target))
    return found


# --- judgement ----------------------------------------------------------------------------------------------------


def judge(found: Mapping[Target, Reached], count: int) -> list[Checked]:
    """A line for each failure, and one for each check without failures; says how many endpoints were not checked.
    `count`: all endpoints."""
    if not count:
        return [fine(name, "there is no receiver or callback to check") for name in STAGES]
    judged = {target: _judged(target, outcome) for target, outcome in found.items()}
    wrong = [checked for checked in judged.values() if checked is not None]
    right = [checked for name in STAGES if (checked := _right(name, judged)) is not None]
    left = count - len(found)
    more = f"{left} of {count} endpoints were not checked, as there are too many for one check"
    return [*wrong, *right, *([skipped("connection", more)] if left else [])]


def _right(name: str, judged: Mapping[Target, Checked | None]) -> Checked | None:
    """The line of a check that no endpoint failed, with the number of those that passed; None if one failed. An
    endpoint that failed an earlier check is not counted."""
    failed = [STAGES.index(one.name) for one in judged.values() if one is not None]
    if STAGES.index(name) in failed:
        return None
    passed = [
        target
        for target, one in judged.items()
        if (one is None or STAGES.index(one.name) > STAGES.index(name))
        and (name != "tls" or target.url.startswith("https:"))
    ]
    return fine(name, f"{len(passed)} endpoints pass") if passed else None


def _judged(target: Target, outcome: Reached) -> Checked | None:
    if isinstance(outcome, NoResponse):
        return _failed(target, outcome)
    if outcome is None or outcome >= SOON_S:
        return None
    what = f"the certificate of {_shown(target.url)} expires in {outcome / _DAY_S:.0f} days"
    return warning("tls", what, "renew it", target.subject)


def _failed(target: Target, outcome: NoResponse) -> Checked:
    url, detail = _shown(target.url), outcome.detail
    match outcome.kind:
        case "dns":
            todo = "correct the URL of the receiver, or the name in DNS"
            return error("dns", f"{url}: the name does not exist: {detail}", todo, target.subject)
        case "dns_silent":
            what = f"{url}: no name server answers: {detail}"
            return warning("dns", what, "see /etc/resolv.conf of this machine", target.subject)
        case "blocked" | "invalid_url":
            return error("address", f"{url}: {detail}", _allowing(detail), target.subject)
        case "tls":
            todo = "renew the certificate, or configure its authority: tls.ca of the receiver, or RELAY_CA_FILE"
            return error("tls", f"{url}: {detail}", todo, target.subject)
        case "no_proxy":
            todo = "see RELAY_EGRESS_PROXY, and `proxy` of the receiver"
            return warning("connection", f"{url}: {detail}", todo, target.subject)
        case _:
            todo = "start the receiver, or allow connections to it: firewall, port"
            return warning("connection", f"{url}: {outcome.kind}: {detail}", todo, target.subject)


def _allowing(refusal: str) -> str:
    """The setting that a refusal of the guard names."""
    setting = _SETTING.search(refusal)
    return "use a public address, over https" if setting is None else f"if that is intended: {setting[0]}"


def _shown(url: str) -> str:
    return masked_url(url).rstrip("/")
