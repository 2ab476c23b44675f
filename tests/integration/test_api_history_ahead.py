"""Tests of lists whose history lacks the latest records: they show what the state knows."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from relay.domain.hold import Hold
from relay.domain.identity import DeliveryId
from relay.domain.reasons import replaced_detail
from relay.domain.result_delivery import Handover, to_code
from relay.log.port import TopicPartition
from relay.state.attempts import BeginRequest, Change, Settlement
from relay.state.port import Lane
from relay.state.read_model import LaneHeartbeat
from relay.state.rows import Mark, Result, RowKey, Stage, delivery_row
from tests.browser.dev_relay import DevRelay
from tests.contract.history_facts import arrival, attempt, ending, put
from tests.contract.state_contract import LIMITS
from tests.integration.api_rig import document, problem
from tests.integration.history_world import World
from tests.integration.history_world import at as at
from tests.integration.test_api_keys import ADMIN
from tests.integration.test_history_dev import saying
from tests.servers.asking import until


async def test_a_callback_that_nobody_told_of_is_listed_as_the_state_knows_it(at: World) -> None:
    answered = [arrival(number, source="app", receivers=("ci",)) for number in (5, 6, 7)]
    await put(at.history, *answered, *(ending(f"m-{n}", source="app", offset=n, at=n) for n in (5, 6, 7)))
    done = to_code(Handover.DELIVERED, 1)
    of_five, of_six = (delivery_row(DeliveryId("ci", "app", f"m-{number}")) for number in (5, 6))
    await at.rig.state.mark([Mark(of_five, 0, Stage.DONE, (0, 5), done)])
    await at.rig.state.mark([Mark(of_six, 1, Stage.DONE, (0, 6), done)])  # a later life
    items = document(await at.get("/v1/messages?source=app"))["items"]
    assert [(item["message_id"], item["status"], item["deliveries"][0]["generation"]) for item in items] == [
        ("m-7", "response_received_from_receiver", 0),
        ("m-6", "response_delivered_to_sender", 1),
        ("m-5", "response_delivered_to_sender", 0),
    ]
    assert await at.ids("source=app&status=response_received_from_receiver") == ["m-7"]
    assert await at.ids("source=app&status=response_received_from_receiver", "receiver:ci") == ["m-7"]


async def both(at: World, message_id: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The delivery as the message's URL shows it, and as the list shows it."""
    url = f"/v1/sources/app/messages/{message_id}"
    [one] = document(await at.rig.request("GET", url, headers=ADMIN))["deliveries"]
    [item] = document(await at.get(f"/v1/messages?source=app&id={message_id}"))["items"]
    [listed] = item["deliveries"]
    return one, listed


async def accept(at: World, number: int) -> RowKey:
    """A message to `ci`, which the history has, too. Returns the row of its delivery."""
    path = "/v1/sources/app/messages?receiver=ci"
    assert (await at.rig.request("POST", path, b"{}", ADMIN | {"ce-id": f"m-{number}"})).status == 202
    await put(at.history, arrival(number, source="app", receivers=("ci",)))
    return delivery_row(DeliveryId("ci", "app", f"m-{number}"))


@pytest.mark.parametrize(
    ("reason", "detail"),
    [("discarded", "by hand"), ("cancelled", "before it was sent"), ("replaced", replaced_detail("m-7"))],
)
async def test_what_was_ended_on_purpose_is_listed_so_before_its_lane_reaches_it(
    at: World, reason: str, detail: str
) -> None:
    row = await accept(at, 5)
    await put(at.history, attempt("m-5", source="app", offset=9, status=202, code="accepted"))
    result = Result("dead", reason=reason, detail=detail)
    await at.rig.state.settle([Settlement(row, 0, b"", Change.RESULT, result=result, last_status=202)])
    one, listed = await both(at, "m-5")
    names = ("status", "state", "reason", "detail", "last_status", "generation", "next_attempt_at")
    assert {name: listed[name] for name in names} == {name: one[name] for name in names}
    assert (listed["status"], listed["state"], listed["reason"]) == ("failed", "discarded", reason)
    assert listed.get("replaced_by") == one.get("replaced_by") == ("m-7" if reason == "replaced" else None)
    for query in ("status=delivered_to_receiver", "state=awaiting_answer"):
        assert await at.ids(f"source=app&{query}") == []
    last = ending("m-5", source="app", offset=5, status="failed", reason=reason, detail=detail, last_status=None)
    await put(at.history, last)
    assert (await both(at, "m-5"))[1]["last_status"] == one["last_status"] == 202


