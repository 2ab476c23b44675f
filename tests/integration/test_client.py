"""Tests of the Python SDK against `relay dev`, and of receivers on five frameworks that use its helpers."""

import asyncio
import json
import os
import socket
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractContextManager, AsyncExitStack, asynccontextmanager, contextmanager, suppress
from http.client import HTTPConnection
from pathlib import Path
from threading import Thread
from types import ModuleType
from typing import Any

import pytest
import uvicorn
from django.conf import settings
from django.core.asgi import get_asgi_application
from django.core.wsgi import get_wsgi_application
from django.http import HttpRequest, HttpResponse
from django.urls import re_path
from flask import Flask
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from werkzeug.serving import make_server

from bench.kafka_parts import free_ports
from relay.client import ApiError, AsyncRelay, DeliveryFailed, Relay, WaitTimeout
from relay.domain.http_message import sign_message
from relay.domain.receiver import SigningPolicy
from relay.domain.signing import sign
from relay.receiver import Webhook, for_django, for_flask, for_starlette
from relay.sink import Sink
from tests.servers.http import started
from tests.servers.process import RelayProcess, relay_dev

SECRET, OTHER_SECRET = "whsec_" + "C" * 32, "whsec_" + "D" * 32
EXAMPLES = Path(__file__).parents[2] / "examples"
FRAMEWORKS = ("aiohttp", "django", "fastapi", "flask", "starlette")


@asynccontextmanager
async def dev(folder: Path, receivers: dict[str, object]) -> AsyncIterator[RelayProcess]:
    (folder / "receivers.yaml").write_text(json.dumps({"receivers": receivers}))
    async with relay_dev(folder, "--data-dir", str(folder / "data"), "--no-demo") as process:
        yield process


@pytest.fixture
async def sinks() -> AsyncIterator[dict[str, Sink]]:
    found = {"good": Sink("answer"), "bad": Sink("reject"), "slow": Sink("hang")}
    async with started(*found.values()):
        yield found


@pytest.fixture
async def url(tmp_path: Path, sinks: dict[str, Sink]) -> AsyncIterator[str]:
    entries: dict[str, object] = {name: {"post_endpoint": sink.url} for name, sink in sinks.items()}
    async with dev(tmp_path, entries) as process:
        yield process.value_of("API")


async def test_a_message_is_sent_waited_for_and_found(url: str) -> None:
    async with AsyncRelay(url) as relay:
        answer = await relay.send_and_wait(
            "app", {"n": 1}, receiver="good", type="push", id="m/1", headers={"team": "core"}
        )
        assert (answer.outcome, answer.status) == ("answered", 200)
        assert answer.json()["message_id"] == "m/1"

        again = await relay.send("app", {"n": 1}, receivers=["good"], type="push", id="m/1")
        assert again.duplicate
        state = await relay.messages.get("app", "m/1")
        assert [delivery.receiver for delivery in state.deliveries] == ["good"]
        assert (await relay.messages.payload("app", "m/1")).body == b'{"n":1}'

        with pytest.raises(DeliveryFailed) as failed:
            await relay.send_and_wait("app", "text", receiver="bad")
        assert failed.value.reason == "rejected"
        with pytest.raises(ApiError) as missing:
            await relay.messages.get("app", "unheard of")
        assert missing.value.status == 404


async def test_an_answer_that_does_not_come_in_time(url: str) -> None:
    async with AsyncRelay(url) as relay:
        with pytest.raises(WaitTimeout):
            await relay.send_and_wait("app", b"{}", receiver="slow", timeout_s=1.0)


