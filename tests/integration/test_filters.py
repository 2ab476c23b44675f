"""Tests of subscriptions with filters: worker, API and commands agree on the recipients of a message."""

from collections.abc import AsyncIterator
from typing import Any, Final

import pytest

from relay.config.filter_entry import FilterEntry
from relay.domain.dead_letter import DeadLetter, dead_letter_headers
from relay.domain.hold import Hold
from relay.domain.hop import decode_hop
from relay.domain.identity import DeliveryId
from relay.domain.receiver import Endpoint, Life, Receiver
from relay.domain.result_delivery import Handover, to_code
from relay.engine.decision import Done
from relay.log.port import Coordinate, Record
from relay.replay.letter import read_dead_letter
from relay.replay.plan import Planner
from relay.state.read_model import LaneHeartbeat
from relay.state.replies import answered
from relay.state.rows import Mark, Stage, delivery_row
from tests.contract.history_facts import NOON, arrival, ending, put
from tests.fakes.history import MemoryHistory
from tests.fakes.no_moves import NoMoves
from tests.fakes.steps import Rig as Steps
from tests.integration.api_rig import NOW, PAYLOAD_CAP, Rig, document, problem, running_api
from workers.from_sender import FromSender, Incoming

MAIN: Final = {"pointer": "/ref", "exact": "refs/heads/main"}
FILTERS: Final[dict[str, Any]] = {
    "core": {"header": "X-Team", "in": ["core"]},
    "large": {"all": [MAIN, {"pointer": "/size", "gte": 3}]},
    "main": MAIN,
    "others": {"not": MAIN},
}
URL: Final = "/v1/sources/app/messages?type=push"


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    async with running_api(history=MemoryHistory()) as running:
        for name, declared in FILTERS.items():
            known = FilterEntry.model_validate(declared).compiled()
            endpoint = Endpoint(f"https://{name}.example/")
            running.directory.receivers[name] = Receiver(
                name, endpoint, sources=("app",), event_types=("push",), filter=known
            )
        yield running


async def mark_routed(rig: Rig, message_id: str) -> None:
    """The worker has read the message."""
    sent = rig.records(rig.topics.from_sender)
    [record] = [each for each in sent if dict(each.headers)["ce_id"] == message_id.encode()]
    worker = worker_of(rig)
    work = worker.admit(record)
    worker.step(work)
    assert isinstance(work, Incoming)
    await answered(rig.state.enqueued([work.arrival]))


async def list_arrival(rig: Rig, number: int) -> None:
    """The history has read the message."""
    assert isinstance(rig.context.history, MemoryHistory)
    await put(rig.context.history, arrival(number, source="app", event_type="push"))


async def listed(rig: Rig, query: str = "") -> dict[str, str]:
    return {item["message_id"]: item["status"] for item in document(await rig.get(f"/v1/messages?{query}"))["items"]}


def worker_of(rig: Rig) -> FromSender:
    steps = Steps()
    return FromSender(
        rig.topics,
        rig.directory,
        rig.state,
        steps.letters,
        steps.outside,
        max_payload_bytes=PAYLOAD_CAP,
        moves=NoMoves(),
    )


def routed(rig: Rig) -> list[str]:
    """The receivers to which the worker routes the newest message."""
    worker = worker_of(rig)
    decision = worker.step(worker.admit(rig.records(rig.topics.from_sender)[-1]))
    assert isinstance(decision, Done)
    return [decode_hop(record.headers).delivery.receiver for record in decision.records]


def replayed(rig: Rig) -> list[str]:
    """The receivers to which a replay would send the message if it had had no recipients at first."""
    sent = rig.records(rig.topics.from_sender)[-1]
    dead = DeadLetter(
        "unknown_receiver", "", sent.topic, Coordinate(sent.topic, sent.partition, sent.offset), 0, 0, None
    )
    headers = dead_letter_headers(sent.headers, dead)
    letter = read_dead_letter(
        Record(rig.topics.failed_messages, 0, 0, sent.key, sent.value, headers, int(NOW * 1000)), rig.topics
    )
    plan = Planner(rig.topics, rig.directory, max_payload_bytes=PAYLOAD_CAP).replay(letter, {}, same_life=False)
    return [out.delivery.receiver for out in plan.out]


