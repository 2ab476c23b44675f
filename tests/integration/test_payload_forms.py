"""Tests of payload forms over real HTTP, on both engines: signed as an HTTP message, thin, without payload, and
encrypted; and an answer that is encrypted for the relay."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from aiohttp import ClientSession, web
from jwcrypto.jwk import JWK

from relay.domain.jwe import encrypt, key_text
from relay.sink import Sink
from tests.integration.production import Engine
from tests.servers.http import serving, started

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
PAYLOAD = b'{"secret": "of the sender"}'
OWN, RECEIVERS = (JWK.generate(kty="EC", crv="P-256", kid=kid) for kid in ("relay", "receiver"))
ANSWER = encrypt(key_text(OWN.export_public(as_dict=True)), b"a secret answer", "text/plain")


@dataclass
class Forms:
    """A receiver for each form, and one that publishes its keys and answers encrypted."""

    sinks: dict[str, Sink]
    own: str

    def entries(self) -> dict[str, dict[str, Any]]:
        public = RECEIVERS.export_public(as_dict=True)
        return {
            "signed": {"secret": SECRET, "signature": "http-message", "respond_async": 5},
            "thin": {"payload": "thin"},
            "metadata": {"payload": "metadata"},
            "encrypted": {"encrypt": {"jwk": public}},
            "own": {"post_endpoint": f"{self.own}/hooks", "encrypt": {"jwks_url": f"{self.own}/jwks.json"}},
        }

    def file(self) -> str:
        entries = {
            name: {"post_endpoint": self.sinks[name].url if name in self.sinks else "", **entry}
            for name, entry in self.entries().items()
        }
        return json.dumps({"receivers": entries})


@asynccontextmanager
async def forms() -> AsyncIterator[Forms]:
    received: list[bytes] = []

    async def hooks(request: web.Request) -> web.Response:
        received.append(await request.read())
        return web.Response(body=ANSWER, content_type="application/jose")

    async def jwks(_: web.Request) -> web.Response:
        return web.json_response({"keys": [RECEIVERS.export_public(as_dict=True)]})

    app = web.Application()
    app.router.add_post("/hooks", hooks)
    app.router.add_get("/jwks.json", jwks)
    private = str(RECEIVERS.export_private())
    sinks = {
        "signed": Sink("ok", secret=SECRET),
        "thin": Sink("ok", fetch=True),
        "metadata": Sink("ok"),
        "encrypted": Sink("ok", jwk=private),
    }
    async with serving(app) as url, started(*sinks.values()):
        yield Forms(sinks, url)
        assert received
        assert all(body.count(b".") == 4 and b"sender" not in body for body in received)


async def check(api: str, known: Forms) -> None:
    answers = {}
    async with ClientSession(api) as client:
        for name in known.entries():
            query, headers = {"receiver": name, "wait": "30"}, {"ce-id": f"to-{name}", "ce-type": "push"}
            url = "/v1/sources/github/messages"
            async with client.post(url, params=query, data=PAYLOAD, headers=headers) as response:
                assert response.status == 200, await response.text()
                answers[name] = await response.read()
    arrived = {name: (await sink.wait_for(1))[0] for name, sink in known.sinks.items()}

    assert arrived["signed"].verified
    assert arrived["signed"].headers["prefer"] == "respond-async, wait=5"
    assert arrived["thin"].payload == PAYLOAD
    for name in ("thin", "metadata", "encrypted"):
        assert b"sender" not in arrived[name].body
    assert json.loads(arrived["metadata"].body)["id"] == "to-metadata"
    assert arrived["encrypted"].payload == PAYLOAD
    assert answers["own"] == b"a secret answer"

    async with ClientSession() as client:
        url = arrived["thin"].headers["relay-payload-url"]
        async with client.get(url[:-1]) as response:
            assert response.status == 404
        async with client.get(api + "/.well-known/jwks.json") as response:
            assert await response.json() == {"keys": []}


async def test_each_receiver_gets_the_form_that_it_wants(engine: Engine) -> None:
    secrets = {"RELAY_ANSWER_JWK": str(OWN.export_private()), "RELAY_ANSWER_SECRET": "of-the-answers-of-this-relay"}
    async with forms() as known, engine(known.file(), **secrets) as api:
        await asyncio.wait_for(check(api, known), 250)