async def test_receivers_are_registered_changed_and_removed(url: str, sinks: dict[str, Sink]) -> None:
    async with AsyncRelay(url) as relay:
        made = await relay.receivers.create("deploy", sinks["good"].url, labels={"env": "test"})
        assert made["secret"] is not None
        changed = await relay.receivers.update("deploy", {"rate_limit": 10}, etag=made["etag"])
        with pytest.raises(ApiError) as stale:
            await relay.receivers.update("deploy", {"rate_limit": 20}, etag=made["etag"])
        assert stale.value.status == 412
        assert changed["settings"] is not None
        assert changed["settings"]["rate_limit"] == 10
        assert [one["name"] async for one in relay.receivers.list(label=["env=test"])] == ["deploy"]

        tested = await relay.receivers.test("deploy")
        assert tested["response"] is not None
        assert (await relay.receivers.pause("deploy", "moving"))["condition"] == "paused"
        assert (await relay.receivers.resume("deploy"))["condition"] == "up"
        assert (await relay.receivers.rotate("deploy", grace="1h"))["secret"]
        assert (await relay.receivers.stats("deploy"))["outcomes"] is not None
        await relay.receivers.delete("deploy")
        with pytest.raises(ApiError):
            await relay.receivers.get("deploy")


async def test_the_tail_and_a_replay(url: str) -> None:
    async with AsyncRelay(url) as relay:
        events = relay.tail(sources=["app"], failed=True)
        assert (await anext(events))[0] == "listening"
        sent = await relay.send("app", {}, receivers=["bad"])
        while (event := await anext(events))[0] != "failed":
            pass
        assert event[1]["message_id"] == sent.message_id
        assert (await relay.messages.replay("app", sent.message_id, "bad"))["generation"] == 1
        preview = await relay.replays.preview(receiver="bad")
        assert preview["dry_run"] is True
        await events.aclose()  # type: ignore[attr-defined]


def _without_asyncio(url: str) -> None:
    with Relay(url) as relay:
        answer = relay.send_and_wait("app", {"n": 1}, receiver="good", id="sync")
        assert answer.json()["message_id"] == "sync"
        assert relay.messages.get("app", "sync").message_id == "sync"
        assert {one["name"] for one in relay.receivers.list()} >= {"good", "bad", "slow"}
        for one in relay.receivers.list():
            assert one["name"] == "bad"
            break
        with pytest.raises(DeliveryFailed):
            relay.send_and_wait("app", {}, receiver="bad")


async def test_the_same_without_asyncio(url: str) -> None:
    await asyncio.to_thread(_without_asyncio, url)


@asynccontextmanager
async def example(name: str, port: int) -> AsyncIterator[None]:
    """A CI of examples/, as its first line says to run it."""
    environ = os.environ | {"CI_SECRET": SECRET, "PORT": str(port), "PYTHONPATH": str(EXAMPLES.parent)}
    process = await asyncio.create_subprocess_exec(sys.executable, str(EXAMPLES / f"ci_{name}.py"), env=environ)
    try:
        async with asyncio.timeout(30):
            while process.returncode is None:
                with suppress(OSError):
                    _, writer = await asyncio.open_connection("127.0.0.1", port)
                    writer.close()
                    break
                await asyncio.sleep(0.05)  # it has no event to wait for
        yield
    finally:
        with suppress(ProcessLookupError):
            process.terminate()
        await process.wait()


async def test_receivers_on_five_frameworks_answer_later(tmp_path: Path) -> None:
    ports = dict(zip(FRAMEWORKS, free_ports(len(FRAMEWORKS)), strict=True))
    entries: dict[str, object] = {}
    for name, port in ports.items():
        entries[name] = {"post_endpoint": f"http://127.0.0.1:{port}/hooks", "secret": SECRET}
        entries[f"{name}-wrong"] = {"post_endpoint": f"http://127.0.0.1:{port}/hooks", "secret": OTHER_SECRET}
    async with AsyncExitStack() as stack:
        for name, port in ports.items():
            await stack.enter_async_context(example(name, port))
        process = await stack.enter_async_context(dev(tmp_path, entries))
        relay = await stack.enter_async_context(AsyncRelay(process.value_of("API")))
        for name in FRAMEWORKS:
            answer = await relay.send_and_wait("app", {"ref": "main"}, receiver=name)
            assert answer.json()["state"] == "passed", name
            trial = await relay.receivers.test(f"{name}-wrong")
            assert trial["response"] is not None, name
            assert trial["response"]["status"] == 401, name


