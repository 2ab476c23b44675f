"""Payloads that are encrypted with keys that the receiver publishes: while its key set cannot be fetched, is replaced,
or the process dies, each message arrives once, encrypted with a key that was published then."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import pytest
from jwcrypto.jwk import JWK

from relay.config.settings import Settings
from relay.domain.exchange import Response
from relay.domain.identity import DeliveryId
from relay.domain.jwe import decrypt
from relay.domain.receiver import Encryption
from tests.fakes.replaying import ReplayProcess, ReplayWorld
from tests.fakes.strikes import CRASHES, Fuse, Strikes, crash_at_each
from tests.fakes.surroundings import Surroundings
from tests.fakes.virtual_time import run_virtually
from tests.fakes.world import Process, World, message, receiver
from workers.payload_encryption import FRESH_S, USABLE_S

OLD, NEW = (JWK.generate(kty="EC", crv="P-256", kid=kid, use="enc") for kid in ("old", "new"))
PRIVATE = {key["kid"]: key.export_private() for key in (OLD, NEW)}


@dataclass
class Publishing(Surroundings):
    """`published`: keys of the set at /keys; None: it cannot be fetched."""

    published: Sequence[JWK] | None = None
    fetches: list[int] = field(default_factory=list)

    def _get(self, path: str) -> Response:
        if path != "/keys":
            return super()._get(path)
        found = Response(503, {}, b"")
        if self.published is not None:
            keys = [key.export_public(as_dict=True) for key in self.published]
            found = Response(200, {}, json.dumps({"keys": keys}).encode())
        self.fetches.append(found.status)
        return found


async def _story(fuse: Fuse) -> None:
    """Two messages come before there is a key set, and two after it has been replaced. The process that goes on then,
    each time, may die."""
    encrypted = replace(receiver("r", "/answer", status=True, timeout=2.0), encrypt=Encryption((), "http://r/keys"))
    world, outside = World([encrypted]), Publishing()
    world.outside = outside
    await world.create()
    await world.send(message(0, "a", "r"), message(1, "a", "r"))
    await world.run(fuse, 12)
    outside.published = [OLD]
    await world.run(fuse, 12)
    await world.run(Fuse(), 30)
    assert outside.arrived("/answer") == ["a-0", "a-1"]
    outside.published = [NEW]
    await world.send(message(2, "a", "r"))
    await world.run(fuse, 12)
    await world.send(message(3, "a", "r"))
    await world.run(Fuse(), 30)
    assert await world.is_at_rest(), fuse.place
    assert outside.arrived("/answer") == [f"a-{number}" for number in range(4)], fuse.place
    for (_, headers, body), kid in zip(_deliveries(outside), ("old", "old", "new", "new"), strict=True):
        assert json.loads(decrypt([PRIVATE[kid]], body)[0])["n"] == int(headers["ce-id"][-1]), fuse.place


def _deliveries(outside: Publishing) -> list[tuple[str, dict[str, str], bytes]]:
    return [(path, dict(headers), body) for path, headers, body in outside.posts if path == "/answer"]


@CRASHES
def test_a_crash_at_each_step_sends_nothing_in_plain_text_and_all_once(late: bool, strikes: Strikes) -> None:
    crash_at_each(_story, strikes, late=late)


@pytest.mark.parametrize(("away_s", "arrives"), [(FRESH_S + 60, True), (USABLE_S + 60, False)])
def test_a_set_that_cannot_be_fetched_again_is_used_for_an_hour(away_s: float, arrives: bool) -> None:
    async def story() -> None:
        world, outside = World([receiver("r", "/answer", status=True)]), Publishing(published=[OLD])
        world.known.replace(replace(world.known.receivers()["r"], encrypt=Encryption((), "http://r/keys")))
        world.outside = outside
        await world.create()
        await world.send(message(0, "a", "r"))
        process = await Process(world).run(5)
        outside.published = None
        await process.ended(away_s)
        await world.send(message(1, "a", "r"))
        await process.ended(30)
        assert outside.arrived("/answer") == ["a-0", "a-1"][: 1 + arrives]
        outside.published = [NEW]
        await process.stop(after=30)
        assert outside.arrived("/answer") == ["a-0", "a-1"]
        body = _deliveries(outside)[1][2]
        assert json.loads(decrypt([PRIVATE["old" if arrives else "new"]], body)[0])["n"] == 1

    run_virtually(story())


@pytest.mark.parametrize("lane", ["dedicated", "shared"])
async def test_what_waits_for_a_key_set_can_be_discarded(lane: str) -> None:
    world, outside = ReplayWorld(), Publishing()
    world.outside = outside
    await world.create("r", lane=lane, encrypt={"jwks_url": "http://r/keys"})
    await world.send(message(0, "a", "r"), message(1, "a", "r"))
    process = await ReplayProcess(world).run(12)
    delivery = DeliveryId("r", "a", "a-0")
    assert await process.replay_service.discard_waiting(delivery, await world.row(*delivery))
    await process.ended(12)
    assert [letter.dead.reason for letter in world.letters()] == ["discarded"]
    outside.published = [OLD]
    await process.stop(after=30)
    assert outside.arrived("/answer") == ["a-1"]


@pytest.mark.parametrize("is_readable", [True, False])
async def test_a_process_without_a_secret_of_the_receiver_writes_no_payload_in_plain_text(is_readable: bool) -> None:
    """Without the key, too, the dead letter has no payload."""
    world = await ReplayWorld(settings=Settings(receivers_file="none", window_records=1)).create()
    key = OLD.export_public(as_dict=True) if is_readable else {"kty": "EC", "crv": "P-256", "x": "${X}", "y": "${Y}"}
    await world.declare("r", lane="shared", encrypt={"jwk": key}, signature="standard", secret="${NAME}")
    await world.send(message(0, "a", "r"), message(1, "a", "r"))
    process = await ReplayProcess(world).ready()
    await process.ended(10)
    assert await world.parked_references() == 2
    delivery = DeliveryId("r", "a", "a-0")
    assert await process.replay_service.discard_waiting(delivery, await world.row(*delivery))
    await process.stop()
    process = ReplayProcess(world)  # takes up the parked ones
    await process.stop(after=60)
    (letter,) = world.letters()
    assert letter.dead.reason == "discarded"
    value = letter.record.value or b""
    opened = decrypt([PRIVATE["old"]], value)[0] if is_readable else value
    assert opened == (message(0, "a", "r").payload if is_readable else b"")
    assert world.outside.arrived("/answer") == []
