"""Tests that a receiver's new owner sees nothing of the former one, and that receivers see nothing of the callback:
with every request, by every caller."""

import asyncio
import json
import os
from collections.abc import AsyncIterator, Callable, Iterable
from random import Random
from typing import Any

import pytest

from relay.api import messages
from relay.domain.coordinate import Coordinate
from relay.domain.exchange import Exchange, Request, Response
from relay.domain.receiver import Life
from relay.replay.letter import Letter
from tests.integration.api_rig import document, problem
from tests.integration.tenancy_world import ADMIN, CALLBACK, KINDS, Tenants, canary, tenants

LIMITED = ("alice", "bob", "carol")
STORIES = int(os.environ.get("RELAY_TENANCY_STORIES", "3"))
"""How many are drawn; each takes some seconds."""


@pytest.fixture
async def found() -> AsyncIterator[Tenants]:
    async with tenants() as world:
        yield world


async def _nothing_leaks(world: Tenants, **own: tuple[str, ...]) -> None:
    """`own`: whose canaries each caller may see."""
    for who, of in own.items():
        for path in world.reads():
            reply = await world.ask(who, "GET", path)
            leak = world.leak(reply, path, *of)
            assert leak is None, f"{who} sees {leak} by GET {path}: {reply.text}"


async def _takes_over(world: Tenants, kind: str) -> list[str]:
    """`ci` is of alice, gets messages, and is removed; then it is registered for bob."""
    assert await world.register("alice", "ci", kind) == 201
    sent = [await world.send("alice", "ci") for _ in range(2)]
    await world.settle()
    world.incidents += [one["id"] for one in document(await world.ask("alice", "GET", "/v1/incidents"))["items"]]
    assert bool(world.incidents) == (kind in ("reject", "down"))
    await world.remove("alice", "ci")
    await world.away("ci")
    # with dead letters of before it is free for administrators alone
    assert await world.register("bob", "ci", by=ADMIN) == 201
    return sent


@pytest.mark.parametrize("kind", ["answer", "later", "reject", "down"])
async def test_the_next_owner_of_a_name_sees_and_gets_nothing_of_the_former_one(found: Tenants, kind: str) -> None:
    await _takes_over(found, kind)
    await _nothing_leaks(found, bob=("bob",), alice=("alice",), carol=("bob",))
    for who in LIMITED:
        assert document(await found.ask(who, "GET", "/v1/incidents"))["items"] == []
        for id in found.incidents:
            problem(await found.ask(who, "GET", f"/v1/incidents/{id}"), 404, "not-found")
    posts = len(found.outside.posts)
    for who in LIMITED:
        for path, body in list(found.changes()):
            reply = await found.ask(who, "POST", path, body)
            assert found.leak(reply, path, "bob") is None, f"{who}: POST {path}: {reply.text}"
            if body and body.get("dry_run") and reply.status == 200:  # type: ignore[attr-defined]
                assert document(reply)["counted"] == 0, f"{who}: {path} {body}"
    await found.settle()
    assert found.outside.posts[posts:] == []
    own = await found.send("bob", "ci")
    await found.settle()
    shown = document(await found.ask("bob", "GET", f"/v1/sources/shop/messages/{own}"))
    assert [each["attempts"] for each in shown["deliveries"]] == [1]
    assert [item["message_id"] for item in document(await found.ask("bob", "GET", "/v1/messages"))["items"]] == [own]
    assert json.loads((await found.ask("bob", "GET", f"/v1/sources/shop/messages/{own}/payload")).body)
    assert document(await found.ask("bob", "GET", "/v1/receivers/ci/stats"))["attempts"] <= 1


async def test_an_incident_of_the_next_owner_counts_no_dead_letters_of_the_former_one(found: Tenants) -> None:
    await _takes_over(found, "reject")
    patch = {"post_endpoint": f"http://reject/{canary('bob')}"}
    assert (await found.ask("bob", "PATCH", "/v1/receivers/ci", patch)).status == 200
    await found.send("bob", "ci")
    await found.settle()
    for who in ("bob", "carol"):
        seen = await _incident(found, who)
        assert (seen["count"], seen["letters"], seen["waiting"]) == (1, 1, 1)
        [letter] = document(await found.ask(who, "GET", "/v1/failed"))["items"]
        assert seen["opened_at"] == letter["failed_at"]


async def _incident(found: Tenants, who: str) -> Any:
    """The one that there is for this caller, once it is looked for anew."""
    async with asyncio.timeout(20):
        while not (listed := document(await found.ask(who, "GET", "/v1/incidents"))["items"]):  # noqa: ASYNC110 - no event
            await asyncio.sleep(0.05)
    return document(await found.ask(who, "GET", f"/v1/incidents/{listed[0]['id']}"))


