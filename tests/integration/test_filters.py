"""Messages go to those subscribers whose filters take them, and it is said so wherever that is asked."""

from collections.abc import AsyncIterator
from typing import Any, Final

import pytest

from relay.config.filter_entry import FilterEntry
from relay.domain.dead_letter import DeadLetter, dead_letter_headers
from relay.domain.hop import decode_hop
from relay.domain.identity import MessageId
from relay.domain.receiver import Endpoint, Receiver
from relay.engine.decision import Done
from relay.log.port import Coordinate, Record
from relay.replay.letter import read_dead_letter
from relay.replay.plan import Planner
from relay.state.replies import answered
from relay.state.rows import Arrival
from tests.fakes.no_moves import NoMoves
from tests.fakes.steps import Rig as Steps
from tests.integration.api_rig import NOW, PAYLOAD_CAP, Rig, document, problem, running_api
from workers.from_sender import FromSender

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
    async with running_api() as running:
        for name, declared in FILTERS.items():
            known = FilterEntry.model_validate(declared).compiled()
            endpoint = Endpoint(f"https://{name}.example/")
            running.directory.receivers[name] = Receiver(
                name, endpoint, sources=("app",), event_types=("push",), filter=known
            )
        yield running


def routed(rig: Rig) -> list[str]:
    """Where the worker sends the newest message."""
    steps = Steps()
    worker = FromSender(
        rig.topics,
        rig.directory,
        rig.state,
        steps.letters,
        steps.outside,
        max_payload_bytes=PAYLOAD_CAP,
        moves=NoMoves(),
    )
    decision = worker.step(worker.admit(rig.records(rig.topics.from_sender)[-1]))
    assert isinstance(decision, Done)
    return [decode_hop(record.headers).delivery.receiver for record in decision.records]


def replayed(rig: Rig) -> list[str]:
    """Where a replay of it would send it, had nobody been there to get it."""
    sent = rig.records(rig.topics.from_sender)[-1]
    dead = DeadLetter(
        "unknown_receiver", "", sent.topic, Coordinate(sent.topic, sent.partition, sent.offset), 0, 0, None
    )
    headers = dead_letter_headers(sent.headers, dead)
    letter = read_dead_letter(
        Record(rig.topics.failed_messages, 0, 0, sent.key, sent.value, headers, int(NOW * 1000)), rig.topics
    )
    plan = Planner(rig.topics, rig.directory, max_payload_bytes=PAYLOAD_CAP).replay(letter, {})
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
    [arrival] = await rig.state.messages([MessageId("app", "m-1")])
    assert arrival is not None
    await answered(
        rig.state.enqueued([Arrival(MessageId("app", "m-1"), arrival.digest, arrival.partition, arrival.offset)])
    )
    assert document(await rig.get("/v1/sources/app/messages/m-1"))["status"] == "done"


async def test_where_nobody_subscribes_it_is_still_a_mistake(rig: Rig) -> None:
    problem(await rig.post("/v1/sources/app/messages?type=pull", b"{}"), 422, "no-receiver")
