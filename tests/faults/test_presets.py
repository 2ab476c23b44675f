"""Presets against their emulators: the n-th call to any port fails and takes the process with it, and no build is
started twice but after a response that was not stored."""

import json
from dataclasses import replace
from typing import Final
from unittest.mock import Mock
from urllib.parse import urlsplit

import pytest
from aiohttp import StreamReader, web
from aiohttp.base_protocol import BaseProtocol
from aiohttp.test_utils import make_mocked_request

from relay.config.receivers_file import parse_receivers_file
from relay.domain.exchange import Exchange, Request, Response
from relay.domain.message import Message
from relay.domain.receiver import Receiver
from relay.sink.emulators import EMULATORS, Emulator
from tests.fakes.strikes import STRIKES, Fuse, Strikes, crash_at_each
from tests.fakes.surroundings import Surroundings
from tests.fakes.world import World

PAYLOAD: Final = json.dumps({"ref": "refs/heads/main", "after": "a" * 40}).encode()


class Cis(Surroundings):
    """Emulated CIs in memory, by host; other hosts are as usual."""

    def __init__(self, *names: str) -> None:
        super().__init__()
        self.emulators = {name: Emulator(EMULATORS[name]) for name in names}
        self._apps = {name: emulator.app() for name, emulator in self.emulators.items()}

    async def _exchange(self, request: Request) -> Exchange:
        host = urlsplit(request.url).netloc
        if host not in self._apps:
            return await super()._exchange(request)
        return await _respond(self._apps[host], request)

    def builds(self) -> dict[str, int]:
        return {name: len(emulator.builds.started) for name, emulator in self.emulators.items()}


async def _respond(app: web.Application, request: Request) -> Response:
    parts = urlsplit(request.url)
    payload = StreamReader(Mock(BaseProtocol), 2**16)
    payload.feed_data(request.body)
    payload.feed_eof()
    headers = [("Host", parts.netloc), *request.headers]
    if request.body:
        headers.append(("Content-Length", str(len(request.body))))
    path = f"{parts.path}?{parts.query}" if parts.query else parts.path
    made = make_mocked_request(request.method, path, dict(headers), app=app, payload=payload)
    response = await app._handle(made)
    assert isinstance(response, web.Response)
    body = response.body or b""
    assert isinstance(body, bytes)
    return Response(response.status, {name.lower(): value for name, value in response.headers.items()}, body)


def _receiver(name: str) -> Receiver:
    ci = Emulator(EMULATORS[name]).ci
    entry = {"preset": name, "post_endpoint": f"http://{name}{ci.post_path}", "headers": dict([ci.credential])}
    receivers, _ = parse_receivers_file(json.dumps({"receivers": {name: entry}})).resolve({})
    found = receivers[name]
    return replace(found, post=replace(found.post, retry=replace(found.post.retry, base=1.0, cap=8.0, jitter=False)))


async def _world(name: str) -> tuple[World, Cis]:
    world, cis = World([_receiver(name)]), Cis(name)
    world.outside = cis
    await world.create()
    await world.send(Message("a", "a-1", (name,), "push", None, "application/json", PAYLOAD))
    return world, cis


@STRIKES
@pytest.mark.parametrize(("name", "after"), [*((name, True) for name in EMULATORS), ("jenkins", False)])
def test_no_crash_at_any_call_loses_a_build(name: str, after: bool, strikes: Strikes) -> None:
    """`after`: the call is made, and its reply is lost; otherwise it is not made."""

    async def story(fuse: Fuse) -> int:
        world, cis = await _world(name)
        await world.run(fuse, 200, until=lambda: bool(cis.results()))
        await world.run(Fuse(), 400, until=lambda: bool(cis.results()))
        place = fuse.place
        assert cis.results() == {("a-1", name): {"answered"}}, place
        (_, _, body), *_ = [post for post in cis.posts if post[0] == "/callback"]
        assert json.loads(body)["state"] == "success", place
        return cis.builds()[name]

    without, *builds = [count for _, count in crash_at_each(story, strikes, late=after)]
    assert without == 1
    # Jenkins finds the item that still waits with the same parameters
    assert set(builds) <= ({1} if name == "jenkins" else {1, 2})
    assert builds.count(2) <= 2, builds  # the POST, and the outcome that is written after it