async def test_the_next_owner_of_a_name_sees_no_gaps_of_the_former_one(found: Tenants) -> None:
    assert await found.register("alice", "ci", "reject", ordering="receiver", max_in_flight=1) == 201
    for owner, earlier in (("alice", 0), ("bob", 2)):
        assert (await found.ask(ADMIN, "PATCH", "/v1/receivers/ci", {"owner": owner})).status == 200
        for _ in range(2):
            await found.send(owner, "ci")
        await found.settle()
        for who in (owner, "carol", ADMIN):
            gaps = document(await found.ask(who, "GET", "/v1/receivers/ci/gaps"))["items"]
            numbers = sum(gap["last"] - gap["first"] + 1 for gap in gaps)
            assert numbers == (2 + earlier if who == ADMIN else 2), f"{who}: {gaps}"


async def test_the_next_owner_of_a_name_catches_up_with_nothing_of_the_former_one(found: Tenants) -> None:
    assert await found.register("alice", "ci", "reject", ordering="receiver", max_in_flight=1) == 201
    for _ in range(2):
        await found.send("alice", "ci")
    await found.settle()
    changed = {"owner": "bob", "post_endpoint": f"http://answer/{canary('bob')}"}
    assert (await found.ask(ADMIN, "PATCH", "/v1/receivers/ci", changed)).status == 200
    await found.send("bob", "ci")
    await found.settle()
    [headers] = [said for url, said in found.outside.posts if url == changed["post_endpoint"]]
    assert b"'relay-sequence', '3'" in headers
    assert b"relay-gap" not in headers
    reply = await found.ask("bob", "POST", "/v1/receivers/ci/catch-up", {"after": 1})
    lines = [json.loads(line) for line in reply.text.splitlines()]
    assert [line.get("reason") for line in lines if "first" in line] == ["unknown"]
    assert lines[-1]["delivered"] == 1


@pytest.mark.parametrize("more", [{}, {"batch": {"max_events": 2}}], ids=["single", "batch"])
async def test_a_410_that_comes_after_a_change_of_owner_does_not_pause_the_next_owner_s_receiver(
    found: Tenants, monkeypatch: pytest.MonkeyPatch, more: dict[str, Any]
) -> None:
    asked, now = asyncio.Event(), asyncio.Event()

    def send(_request: Request, done: Callable[[Exchange], None]) -> None:
        async def answer() -> None:
            asked.set()
            await now.wait()
            done(Response(410, {}, canary("alice").encode()))

        found.outside.tasks.add(asyncio.create_task(answer()))

    with monkeypatch.context() as patch:
        patch.setattr(found.outside, "send", send)
        assert await found.register("alice", "ci", **more) == 201
        await found.send("alice", "ci")
        await asked.wait()
    beta = {"owner": "bob", "post_endpoint": f"http://answer/{canary('bob')}"}
    assert (await found.ask(ADMIN, "PATCH", "/v1/receivers/ci", beta)).status == 200
    now.set()
    await found.settle()
    shown = await found.ask("bob", "GET", "/v1/receivers/ci")
    assert found.leak(shown, "", "bob") is None
    assert (document(shown)["condition"], document(shown)["hold"]) == ("up", None)


@pytest.mark.parametrize("refuses", [True, False])
async def test_the_way_back_to_the_sender_is_shown_to_its_receiver_as_under_way_or_failed_and_no_more(
    found: Tenants, refuses: bool
) -> None:
    found.outside.refuses = refuses
    assert await found.register("alice", "ci") == 201
    id = await found.send("alice", "ci")
    await found.settle()
    own = {"alice": ("alice",), "carol": ("alice",)}
    await _nothing_leaks(found, **own)
    status = f"/v1/sources/shop/messages/{id}"
    for who in own:
        [shown] = document(await found.ask(who, "GET", status))["deliveries"]
        expected = {
            "status": "failed" if refuses else "delivered",
            "attempts": None,
            "last_status": None,
            "detail": None,
        }
        assert shown["callback"] == expected
        for path, body in list(found.changes()):
            if isinstance(body, dict) and body.get("only_failed") is False:
                continue  # what its receiver has it may ask for once more
            reply = await found.ask(who, "POST", path, body)
            assert found.leak(reply, path, "alice") is None, f"{who}: POST {path}: {reply.text}"
            if isinstance(body, dict) and body.get("dry_run") and reply.status == 200:
                assert document(reply)["counted"] == 0, f"{who}: {path} {body}"
    await found.settle()
    assert [url for url, _ in found.outside.posts if CALLBACK in url] == [f"http://callback/{CALLBACK}"]