async def test_an_attempt_in_flight_is_counted_by_lists_too(at: World) -> None:
    lane = Lane(at.rig.topics.to_receiver("ci"), 0, 1)
    row = await accept(at, 5)
    await at.rig.state.begin([(lane, BeginRequest(row, 0, b"token", LIMITS))])
    one, listed = await both(at, "m-5")
    assert (one["attempts"], one["state"]) == (listed["attempts"], listed["state"])
    assert listed["attempts"] == 1


async def test_a_later_life_that_waits_for_its_answer_is_listed_before_it_has_an_attempt(at: World) -> None:
    row = await accept(at, 5)
    await put(at.history, ending("m-5", source="app", offset=5, status="failed", reason="answer_timeout"))
    await at.rig.state.mark([Mark(row, 1, Stage.AWAITING)])
    one, listed = await both(at, "m-5")
    names = ("status", "state", "reason", "detail", "generation")
    assert {name: listed[name] for name in names} == {name: one[name] for name in names}
    assert (listed["status"], listed["generation"]) == ("delivered_to_receiver", 1)


async def test_an_answer_that_nobody_wants_is_done_in_lists_and_found_as_such(at: World) -> None:
    rows = [await accept(at, number) for number in (5, 6)]
    await put(at.history, *(ending(f"m-{n}", source="app", offset=n, at=n) for n in (5, 6)))
    await at.rig.state.mark([Mark(rows[0], 0, Stage.DONE, (0, 5), to_code(Handover.UNWANTED, 0))])
    one, listed = await both(at, "m-5")
    assert (one["status"], one["state"]) == (listed["status"], listed["state"]) == ("done", "delivered")
    assert await at.ids("source=app&status=done") == ["m-5"]
    assert await at.ids("source=app&status=response_received_from_receiver") == ["m-6"]


async def test_while_the_state_is_away_the_history_is_listed_as_it_is(at: World) -> None:
    await put(at.history, arrival(5, source="app"), ending("m-5", source="app", offset=5))
    at.rig.state.away.add("row_details")
    [item] = document(await at.get("/v1/messages?source=app"))["items"]
    assert item["status"] == "response_received_from_receiver"


async def test_after_a_kill_between_a_callback_and_its_record_the_list_says_what_the_message_says(
    tmp_path: Path,
) -> None:
    data, paths = tmp_path / "data", {"PYTHONPATH": os.getcwd()}
    async with saying(200) as receiver, saying(200) as callback:
        async with DevRelay(tmp_path, paths, data=data, module="tests.integration.killed_relay") as dev:
            await dev.source("shop", callback={"url": callback})
            await dev.receiver("ci", receiver)
            await dev.send("shop", "m-1", to="ci")
            await dev.process.finish()
        async with DevRelay(tmp_path, data=data) as dev:
            await dev.until_status("shop", "m-1", "response_delivered_to_sender")
            listed: list[str] = []

            async def has_all() -> bool:
                page = await dev.call("GET", "/v1/messages?source=shop")
                listed[:] = [item["status"] for item in page["items"]]
                return page["behind_s"] == 0 and listed not in ([], ["arrived"])

            await until(has_all)
            assert listed == ["response_delivered_to_sender"]
            told = await dev.call("GET", "/v1/sources/shop/messages/m-1/attempts")
            assert [each for each in told["items"] if each["kind"] == "callback"] == []


JSON = {"Content-Type": "application/json"}


async def state_of(at: World, query: str) -> dict[str, str]:
    return {item["message_id"]: item["state"] for item in document(await at.get(f"/v1/messages?{query}"))["items"]}


async def test_a_list_says_what_unfinished_deliveries_wait_for(at: World) -> None:
    now, state = at.rig.clock.time(), at.rig.state
    lane = TopicPartition(at.rig.topics.to_receiver("ci"), 0)
    await put(at.history, *(arrival(number, source="app", receivers=("ci",)) for number in (5, 6)))
    await put(at.history, attempt("m-6", source="app", offset=9, status=503, reason="not_processed"))
    assert await state_of(at, "source=app") == {"m-6": "blocked", "m-5": "blocked"}
    [item] = document(await at.get("/v1/messages?source=app&id=m-5"))["items"]
    assert item["deliveries"][0]["waiting_for"]["kind"] == "no_worker"

    await state.keep_heartbeats([LaneHeartbeat(*lane)])
    assert await state_of(at, "source=app") == {"m-6": "retrying", "m-5": "queued"}
    await state.hold("r:ci", Hold("paused", now))
    assert await state_of(at, "source=app") == {"m-6": "blocked", "m-5": "blocked"}
    assert await state_of(at, "source=app&state=queued") == {"m-5": "blocked"}
    assert await state_of(at, "source=app&state=retrying") == {"m-6": "blocked"}
    state.away.add("row_details")
    assert await state_of(at, "source=app") == {"m-6": "retrying", "m-5": "queued"}


