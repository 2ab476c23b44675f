"""Whether `RELAY_PUBLIC_URL` answers from here, and whether it is this relay that does."""

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
"""What only who knows the secret of an expired token answers."""


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
    """It is our own address, wherever it leads."""
    return settings.model_copy(update={"allow_private_networks": _EVERYWHERE, "allow_http": True})


async def _proof(transport: Transport, url: str, secrets: Sequence[bytes]) -> Exchange | None:
    """What an answer URL of ours, which has expired, is answered with: so nothing comes of it. None: there are none."""
    if not secrets:
        return None
    token = issue(secrets[0], _NOBODYS, 0, 1)
    return await transport.exchange(Request("POST", f"{url}/v1/answers/{token}", (), b"", _TIMEOUT_S))


def judge(url: str, version: Exchange, proof: Exchange | None) -> Checked:
    todo = "correct RELAY_PUBLIC_URL, or what leads from there to the API"
    if isinstance(version, NoResponse):
        return error("public-url", f"{url} does not answer from here: {version.kind}: {version.detail}", todo)
    told = _version_in(version)
    if told is None:
        return error("public-url", f"what answers at {url} is no relay (status {version.status})", todo)
    if proof is not None and (isinstance(proof, NoResponse) or proof.status != _EXPIRED):
        what = f"at {url} another relay answers, or one with another RELAY_ANSWER_SECRET: answers would be lost there"
        return error("public-url", what, todo)
    if told != __version__:
        return warning("public-url", f"at {url} answers version {told}, this is {__version__}", "update what is older")
    return fine("public-url", f"{url} answers as this relay")


def _version_in(response: Response) -> str | None:
    """None: it is none of a relay."""
    try:
        told = json.loads(response.body)
        return str(told["version"]) if response.status == 200 and told["name"] == "relay" else None
    except (ValueError, TypeError, KeyError):
        return None
