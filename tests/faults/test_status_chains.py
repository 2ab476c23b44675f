"""Chains of status steps: the n-th call to any port fails and takes the process with it, and the queue item of the
first step vanishes soon after the build has begun, as in a CI."""

import asyncio
import json
from dataclasses import replace

import pytest

from relay.domain.exchange import Response
from relay.domain.expression import STATUS, Expression
from relay.domain.receiver import Receiver, StatusStep
from relay.domain.template import template
from tests.fakes.replaying import ReplayProcess, ReplayWorld
from tests.fakes.strikes import CRASHES, Fuse, Strikes, crash_at_each
from tests.fakes.surroundings import Surroundings
from tests.fakes.virtual_time import until
from tests.fakes.world import World, message, receiver

ITEM_S = 3.0
BUILD_S = 12.0
STEPS = (
    StatusStep(template("${{ response.headers.location }}", STATUS), Expression("has(body.executable)", STATUS)),
    StatusStep(template("${{ steps[0].body.executable }}", STATUS), Expression("!body.building", STATUS)),
)


class CI(Surroundings):
    """A POST to /queue makes an item, which has a build from its second GET on, and vanishes ITEM_S later."""

    def __init__(self) -> None:
        super().__init__()
        self.begun: dict[str, float] = {}

    async def _post(self, path: str, request):  # type: ignore[no-untyped-def]
        response = await super()._post(path, request)
        if path != "/queue" or not isinstance(response, Response):
            return response
        name = dict(request.headers)["ce-id"]
        return Response(202, {"location": f"/item/{name}"}, b"")

    def _get(self, path: str) -> Response:
        kind, name = path.split("/")[1:3]
        now = asyncio.get_running_loop().time()
        self.asked[f"{kind}/{name}"] += 1
        if kind == "build":
            building = now < self.begun[name] + BUILD_S
            return Response(200, {}, json.dumps({"building": building, "built": name}).encode())
        if self.asked[f"item/{name}"] > 1:
            self.begun.setdefault(name, now)
        if now > self.begun.get(name, now) + ITEM_S:
            return Response(404, {}, b"")
        body = {"executable": f"http://ci/build/{name}"} if name in self.begun else {}
        return Response(200, {}, json.dumps(body).encode())


def _receiver() -> Receiver:
    return replace(receiver("ci", "/queue"), status_steps=STEPS, status_endpoint=None)


async def _world() -> World:
    world = World([_receiver()])
    world.outside = CI()
    await world.create()
    await world.send(message(1, "a", "ci"), message(2, "a", "ci"))
    return world


EXPECTED = {("a-1", "ci"): {"answered"}, ("a-2", "ci"): {"answered"}}


@CRASHES
def test_no_crash_at_any_call_takes_a_chain_back(late: bool, strikes: Strikes) -> None:
    async def story(fuse: Fuse) -> None:
        world = await _world()
        await world.run(fuse, 60)
        await world.run(Fuse(), 200, until=lambda: world.outside.results() == EXPECTED)
        place = fuse.place
        assert world.outside.results() == EXPECTED, place
        arrived = world.outside.arrived("/queue")  # one whose response was not stored is sent again
        assert set(arrived) == {"a-1", "a-2"}, place
        assert len(arrived) <= 3, place

    crash_at_each(story, strikes, late=late)


async def test_a_chain_whose_next_url_could_not_be_made_goes_on_where_it_was_once_that_is_mended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tests.faults.test_status_chains.ITEM_S", 3_600.0)
    world = ReplayWorld()
    world.outside = CI()
    await world.create()

    async def declare(build: str) -> None:
        item = {"url": "${{ response.headers.location }}", "until": "has(body.executable)"}
        steps = [item, {"url": build, "until": "!body.building"}]
        await world.declare("ci", "/queue", status_steps=steps, answer="required", answer_deadline=60)

    await declare("${{ steps[0].body.missing }}")
    await world.send(message(1, "a", "ci"))
    process = ReplayProcess(world)
    await until(world.is_at_rest)
    assert [letter.reason for letter in world.letters()] == ["answer_timeout"]
    assert "missing" in world.letters()[0].dead.detail
    await declare("${{ steps[0].body.executable }}")
    await process.order()
    await process.ended(50)
    assert world.outside.results() == {("a-1", "ci"): {"failed", "answered"}}
    assert world.outside.arrived("/queue") == ["a-1"]
    await process.stop()
