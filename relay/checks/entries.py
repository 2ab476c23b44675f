"""Checks of the entries: whether they can be used here, how far the history is behind, and whether the endpoints of
receivers and callbacks can be reached (name, address, connection, certificate).

No request is made: each endpoint is reached as an attempt would, by the same code, with its own TLS and proxy settings.
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
from relay.domain.errors import LogUnavailable
from relay.domain.exchange import NoResponse
from relay.domain.receiver import Endpoint
from relay.domain.secrecy import masked_url
from relay.domain.text import counted
from relay.domain.times import format_duration

HISTORY_BEHIND_S: Final = 60.0
MOST_ENDPOINTS: Final = 200
"""Per check."""
AT_ONCE: Final = 20
LIMIT_S: Final = 14.0
SOON_S: Final = 14 * 86_400.0
_DAY_S: Final = 86_400.0
STAGES: Final = ("dns", "address", "connection", "tls")
_SETTING: Final = re.compile(r"RELAY_[A-Z_]+=\S+[^\s;,]")


@Check("entries", per_receiver=True, limit_s=15.0)
async def inspect_entries(case: CheckContext) -> list[Checked]:
    """Whether each receiver and source can be used in this environment."""
    return judge_entries(await case.known(), case.receiver)


def judge_entries(known: KnownEntries, receiver: str | None = None) -> list[Checked]:
    todo = "set the variable or file, for every process; RELAY_SECRETS_FROM lists the allowed variables"
    found = [error("entries", why, todo, place) for place, why in known.refused.items()]
    if known.refused_more:
        found.append(error("entries", f"{known.refused_more} more entries are refused", "relay receivers check"))
    if receiver is not None and receiver not in known.receivers and not found:
        what = f"there is no receiver {receiver}" + ("" if known.keys is not None else " in the receivers file")
        return [error("entries", what, "relay receivers list --registered", receiver)]
    left = f"; {known.left_out} more receivers were not checked" if known.left_out else ""
    of_file = "" if known.keys is not None else ", by the receivers file: the log was not read"
    counts = f"{counted(len(known.receivers), 'receiver')} and {counted(len(known.sources), 'source')}"
    return found or [fine("entries", f"{counts} can be used here{of_file}{left}")]


@Check("history", if_away="start the store of the history, or correct RELAY_HISTORY_URL")
async def inspect_history(case: CheckContext) -> list[Checked]:
    """How far the history is behind the log."""
    if case.history_behind is None:
        return []
    try:
        return [judge_history(await case.history_behind())]
    except LogUnavailable:
        return [skipped("history", "its store answers; its lag is unknown, as the log cannot be reached")]


def judge_history(behind_s: float | None) -> Checked:
    todo = "relay worker history"
    if behind_s is None:
        return warning("history", "the lag of the history is unknown: no worker reports it", todo)
    text = f"{format_duration(round(behind_s))} behind the log" if round(behind_s) else "has all of the log"
    return warning("history", text, todo) if behind_s > HISTORY_BEHIND_S else fine("history", text)


# --- endpoints ------------------------------------------------------------------------------------------------------


class Target(NamedTuple):
    """A destination: scheme, host and port of `url`. `subject`: its owner, for operators."""

    subject: str
    url: str
    egress: Egress | None


Reached = float | NoResponse | None
"""The seconds until the server's certificate expires, None without TLS; or why there is no connection."""


@Check("dns", also=("address", "connection", "tls"), per_receiver=True, limit_s=18.0)
async def inspect_endpoints(case: CheckContext) -> list[Checked]:
    """Each receiver, status endpoint, callback and token endpoint: the name of its host, whether the relay may send to
    the address, whether a server accepts a connection there, and its certificate."""
    targets = targets_of(await case.known())
    transport = transport_of(case.settings, AT_ONCE)
    await transport.start()
    try:
        found = await _reached(transport, targets[:MOST_ENDPOINTS], case.clock.wall)
    finally:
        await transport.close()
    return judge_endpoints(found, len(targets))


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


def judge_endpoints(found: Mapping[Target, Reached], count: int) -> list[Checked]:
    """A line for each failure, and one for each check without failures; says how many endpoints were not checked.
    `count`: all endpoints."""
    if not count:
        return [fine(name, "there is no receiver or callback to check") for name in STAGES]
    judged = {target: _judged(target, outcome) for target, outcome in found.items()}
    wrong = [checked for checked in judged.values() if checked is not None]
    right = [checked for name in STAGES if (checked := _right(name, judged)) is not None]
    left = count - len(found)
    more = f"{left:,} of {count:,} endpoints were not checked, as there are too many for one check"
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
    return fine(name, f"passed by {counted(len(passed), 'endpoint')}") if passed else None


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
