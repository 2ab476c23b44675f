"""Tests of receivers that have to prove that they want the messages: handshakes over real sockets, and two processes
that follow the same log."""

import asyncio
import json
import os
import re
import secrets
import sys
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, replace
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientSession, web

from relay.api.registrar import Registrar
from relay.api.server import ApiServer
from relay.clock import SystemClock
from relay.config.encryption import KeyRing
from relay.control.patch import Rules
from relay.control.registry import Registry
from relay.delivery.guard import AddressGuard
from relay.delivery.lean_transport import LeanTransport
from relay.domain.hold import hold
from relay.domain.receiver import Receiver, Verification
from relay.sink import Sink
from relay.watch.verifier import Verifier
from tests.expecting import present
from tests.fakes.log import MemoryLog
from tests.integration.api_rig import Reply, document, problem, running_api
from tests.integration.api_rig import Rig as ApiRig
from tests.integration.planted_defects import plant
from tests.integration.test_demo import relay
from tests.servers.http import Handler, serving, started
from tests.servers.process import relay_dev

DOCS = Path(__file__).parents[2] / "docs"
SECRET = "both-sides-have-it"
JSON = {"Content-Type": "application/json"}
ORIGIN = "relay.example"


@dataclass
class Rig:
    """Two processes: `registries`, `apis` (URLs) and `verifiers` are theirs."""

    api: ApiRig
    stack: AsyncExitStack
    required: Verification
    registries: list[Registry]
    verifiers: list[Verifier]
    apis: list[str]

    async def process(self, *, chores: bool = False) -> Registry:
        """Start another process. `chores`: it starts handshakes without a request."""
        api, ring, number = self.api, KeyRing([b"k" * 32]), len(self.apis)
        log = MemoryLog(api.broker)
        await log.start()
        registry = Registry(api.topics, {}, ring=ring)
        await self._aside(registry.follow(log))
        await registry.ready.wait()
        transport = LeanTransport(AddressGuard([ip_network("127.0.0.0/8")]))
        await transport.start()
        self.stack.push_async_callback(transport.close)
        clock = SystemClock()
        verifier = Verifier(
            log,
            api.state,
            api.topics,
            registry,
            transport,
            clock,
            secrets.token_bytes,
            owner=f"p-{number}",
            user_agent="relay/test",
            origin=ORIGIN,
        )
        if chores:
            await self._aside(verifier.run())
        rules = Rules({}, (), ring, self.required)
        registrar = Registrar(log, api.state, api.topics, registry, clock, rules, lambda: SECRET, owner=f"p-{number}")
        server = ApiServer(
            replace(api.context, directory=registry, registrar=registrar, verify=verifier.try_now, transport=transport)
        )
        self.apis.append(f"http://127.0.0.1:{await server.start('127.0.0.1', 0)}")
        self.stack.push_async_callback(server.stop)
        self.registries.append(registry)
        self.verifiers.append(verifier)
        return registry

    async def _aside(self, work: Any) -> None:
        task = asyncio.ensure_future(work)

        async def end() -> None:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

        self.stack.push_async_callback(end)

    async def ask(self, method: str, path: str, body: object = None, of: int = 0) -> Reply:
        data = b"" if body is None else json.dumps(body).encode()
        async with (
            ClientSession() as client,
            client.request(method, self.apis[of] + path, data=data, headers=JSON) as response,
        ):
            return Reply(response.status, response.headers, await response.read())

    async def create(self, url: str, kind: str = "challenge", **fields: object) -> None:
        body = {"name": "ci", "post_endpoint": url, "verification": kind, **fields}
        reply = await self.ask("POST", "/v1/receivers", body)
        assert reply.status == 201, reply.text

    async def verify(self, of: int = 0) -> Any:
        reply = await self.ask("POST", "/v1/receivers/ci/verify", of=of)
        assert reply.status == 200, reply.text
        return document(reply)

    async def shown(self, of: int = 0) -> Any:
        return document(await self.ask("GET", "/v1/receivers/ci", of=of))

    async def known(self, registry: Registry, *, verified: bool) -> Receiver:
        """The receiver, once this process knows that."""
        async with asyncio.timeout(30):
            async for _ in registry.changes():
                found = registry.receiver("ci")
                if found is not None and found.verified is verified:
                    return found
        raise AssertionError


@asynccontextmanager
async def running(required: Verification = "none") -> AsyncIterator[Rig]:
    async with running_api() as api, AsyncExitStack() as stack:
        yield Rig(api, stack, required, [], [], [])


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    async with running() as rig:
        await rig.process()
        await rig.process()
        yield rig


