"""Tests of the overview and the lanes over HTTP."""

import asyncio
import json
from typing import Any

import pytest

from relay.domain.coordinate import Coordinate
from relay.domain.hold import hold
from relay.domain.hop import Hop, encode_hop
from relay.domain.identity import DeliveryId
from relay.domain.statistics import NUMBERS, OUTCOMES, Counted
from relay.log.port import NewRecord
from relay.state.port import FailedEntry, Lane
from relay.state.read_model import UNSERVED_S, LaneHeartbeat, LastAttempt, Tally
from relay.state.replies import answered, of
from relay.state.rows import Parked, callback_row, delivery_row
from tests.integration.api_rig import NOW, Rig, document, problem, running_api
from tests.integration.api_rig import rig as rig


async def overview(rig: Rig) -> Any:
    reply = await rig.get("/v1/overview")
    assert reply.status == 200, reply
    return document(reply)


async def serve_all(rig: Rig) -> None:
    topics = [spec for spec in rig.topics.fixed() if spec.name in rig.topics.fixed_groups()]
    await rig.state.keep_heartbeats(
        [LaneHeartbeat(spec.name, number) for spec in topics for number in range(spec.partitions)]
    )


async def test_what_flows_is_told_by_stage_in_the_order_of_the_way(rig: Rig) -> None:
    await serve_all(rig)
    await rig.log.append([NewRecord(rig.topics.from_sender, b"github", b"{}")])
    found = await overview(rig)
    names = [stage["name"] for stage in found["stages"]]
    assert names == ["from_sender", "to_receiver", "pending", "to_sender", "failed_messages"]
    assert [stage["lag"] for stage in found["stages"]] == [1, 0, 0, 0, 0]
    assert found["rates"] is None
    rig.clock.now += 10
    await serve_all(rig)
    await rig.log.append([NewRecord(rig.topics.from_sender, b"github", b"{}")] * 5)
    found = await overview(rig)
    assert found["rates"]["received"] == 0.5
    assert found["stages"][0]["come"] == 0.5


async def test_what_is_parked_is_counted_where_it_waits(rig: Rig) -> None:
    at, message, asked = Coordinate("parked_messages", 0, 0), *(DeliveryId("ci", "github", id) for id in "12")
    rows = (callback_row(asked, 0), False), (delivery_row(message), False), (delivery_row(asked), True)
    parked_ones = [Parked(row, 0, at, 60.0, b"queue", 0, poll=poll) for row, poll in rows]
    await answered(rig.state.park(of(Lane("t", 0, 1), parked_ones)))
    found = await overview(rig)
    parked = {stage["name"]: stage["parked"] for stage in found["stages"] if stage["parked"] is not None}
    assert (found["parked"], parked) == (3, {"to_receiver": 1, "pending": 1, "to_sender": 1})


async def test_a_look_is_shared_for_a_second(rig: Rig) -> None:
    await overview(rig)
    await rig.log.append([NewRecord(rig.topics.from_sender, b"github", b"{}")])
    assert (await overview(rig))["stages"][0]["lag"] == 0
    rig.clock.now += 1
    assert (await overview(rig))["stages"][0]["lag"] == 1


async def test_lanes_that_nobody_serves_are_told_of_first(rig: Rig) -> None:
    await serve_all(rig)
    assert not [item for item in (await overview(rig))["attention"] if item["kind"] == "no_worker"]
    rig.state.advance(UNSERVED_S + 1)
    rig.clock.now += UNSERVED_S + 1
    found = await overview(rig)
    assert {item["kind"] for item in found["attention"]} == {"no_worker"}
    assert {item["severity"] for item in found["attention"]} == {"error"}


async def test_dead_letters_of_the_hour_are_counted_and_can_be_replayed(rig: Rig) -> None:
    await serve_all(rig)
    await rig.state.index_failed(
        [
            FailedEntry("ci", Coordinate("failed_messages", 0, n), NOW - age, "exhausted", "github", f"m-{n}")
            for n, age in enumerate([1, 2, 3, 4, 5, 4_000])
        ]
    )
    found = await overview(rig)
    assert found["failures"]["count"] == 5
    assert found["failures"]["by"][0]["reason"] == "exhausted"
    [item] = found["attention"]
    assert (item["kind"], item["subject"]) == ("failed", "ci")
    action = item["action"]
    reply = await rig.post(action["path"], json.dumps(action["body"]).encode(), content_type="application/json")
    assert reply.status == 202, reply


