"""Tests of the relay's JWK Set: exactly the public keys of `http-message` signatures, served without an API key."""

import base64
import json

from aiohttp import ClientSession

from relay.config.receivers_file import parse_receivers_file
from relay.control.apply import apply_file
from relay.domain.http_message import public_jwk
from relay.domain.signing import public_key
from tests.integration.test_api_registration import running

KEYS = ["whsk_" + base64.b64encode(bytes([n]) * 32).decode() for n in range(5)]
UNTIL = "2100-01-01T00:00:00Z"


def _jwks(*keys: str) -> list[object]:
    return [public_jwk(public) for public in sorted(map(public_key, keys))]


async def test_keys_of_receivers_and_callbacks_are_listed_once_and_no_other_ones() -> None:
    url = "https://ci.example/hooks"
    entries = {
        "receivers": {
            "a": {
                "post_endpoint": url,
                "secret": [KEYS[0], "hmac"],
                "signature": ["http-message", "standard"],
            },
            "b": {
                "post_endpoint": url,
                "secret": KEYS[0],
                "former_secrets": [{"secret": KEYS[1], "until": UNTIL}],
                "signature": "http-message",
            },
            "standard": {"post_endpoint": url, "secret": KEYS[2]},
        },
        "sources": {"github": {"callback": {"url": url, "secret": KEYS[3], "signature": "http-message"}}},
    }
    async with running() as rig, ClientSession() as client:

        async def listed(of: str = "") -> object:
            async with client.get(rig.apis[0] + "/.well-known/jwks.json" + of) as response:
                assert (response.status, response.headers["Cache-Control"]) == (200, "max-age=300")
                return json.loads(await response.text())

        assert await listed() == {"keys": []}
        file = parse_receivers_file(json.dumps(entries))
        for registry in rig.registries:
            registry.learn(file)
        version = rig.registries[0].version
        await apply_file(rig.api.log, file, rig.api.topics, prune=True)
        changes = rig.registries[0].changes()
        while rig.registries[0].version == version or len(rig.registries[0].receivers()) < 3:
            await anext(changes)
        assert await listed() == {"keys": _jwks(KEYS[0], KEYS[1], KEYS[3])}
        await rig.create("made", secret=KEYS[4], signature="http-message", lane="dedicated")
        assert await listed() == {"keys": _jwks(KEYS[0], KEYS[1], KEYS[3], KEYS[4])}
        await rig.create("in-shared", secret=KEYS[2], signature="http-message", lane="shared")
        assert await listed() == {"keys": _jwks(KEYS[0], KEYS[1], KEYS[3], KEYS[4])}
        assert await listed("?receiver=in-shared") == {"keys": _jwks(KEYS[2])}
        assert await listed("?receiver=made") == {"keys": _jwks(KEYS[4])}
        for none in ("standard", "unknown"):
            assert await listed(f"?receiver={none}") == {"keys": []}
        async with client.get(rig.apis[0] + "/.well-known/jwks.json?receiver=No%20Name") as response:
            assert response.status == 400
