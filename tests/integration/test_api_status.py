"""Tests over a real socket of the status of messages, the API key, health, and rules common to all resources."""

import base64
from typing import Any

import msgspec
import pytest
from structlog.testing import capture_logs

from relay.cli.status import is_over
from relay.domain.errors import UserError
from relay.domain.hop import Hop, encode_hop
from relay.domain.identity import DeliveryId, MessageId
from relay.domain.receiver import BreakerPolicy
from relay.domain.result_delivery import Handover, to_code
from relay.log.port import Coordinate, NewRecord
from relay.schema.messages import MessageView
from relay.state.attempts import BeginRequest, Change, Go, Limits, Settlement
from relay.state.port import Lane
from relay.state.read_model import LaneHeartbeat
from relay.state.replies import answered, of
from relay.state.rows import TAGS, Arrival, Mark, MessageStage, Parked, Result, RowKey, Stage, delivery_row
from tests.integration.api_rig import Rig, document, problem, running_api
from tests.integration.api_rig import rig as rig

CI = "/v1/sources/app/messages?receiver=ci"
BINARY = bytes(range(256)) * 4


# --- GET --------------------------------------------------------------------------------------------------------


async def test_an_unknown_message(rig: Rig) -> None:
    found = problem(await rig.get("/v1/sources/app/messages/a%2Fb"), 404, "not-found")
    assert found["instance"] == "/v1/sources/app/messages/a%2Fb"


async def test_a_misspelt_parameter_of_a_message_is_refused_and_not_ignored(rig: Rig) -> None:
    await rig.post(CI, ce_id="m-1")
    refused = problem(await rig.get("/v1/sources/app/messages/m-1?reciever=ci"), 400, "invalid-request")
    assert [error["parameter"] for error in refused["errors"]] == ["reciever"]


async def test_status_needs_the_state_and_the_log(rig: Rig) -> None:
    await rig.post(CI, ce_id="m-1")
    rig.state.away = {"row_details"}
    response = await rig.get("/v1/sources/app/messages/m-1")
    problem(response, 503, "unavailable")
    assert "Retry-After" in response.headers
    rig.state.away = set()
    rig.broker.available = False
    problem(await rig.get("/v1/sources/app/messages/m-1"), 503, "unavailable")
    rig.broker.available = True
    rig.state.lose()
    found = problem(await rig.get("/v1/sources/app/messages/m-1"), 503, "unavailable")
    assert "recovered" in found["detail"]


async def test_after_a_loss_one_that_waits_for_a_retry_is_not_called_delayed(rig: Rig) -> None:
    """Its row is lost, and the recovery pass has put its reference back."""
    await rig.post(CI, ce_id="m-1")
    (record,) = rig.records(rig.topics.from_sender)
    identity, topic = MessageId("app", "m-1"), rig.topics.to_receiver("ci")
    arrival = Arrival(identity, b"digest", record.partition, record.offset, MessageStage.ENQUEUED)
    await answered(rig.state.enqueued([arrival]))
    parked = Parked(
        delivery_row(DeliveryId("ci", "app", "m-1")), 0, Coordinate(rig.topics.parked_messages, 0, 0), 60.0, None, 0
    )
    await rig.state.restore(Lane(topic, 0, 1), [parked])
    await rig.state.keep_heartbeats([LaneHeartbeat(topic, 0)])
    [delivery] = document(await rig.get("/v1/sources/app/messages/m-1"))["deliveries"]
    assert (delivery["state"], delivery["waiting_for"]["kind"]) == ("retrying", "retry")
    assert delivery["next_at"] == delivery["waiting_for"]["until"]


async def test_after_a_loss_nobody_is_told_that_a_message_is_unknown_until_all_is_read_back(rig: Rig) -> None:
    rig.state.lose()
    await rig.state.ready(sorted(await rig.state.lost()), in_doubt_s=60)
    response = await rig.get("/v1/sources/app/messages/m-1")
    problem(response, 503, "unavailable")
    assert int(response.headers["Retry-After"]) > 0
    await rig.post(CI, ce_id="m-2")
    assert document(await rig.get("/v1/sources/app/messages/m-2"))["rebuilding"] is True
    await answered(rig.state.mark([Mark(delivery_row(DeliveryId("ci", "app", "m-2")), 0, Stage.DONE)]))
    assert "rebuilding" not in document(await rig.get("/v1/sources/app/messages/m-2")), "more cannot be known"

    await rig.state.close_gaps(await rig.state.gaps(range(TAGS)))
    problem(await rig.get("/v1/sources/app/messages/m-1"), 404, "not-found")
    await rig.post(CI, ce_id="m-3")
    assert "rebuilding" not in document(await rig.get("/v1/sources/app/messages/m-3"))