async def test_a_list_says_when_the_next_attempt_is(at: World) -> None:
    row = delivery_row(DeliveryId("ci", "app", "m-5"))
    await put(at.history, arrival(5, source="app", receivers=("ci",)))
    await at.rig.state.begin([(Lane(at.rig.topics.to_receiver("ci"), 0, 1), BeginRequest(row, 0, b"token", LIMITS))])
    await at.rig.state.settle([Settlement(row, 0, b"token", Change.RETRY, due_in_s=30.0)])
    await at.rig.state.keep_heartbeats([LaneHeartbeat(at.rig.topics.to_receiver("ci"), 0)])
    [item] = document(await at.get("/v1/messages?source=app"))["items"]
    [delivery] = item["deliveries"]
    assert (item["state"], delivery["state"], delivery["waiting_for"]["kind"]) == ("retrying", "retrying", "retry")
    assert delivery["next_attempt_at"] == delivery["waiting_for"]["until"]


async def test_a_list_has_the_attempts_that_count_as_the_message_has(at: World) -> None:
    row, lane = delivery_row(DeliveryId("ci", "app", "m-5")), at.rig.topics.to_receiver("ci")
    sent = await at.rig.request("POST", "/v1/sources/app/messages?receiver=ci", b"{}", ADMIN | {"ce-id": "m-5"})
    assert sent.status == 202
    await put(at.history, arrival(5, source="app", receivers=("ci",)))
    await put(at.history, attempt("m-5", source="app", offset=9, status=429, code="not_now", counted=False))
    await at.rig.state.begin([(Lane(lane, 0, 1), BeginRequest(row, 0, b"token", LIMITS))])
    await at.rig.state.settle([Settlement(row, 0, b"token", Change.RETRY, due_in_s=30.0, counted=False)])
    await at.rig.state.keep_heartbeats([LaneHeartbeat(lane, 0)])
    [one] = document(await at.get("/v1/sources/app/messages/m-5"))["deliveries"]
    [item] = document(await at.get("/v1/messages?id=m-5"))["items"]
    [listed] = item["deliveries"]
    assert (one["attempts"], one["state"]) == (listed["attempts"], listed["state"]) == (0, "retrying")
    assert await at.ids("source=app&state=retrying") == ["m-5"]
    assert await at.ids("source=app&state=queued") == []


async def test_an_answer_is_returning_only_where_its_source_wants_it_back(at: World) -> None:
    made = {"source_id": "calls", "callback": {"url": "https://sender.example/results", "signature": "none"}}
    assert (await at.rig.request("POST", "/v1/sources", json.dumps(made).encode(), JSON | ADMIN)).status == 201
    for number, source in ((5, "calls"), (6, "calls"), (7, "quiet")):
        await put(at.history, arrival(number, source=source, receivers=("ci",)))
        await put(at.history, ending(f"m-{number}", source=source, offset=number))
    unwanted = delivery_row(DeliveryId("ci", "calls", "m-6"))  # as the source was when it came
    await at.rig.state.mark([Mark(unwanted, 0, Stage.DONE, (0, 6), to_code(Handover.UNWANTED, 0))])
    assert await state_of(at, "source=calls") == {"m-6": "delivered", "m-5": "returning"}
    assert await state_of(at, "source=quiet") == {"m-7": "delivered"}
    assert await at.ids("state=returning") == ["m-5"]
    assert await at.ids("state=delivered") == ["m-7"]
    assert await at.ids("state=returning&source=quiet") == []


async def test_an_answer_without_a_url_is_found_as_delivered(at: World) -> None:
    callback = {"url": "${{ keep.url }}", "allow_origins": ["https://sender.example"], "signature": "none"}
    made = {"source_id": "some", "keep": {"url": "payload.url"}, "callback": callback}
    assert (await at.rig.request("POST", "/v1/sources", json.dumps(made).encode(), JSON | ADMIN)).status == 201
    for number, how in ((5, Handover.UNWANTED), (6, Handover.DELIVERED)):
        await put(at.history, arrival(number, source="some", receivers=("ci",)))
        await put(at.history, ending(f"m-{number}", source="some", offset=number))
        row = delivery_row(DeliveryId("ci", "some", f"m-{number}"))
        await at.rig.state.mark([Mark(row, 0, Stage.DONE, (0, number), to_code(how, 1))])
    assert await at.ids("state=delivered") == ["m-5"]


async def test_blocked_is_refused_as_no_history_stores_it(at: World) -> None:
    refused = problem(await at.get("/v1/messages?state=blocked"), 400, "invalid-request")
    assert "search for queued or retrying" in refused["detail"]