@pytest.mark.parametrize(
    ("body", "headers", "names"),
    [
        (b'{"ref": "refs/heads/main", "size": 3}', {}, ["large", "main"]),
        (b'{"ref": "refs/heads/main", "size": "3"}', {}, ["main"]),
        (b'{"ref": "refs/heads/next"}', {"relay_header_x_team": "core"}, ["core", "others"]),
        (b"[]", {}, []),
        (b"no json", {}, []),
        (b"no json", {"relay_header_x_team": "core"}, ["core"]),
    ],
)
async def test_all_who_ask_get_the_same_recipients(
    rig: Rig, body: bytes, headers: dict[str, str], names: list[str]
) -> None:
    view = document(await rig.post(URL, body, ce_id="m-1", **headers))
    assert [one["receiver"] for one in view["deliveries"]] == names
    later = document(await rig.get("/v1/sources/app/messages/m-1"))
    assert [one["receiver"] for one in later["deliveries"]] == names
    assert routed(rig) == names
    assert replayed(rig) == names


async def test_what_no_filter_takes_is_accepted_and_done_once_it_was_routed(rig: Rig) -> None:
    reply = await rig.post(URL, b"[]", ce_id="m-1")
    assert (reply.status, document(reply)["status"], document(reply)["deliveries"]) == (202, "arrived", [])
    await mark_routed(rig, "m-1")
    assert document(await rig.get("/v1/sources/app/messages/m-1"))["status"] == "done"


async def test_lists_and_searches_have_the_state_of_a_message_that_no_filter_takes(rig: Rig) -> None:
    for number, body in enumerate((b"[]", b"[]", b'{"ref": "refs/heads/main"}'), 1):
        await rig.post(URL, body, ce_id=f"m-{number}")
        await list_arrival(rig, number)
    await mark_routed(rig, "m-1")
    await mark_routed(rig, "m-3")
    assert await listed(rig) == {"m-3": "arrived", "m-2": "arrived", "m-1": "done"}
    one = document(await rig.get("/v1/sources/app/messages/m-1"))
    [item] = document(await rig.get("/v1/messages?id=m-1"))["items"]
    assert (item["status"], item["state"]) == (one["status"], one["state"]) == ("done", "discarded")
    assert list(await listed(rig, "state=queued")) == list(await listed(rig, "status=arrived")) == ["m-3", "m-2"]
    assert list(await listed(rig, "state=discarded")) == list(await listed(rig, "status=done")) == ["m-1"]
    assert list(await listed(rig, "state=delivered")) == []
    rig.state.away.add("messages")
    assert await listed(rig) == dict.fromkeys(("m-3", "m-2", "m-1"), "arrived")


async def test_it_stays_so_when_somebody_subscribes_later(rig: Rig) -> None:
    await rig.post(URL, b"[]", ce_id="m-1")
    await list_arrival(rig, 1)
    await mark_routed(rig, "m-1")
    rig.directory.receivers["all"] = Receiver(
        "all", Endpoint("https://all.example/"), sources=("app",), event_types=("push",)
    )
    view = document(await rig.get("/v1/sources/app/messages/m-1"))
    assert (view["status"], view["state"], view["deliveries"]) == ("done", "discarded", [])
    assert document(await rig.post(URL, b"[]", ce_id="m-1"))["deliveries"] == []
    assert await listed(rig) == {"m-1": "done"}


async def receivers_of(rig: Rig, message_id: str) -> list[str]:
    view = document(await rig.get(f"/v1/sources/app/messages/{message_id}"))
    return [one["receiver"] for one in view["deliveries"]]