@pytest.mark.parametrize("value", [b"nonsense", b'{"source_id": "app", "message_id": "m-2", "payload": 1}'])
async def test_a_record_that_is_another_messages_is_not_shown(rig: Rig, value: bytes) -> None:
    """The topic was made anew, and the row outlived it."""
    (other,) = await rig.log.append([NewRecord(rig.topics.from_sender, b"app", value)])
    await answered(rig.state.arrive([Arrival(MessageId("app", "m-1"), b"123456", other.partition, other.offset)]))

    problem(await rig.get("/v1/sources/app/messages/m-1"), 404, "not-found")


@pytest.mark.parametrize("body", [b'{"ok": true}', b"", BINARY])
async def test_the_answer_is_read_where_its_record_is(rig: Rig, body: bytes) -> None:
    await rig.post(CI, ce_id="m-1")
    await publish(rig, "ci", body, code=to_code(Handover.KEPT, 0))

    (delivery,) = (document(await rig.get("/v1/sources/app/messages/m-1")))["deliveries"]

    text = None if body == BINARY else body.decode()
    assert delivery["answer"] == {
        "status": 201,
        "content_type": "text/x",
        "body": text,
        "body_base64": base64.b64encode(body).decode() if text is None else None,
        "received_at": "2023-11-14T22:13:20.000Z",
    }
    assert (delivery["status"], delivery["last_status"]) == ("response_received_from_receiver", 201)


async def test_the_answer_of_another_in_its_place_is_not_shown(rig: Rig) -> None:
    """`to_sender` was made anew, and the row outlived it."""
    await rig.post("/v1/sources/app/messages?receiver=ci&receiver=cd", ce_id="m-1")
    former = await publish(rig, "ci", b"former")
    rig.broker.cut(Coordinate(rig.topics.to_sender, former[0], 0))
    assert await publish(rig, "cd", b"other") == former

    deliveries = document(await rig.get("/v1/sources/app/messages/m-1"))["deliveries"]

    shown = {one["receiver"]: (one["answer"] and one["answer"]["body"], one["attempts"]) for one in deliveries}
    assert shown == {"ci": (None, 0), "cd": ("other", 1)}


async def test_a_delivery_that_waits_says_until_when(rig: Rig) -> None:
    await rig.post("/v1/sources/calls/messages?receiver=ci", ce_id="m-1")
    row = delivery_row(DeliveryId("ci", "calls", "m-1"))
    await begin(rig, row, b"token-01")
    retry = Settlement(row, 0, b"token-01", Change.RETRY, due_in_s=90, last_status=500, reason="server_error")
    await answered(rig.state.settle([retry]))

    (delivery,) = (document(await rig.get("/v1/sources/calls/messages/m-1")))["deliveries"]

    assert delivery["next_at"] == delivery["next_attempt_at"] == "2023-11-14T22:14:50.000Z"
    assert (delivery["attempts"], delivery["last_status"], delivery["reason"]) == (1, 500, "server_error")


async def test_the_callback_is_told_while_it_is_under_way_and_after(rig: Rig) -> None:
    await rig.post("/v1/sources/calls/messages?receiver=ci", ce_id="m-1")
    delivery = DeliveryId("ci", "calls", "m-1")
    at = await publish(rig, "ci", b"yes", source="calls", stage=Stage.PUBLISHED)
    assert (await callback_of(rig)) == {"status": "pending", "attempts": 0, "last_status": None, "detail": None}

    await answered(rig.state.mark([Mark(delivery_row(delivery), 0, Stage.DONE, at, to_code(Handover.DELIVERED, 3))]))
    assert (await callback_of(rig)) == {"status": "delivered", "attempts": 3, "last_status": None, "detail": None}


