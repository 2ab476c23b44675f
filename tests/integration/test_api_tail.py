"""The live tail: what is told, to whom, and that nobody who listens costs more than their place."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any

import pytest
from aiohttp import ClientResponse

from relay.api import app as app_module
from relay.api.connection import Connection
from relay.api.limits import ApiLimits
from relay.api.tail import happening
from relay.api.tail import tail as tail_module
from relay.api.tail.happening import SHOWN_BODY, SHOWN_DELIVERIES, readers
from relay.api.tail.place import Place
from relay.api.tail.reading import Reading
from relay.domain.hop import Hop, encode_hop, result_headers
from relay.domain.identity import DeliveryId, webhook_id
from relay.domain.message import Message, message_headers
from relay.log.port import NewRecord
from tests.integration.api_rig import Rig, document, problem, running_api
from tests.integration.api_world import bury

SETTING = "the key of the settings"


@dataclass
class Ear:
    """One who listens."""

    response: ClientResponse

    async def event(self) -> tuple[str, Any]:
        """The next event: its name and its data. Signs of life are passed over."""
        while True:
            lines: list[str] = []
            while line := (await self.response.content.readline()).decode().rstrip("\n"):
                lines.append(line)
            named = dict(line.split(": ", 1) for line in lines if not line.startswith(":"))
            if "event" in named:
                return named["event"], json.loads(named["data"])
            if self.response.content.at_eof():
                raise EOFError

    async def told(self, name: str) -> Any:
        """The data of the next event, which has this name."""
        found, data = await self.event()
        assert found == name, data
        return data


@asynccontextmanager
async def listening(rig: Rig, query: str = "", key: str | None = None) -> AsyncIterator[Ear]:
    """It is heard already: what happens from now on is told."""
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    async with rig.client.get(f"{rig.url}/v1/tail{query}", headers=headers) as response:
        assert response.status == 200, await response.text()
        assert response.content_type == "text/event-stream"
        ear = Ear(response)
        assert await ear.told("listening") == {}
        yield ear


async def send(rig: Rig, id: str, source: str = "github", *receivers: str, type: str | None = "push") -> None:
    message = Message(source, id, receivers or None, type, None, "application/json", b'{"n": 1}')
    record = NewRecord(rig.topics.from_sender, source.encode(), message.payload, message_headers(message))
    await rig.log.append([record])


async def answer(rig: Rig, id: str, receiver: str = "ci", body: bytes = b"built", outcome: Any = "answered") -> None:
    delivery = DeliveryId(receiver, "github", id)
    hop = Hop(delivery, "push", content_type="text/plain", outcome=outcome, answer_status=200)
    await rig.log.append([NewRecord(rig.topics.to_sender, b"github", body, result_headers(hop))])


# --- what is told ---------------------------------------------------------------------------------------------------


async def test_a_message_is_told_with_whom_it_goes_to() -> None:
    async with running_api() as rig, listening(rig) as ear:
        await send(rig, "m-1", "github", "ci", "cd")
        told = await ear.told("message")
        assert {name: told[name] for name in ("source_id", "message_id", "webhook_id", "type", "status")} == {
            "source_id": "github",
            "message_id": "m-1",
            "webhook_id": webhook_id("github", "m-1"),
            "type": "push",
            "status": "arrived",
        }
        assert (told["size"], told["content_type"], told["received_at"]) == (
            8,
            "application/json",
            "2023-11-14T22:13:20.000Z",
        )
        assert [one["receiver"] for one in told["deliveries"]] == ["ci", "cd"]
        assert told["deliveries"][0] == {
            "receiver": "ci",
            "status": "arrived",
            "generation": 0,
            "attempts": 0,
            "last_status": None,
            "reason": None,
            "detail": None,
            "updated_at": told["received_at"],
        }
        await send(rig, "m-2")  # to whoever subscribes
        assert [one["receiver"] for one in (await ear.told("message"))["deliveries"]] == ["audit"]


async def test_an_answer_is_told_with_its_beginning_and_a_notice_of_failure_is_none() -> None:
    async with running_api() as rig, listening(rig) as ear:
        await answer(rig, "m-0", outcome="failed")
        await answer(rig, "m-1", body=b"\xff" + b"x" * 2 * SHOWN_BODY)
        told = await ear.told("answer")
        assert told["body"] == "\ufffd" + "x" * (SHOWN_BODY - 1)
        del told["body"]
        assert told == {
            "source_id": "github",
            "message_id": "m-1",
            "receiver": "ci",
            "status": 200,
            "content_type": "text/plain",
        }


async def test_a_dead_letter_is_told_as_the_list_has_it() -> None:
    async with running_api() as rig, listening(rig, "?failed=true") as ear:
        await bury(rig, "m-1")
        told = await ear.told("failed")
        assert told == document(await rig.get("/v1/failed"))["items"][0]


async def test_what_nobody_can_read_tells_nothing_and_stops_nothing() -> None:
    async with running_api() as rig, listening(rig) as ear:
        topics = (rig.topics.from_sender, rig.topics.to_sender, rig.topics.failed_messages)
        for topic in topics:
            rig.broker.spoil(topic)
            rig.broker.spoil(topic, gap=False)
            await rig.log.append([NewRecord(topic, b"github", None)])
        await rig.log.append([NewRecord(rig.topics.to_sender, b"github", b"", (("ce_id", b"\xff"),))])
        told = await ear.told("failed")  # the letter that says nothing of itself
        assert (told["reason"], told["source_id"], told["receiver"]) == ("poison", None, "-")
        await send(rig, "m-1", "github", "ci")
        assert (await ear.told("message"))["message_id"] == "m-1"


async def test_a_message_to_very_many_is_told_with_some_of_them() -> None:
    async with running_api(api_key=SETTING) as rig:
        key = await rig.keys.make("receiver:r-90", now=0)
        async with listening(rig, key=SETTING) as ear, listening(rig, key=key) as own:
            await send(rig, "m-1", "github", *(f"r-{n}" for n in range(100)))
            assert len((await ear.told("message"))["deliveries"]) == SHOWN_DELIVERIES
            assert [one["receiver"] for one in (await own.told("message"))["deliveries"]] == ["r-90"]


async def test_what_a_payload_or_an_id_holds_breaks_no_event() -> None:
    async with running_api() as rig, listening(rig) as ear:
        hostile = "\x1b[2J\n\nevent: failed\ndata: {}\n\n\u2028<script>\u202e"
        await answer(rig, "m-1", body=hostile.encode())
        assert (await ear.told("answer"))["body"] == hostile


# --- filters --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("query", "seen"),
    [
        ("?source=shop", ["m-3"]),
        ("?source=shop&source=github", ["m-1", "m-2", "m-3"]),
        ("?receiver=cd", ["m-2"]),
        ("?type=push", ["m-1", "m-3"]),
        ("?type=pull*&receiver=cd", ["m-2"]),
        ("?failed=false&source=shop", ["m-3"]),
    ],
)
async def test_filters_narrow_it(query: str, seen: list[str]) -> None:
    async with running_api() as rig, listening(rig, query) as ear:
        await send(rig, "m-1", "github", "ci")
        await send(rig, "m-2", "github", "ci", "cd", type="pull_request.opened")
        await send(rig, "m-0", "other", "ci", type=None)
        await send(rig, "m-3", "shop", "ci")
        await rig.log.append([_end(rig, query)])
        found = []
        while (told := await ear.event())[0] == "message":
            found.append(told[1]["message_id"])
        assert sorted(found) == seen


def _end(rig: Rig, query: str) -> NewRecord:
    """An answer that passes all of these filters."""
    source = "shop" if "source=shop" in query else "github"
    delivery = DeliveryId("cd", source, "end")
    hop = Hop(delivery, "pull_request.opened" if "pull" in query else "push", outcome="answered", answer_status=200)
    return NewRecord(rig.topics.to_sender, source.encode(), b"", encode_hop(hop))


async def test_filters_that_are_wrong_are_problems() -> None:
    async with running_api() as rig:
        problem(await rig.get("/v1/tail?failed=perhaps"), 400, "invalid-request")
        problem(await rig.get("/v1/tail?reciever=ci"), 400, "invalid-request")


# --- who may see what -----------------------------------------------------------------------------------------------


async def test_who_reads_a_source_sees_what_is_of_it_and_who_has_a_receiver_what_is_about_that() -> None:
    async with running_api(api_key=SETTING) as rig:
        rig.directory.receivers["ci"] = replace(rig.directory.receivers["ci"], owner="alice")
        reader = await rig.keys.make("read:git*", now=0)
        owner = await rig.keys.make("owner:alice", now=0)
        other = await rig.keys.make("receiver:cd", now=0)
        async with (
            listening(rig, key=reader) as reads,
            listening(rig, key=owner) as owns,
            listening(rig, key=other) as sees,
        ):
            await send(rig, "m-0", "secret", "nobody")
            await send(rig, "m-1", "github", "ci", "cd")
            await send(rig, "m-2", "shop", "ci")
            await send(rig, "m-3", "shop", "cd")
            assert [one["receiver"] for one in (await reads.told("message"))["deliveries"]] == ["ci", "cd"]
            first, second = await owns.told("message"), await owns.told("message")
            assert {told["message_id"] for told in (first, second)} == {"m-1", "m-2"}
            assert [one["receiver"] for told in (first, second) for one in told["deliveries"]] == ["ci", "ci"]
            seen = [await sees.told("message"), await sees.told("message")]
            assert {told["message_id"] for told in seen} == {"m-1", "m-3"}
            assert [one["receiver"] for told in seen for one in told["deliveries"]] == ["cd", "cd"]
            await bury(rig, "m-1")
            assert (await reads.told("message"))["message_id"] == "m-1"
            assert (await reads.told("failed"))["receiver"] == "ci"
            assert (await owns.told("message"))["message_id"] == "m-1"
            assert (await owns.told("failed"))["receiver"] == "ci"
            await answer(rig, "m-9", "cd")
            assert (await sees.told("answer"))["receiver"] == "cd"


async def test_nobody_can_ask_for_what_they_may_not_see() -> None:
    async with running_api(api_key=SETTING) as rig:
        own = {"Authorization": f"Bearer {await rig.keys.make('receiver:ci', now=0)}"}
        reads = {"Authorization": f"Bearer {await rig.keys.make('read:shop', now=0)}"}
        problem(await rig.get("/v1/tail?receiver=cd", **own), 403, "forbidden")
        problem(await rig.get("/v1/tail?source=github", **reads), 403, "forbidden")
        problem(await rig.get("/v1/tail"), 401, "unauthorized")


# --- bounds ---------------------------------------------------------------------------------------------------------


async def test_there_are_so_many_places_and_so_many_for_one_caller() -> None:
    async with running_api(api_key=SETTING, limits=ApiLimits(listeners=8)) as rig:
        bearer = {"Authorization": f"Bearer {SETTING}"}
        async with listening(rig, key=SETTING), listening(rig, key=SETTING):
            refused = await rig.get("/v1/tail", **bearer)
            assert "This caller" in problem(refused, 503, "unavailable")["detail"]
            assert "Retry-After" in refused.headers
            async with listening(rig, key=await rig.keys.make("admin", now=0)):
                pass
        async with listening(rig, key=SETTING):
            pass
    async with running_api(limits=ApiLimits(listeners=1)) as rig, listening(rig):
        assert "All places" in problem(await rig.get("/v1/tail"), 503, "unavailable")["detail"]


async def test_who_hangs_up_gives_the_place_back_and_then_nothing_is_read() -> None:
    async with running_api(limits=ApiLimits(listeners=1)) as rig:
        for _ in range(3):
            async with listening(rig) as ear:
                ear.response.close()
            assert (await rig.request("HEAD", "/v1/tail")).status == 200  # which takes no place
            readings = [task for task in asyncio.all_tasks() if "Tail._read" in repr(task)]
            async with asyncio.timeout(10):
                await asyncio.gather(*readings)


async def test_a_listener_that_takes_nothing_misses_some_and_is_told_how_many() -> None:
    place = Place("me", lambda happening: happening, most_bytes=10)
    for event in (b"1234", b"5678", b"9abc", b"d"):
        place.put(event)
    assert await place.take(1) == b'12345678event: skipped\ndata: {"count":2}\n\n'
    place.put(b"e")
    assert await place.take(1) == b"e"


async def test_a_connection_that_takes_nothing_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    lost = asyncio.Event()

    class Told(Connection):
        def connection_lost(self, exc: BaseException | None) -> None:
            super().connection_lost(exc)
            lost.set()

    monkeypatch.setattr(app_module, "Connection", Told)
    monkeypatch.setattr(tail_module, "LOOK_S", 0.0)
    large = 2**18  # a few of these, and the system's buffers are full
    monkeypatch.setattr(happening, "SHOWN_BODY", large)
    async with running_api(limits=ApiLimits(write_s=0.1)) as rig:
        with socket.socket() as slow:
            slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
            slow.setblocking(False)
            loop = asyncio.get_running_loop()
            await loop.sock_connect(slow, ("127.0.0.1", int(rig.url.rpartition(":")[2])))
            await loop.sock_sendall(slow, b"GET /v1/tail HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            assert await loop.sock_recv(slow, 1)
            async with asyncio.timeout(20):
                while not lost.is_set():
                    for _ in range(3):  # more would not wait for one listener
                        await answer(rig, "m-1", body=b"x" * large)
                    with suppress(TimeoutError):
                        await asyncio.wait_for(lost.wait(), 0.05)


async def test_more_than_a_look_reads_is_passed_over_and_counted() -> None:
    async with running_api() as rig:
        reading = Reading(rig.log, readers(rig.topics, rig.directory), most=10)
        assert await reading.look(0) == ([], 0)
        for number in range(30):
            await send(rig, f"m-{number}", "github", "ci")
        await answer(rig, "m-1")
        found, passed = await reading.look(1)
        assert passed == 25
        assert [each.view["message_id"] for each in found if each.kind == "message"] == [  # the newest of them
            f"m-{number}" for number in range(25, 30)
        ]
        assert await reading.look(2) == ([], 0)


async def test_partitions_that_come_are_read_and_a_topic_made_anew_begins_anew() -> None:
    async with running_api() as rig:
        reading = Reading(rig.log, readers(rig.topics, rig.directory))
        await send(rig, "m-0", "github", "ci")
        assert await reading.look(0) == ([], 0)
        await rig.log.grow(rig.topics.from_sender, 40)
        for number in range(20):
            await send(rig, "m-1", f"s-{number}", "ci")
        found, _ = await reading.look(1_000)
        assert {each.source_id for each in found} == {f"s-{number}" for number in range(20)}
        rig.broker._partitions.clear()
        assert await reading.look(1_001) == ([], 0)
        await send(rig, "m-2", "github", "ci")
        assert len((await reading.look(1_002))[0]) == 1


# --- outages and ends -----------------------------------------------------------------------------------------------


async def test_it_says_when_the_log_is_away_and_goes_on_where_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tail_module, "AWAY_S", 0.01)
    async with running_api() as rig, listening(rig) as ear:
        rig.broker.available = False
        assert await ear.told("away") == {}
        rig.broker.available = True
        await send(rig, "m-1", "github", "ci")
        assert await ear.told("listening") == {}
        assert (await ear.told("message"))["message_id"] == "m-1"


async def test_it_ends_with_the_server_and_after_its_time() -> None:
    async with running_api() as rig, listening(rig) as ear:
        async with asyncio.timeout(5):  # not the ten seconds that requests under way have
            await rig.server.stop()
        with pytest.raises(EOFError):
            await ear.event()
    async with running_api(limits=ApiLimits(listen_s=0.05)) as rig:
        text = (await rig.get("/v1/tail")).text
        assert text.startswith("retry: 1000\n\nevent: listening\n")


async def test_a_fault_of_ours_sends_everybody_home(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running_api() as rig, listening(rig) as ear:
        monkeypatch.setattr(Reading, "look", lambda _self, _now: 1 / 0)
        with pytest.raises(EOFError):
            await ear.event()
        monkeypatch.undo()
        async with listening(rig) as again:
            await send(rig, "m-1", "github", "ci")
            await again.told("message")
