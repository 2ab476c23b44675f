"""Tests of keys for receivers and owners: they see and change what belongs to them, and nothing else."""

from dataclasses import replace

import pytest

from relay.domain.hop import Hop, encode_hop
from relay.domain.identity import DeliveryId
from relay.log.port import NewRecord
from relay.state.rows import Mark, Stage, delivery_row
from tests.integration.api_rig import NOW, Rig, document, problem
from tests.integration.test_api_keys import ADMIN, bearer
from tests.integration.test_api_keys import rig as rig

WAITS = ("", "?wait=0.01")

# --- messages -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scope", ["receiver:cd", "owner:alice"])
async def test_who_has_a_receiver_sees_its_deliveries_of_a_message_alone(rig: Rig, scope: str) -> None:
    rig.directory.receivers["cd"] = replace(rig.directory.receivers["cd"], owner="alice")
    target = "/v1/sources/calls/messages"
    for id, query in (("both", "receiver=ci&receiver=cd"), ("ci", "receiver=ci"), ("cd", "receiver=cd")):
        assert (await rig.request("POST", f"{target}?{query}", b"{}", ADMIN | {"ce-id": id})).status == 202
    headers = bearer(await rig.keys.make(scope, "read:github", now=NOW))
    for id in ("both", "cd"):
        seen = document(await rig.request("GET", f"{target}/{id}", b"", headers))
        assert [each["receiver"] for each in seen["deliveries"]] == ["cd"]
    told = [await rig.request("GET", f"{target}/{id}{q}", b"", headers) for id in ("ci", "none") for q in WAITS]
    assert len({reply.body.replace(b"/none", b"/ci") for reply in told}) == 1
    assert {problem(reply, 403, "forbidden")["type"] for reply in told} == {"/problems/forbidden"}
    waited = await rig.request("GET", f"{target}/both?wait=0.01", b"", headers)
    assert (waited.status, [each["receiver"] for each in document(waited)["deliveries"]]) == (202, ["cd"])
    problem(await rig.request("GET", f"{target}/both?wait=1", b"", ADMIN), 400, "invalid-request")


async def test_how_an_answer_comes_back_is_no_matter_of_the_receivers(rig: Rig) -> None:
    sent = await rig.request("POST", "/v1/sources/calls/messages?receiver=cd", b"{}", ADMIN | {"ce-id": "m"})
    assert sent.status == 202
    delivery = DeliveryId("cd", "calls", "m")
    result = encode_hop(Hop(delivery, outcome="answered", answer_status=200))
    [at] = await rig.log.append([NewRecord(rig.topics.to_sender, b"calls", b"fine", result)])
    await rig.state.mark([Mark(delivery_row(delivery), 0, Stage.PUBLISHED, (at.partition, at.offset))])
    views = [
        document(await rig.request("GET", "/v1/sources/calls/messages/m", b"", headers))["deliveries"][0]
        for headers in (ADMIN, bearer(await rig.keys.make("receiver:cd", now=NOW)))
    ]
    assert [view["answer"]["body"] for view in views] == ["fine", "fine"]
    under_way = {"status": "pending", "attempts": None, "last_status": None, "detail": None}
    assert views[0]["callback"] == under_way | {"attempts": 0}
    assert views[1] == views[0] | {"callback": under_way, "state": "returning"} | dict.fromkeys(
        ("waiting_for", "advice")
    )


async def test_while_memory_is_lost_nothing_tells_more_than_otherwise(rig: Rig) -> None:
    rig.state.lose()
    await rig.state.ready(sorted(await rig.state.lost()), in_doubt_s=60)
    await rig.request("POST", "/v1/sources/github/messages?receiver=ci", b"{}", ADMIN | {"ce-id": "ci"})
    headers = bearer(await rig.keys.make("receiver:cd", now=NOW))
    for id in ("ci", "none"):
        problem(await rig.request("GET", f"/v1/sources/github/messages/{id}", b"", headers), 503, "unavailable")