async def test_a_result_that_the_log_deleted_before_it_was_sent_is_not_on_its_way(rig: Rig) -> None:
    await rig.post("/v1/sources/calls/messages?receiver=ci", ce_id="m-1")
    partition, offset = await publish(rig, "ci", b"yes", source="calls", stage=Stage.PUBLISHED)
    rig.broker.drop_before(Coordinate(rig.topics.to_sender, partition, offset + 1))

    state = document(await rig.get("/v1/sources/calls/messages/m-1"))

    assert state["state"] == "failed"
    [delivery] = state["deliveries"]
    assert (delivery["callback"]["status"], delivery["waiting_for"]) == ("failed", None)
    assert "deleted the result before it was sent" in delivery["callback"]["detail"]


async def test_between_the_stored_answer_and_its_record_the_message_is_not_over(rig: Rig) -> None:
    await rig.post("/v1/sources/calls/messages?receiver=ci", ce_id="m-1")
    row = delivery_row(DeliveryId("ci", "calls", "m-1"))
    await begin(rig, row, b"token-01")
    await answered(rig.state.settle([Settlement(row, 0, b"token-01", Change.RESULT, result=Result("answered", 200))]))

    state = document(await rig.get("/v1/sources/calls/messages/m-1"))

    assert state["status"] == "response_received_from_receiver"
    assert state["deliveries"][0]["callback"]["status"] == "pending"
    assert not is_over(msgspec.convert(state, MessageView))


async def callback_of(rig: Rig) -> object:
    return (document(await rig.get("/v1/sources/calls/messages/m-1")))["deliveries"][0]["callback"]


# --- keys -------------------------------------------------------------------------------------------------------


async def test_the_api_key_guards_everything_of_v1_but_answers() -> None:
    async with running_api(api_key="s3cret") as rig:
        for target in (CI, "/v1/sources/a/messages/b", "/%761/sources/a/messages/b", "/v1/unknown", "/v1/sources"):
            for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "Basic s3cret"}):
                response = await rig.request("GET", target, headers=headers)
                problem(response, 401, "unauthorized")
                assert response.headers["WWW-Authenticate"].startswith("Bearer")
        problem(await rig.post(CI), 401, "unauthorized")
        assert rig.records(rig.topics.from_sender) == []
        assert (await rig.post(CI, Authorization="Bearer s3cret")).status == 202
        assert (await rig.post(CI, Authorization="bearer  s3cret")).status == 202
        problem(await rig.post("/v1/answers/forged"), 404, "not-found")
        problem(await rig.post("/v1/answers/../sources/app/messages"), 401, "unauthorized")
        for target in ("/livez", "/readyz", "/version"):
            assert (await rig.get(target)).status == 200
        problem(await rig.get("/metrics"), 401, "unauthorized")


# --- health and the rest ----------------------------------------------------------------------------------------


async def test_liveness_does_not_depend_on_anything(rig: Rig) -> None:
    rig.broker.available = False
    rig.trouble["log"] = "away"
    response = await rig.get("/livez")
    assert (response.status, response.text) == (200, "ok")
    assert (await rig.request("HEAD", "/livez")).status == 200


async def test_until_the_log_is_found_only_monitoring_is_answered(rig: Rig) -> None:
    rig.trouble["start"] = "connecting"
    problem(await rig.get("/v1/sources/app/messages/m-1"), 503, "unavailable")
    assert (await rig.get("/livez")).status == 200
    assert (await rig.get("/readyz")).status == 503
    rig.trouble["start"] = None
    assert (await rig.get("/v1/sources/app/messages/m-1")).status == 404


async def test_no_receiver_is_unknown_before_the_registry_was_read(rig: Rig) -> None:
    registry = rig.context.registry
    assert registry is not None
    registry.ready.clear()
    problem(await rig.post("/v1/sources/app/messages?receiver=late"), 503, "unavailable")
    registry.ready.set()
    problem(await rig.post("/v1/sources/app/messages?receiver=late"), 422, "unknown-receiver")


async def test_readiness_tells_part_by_part(rig: Rig) -> None:
    assert (await rig.get("/readyz")).text == "ok"
    verbose = await rig.get("/readyz?verbose")
    assert verbose.text.splitlines() == ["[+]log ok", "[+]state ok", "readyz check passed"]

    rig.trouble["state"] = "no answer\nfor 3 s"
    response = await rig.get("/readyz")
    assert response.status == 503
    assert response.text.splitlines() == [
        "[+]log ok",
        "[-]state failed: no answer for 3 s",
        "readyz check failed",
    ]