async def test_whose_source_it_is_sees_the_way_back_and_has_it_tried_again(found: Tenants) -> None:
    found.outside.refuses = True
    assert await found.register("alice", "ci") == 201
    await found.send("alice", "ci")
    await found.settle()
    await found.key("both", "receiver:ci", "read:shop")
    for who in ("sender", "both", ADMIN):
        [letter] = document(await found.ask(who, "GET", "/v1/failed"))["items"]
        assert (letter["reason"], letter["stage"], letter["last_status"]) == ("callback_rejected", "to_sender", 400)
    found.outside.refuses = False
    counted = document(await found.ask("both", "POST", "/v1/replays", {"receiver": "ci", "dry_run": True}))
    assert (counted["counted"], counted["to_send"]) == (1, 1)
    assert (await found.ask("both", "POST", letter["replay"])).status == 202
    await found.settle()
    assert [url for url, _ in found.outside.posts] == [
        f"http://answer/{canary('alice')}",
        *[f"http://callback/{CALLBACK}"] * 2,
    ]


# --- stories that are drawn -----------------------------------------------------------------------------------------


async def _stories(seeds: Iterable[int]) -> None:
    """Run a random story per seed. Raises AssertionError if a canary is seen by, or sent to, another tenant."""
    for seed in seeds:
        async with tenants() as found:
            await _run_story(found, Random(seed))


async def _run_story(found: Tenants, chance: Random) -> None:
    """Two tenants own `ci` in turn, with messages, failures and callbacks. Then each caller reads everything."""
    owner: str | None = None
    found.outside.refuses = chance.random() < 0.7
    for _ in range(chance.randint(5, 9)):
        deed = chance.choice(("send", "send", "pass on", "pass on", "settle", "callback", "ask"))
        if owner is None or deed == "pass on":
            owner = await _passed_on(found, chance, owner)
        elif deed == "send":
            await found.send(owner, "ci")
        elif deed == "settle":
            await found.settle()
        elif deed == "callback":
            found.outside.refuses = not found.outside.refuses
        else:
            await _asked(found, owner)
    await found.settle()
    assert owner is not None
    await _asked(found, owner)


async def _passed_on(found: Tenants, chance: Random, owner: str | None) -> str:
    """Give the name to the other tenant: remove the receiver, or have an administrator change its owner."""
    heir, kind = "bob" if owner == "alice" else "alice", chance.choice(KINDS)
    if owner is not None and chance.random() < 0.3:
        patch = {"owner": heir, "post_endpoint": f"http://{kind}/{canary(heir)}"}
        assert (await found.ask(ADMIN, "PATCH", "/v1/receivers/ci", patch)).status == 200
        return heir
    if owner is not None:
        await found.remove(owner, "ci")
        if chance.random() < 0.5:
            await found.away("ci")
    assert await found.register(heir, "ci", kind, by=ADMIN) == 201
    return heir


async def _asked(found: Tenants, owner: str) -> None:
    """Each caller reads everything, and each but the present owner replays and discards everything."""
    await _nothing_leaks(found, **{who: (owner if who == "carol" else who,) for who in LIMITED})
    for who in LIMITED:
        for path, body in list(found.changes()):
            reply = await found.ask(who, "POST", path, body)
            leak = found.leak(reply, path, owner if who == "carol" else who)
            assert leak is None, f"{who} sees {leak} by POST {path}: {reply.text}"
    await found.settle()
    for who in ("alice", "bob"):
        leak = found.leak_in(found.heard[who], who)
        assert leak is None, f"{who} sees {leak} by the tail: {found.heard[who]}"
    assert CALLBACK not in found.heard["carol"], f"carol sees the callback by the tail: {found.heard['carol']}"
    for url, sent in found.outside.posts:
        to = next((who for who in ("alice", "bob") if canary(who) in url), None)
        others = [who for who in ("alice", "bob") if to not in (None, who) and canary(who).encode() in sent]
        assert not others, f"{url} got what is for {others}: {sent!r}"


@pytest.mark.parametrize("seed", range(STORIES))
async def test_whatever_happens_to_a_name_no_tenant_sees_or_gets_what_is_anothers(seed: int) -> None:
    await _stories([seed])


def _has(_life: Life, _id: str, _origin: Coordinate | None = None) -> bool:
    return True


FLAWS: dict[str, tuple[object, str, object]] = {
    "the life of a name counts for nothing": (Life, "has", _has),
    "the way back is shown to receivers": (Letter, "is_of_sender", False),
    "a message from before a name was registered is routed to it": (Life, "began_before", lambda _life, *_: True),
    "a receiver sees all of how its result comes back": (messages, "of_receivers", lambda shown: shown),
}


@pytest.mark.parametrize(
    "flaw", [pytest.param(flaw, marks=[pytest.mark.slow] * (number > 0)) for number, flaw in enumerate(FLAWS)]
)
async def test_a_planted_leak_is_found(monkeypatch: pytest.MonkeyPatch, flaw: str) -> None:
    place, name, planted = FLAWS[flaw]
    monkeypatch.setattr(place, name, planted)
    with pytest.raises(AssertionError, match=r" sees | got what is for "):
        await _stories(range(20))
