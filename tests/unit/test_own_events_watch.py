"""Publishing of operational events: each once, in batches, bounded, and without delaying deliveries."""

import asyncio
import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from relay.domain.errors import LogUnavailable, RecordTooLarge
from relay.domain.hold import Hold
from relay.domain.incident import Incident, Party
from relay.domain.message import parse_message
from relay.domain.receiver import Life, Receiver
from relay.engine.observer import Observer
from relay.engine.supervision import Retrier
from relay.log.port import Coordinate, NewRecord
from relay.state.port import FailedEntry
from relay.telemetry.metrics import Metrics
from relay.telemetry.observer import TelemetryObserver
from relay.telemetry.sentry import SentryReporter
from relay.watch import own_events
from relay.watch.own_events import EXAMPLES, GATHER_S, MOST, OwnEvents
from tests.fakes.log import MemoryBroker, MemoryLog
from tests.fakes.state import MemoryState
from tests.fakes.steps import NOW, TOPICS
from tests.fakes.virtual_time import LoopClock, virtually
from tests.unit.test_own_events import OPS, Known, receiver


class _Log(MemoryLog):
    """`error`: what it answers with, in place of taking anything."""

    error: Exception | None = None

    async def append(self, records: Sequence[NewRecord]) -> list[Coordinate]:
        if self.error is not None:
            raise self.error
        return await super().append(records)


class Rig:
    def __init__(self, *receivers: Receiver) -> None:
        self.broker = MemoryBroker()
        self.log, self.state, self.metrics = _Log(self.broker), MemoryState(), Metrics("0")
        self.clock = LoopClock()
        self.known = Known(*(receivers or (receiver("ops", OPS), receiver("ci", owner="acme"))))
        self.events = self.process()

    def process(self) -> OwnEvents:
        return OwnEvents(self.log, self.state, TOPICS, self.known, self.clock, self.metrics)

    async def __aenter__(self) -> "Rig":
        await self.log.start()
        await self.log.create(TOPICS.fixed(), {})
        self._task = asyncio.create_task(self.events.run(Retrier(self.clock, Observer())))
        return self

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        await asyncio.wait([self._task])

    async def told(self) -> list[dict[str, Any]]:
        """Bodies of the events on the log, once nothing is in flight."""
        await asyncio.sleep(0.1)
        records = [record async for batch in self.log.scan(TOPICS.from_sender, 0) for record in batch]
        for partition in range(1, 10):
            records += [record async for batch in self.log.scan(TOPICS.from_sender, partition) for record in batch]
        assert {record.key for record in records} <= {b"relay"}
        messages = [parse_message(record.value, record.headers) for record in records]
        assert all(each.receivers is None and each.source_id == "relay" for each in messages)
        return [{**json.loads(each.payload), "id": each.message_id} for each in messages]

    def value(self, name: str, event_type: str) -> float | None:
        return self.metrics.registry.get_sample_value(name, {"type": event_type})


def failure(number: int, receiver: str = "ci", reason: str = "exhausted", source_id: str = "github") -> FailedEntry:
    return FailedEntry(
        receiver, Coordinate("failed_messages", 3, number), NOW + number, reason, source_id, f"m-{number}"
    )


@virtually
async def test_an_outage_is_told_once_however_often_it_is_noticed_and_its_end() -> None:
    async with Rig() as rig:
        for _ in range(3):
            rig.events.turned("receiver.offline", "ci", NOW)
            await asyncio.sleep(60)
        rig.events.turned("receiver.back", "ci", NOW)
        offline, back = await rig.told()
        assert offline == {
            "id": "receiver.offline:ci:1700000000000",
            "type": "receiver.offline",
            "receiver": "ci",
            "owner": "acme",
            "since": "2023-11-14T22:13:20.000Z",
            "at": offline["at"],
            "detail": "It does not answer. The relay sends it only a ping from time to time, until it answers one.",
            "path": "/v1/receivers/ci",
            "page": "/ui/receivers/ci",
        }
        assert (back["type"], back["since"]) == ("receiver.back", offline["since"])
        assert back["at"] > offline["at"]
        assert rig.value("relay_own_events_total", "receiver.offline") == 1


@virtually
async def test_two_processes_that_notice_the_same_give_it_the_same_id() -> None:
    async with Rig() as rig:
        other = asyncio.create_task((second := rig.process()).run(Retrier(rig.clock, Observer())))
        await rig.state.hold("r:ci", Hold("gone", NOW, "410"))
        for process in (rig.events, second):
            process.turned("receiver.gone", "ci", None)
            await asyncio.sleep(5)
            await rig.state.hold("r:ci", Hold("gone", NOW + 5, "410, said to another request"))
        first, again = await rig.told()
        assert first["id"] == again["id"] == "receiver.gone:ci:1700000000000"
        other.cancel()
        await asyncio.wait([other])


@virtually
async def test_one_that_was_resumed_meanwhile_is_not_told_of() -> None:
    async with Rig() as rig:
        rig.events.turned("receiver.disabled", "ci", None)
        await rig.state.hold("r:ci", Hold("paused", NOW, "by hand"))
        rig.events.turned("receiver.gone", "ci", None)
        assert await rig.told() == []