async def test_readiness_is_json_on_request(rig: Rig) -> None:
    rig.trouble["state"] = "no answer\nfor 3 s"
    response = await rig.get("/readyz?format=json")
    assert response.status == 503
    assert document(response) == {
        "ready": False,
        "parts": [
            {"name": "log", "state": "ok", "detail": None},
            {"name": "state", "state": "failed", "detail": "no answer for 3 s"},
        ],
    }
    problem(await rig.get("/readyz?format=xml"), 400, "invalid-request")


@pytest.mark.parametrize(
    ("settings", "key", "shown"),
    [
        ({}, None, True),
        ({"api_key": "s3cret"}, None, False),
        ({"api_key": "s3cret"}, "wrong", False),
        ({"api_key": "s3cret"}, "s3cret", True),
        ({"api_key": "s3cret", "metrics_key": "m3trics"}, "m3trics", True),
        ({"metrics_key": "m3trics"}, None, False),
        ({"may_be_open": False}, None, False),
    ],
)
async def test_readiness_names_addresses_only_to_those_who_may_see_metrics(
    settings: dict[str, Any], key: str | None, shown: bool
) -> None:
    async with running_api(**settings) as rig:
        rig.trouble["log"] = "no broker answers at 10.0.0.1:9092"
        headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        for query in ("", "?verbose", "?format=json"):
            response = await rig.get(f"/readyz{query}", **headers)
            assert response.status == 503
            assert ("10.0.0.1" in response.text) is shown
        part = {"name": "log", "state": "failed", "detail": rig.trouble["log"] if shown else None}
        assert part in document(response)["parts"]
        if not shown:
            assert "[-]log failed: reason withheld" in (await rig.get("/readyz", **headers)).text.splitlines()


async def test_metrics_and_version(rig: Rig) -> None:
    response = await rig.get("/metrics")
    assert (response.body, response.headers["Content-Type"].split(";")[0]) == (b"m 1\n", "text/plain")
    version = document(await rig.get("/version"))
    assert version["name"] == "relay"
    assert version["version"]


async def test_what_is_not_there_is_a_problem_too(rig: Rig) -> None:
    nothing = problem(await rig.get("/nothing"), 404, "not-found")
    response = await rig.request("DELETE", CI)
    wrong = problem(response, 405, "method-not-allowed")
    for found in (nothing, wrong):  # a detail says more than the title
        assert found["title"].rstrip(".") not in found["detail"]
    assert response.headers["Allow"] == "POST"
    assert response.headers["Server"] == "relay"


async def test_a_fault_of_ours_is_logged_and_not_told() -> None:
    def broken() -> bytes:
        raise RuntimeError("the password is hunter2")

    async with running_api(metrics=broken) as rig:
        with capture_logs() as logged:
            response = await rig.get("/metrics")
        problem(response, 500, "internal-error")
        assert b"hunter2" not in response.body
        assert [(entry["event"], entry["route"], entry["log_level"]) for entry in logged] == [
            ("request_failed", "/metrics", "error")
        ]


async def test_a_port_that_is_taken(rig: Rig) -> None:
    async with running_api() as other:
        taken = int(other.url.rsplit(":", 1)[1])
        with pytest.raises(UserError, match="cannot listen"):
            await rig.server.start("127.0.0.1", taken)


# --- what workers do --------------------------------------------------------------------------------------------


async def publish(
    rig: Rig, receiver: str, body: bytes, *, source: str = "app", stage: Stage = Stage.DONE, code: int = 0
) -> tuple[int, int]:
    """An answer comes: its record on `to_sender`, and the row that points at it."""
    delivery = DeliveryId(receiver, source, "m-1")
    hop = Hop(delivery, content_type="text/x", attempt=1, outcome="answered", answer_status=201)
    (at,) = await rig.log.append([NewRecord(rig.topics.to_sender, source.encode(), body, encode_hop(hop))])
    await answered(rig.state.mark([Mark(delivery_row(delivery), 0, stage, (at.partition, at.offset), code)]))
    return at.partition, at.offset


async def begin(rig: Rig, row: RowKey, token: bytes) -> None:
    limits = Limits(0.0, 25.0, BreakerPolicy(), 25.0)
    (verdict,) = await answered(
        rig.state.begin(of(Lane("t-to_receiver_ci", 0, 1), [BeginRequest(row, 0, token, limits)]))
    )
    assert isinstance(verdict, Go)
