"""Tests of a repeated webhook: per the source's setting, a failed delivery is sent again, or each, or none."""

import hashlib
import hmac
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest

from relay.domain.identity import DeliveryId
from relay.domain.receiver import Inbound, Life, Redelivery
from relay.domain.topics import TopicSpec
from relay.state.rows import Mark, Stage, delivery_row
from tests.integration.api_rig import Rig, document, problem, running_api
from tests.integration.test_api_replays import add_dead_letter, post, sent

BODY = b'{"n": 1}'


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    async with running_api() as found:
        lanes = [found.topics.to_receiver("ci"), found.topics.pending("ci")]
        await found.log.create([TopicSpec(lane, 1) for lane in lanes], {})
        set_redelivery(found, "failed")
        yield found


def set_redelivery(rig: Rig, redelivery: Redelivery) -> None:
    rig.directory.inbound["github"] = Inbound("github", ("s",), ("ci",), redelivery=redelivery)


async def webhook(rig: Rig, body: bytes = BODY) -> Any:
    """The response to a signed repeat of m-1."""
    mac = hmac.new(b"s", body, hashlib.sha256).hexdigest()
    headers = {"x-github-event": "push", "x-github-delivery": "m-1", "x-hub-signature-256": f"sha256={mac}"}
    reply = await rig.request("POST", "/v1/in/github", body, headers | {"content-type": "application/json"})
    assert (reply.status, document(reply)["duplicate"]) == (202, True), reply.text
    return document(reply)


async def mark(rig: Rig, generation: int, stage: Stage) -> None:
    await rig.state.mark([Mark(delivery_row(DeliveryId("ci", "github", "m-1")), generation, stage)])


async def test_what_has_failed_is_sent_once_more_and_what_is_under_way_is_not(rig: Rig) -> None:
    await add_dead_letter(rig, 1)
    view = await webhook(rig)
    assert view["deliveries"] == [{"receiver": "ci", "status": "arrived", "generation": 1, "reason": None}]
    assert (view["status"], view["detail"]) == ("arrived", "It came before, and is sent once more to: ci")
    assert sent(rig) == [("m-1", b"1")]
    await webhook(rig)
    assert set(sent(rig)) == {("m-1", b"1")}  # the same life again, which its lane knows to be one
    await mark(rig, 1, Stage.AWAITING)
    before = sent(rig)
    view = await webhook(rig)
    assert (view["deliveries"][0]["generation"], view["detail"]) == (1, None)
    assert sent(rig) == before
    assert len(rig.records(rig.topics.from_sender)) == 1


async def test_what_was_delivered_is_not_sent_once_more(rig: Rig) -> None:
    await add_dead_letter(rig, 1)
    await mark(rig, 3, Stage.DONE)
    view = await webhook(rig)
    assert (view["deliveries"][0]["generation"], view["detail"]) == (3, None)
    assert sent(rig) == []


async def test_always_is_also_what_was_delivered_but_not_what_is_under_way(rig: Rig) -> None:
    set_redelivery(rig, "always")
    await add_dead_letter(rig, 1)
    await mark(rig, 3, Stage.DONE)
    assert (await webhook(rig))["deliveries"][0]["generation"] == 4
    assert sent(rig) == [("m-1", b"4")]
    await mark(rig, 4, Stage.AWAITING)
    assert (await webhook(rig))["detail"] is None
    assert sent(rig) == [("m-1", b"4")]


async def test_never_is_not_even_what_has_failed(rig: Rig) -> None:
    set_redelivery(rig, "never")
    await add_dead_letter(rig, 1)
    view = await webhook(rig)
    assert view["status"] == "failed"
    assert view["deliveries"] == [{"receiver": "ci", "status": "failed", "generation": 0, "reason": "rejected"}]
    assert "does not send it again" in view["detail"]
    assert sent(rig) == []


async def test_what_somebody_discarded_stays_so(rig: Rig) -> None:
    await add_dead_letter(rig, 1)
    await post(rig, "/v1/sources/github/messages/m-1/deliveries/ci/discard")
    assert (await webhook(rig))["deliveries"][0]["reason"] == "discarded"
    assert sent(rig) == []


async def test_a_letter_that_is_gone_says_that_nothing_is_sent(rig: Rig) -> None:
    await add_dead_letter(rig, 1)
    await rig.state.mark([Mark(delivery_row(DeliveryId("ci", "github", "m-1")), 1, Stage.FAILED, (0, 10**6))])
    assert "does not send it again" in (await webhook(rig))["detail"]
    assert sent(rig) == []


async def test_a_repeat_without_the_secret_sends_nothing(rig: Rig) -> None:
    await add_dead_letter(rig, 1)
    headers = {"x-github-event": "push", "x-github-delivery": "m-1", "x-hub-signature-256": "sha256=00"}
    problem(await rig.request("POST", "/v1/in/github", BODY, headers), 401, "bad-signature")
    assert sent(rig) == []


@pytest.mark.parametrize("redelivery", ["failed", "always"])
async def test_what_was_for_the_former_owner_of_a_name_is_not_sent_to_the_next_one(
    rig: Rig, redelivery: Redelivery
) -> None:
    set_redelivery(rig, redelivery)
    await add_dead_letter(rig, 1)
    if redelivery == "always":
        await mark(rig, 3, Stage.DONE)
    heir = Life("9-9", rig.topics.from_sender, (10**6,) * 64)
    rig.directory.receivers["ci"] = replace(rig.directory.receivers["ci"], owner="heir", life=heir)
    assert (await webhook(rig))["detail"] != "It came before, and is sent once more to: ci"
    assert sent(rig) == []
