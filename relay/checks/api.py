"""Checks of the API: its key, its public URL, and the URLs for later answers."""

import json
from collections.abc import Mapping, Sequence
from ipaddress import ip_network
from typing import Final
from urllib.parse import urlsplit

from relay import __version__
from relay.checks.context import Check, CheckContext, KnownEntries
from relay.config.own_address import (
    AnsweringReceiver,
    AnswerUrls,
    Exposed,
    check_exposure,
    check_key,
    findings,
    is_loopback,
    own_url,
)
from relay.config.plan import API, ProcessPlan
from relay.config.settings import Settings
from relay.delivery.egress import transport_of
from relay.delivery.port import Transport
from relay.domain.answer_token import issue
from relay.domain.diagnosis import Checked, error, fine, warning
from relay.domain.errors import UserError
from relay.domain.exchange import REDIRECTS, Exchange, NoResponse, Request, Response
from relay.domain.identity import DeliveryId
from relay.domain.receiver import Receiver
from relay.telemetry.logging import get_logger

_SENDS: Final = "to-receiver"
_TIMEOUT_S: Final = 6.0
_EVERYWHERE: Final = (ip_network("0.0.0.0/0"), ip_network("::/0"))
_NO_DELIVERY: Final = DeliveryId("doctor", "doctor", "doctor")
_EXPIRED: Final = 410
"""The status for an expired token, which only a process with the secret returns."""

_log = get_logger("relay.process")


# --- its key ------------------------------------------------------------------------------------------------------


@Check("api-key", limit_s=15.0)
async def inspect_key(case: CheckContext) -> list[Checked]:
    """Whether the API requires a key, and which machines reach it."""
    return judge_key(case.settings, await case.known(), case.clock.wall())


def judge_key(settings: Settings, known: KnownEntries, now: float) -> list[Checked]:
    is_closed = known.keys is not None and known.keys.closed
    todo = "set RELAY_API_KEY (openssl rand -hex 32)" + ("" if is_closed else ", or: relay keys create --scope admin")
    try:
        check_key(settings)
    except UserError as wrong:
        return [error("api-key", str(wrong), todo)]
    made = known.keys is not None and known.keys.any_good(now)
    if settings.api_key is not None or made:
        where = "RELAY_API_KEY is set" if settings.api_key is not None else "keys have been created"
        return [fine("api-key", f"the API requires a key: {where}")]
    own = own_url(settings.api_host, settings.api_port)
    try:
        check_exposure(settings)
    except Exposed as exposed:
        unsure = "" if known.keys is not None else "; created keys could not be looked up"
        return [error("api-key", f"{exposed}{unsure}", todo)]
    if is_closed:
        what = "the API requires a key, and none that was created is valid: revoked, expired, or of a newer version"
        return [error("api-key", what, todo)]
    if not is_loopback(settings.api_host):
        what = f"every client that reaches {settings.api_host} may call the API: RELAY_API_INSECURE is set, and no key"
        return [warning("api-key", what, todo)]
    if settings.public_url is not None and not is_loopback(urlsplit(settings.public_url).hostname or ""):
        what = f"RELAY_PUBLIC_URL leads other machines to {own}, where no key is required"
        return [warning("api-key", what, todo)]
    return [fine("api-key", f"none is required, and only this machine reaches the API, at {own}")]


# --- its public URL -----------------------------------------------------------------------------------------------


@Check("public-url", limit_s=15.0)
async def inspect_public_url(case: CheckContext) -> list[Checked]:
    """Whether RELAY_PUBLIC_URL answers from here, and whether this relay serves it: it has to know the secret of answer
    URLs."""
    url = case.settings.public_url
    if url is None:
        return [fine("public-url", "RELAY_PUBLIC_URL is not set: receivers on other machines cannot answer later")]
    transport = transport_of(_unguarded(case.settings), 2)
    await transport.start()
    try:
        version = await transport.exchange(Request("GET", f"{url}/version", (), b"", _TIMEOUT_S))
        proof = await _proof(transport, url, case.answer_secrets)
    finally:
        await transport.close()
    return [judge_public_url(url, version, proof)]


def _unguarded(settings: Settings) -> Settings:
    """The settings without the address guard: the URL is the relay's own, even if it is private."""
    return settings.model_copy(update={"allow_private_networks": _EVERYWHERE, "allow_http": True})


async def _proof(transport: Transport, url: str, secrets: Sequence[bytes]) -> Exchange | None:
    """The response of one of our own answer URLs, expired, so that it has no effect. None if there is no secret."""
    if not secrets:
        return None
    token = issue(secrets[0], _NO_DELIVERY, 0, 1)
    return await transport.exchange(Request("POST", f"{url}/v1/answers/{token}", (), b"", _TIMEOUT_S))


def judge_public_url(url: str, version: Exchange, proof: Exchange | None) -> Checked:
    todo = "correct RELAY_PUBLIC_URL, or the proxy between it and the API"
    if isinstance(version, NoResponse):
        return error("public-url", f"{url} does not answer from here: {version.kind}: {version.detail}", todo)
    if version.status in REDIRECTS:
        what = f"{url} redirects (status {version.status}), and receivers need not follow that"
        return error("public-url", what, "give the final URL as RELAY_PUBLIC_URL")
    answered = _version_in(version)
    if answered is None:
        return error("public-url", f"the server at {url} is not a relay (status {version.status})", todo)
    if proof is not None and (isinstance(proof, NoResponse) or proof.status != _EXPIRED):
        what = f"{url} leads to another relay, or one with another RELAY_ANSWER_SECRET: answers would be lost there"
        return error("public-url", what, todo)
    if answered != __version__:
        return warning("public-url", f"{url} has version {answered}, this is {__version__}", "update the older one")
    return fine("public-url", f"{url} answers as this relay")


def _version_in(response: Response) -> str | None:
    """The version in a response of /version; None if it is not that of a relay."""
    try:
        body = json.loads(response.body)
        return str(body["version"]) if response.status == 200 and body["name"] == "relay" else None
    except (ValueError, TypeError, KeyError, RecursionError):
        return None


# --- URLs for later answers ---------------------------------------------------------------------------------------


@Check("answer-urls", limit_s=15.0)
async def inspect_answer_urls(case: CheckContext) -> list[Checked]:
    """Whether receivers get URLs for later answers, and can reach them."""
    known = await case.known()
    base = case.settings.public_url or case.api_url
    urls = AnswerUrls(case.answer_secrets, base)
    found = findings(case.settings, urls, _answering(known.receivers))
    todo = "set RELAY_ANSWER_SECRET and RELAY_PUBLIC_URL, the same for all processes"
    return [warning("answer-urls", str(each), todo) for each in found] or [fine("answer-urls", f"lead to {base}")]


def log_answer_urls(settings: Settings, plan: ProcessPlan, urls: AnswerUrls, receivers: Mapping[str, Receiver]) -> None:
    """Logs once per group: in its first process, if that sends such URLs or serves them."""
    if plan.index or not plan.roles & {API, _SENDS}:
        return
    for finding in findings(settings, urls, _answering(receivers), sends=_SENDS in plan.roles):
        say = _log.warning if finding.receivers or settings.answer_secret else _log.info
        say("answer_urls", problem=str(finding))


def _answering(receivers: Mapping[str, Receiver]) -> dict[str, AnsweringReceiver]:
    return {
        name: AnsweringReceiver(one.post.url, bool(one.status_endpoint or one.status_steps), one.payload == "thin")
        for name, one in receivers.items()
    }