@pytest.fixture
async def sink() -> AsyncIterator[Sink]:
    sink = Sink(secret=SECRET)
    async with started(sink):
        yield sink


@pytest.mark.parametrize("kind", ["challenge", "hmac", "cloudevents"])
async def test_a_receiver_that_answers_is_verified_in_every_process_and_the_next_ones(
    rig: Rig, sink: Sink, kind: str
) -> None:
    await rig.create(sink.url, kind, rate_limit=10)
    shown = await rig.shown()
    assert (shown["condition"], shown["verification"]["kind"], shown["verification"]["state"]) == (
        "unverified",
        kind,
        "pending",
    )
    await rig.known(rig.registries[1], verified=False)
    problem(await rig.ask("POST", "/v1/receivers/ci/test"), 409, "receiver-unverified")
    told = await rig.verify()
    assert (told["proved"], told["detail"], told["verification"]["state"]) == (True, None, "verified")
    assert told["verification"]["allowed_rate"] == (600 if kind == "cloudevents" else None)
    assert (sink.handshakes, sink.received) == ([kind], [])
    for registry in (*rig.registries, await rig.process()):
        await rig.known(registry, verified=True)
    for of in (0, 1, 2):
        shown = await rig.shown(of)
        assert (shown["condition"], shown["verification"]) == ("up", told["verification"])


async def test_the_url_that_agreed_to_less_is_sent_less(rig: Rig) -> None:
    async def agree(request: web.Request) -> web.Response:
        assert (request.method, request.headers["WebHook-Request-Rate"]) == ("OPTIONS", "6000")
        return web.Response(headers={"WebHook-Allowed-Origin": ORIGIN, "WebHook-Allowed-Rate": "120"})

    async with serving(agree) as url:
        await rig.create(url, "cloudevents", rate_limit=100)
        assert (await rig.verify())["verification"]["allowed_rate"] == 120
        post = (await rig.known(rig.registries[1], verified=True)).post
        assert (post.rate_limit, post.window_size, post.headers[-1]) == (120, 60.0, ("webhook-request-origin", ORIGIN))


async def test_another_url_is_sent_nothing_before_it_has_proved_it(rig: Rig, sink: Sink) -> None:
    await rig.create(sink.url)
    await rig.verify()
    reply = await rig.ask("PATCH", "/v1/receivers/ci", {"post_endpoint": sink.url + "/other"})
    assert reply.status == 200, reply.text
    assert (await rig.shown())["verification"]["state"] == "pending"
    await rig.known(rig.registries[1], verified=False)
    told = await rig.verify(of=1)
    assert (told["proved"], told["verification"]["state"]) == (False, "failed")
    assert "404" in told["detail"]
    assert told["verification"]["next_try_at"] > told["verification"]["tried_at"]
    await rig.ask("PATCH", "/v1/receivers/ci", {"post_endpoint": sink.url, "rate_limit": 5})
    assert (await rig.verify())["proved"]


async def test_a_handshake_that_fails_takes_nothing_away(rig: Rig, sink: Sink) -> None:
    await rig.create(sink.url)
    await rig.verify()
    sink.become(handshakes=False)
    told = await rig.verify()
    assert (told["proved"], told["verification"]["state"]) == (False, "verified")
    assert "400" in told["detail"]


async def _redirect(request: web.Request) -> web.Response:
    return web.Response(status=307, headers={"location": str(request.url.with_path("/moved"))})


async def _html(request: web.Request) -> web.Response:
    return web.Response(text=request.query["challenge"], content_type="text/html")


async def _huge(request: web.Request) -> web.Response:
    return web.Response(text=request.query["challenge"] + " " * 200_000)


async def _wrong(_request: web.Request) -> web.Response:
    return web.Response(text="challenge")


@pytest.mark.parametrize(
    ("handler", "why"),
    [(_redirect, "307, Location"), (_html, "text/html"), (_huge, "4096 bytes"), (_wrong, "not the challenge")],
)
async def test_what_proves_nothing_is_told(rig: Rig, handler: Handler, why: str) -> None:
    asked = 0

    async def counted(request: web.Request) -> web.StreamResponse:
        nonlocal asked
        asked += 1
        return await handler(request)

    async with serving(counted) as url:
        await rig.create(url)
        told = await rig.verify()
    assert (told["proved"], told["verification"]["state"]) == (False, "failed")
    assert why in told["detail"]
    assert asked == 1  # no redirect was followed


