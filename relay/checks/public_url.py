"""Checks whether `RELAY_PUBLIC_URL` answers from here, and whether this relay serves it."""

import json
from collections.abc import Sequence
from ipaddress import ip_network
from typing import Final

from relay import __version__
from relay.checks.context import CheckContext
from relay.config.settings import Settings
from relay.delivery.egress import transport_of
from relay.delivery.port import Transport
from relay.domain.answer_token import issue
from relay.domain.diagnosis import Checked, error, fine, warning
from relay.domain.exchange import Exchange, NoResponse, Request, Response
from relay.domain.identity import DeliveryId

_TIMEOUT_S: Final = 6.0
_EVERYWHERE: Final = (ip_network("0.0.0.0/0"), ip_network("::/0"))
_NOBODYS: Final = DeliveryId("doctor", "doctor", "doctor")
_EXPIRED: Final = 410
"""The status for an expired token, which only a process with the secret returns."""


async def look_at_public_url(case: CheckContext) -> list[Checked]:
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
    return [judge(url, version, proof)]


def _unguarded(settings: Settings) -> Settings:
    """It is our own address, even if it is private."""
    return settings.model_copy(update={"allow_private_networks": _EVERYWHERE, "allow_http": True})


async def _proof(transport: Transport, url: str, secrets: Sequence[bytes]) -> Exchange | None:
    """The response of one of our own answer URLs, expired, so that it has no effect. None if there is no secret."""
    if not secrets:
        return None
    token = issue(secrets[0], _NOBODYS, 0, 1)
    return await transport.exchange(Request("POST", f"{url}/v1/answers/{token}", (), b"", _TIMEOUT_S))


def judge(url: str, version: Exchange, proof: Exchange | None) -> Checked:
    todo = "correct RELAY_PUBLIC_URL, or the proxy between it and the API"
    if isinstance(version, NoResponse):
        return error("public-url", f"{url} does not answer from here: {version.kind}: {version.detail}", todo)
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
    """None: not a relay's response."""
    try:
        body = json.loads(response.body)
        return str(body["version"]) if response.status == 200 and body["name"] == "relay" else None
    except (ValueError, TypeError, KeyError):
        return None
