"""A name that was another's shows its new owner nothing of before, and what is on its way back to a sender shows
receivers nothing: whatever is asked, and whoever asks."""

import json
from collections.abc import AsyncIterator

import pytest

from tests.integration.api_rig import document
from tests.integration.tenancy_world import ADMIN, CALLBACK, Tenants, canary, tenants

LIMITED = ("alice", "bob", "carol")


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
    """`ci` is of alice, gets messages, and is removed; then bob registers that name."""
    assert await world.register("alice", "ci", kind) == 201
    sent = [await world.send("alice", "ci") for _ in range(2)]
    await world.settle()
    await world.remove("alice", "ci")
    await world.away("ci")
    for letter in document(await world.ask(ADMIN, "GET", "/v1/failed"))["items"]:
        # a name with dead letters is not free for owners, until an administrator has seen to them
        await world.world.state.drop_failed(await world.world.state.failed(letter["receiver"], limit=10))
    assert await world.register("bob", "ci") == 201
    return sent


@pytest.mark.parametrize("kind", ["answer", "later", "reject", "down"])
async def test_the_next_owner_of_a_name_sees_and_gets_nothing_of_the_former_one(found: Tenants, kind: str) -> None:
    await _takes_over(found, kind)
    await _nothing_leaks(found, bob=("bob",), alice=("alice",), carol=("bob",))
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