@virtually
async def test_failures_are_gathered() -> None:
    async with Rig() as rig:
        for number in range(EXAMPLES + 5):
            rig.events.failed(failure(number, reason="expired" if number else "rejected"), 20)
        rig.events.failed(failure(50, "made-up-by-a-sender", "unknown_receiver"), 20)
        rig.events.failed(failure(51, "-", "invalid"), 20)
        assert await rig.told() == []
        await asyncio.sleep(GATHER_S)
        of_ci, of_nobody = await rig.told()
        assert (of_ci["receiver"], of_ci["owner"], of_ci["count"]) == ("ci", "acme", EXAMPLES + 5)
        assert of_ci["reasons"] == {"expired": EXAMPLES + 4, "rejected": 1}
        assert (of_ci["first_failed_at"], of_ci["last_failed_at"]) == (
            "2023-11-14T22:13:20.000Z",
            "2023-11-14T22:13:34.000Z",
        )
        assert of_ci["examples"][0] == {
            "source_id": "github",
            "message_id": "m-0",
            "reason": "rejected",
            "attempts": 20,
            "path": "/v1/failed/3/0",
            "page": "/ui/messages/github/m-0",
        }
        assert len(of_ci["examples"]) == EXAMPLES
        assert (of_nobody["receiver"], of_nobody["count"]) == (None, 2)
        rig.events.failed(failure(60), 20)
        await asyncio.sleep(GATHER_S)
        assert [each["count"] for each in (await rig.told())] == [EXAMPLES + 5, 2, 1]


@virtually
async def test_failures_of_a_former_owner_s_messages_are_not_told_to_the_next_owner() -> None:
    async with Rig() as rig:
        rig.events.failed(failure(1), 3)
        rig.known.receivers["ci"] = receiver("ci", owner="beta")
        rig.events.failed(failure(2, reason="unknown_receiver"), 0)  # of a message that waited meanwhile
        rig.events.failed(failure(3), 3)
        await asyncio.sleep(GATHER_S)
        found = [(one["receiver"], one["owner"], one["examples"][0]["message_id"]) for one in await rig.told()]
        assert found == [("ci", "acme", "m-1"), (None, None, "m-2"), ("ci", "beta", "m-3")]


@virtually
async def test_an_incident_of_a_former_owner_s_receiver_is_not_told_to_the_next_owner() -> None:
    async with Rig() as rig:
        rig.known.receivers["ci"] = replace(receiver("ci", owner="beta"), life=Life("2"))
        for life in ("1", "2"):
            one = Incident(f"inc_{life}", "address_blocked", Party("receiver", "ci"), "", NOW, NOW, life=life)
            rig.events.changed("incident.resolved", one)
        assert [(one["page"][-1], one["owner"]) for one in await rig.told()] == [("1", None), ("2", "beta")]


@virtually
async def test_a_failed_delivery_of_an_event_is_no_event() -> None:
    async with Rig() as rig:
        rig.events.failed(failure(1, "ops", source_id="relay"), 20)
        rig.events.failed(failure(2, "ci", source_id="relay"), 20)
        await asyncio.sleep(2 * GATHER_S)
        assert await rig.told() == []


@virtually
async def test_nothing_is_appended_where_nobody_wants_to_hear() -> None:
    async with Rig(receiver("all", ["*"]), receiver("ci")) as rig:
        rig.events.turned("receiver.offline", "ci", NOW)
        rig.events.failed(failure(1), 20)
        await asyncio.sleep(2 * GATHER_S)
        assert await rig.told() == []


@virtually
async def test_what_is_being_gathered_is_told_when_the_process_ends() -> None:
    async with Rig() as rig:
        rig.events.failed(failure(1), 20)
        await rig.events.end()
        assert [each["count"] for each in await rig.told()] == [1]


@virtually
async def test_while_the_log_is_away_so_many_wait_and_the_rest_is_dropped() -> None:
    async with Rig() as rig:
        rig.log.error = LogUnavailable("away")
        for number in range(MOST + 10):
            rig.events.turned("receiver.offline", "ci", NOW + number)
        assert rig.value("relay_own_events_dropped_total", "receiver.offline") == 10
        await rig.events.end()  # takes no longer than it may
        rig.log.error = None
        await asyncio.sleep(60)
        assert len(await rig.told()) == MOST


@virtually
async def test_one_that_the_log_does_not_take_is_dropped_and_the_next_is_told() -> None:
    async with Rig() as rig:
        rig.log.error = RecordTooLarge("10 bytes at most", [0])
        rig.events.turned("receiver.offline", "ci", NOW)
        await asyncio.sleep(1)
        rig.log.error = None
        rig.events.turned("receiver.back", "ci", NOW)
        assert [each["type"] for each in await rig.told()] == ["receiver.back"]
        assert rig.value("relay_own_events_dropped_total", "receiver.offline") == 1


@virtually
async def test_only_so_many_receivers_are_gathered_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_events, "MOST", 2)
    names = ["ca", "cb", "cc"]
    async with Rig(receiver("ops", OPS), *map(receiver, names)) as rig:
        for number, name in enumerate(names):
            rig.events.failed(failure(number, name), 20)
        await asyncio.sleep(2 * GATHER_S)
        assert [each["receiver"] for each in await rig.told()] == ["ca", "cb"]
        assert rig.value("relay_own_events_dropped_total", "message.failed") == 1


def test_a_callback_is_nobody_s_receiver() -> None:
    told: list[tuple[object, ...]] = []
    observer = TelemetryObserver(Metrics("0"), SentryReporter(), lambda: None, turned=lambda *about: told.append(about))
    for endpoint_id in ("s:github", "r:ci"):
        observer.endpoint_offline(endpoint_id, 600.0, NOW)
        observer.endpoint_back(endpoint_id, 600.0, NOW)
        observer.endpoint_gone(endpoint_id, "410")
        observer.endpoint_disabled(endpoint_id, 600.0, None, gone=False)
        observer.endpoint_disabled(endpoint_id, 600.0, 410, gone=True)
    assert told == [
        ("receiver.offline", "ci", NOW),
        ("receiver.back", "ci", NOW),
        ("receiver.gone", "ci", None),
        ("receiver.disabled", "ci", None),
        ("receiver.gone", "ci", None),
    ]