@pytest.fixture
def django() -> None:
    if not settings.configured:
        settings.configure(ROOT_URLCONF="urls_of_a_test", ALLOWED_HOSTS=["*"], SECRET_KEY="x" * 50)
        view = for_django.webhook(SECRET)(lambda _, hook: HttpResponse(hook.message_id or ""))

        @for_django.webhook(SECRET)
        async def later(_request: HttpRequest, hook: Webhook) -> HttpResponse:
            await asyncio.sleep(0)
            return HttpResponse(hook.message_id or "")

        urls = ModuleType("urls_of_a_test")
        urls.urlpatterns = [re_path("^async$", later), re_path("", view)]  # type: ignore[attr-defined]
        sys.modules["urls_of_a_test"] = urls


@contextmanager
def wsgi(app: Any) -> Iterator[int]:
    server = make_server("127.0.0.1", 0, app)
    thread = Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server.port
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@contextmanager
def asgi(app: Any) -> Iterator[int]:
    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, lifespan="off", log_level="error"))
    thread = Thread(target=server.run, args=([listener],))
    thread.start()
    try:
        yield listener.getsockname()[1]
    finally:
        server.should_exit = True
        thread.join()
        listener.close()


def flask_app() -> AbstractContextManager[int]:
    app = Flask("test")
    app.post("/<path:rest>")(lambda rest: for_flask.webhook(SECRET).message_id or rest)
    return wsgi(app)


def starlette_app() -> AbstractContextManager[int]:
    verified = for_starlette.webhook(SECRET)

    async def hooks(request: Request) -> PlainTextResponse:
        return PlainTextResponse((await verified(request)).message_id)

    return asgi(Starlette(routes=[Route("/{rest:path}", hooks, methods=["POST"])]))


SERVED = {
    "flask": flask_app,
    "starlette": starlette_app,
    "django on WSGI": lambda: wsgi(get_wsgi_application()),
    "django on ASGI": lambda: asgi(get_asgi_application()),
}


@pytest.mark.usefixtures("django")
@pytest.mark.parametrize("served", SERVED)
@pytest.mark.parametrize("target", ["/hooks", "/a%2Fb%20c/%C3%A9%3F/~:x?q=%2F%C3%A9&r=+", "/a//b%25/?"])
def test_a_signature_over_the_request_fits_its_path_as_it_was_sent(served: str, target: str) -> None:
    with SERVED[served]() as port:  # type: ignore[no-untyped-call]
        url = f"http://127.0.0.1:{port}{target}"
        fields, body = (("webhook-id", "msg_1"), ("content-type", "application/json")), b"{}"
        policy = SigningPolicy(("http-message",), secrets=(SECRET,))
        signature = sign_message(policy, method="POST", url=url, fields=fields, body=body, created=int(time.time()))
        connection = HTTPConnection("127.0.0.1", port, timeout=20)
        connection.request("POST", target, body, {**dict(fields), **dict(signature), "ce-id": "m"})
        response = connection.getresponse()
        assert (response.status, response.read()) == (200, b"m")
        connection.close()


@pytest.mark.usefixtures("django")
@pytest.mark.parametrize("served", ["django on WSGI", "django on ASGI"])
@pytest.mark.parametrize(("secret", "expected"), [(SECRET, (200, b"m")), (OTHER_SECRET, (401, None))])
def test_a_view_of_django_may_be_a_coroutine(served: str, secret: str, expected: tuple[int, bytes | None]) -> None:
    with SERVED[served]() as port:  # type: ignore[no-untyped-call]
        policy = SigningPolicy(("standard",), secrets=(secret,))
        signature = sign(policy, webhook_id="msg_1", timestamp=int(time.time()), body=b"{}")
        connection = HTTPConnection("127.0.0.1", port, timeout=20)
        connection.request("POST", "/async", b"{}", {"webhook-id": "msg_1", "ce-id": "m", **dict(signature)})
        response = connection.getresponse()
        assert (response.status, response.read() if response.status == 200 else None) == expected
        connection.close()
