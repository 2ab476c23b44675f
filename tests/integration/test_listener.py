"""Tests of `relay listen`: it passes requests of the relay to a local port, and nothing else."""

import secrets
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest
from aiohttp import ClientSession, web
from yarl import URL

from relay.cli.listener import Listener
from relay.domain.exchange import Exchange, Request, Response
from relay.domain.receiver import Endpoint, Receiver, SigningPolicy
from relay.domain.requests import PING_TYPE, VERIFICATION_TYPE
from relay.domain.signing import generate_secret, sign
from relay.domain.urls import location_url
from relay.domain.verification import PROVEN, handshake
from tests.servers.http import serving, started

SECRET = generate_secret(secrets.token_bytes)
NONCE = "a-nonce-that-nobody-guesses"
OTHER = generate_secret(secrets.token_bytes)


@dataclass
class Rig:
    """A listener, and what came to the port behind it. `location`: what that answers with; `status`: its status."""

    listener: Listener
    client: ClientSession
    came: list[str] = field(default_factory=list)
    location: str | None = None
    status: int = 202

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.listener.port}/"

    async def post(self, secret: str | None = SECRET, body: bytes = b"{}", type: str = "push", **headers: str) -> int:
        return (await self.posted(secret, body, **{"ce-type": type}, **headers))[0]

    async def posted(self, secret: str | None, body: bytes, **headers: str) -> tuple[int, str | None]:
        """Status and Location. `secret` None: not signed."""
        policy = SigningPolicy(("standard",), () if secret is None else (secret,))
        signed = dict(sign(policy, webhook_id="m-1", timestamp=int(time.time()), body=b"{}"))
        async with self.client.post(self.url, data=body, headers=signed | headers, allow_redirects=False) as answer:
            return answer.status, answer.headers.get("Location")

    async def exchange(self, asked: Request) -> Exchange:
        headers = dict(asked.headers)
        async with self.client.request(
            asked.method, URL(asked.url, encoded=True), data=asked.body, headers=headers
        ) as (answer):
            named = {name.lower(): value for name, value in answer.headers.items()}
            return Response(answer.status, named, await answer.read())

    async def get(self, path: str, **headers: str) -> int:
        url = URL(self.url.rstrip("/") + path, encoded=True)
        async with self.client.get(url, headers=headers) as answer:
            return answer.status


@asynccontextmanager
async def listening(public_url: str | None = None) -> AsyncIterator[Rig]:
    async def answer(request: web.Request) -> web.Response:
        found.came.append(f"{request.method} {request.raw_path}")
        headers = {} if found.location is None else {"Location": found.location}
        return web.Response(status=200 if request.method == "GET" else found.status, headers=headers)

    async with serving(answer) as target, ClientSession() as client:
        listener = Listener(f"{target}/api/hook", 10, lambda _: None, lambda _: None, public_url)
        listener.secret = SECRET
        async with started(listener):
            found = Rig(listener, client)
            yield found


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    async with listening() as running:
        yield running


async def test_only_what_the_relay_has_signed_is_passed_on(rig: Rig) -> None:
    assert await rig.post() == 202
    assert rig.came == ["POST /api/hook"]
    assert [await rig.post(None), await rig.post(OTHER), await rig.post(body=b"another")] == [401] * 3
    assert await rig.post(None, type=PING_TYPE) == 401
    assert (rig.listener.pings, rig.listener.posts) == (0, 1)
    assert await rig.post(type=PING_TYPE) == 204
    assert rig.listener.pings == 1
    rig.listener.secret = None  # as before it is registered
    assert await rig.post() == 401
    assert rig.came == ["POST /api/hook"]


@pytest.mark.parametrize(
    ("location", "path"),
    [
        ("/jobs/a%2Fb?x=1&y=%C3%A9", "/jobs/a%2Fb?x=1&y=%C3%A9"),
        ("jobs/1", "/api/jobs/1"),
        ("/a/../jobs/1#part", "/jobs/1"),
    ],
)
async def test_a_get_is_passed_on_where_an_answer_has_named_it(rig: Rig, location: str, path: str) -> None:
    rig.location = location
    assert [await rig.get(path), await rig.get("/"), await rig.get("/.env")] == [404] * 3
    assert rig.came == []
    _, told = await rig.posted(SECRET, b"{}")
    asked = location_url(rig.url, told or "")  # as the relay reads it
    assert asked == rig.url.rstrip("/") + path
    assert await rig.get(path) == 200
    assert rig.came == ["POST /api/hook", f"GET {path}"]
    assert [await rig.get("/"), await rig.get("/.env"), await rig.get(path + "x")] == [404] * 3


async def test_what_is_elsewhere_or_a_redirect_names_nothing(rig: Rig) -> None:
    rig.location = "http://elsewhere.example/jobs/1"
    assert await rig.posted(SECRET, b"{}") == (202, rig.location)
    rig.location, rig.status = "/jobs/1", 302
    assert await rig.posted(SECRET, b"{}") == (302, rig.location)
    assert await rig.get("/jobs/1") == 404


async def test_a_handshake_is_answered_here_as_by_a_receiver(rig: Rig) -> None:
    """The handshake is made and verified as the relay does it; the local port gets no request."""
    for kind in ("challenge", "hmac", "cloudevents"):
        signing = SigningPolicy(("standard",), (SECRET,))
        one = Receiver("ci", Endpoint(rig.url, signing=signing), verification=kind)
        asked = handshake(one, "a-nonce-that-nobody-guesses", now=time.time(), user_agent="relay", origin="r.example")
        assert asked.judge(await rig.exchange(asked.request)) == PROVEN, kind
    assert rig.came == []
    rig.listener.secret = None  # as before it is registered
    asked = handshake(one, NONCE, now=time.time(), user_agent="relay", origin="r.example")
    assert asked.judge(await rig.exchange(asked.request)).fault is not None
    assert await rig.get(f"/?challenge={NONCE}") == 404


async def test_what_is_no_handshake_proves_nothing(rig: Rig) -> None:
    assert await rig.get("/?challenge=%3Cscript%3Ealert(1)%3C/script%3E") == 404
    assert await rig.get(f"/hook?challenge={NONCE}") == 404
    assert await rig.post(None, type=VERIFICATION_TYPE) == 401
    assert await rig.post(type=VERIFICATION_TYPE) == 400  # signed, without a nonce


async def test_neither_a_page_in_a_browser_nor_another_name_gets_anything() -> None:
    async with listening("https://tunnel.example/") as rig:
        for host in ("127.0.0.1:1", "localhost", "tunnel.example"):
            assert await rig.post(Host=host) == 202, host
        assert await rig.post(Host="evil.example") == 421
        assert await rig.post(Origin="http://localhost:3000") == 403
        rig.location = "/jobs/1"
        assert await rig.post() == 202
        assert await rig.get("/jobs/1", Host="evil.example") == 421
        assert await rig.get("/jobs/1", Origin="null") == 403
        assert "GET /jobs/1" not in rig.came
    async with listening() as rig:
        assert await rig.post(Host="tunnel.example") == 421


async def test_a_port_that_nobody_listens_on_is_named_in_plain_words() -> None:
    failures: list[str] = []
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    listener = Listener(
        f"http://127.0.0.1:{port}/", 10, lambda _: None, lambda response: failures.append(response.detail)
    )
    listener.secret = SECRET
    async with started(listener), ClientSession() as client:
        assert await Rig(listener, client).post() == 502
    assert failures == ["connection refused"]