@pytest.mark.parametrize("url", ["https://10.1.2.3/hooks", "https://169.254.169.254/latest/", "http://localhost:1/"])
async def test_no_handshake_reaches_what_nothing_may_be_sent_to(rig: Rig, url: str) -> None:
    await rig.create(url)
    told = await rig.verify()
    assert not told["proved"]
    assert "blocked" in told["detail"] or "refused" in told["detail"]


async def test_a_handshake_under_way_is_joined_and_takes_no_longer_than_its_time(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("relay.domain.verification.TIMEOUT_S", 0.5)
    there, asked = asyncio.Event(), 0

    async def hang(_request: web.Request) -> web.Response:
        nonlocal asked
        asked += 1
        there.set()
        await asyncio.sleep(60)
        return web.Response()

    async with serving(hang) as url:
        await rig.create(url)
        first = asyncio.create_task(rig.verify())
        await there.wait()
        every = await asyncio.gather(first, rig.verify(), rig.verify(of=1))  # of this process, and of another one
    assert asked == 1
    for told in every:
        assert not told["proved"]
        assert "no answer within 0.5 s" in told["detail"]


async def test_a_process_that_ends_takes_no_handshake_for_a_failed_one(rig: Rig) -> None:
    there, verifier = asyncio.Event(), rig.verifiers[0]

    async def hang(_request: web.Request) -> web.Response:
        there.set()
        await asyncio.sleep(60)
        return web.Response()

    async with serving(hang) as url:
        await rig.create(url)
        trying = asyncio.create_task(verifier.try_now(present(rig.registries[0].receiver("ci"))))
        await there.wait()
        await verifier.close()
        await verifier.transport.close()
        await asyncio.wait([trying])
    assert (await rig.shown(of=1))["verification"]["state"] == "pending"
    assert await rig.api.state.lease("verification-ci", "another process", 1.0)


@pytest.fixture
def not_joined(monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch, "one handshake at a time")


@pytest.mark.usefixtures("not_joined")
async def test_a_handshake_that_is_not_joined_is_found(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(AssertionError, match="429"):
        await test_a_handshake_under_way_is_joined_and_takes_no_longer_than_its_time(rig, monkeypatch)


async def test_the_relay_tries_by_itself_until_the_receiver_answers(rig: Rig, sink: Sink) -> None:
    sink.become(handshakes=False)
    await rig.process(chores=True)
    await rig.process(chores=True)
    await rig.create(sink.url)
    async with asyncio.timeout(10):
        async for _ in rig.registries[0].changes():
            result = rig.registries[0].verifications.newest("ci")
            if result is not None and result.failures == 2:
                break
    sink.become(handshakes=True)
    await rig.known(rig.registries[0], verified=True)
    assert sink.handshakes == ["challenge"]


@pytest.mark.parametrize("kind", ["challenge", "hmac", "cloudevents"])
async def test_the_receiver_in_the_documents_answers_right(rig: Rig, kind: str) -> None:
    [*_, sample] = re.findall(r"(?ms)^```python$(.*?)^```$", (DOCS / "verifying.md").read_text(encoding="utf-8"))
    environ = {"SECRET": SECRET, "PORT": "0", "PATH": os.environ["PATH"]}
    receiver = await asyncio.create_subprocess_exec(
        sys.executable, "-c", sample, env=environ, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL
    )
    try:
        assert receiver.stdout is not None
        port = int((await receiver.stdout.readline()).split()[-1])
        await rig.create(f"http://127.0.0.1:{port}/hooks", kind)
        told = await rig.verify()
        assert told["proved"], told
        assert told["verification"]["allowed_rate"] == (600 if kind == "cloudevents" else None)
    finally:
        receiver.kill()
        await receiver.wait()


async def test_who_is_paused_is_asked_nothing_until_it_is_resumed(rig: Rig, sink: Sink) -> None:
    await rig.create(sink.url)
    await rig.api.state.hold("r:ci", hold("paused", time.time(), ""))
    await rig.process(chores=True)
    other = {"name": "cd", "post_endpoint": sink.url, "verification": "challenge"}
    assert (await rig.ask("POST", "/v1/receivers", other)).status == 201
    async with asyncio.timeout(10):
        async for _ in rig.registries[0].changes():
            found = rig.registries[0].receiver("cd")
            if found is not None and found.verified:
                break
    assert sink.handshakes == ["challenge"]
    await rig.api.state.resume("r:ci")
    await rig.known(rig.registries[0], verified=True)


# settings


async def test_a_receiver_without_verification_has_nothing_to_prove(rig: Rig, sink: Sink) -> None:
    await rig.create(sink.url, "none")
    told = await rig.verify()
    assert (told["proved"], told["verification"]["state"], sink.handshakes) == (False, "not_required", [])
    assert (await rig.shown())["condition"] == "up"
    problem(await rig.ask("POST", "/v1/receivers/nobody/verify"), 404, "not-found")


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"verification": "email"}, "/verification"),
        ({"verification": "hmac", "signature": "none"}, "needs a secret"),
        ({"verification": "challenge", "status_endpoint": "https://other.example/{message_id}"}, "status_endpoint"),
    ],
)
async def test_what_could_not_be_proved_is_refused(rig: Rig, fields: Mapping[str, object], why: str) -> None:
    body = {"name": "ci", "post_endpoint": "https://ci.example/", **fields}
    found = problem(await rig.ask("POST", "/v1/receivers", body), 422, "invalid-receiver")
    assert found["errors"][0]["pointer"] == "/verification"
    assert why in json.dumps(found)
    assert rig.registries[0].receiver("ci") is None


