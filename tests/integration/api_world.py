"""A relay with the records that the examples of the API's document refer to."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import cache
from typing import Any, Final

import pytest
import pytest_asyncio

from relay.api.openapi.document import document as openapi_of
from relay.api.openapi.document import encoded
from relay.api.route import Route
from relay.api.routes import ROUTES
from relay.config.encryption import KeyRing
from relay.config.limits import ApiLimits
from relay.control.records import EntryRecord, source_key
from relay.domain.api_key import Key, Secret, encode_key
from relay.domain.control_key import ControlKey, encode_value
from relay.domain.dead_letter import DeadLetter, dead_letter_headers
from relay.domain.event_type import EventTypeEntry
from relay.domain.hop import Hop, encode_hop
from relay.domain.identity import DeliveryId
from relay.domain.message import Message, message_digest, message_headers
from relay.domain.reasons import REASON_CODES
from relay.domain.receiver import Inbound
from relay.domain.replay_job import ReplayOrder, Selection
from relay.domain.scope import Scope
from relay.domain.statistics import NUMBERS, Counted
from relay.domain.topics import TopicSpec
from relay.log.port import Coordinate, NewRecord
from relay.state.port import FailedEntry
from relay.state.read_model import LastAttempt, LastResponse, Tally
from relay.state.rows import Arrival, Mark, MessageStage, Stage, delivery_row
from tests.contract.history_facts import attempt, put
from tests.fakes.history import MemoryHistory
from tests.integration.api_rig import NOW, OLD_KEY, Rig, running_api

KEY: Final = "the key of the examples"
HOOK_SECRET: Final = "the secret of the hook"
JOB: Final = "5f0c2ba7d1e94c36"
KEY_ID: Final = "k5examplekey"


@cache
def described() -> dict[str, Any]:
    """The document at /openapi.json, which is made once. test_the_command_prints_what_is_served compares the two."""
    found: dict[str, Any] = json.loads(encoded(openapi_of(ROUTES.values())))
    return found


@asynccontextmanager
async def world() -> AsyncIterator[Rig]:
    """An API with a key, a message `sent-1` with an attempt, the dead letter of `failed-1`, a job, a key, a source
    `hooks`, and the receivers `ci`, of a file, and `made`, whose token was encrypted with an older key."""
    history = MemoryHistory()
    await put(history, attempt("sent-1", source="github", offset=0))
    async with running_api(api_key=KEY, limits=ApiLimits(wait_s=0.01, listen_s=0.01), history=history) as rig:
        lanes = [rig.topics.to_receiver("ci"), rig.topics.pending("ci")]
        await rig.log.create([TopicSpec(lane, 1) for lane in lanes], {})
        rig.directory.inbound["hooks"] = Inbound("github", (HOOK_SECRET,), receivers=("ci",))
        await _sent(rig, "sent-1")
        await add_dead_letter(rig, "failed-1")
        order = ReplayOrder(JOB, "replay", Selection(receivers=frozenset({"ci"})), NOW, (), (), None)
        await rig.log.append(
            [NewRecord(rig.topics.receiver_config, ControlKey("replay", JOB).encode(), encode_value(order))]
        )
        key = Key(KEY_ID, "an older one", frozenset({Scope("metrics")}), NOW, "test", None, (Secret("0" * 64, NOW),))
        await rig.log.append(
            [NewRecord(rig.topics.receiver_config, ControlKey("key", KEY_ID).encode(), encode_key(key))]
        )
        assert rig.context.catalogue is not None
        await rig.context.catalogue.put("build.finished", EventTypeEntry("A build has finished."))
        await _declared(rig, "ci", "file")
        await _declared(rig, "made", "api")
        await _declared(
            rig,
            source_key("shop"),
            "api",
            callback={"url": "https://sender.example/results", "secret": "${DEPLOY_SECRET}"},
        )
        await rig.keys.make("admin", now=NOW)  # and all before it is read
        await responded(rig, "ci")
        yield rig


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def only_read() -> AsyncIterator[Rig]:
    """A shared world for all tests of a module, which must not change it."""
    async with world() as rig:
        yield rig


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    """The same, for a test."""
    async with world() as found:
        yield found


@asynccontextmanager
async def world_for(route: Route, only_read: Rig) -> AsyncIterator[Rig]:
    """`only_read`, or a new world for a route that changes something."""
    if route.method == "GET":
        yield only_read
    else:
        async with world() as rig:
            yield rig


async def responded(rig: Rig, name: str, number: int = 1) -> None:
    """The receiver has responded to a POST. `number`: of the call to the state."""
    last = LastAttempt(NOW, 201, None, 0.1)
    response = LastResponse(NOW, 201, {"location": "/builds/1"}, '{"build": 1}', False)
    await rig.state.tally("world", number, [Tally(f"r:{name}", Counted((1, *[0] * (NUMBERS - 1))), last, response)])


async def _declared(rig: Rig, name: str, by: str, **fields: object) -> None:
    entry = fields or {"post_endpoint": "https://receiver.example/hooks", "lane": "shared"}
    if by == "api" and not fields:
        entry["bearer_token"] = KeyRing([OLD_KEY]).encrypted("a token", ("receivers", name, "bearer_token"))
    (at,) = await rig.log.append(
        [NewRecord(rig.topics.receiver_config, name.encode(), EntryRecord(by, entry).encode())]
    )
    registrar = rig.context.registrar
    assert registrar is not None
    await registrar.registry.reach(at.offset + 1)


async def add_dead_letter(
    rig: Rig, message_id: str, *, reason: str = "rejected", status: int | None = 422
) -> Coordinate:
    """Store a dead letter of `ci`, as the relay would."""
    delivery, origin = await _sent(rig, message_id)
    stage = rig.topics.to_receiver("ci")
    letter = DeadLetter(reason, "it said no", stage, origin, 1, int(NOW * 1000), status)
    headers = dead_letter_headers(encode_hop(Hop(delivery, "push", origin=origin)), letter)
    (at,) = await rig.log.append([NewRecord(rig.topics.failed_messages, b"github", b"{}", headers)])
    row = delivery_row(delivery)
    await rig.state.mark([Mark(row, 0, Stage.FAILED, (at.partition, at.offset), REASON_CODES[reason])])
    await rig.state.index_failed([FailedEntry("ci", at, NOW, reason, delivery.source_id, delivery.message_id)])
    return at


async def _sent(rig: Rig, message_id: str) -> tuple[DeliveryId, Coordinate]:
    message = Message("github", message_id, ("ci",), "push", None, "application/json", b"{}")
    record = NewRecord(rig.topics.from_sender, b"github", message.payload, message_headers(message))
    (at,) = await rig.log.append([record])
    arrival = Arrival(message.id, message_digest(message), at.partition, at.offset, MessageStage.ENQUEUED)
    await rig.state.enqueued([arrival])
    return DeliveryId("ci", *message.id), at