async def test_the_endpoints_that_are_not_well_come_worst_first(rig: Rig) -> None:
    await serve_all(rig)
    assert (await overview(rig))["not_well"] == []
    rig.broker.now_ms = lambda: int((NOW - 90) * 1000)
    for topic, receiver in ((rig.topics.to_receiver("shared"), "ci"), (rig.topics.to_sender, "cd")):
        hop = Hop(DeliveryId(receiver, "github", "m-1"))
        await rig.log.append([NewRecord(topic, receiver.encode(), b"{}", encode_hop(hop))])
    numbers = [0] * NUMBERS
    numbers[OUTCOMES.index("not_processed")] = 4
    down = Counted(tuple(numbers))
    last = LastAttempt(NOW, None, "refused", 0.1)
    await rig.state.tally("one", 1, [Tally("s:github", down, last)])
    rig.clock.now += 1
    found = (await overview(rig))["not_well"]
    assert [(one["type"], one["name"], one["health"]["state"]) for one in found] == [
        ("source", "github", "down"),
        ("receiver", "ci", "degraded"),
    ]
    assert [one["health"]["oldest_waiting_s"] for one in found] == [91, 91]


async def test_parts_that_are_away_and_warnings_are_told(rig: Rig) -> None:
    await serve_all(rig)
    rig.trouble["log"] = "the brokers do not answer"
    [item] = (await overview(rig))["attention"]
    assert (item["kind"], item["detail"]) == ("part_away", "the brokers do not answer")


async def test_lanes_can_be_chosen_and_come_in_parts(rig: Rig) -> None:
    await rig.state.keep_heartbeats([LaneHeartbeat(rig.topics.to_sender, 3)])
    some = document(await rig.get("/v1/lanes?role=to-sender&limit=4"))
    assert [item["partition"] for item in some["items"]] == [0, 1, 2, 3]
    assert [item["served"] for item in some["items"]] == [False, False, False, True]
    rest = document(await rig.get(f"/v1/lanes?role=to-sender&cursor={some['cursor']}"))
    assert [item["partition"] for item in rest["items"]] == [4, 5, 6, 7, 8, 9]
    assert rest["cursor"] is None
    [served] = document(await rig.get("/v1/lanes?served=true"))["items"]
    assert (served["topic"], served["group"]) == (rig.topics.to_sender, rig.topics.group("to-sender"))
    problem(await rig.get("/v1/lanes?served=perhaps"), 400, "invalid-request")


async def test_settings_in_force_are_told_with_where_each_comes_from_and_no_secret(rig: Rig) -> None:
    reply = await rig.get("/v1/settings")
    found = {item["name"]: item for item in document(reply)["items"]}
    assert found["hold_max"] == {"name": "hold_max", "value": "7s", "source": "RELAY_HOLD_MAX"}
    assert found["api_port"] == {"name": "api_port", "value": "8080", "source": "default"}
    assert found["answer_secret"]["source"] == "RELAY_ANSWER_SECRET"
    assert "nobody-is-shown-this" not in reply.text


async def test_who_is_held_is_told_with_the_way_back(rig: Rig) -> None:
    await serve_all(rig)
    registrar = rig.context.registrar
    assert registrar is not None
    body = json.dumps(
        {
            "name": "new",
            "post_endpoint": "https://new.example/hooks",
            "secret": "whsec_bmV3LW5ldy1uZXctbmV3LW5ldy1uZXctbmV3LW5ldw==",
        }
    ).encode()
    assert (await rig.post("/v1/receivers", body, content_type="application/json")).status == 201
    await registrar.registry.catch_up()
    await rig.state.hold("r:new", hold("gone", NOW, "it said so"))
    found = [item for item in (await overview(rig))["attention"] if item["subject"] == "new"]
    assert [item["kind"] for item in found] == ["gone"]
    assert found[0]["action"]["path"] == "/v1/receivers/new/resume"
    await rig.state.resume("r:new")
    rig.clock.now += 1
    assert not [item for item in (await overview(rig))["attention"] if item["subject"] == "new"]


async def test_a_log_that_is_silent_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """An operator who opens a page learns that soon."""
    for bound in ("PATIENCE_S", "PROBE_S"):
        monkeypatch.setattr(f"relay.log.prompt.{bound}", 0.01)
    async with running_api() as rig:

        async def silent(*_: object) -> None:
            await asyncio.Event().wait()

        assert (await rig.post("/v1/sources/github/messages?receiver=ci", ce_id="m-1")).status == 202
        for call in ("backlogs", "read", "cluster_id"):
            monkeypatch.setattr(type(rig.log), call, silent)
        rig.trouble["log"] = "it has not answered for 3 s"
        for path in ("/v1/overview", "/v1/lanes", "/v1/failed/groups", "/v1/sources/github/messages/m-1"):
            problem(await rig.get(path), 503, "unavailable")
        [one] = document(await rig.get("/v1/incidents"))["items"]
        assert (one["kind"], one["party"]["name"]) == ("store_away", "log")