async def test_what_the_operator_asks_for_holds_for_what_is_made_and_for_what_is_sent_elsewhere() -> None:
    async with running() as rig:
        await rig.process()
        await rig.create("https://ci.example/", "none")
        rig.required = "challenge"
        registry = await rig.process()
        one = {"name": "cd", "post_endpoint": "https://cd.example/"}
        for kind in ("none", "hmac"):
            refused = await rig.ask("POST", "/v1/receivers", one | {"verification": kind}, of=1)
            [error] = problem(refused, 422, "invalid-receiver")["errors"]
            assert (error["pointer"], "'challenge'" in error["detail"]) == ("/verification", True)
        made = document(await rig.ask("POST", "/v1/receivers", one, of=1))
        assert made["settings"]["verification"] == "challenge"
        # one that was there before stays as it is, until it is to be sent elsewhere
        kept = document(await rig.ask("PATCH", "/v1/receivers/ci", {"rate_limit": 5}, of=1))
        assert kept["settings"]["verification"] == "none"
        for elsewhere in (
            {"post_endpoint": "https://x.example/"},
            {"status_endpoint": "https://x.example/{message_id}"},
        ):
            problem(await rig.ask("PATCH", "/v1/receivers/ci", elsewhere, of=1), 422, "invalid-receiver")
        moved = {"post_endpoint": "https://x.example/", "verification": "challenge"}
        assert (await rig.ask("PATCH", "/v1/receivers/ci", moved, of=1)).status == 200
        assert not (await rig.known(registry, verified=False)).verified
        back = await rig.ask("PATCH", "/v1/receivers/ci", {"verification": "none"}, of=1)
        problem(back, 422, "invalid-receiver")
        left_out = document(await rig.ask("PATCH", "/v1/receivers/ci", {"verification": None}, of=1))
        assert left_out["settings"]["verification"] == "challenge"


# by hand


async def test_a_backlog_waits_for_the_proof_which_outlives_a_restart(tmp_path: Path) -> None:
    sink = Sink(handshakes=False)
    async with started(sink):
        kept = ("--no-demo", "--data-dir", str(tmp_path / "data"))
        async with relay_dev(tmp_path, *kept) as dev:
            code, output = await relay(dev, "receivers", "create", "ci", sink.url, "--set", "verification=challenge")
            assert code == 0, output
            for number in range(3):
                sent = ("send", "--source", "s", "--receiver", "ci", "--id", f"m-{number}", "-")
                code, output = await relay(dev, *sent, stdin=b"{}")
                assert code == 0, output
            code, output = await relay(dev, "receivers", "verify", "ci")
            assert (code, "not verified by challenge: GET" in output) == (1, True), output
            code, output = await relay(dev, "status", "s", "m-0", "-o", "json")
            assert json.loads(output)["deliveries"][0]["waiting_for"]["kind"] == "verification"
            assert sink.received == []
            sink.become(handshakes=True)
            code, output = await relay(dev, "receivers", "verify", "ci", "-o", "json")
            assert (code, json.loads(output)["proved"]) == (0, True), output
            arrivals = await sink.wait_for(3)
            assert [arrival.message_id for arrival in arrivals] == ["m-0", "m-1", "m-2"]
            code, output = await relay(dev, "receivers", "show", "ci")
            assert "verification: verified by challenge at" in output
        sink.become(handshakes=False)
        async with relay_dev(tmp_path, *kept) as dev:
            code, output = await relay(dev, *sent[:-2], "m-3", "--wait", "20", "-", stdin=b"{}")
            assert code == 0, output
            assert [arrival.message_id for arrival in sink.received] == ["m-0", "m-1", "m-2", "m-3"]