async def test_a_routed_message_keeps_its_recipients_when_subscriptions_change(rig: Rig) -> None:
    assert isinstance(rig.context.history, MemoryHistory)
    await rig.post(URL, b'{"ref": "refs/heads/main"}', ce_id="m-1")
    late = Life("later", rig.topics.from_sender, (1_000_000,) * 10)
    endpoint = Endpoint("https://late.example/")
    rig.directory.receivers["late"] = Receiver("late", endpoint, sources=("app",), event_types=("push",), life=late)
    assert await receivers_of(rig, "m-1") == ["late", "main"]
    await mark_routed(rig, "m-1")
    assert await receivers_of(rig, "m-1") == ["main"]

    await list_arrival(rig, 1)
    await put(rig.context.history, ending("m-1", source="app", receiver="main", offset=1))
    code = to_code(Handover.KEPT, 0)
    await answered(rig.state.mark([Mark(delivery_row(DeliveryId("main", "app", "m-1")), 0, Stage.DONE, (0, 1), code)]))
    rig.directory.receivers.clear()
    view = document(await rig.get("/v1/sources/app/messages/m-1"))
    assert [(one["receiver"], one["state"]) for one in view["deliveries"]] == [("main", "delivered")]
    rig.context.history.available = False
    assert await receivers_of(rig, "m-1") == []


async def test_a_receiver_that_may_have_subscribed_later_is_not_said_to_get_it(rig: Rig) -> None:
    await rig.post(URL, b'{"ref": "refs/heads/main"}', ce_id="m-1")
    await rig.state.keep_heartbeats([LaneHeartbeat(rig.topics.to_receiver("main"), 0)])
    await mark_routed(rig, "m-1")
    rig.clock.now += 60
    [delivery] = document(await rig.get("/v1/sources/app/messages/m-1"))["deliveries"]
    assert delivery["waiting_for"]["kind"] == "queued"
    assert "unless the receiver has subscribed since the message was routed" in delivery["waiting_for"]["detail"]
    await rig.post(f"{URL}&receiver=main", b'{"ref": "refs/heads/main"}', ce_id="m-2")
    await mark_routed(rig, "m-2")
    rig.clock.now += 60
    [named] = document(await rig.get("/v1/sources/app/messages/m-2"))["deliveries"]
    assert named["waiting_for"]["detail"].endswith("its worker takes it in its turn")


async def test_a_list_has_the_subscribers_that_a_message_waits_for(rig: Rig) -> None:
    assert isinstance(rig.context.history, MemoryHistory)
    rig.directory.receivers["all"] = Receiver(
        "all", Endpoint("https://all.example/"), sources=("app",), event_types=("pull",)
    )
    await rig.post("/v1/sources/app/messages?type=pull", b"{}", ce_id="m-1")
    await put(rig.context.history, arrival(1, source="app", event_type="pull"))
    await mark_routed(rig, "m-1")
    await rig.state.hold("r:all", Hold("paused", NOW))
    await rig.state.keep_heartbeats([LaneHeartbeat(rig.topics.to_receiver("all"), 0)])
    one = document(await rig.get("/v1/sources/app/messages/m-1"))
    [item] = document(await rig.get("/v1/messages?id=m-1"))["items"]
    [delivery], [listed_one] = one["deliveries"], item["deliveries"]
    names = ("receiver", "status", "state", "attempts", "waiting_for", "next_attempt_at")
    assert {name: listed_one[name] for name in names} == {name: delivery[name] for name in names}
    assert (item["state"], listed_one["waiting_for"]["kind"]) == (one["state"], "paused") == ("blocked", "paused")
    assert list(await listed(rig, "state=queued")) == list(await listed(rig, "status=arrived")) == ["m-1"]


async def test_it_stays_so_in_lists_when_its_row_is_forgotten(rig: Rig) -> None:
    await list_arrival(rig, 1)
    rig.clock.now = NOON + 1 + rig.context.dedup_window_s
    assert await listed(rig) == {"m-1": "arrived"}
    rig.clock.now += 1
    for away in ((), ("messages",)):
        rig.state.away |= set(away)
        assert await listed(rig) == await listed(rig, "status=done") == {"m-1": "done"}
        assert await listed(rig, "state=queued") == {}


async def test_where_nobody_subscribes_it_is_still_a_mistake(rig: Rig) -> None:
    problem(await rig.post("/v1/sources/app/messages?type=pull", b"{}"), 422, "no-receiver")
