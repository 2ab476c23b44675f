"""Tests of the live tail's limits: a slow client costs only its own place, and streams end as they should."""

import asyncio
import json
import socket
from contextlib import suppress
from dataclasses import replace

import pytest

from relay.api import bounds, server
from relay.api.connection import ApiConnection
from relay.api.tail import event
from relay.api.tail import tail as tail_module
from relay.api.tail.event import readers
from relay.api.tail.tail import Reading, TailQueue
from relay.config.limits import ApiLimits
from relay.domain.scope import parse_scope
from tests.expecting import present
from tests.integration.api_rig import NOW, Rig, document, problem, running_api
from tests.integration.api_rig import rig as rig
from tests.integration.tail_rig import SETTING, TailReader, answer, listening, send


async def session_of(rig: Rig, key: str, **asked: object) -> str:
    body = json.dumps({"key": key, **asked}).encode()
    made = await rig.request("POST", "/v1/sessions", body, {"content-type": "application/json"})
    return str(document(made)["token"])


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
        made = await rig.keys.make("admin", now=NOW)
        async with listening(rig, key=made), listening(rig, key=await session_of(rig, made)):
            for each in (made, await session_of(rig, made)):  # sessions of a key take the key's places
                refused = await rig.get("/v1/tail", Authorization=f"Bearer {each}")
                assert "This caller" in problem(refused, 503, "unavailable")["detail"]
    async with running_api(limits=ApiLimits(listeners=1)) as rig, listening(rig):
        assert "All places" in problem(await rig.get("/v1/tail"), 503, "unavailable")["detail"]


async def test_who_hangs_up_gives_the_place_back_and_then_nothing_is_read() -> None:
    async with running_api(limits=ApiLimits(listeners=1)) as rig:
        for _ in range(3):
            async with listening(rig) as tail:
                tail.response.close()
            assert (await rig.request("HEAD", "/v1/tail")).status == 200  # which takes no place
            readings = [task for task in asyncio.all_tasks() if "Tail._read" in repr(task)]
            async with asyncio.timeout(10):
                await asyncio.gather(*readings)


async def test_a_listener_that_takes_nothing_misses_some_and_is_told_how_many() -> None:
    place = TailQueue(lambda happening: happening, most_bytes=10)
    for written in (b"1234", b"5678", b"9abc", b"d"):
        place.put(written)
    place.miss(7)
    assert await place.take(1) == b'12345678event: skipped\ndata: {"count":9}\n\n'
    place.put(b"e")
    assert await place.take(1) == b"e"


async def test_a_connection_that_takes_nothing_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    lost = asyncio.Event()

    class RowDetails(ApiConnection):
        def connection_lost(self, exc: BaseException | None) -> None:
            super().connection_lost(exc)
            lost.set()

    monkeypatch.setattr(server, "ApiConnection", RowDetails)
    monkeypatch.setattr(tail_module, "LOOK_S", 0.0)
    large = 2**18  # a few of these, and the system's buffers are full
    monkeypatch.setattr(event, "SHOWN_BODY", large)
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


async def test_more_than_a_look_reads_is_passed_over_and_counted(rig: Rig) -> None:
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


async def test_partitions_that_come_are_read_and_a_topic_made_anew_begins_anew(rig: Rig) -> None:
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
    async with running_api() as rig, listening(rig) as tail:
        rig.broker.available = False
        assert await tail.expect("away") == {}
        rig.broker.available = True
        await send(rig, "m-1", "github", "ci")
        assert await tail.expect("listening") == {}
        assert (await tail.expect("message"))["message_id"] == "m-1"


async def test_it_ends_with_the_server_and_after_its_time() -> None:
    async with running_api() as rig, listening(rig) as tail:
        async with asyncio.timeout(9):  # not the ten seconds that other requests have
            await rig.server.stop()
        with pytest.raises(EOFError):
            await tail.event()
    async with running_api(limits=ApiLimits(listen_s=0.05)) as rig:
        text = (await rig.get("/v1/tail")).text
        assert text.startswith("retry: 1000\n\nevent: listening\n")


async def test_it_ends_soon_after_what_lets_the_caller_listen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounds, "JUDGED_S", 0.02)
    async with running_api(api_key=SETTING) as rig, asyncio.timeout(20):
        keys = rig.keys.keys
        revoked, narrowed = await rig.keys.make("read:*", now=NOW), await rig.keys.make("read:*", now=NOW)
        left, late = await session_of(rig, SETTING), await rig.keys.make("admin", now=NOW, expires_at=NOW + 60)
        async with listening(rig, key=SETTING) as stays:
            async with listening(rig, key=revoked) as tail:
                found = present(keys.find(revoked))
                await rig.keys.revoke(found)
                await is_sent_home(tail, "An API key is required")
            async with listening(rig, key=left) as tail:
                bearer = {"Authorization": f"Bearer {left}"}
                assert document(await rig.request("DELETE", "/v1/session", headers=bearer))["ended"]
                await is_sent_home(tail, "it was ended")
            async with listening(rig, key=late) as tail:
                rig.clock.now += 61
                await is_sent_home(tail, "expired")
            async with listening(rig, key=narrowed) as tail:
                found = present(keys.find(narrowed))
                keys._keys[found.id] = replace(found, scopes=frozenset({parse_scope("read:other")}))
                await is_sent_home(tail, "has changed")
            await send(rig, "m-1", "github", "ci")
            await stays.expect("message")


async def is_sent_home(tail: TailReader, why: str) -> None:
    assert why in (await tail.expect("ended"))["detail"]
    with pytest.raises(EOFError):
        await tail.event()


async def test_where_nobody_has_a_key_it_ends_with_the_first_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounds, "JUDGED_S", 0.02)
    async with running_api() as rig, asyncio.timeout(20), listening(rig) as tail:
        await rig.keys.make("admin", now=NOW)
        await is_sent_home(tail, "An API key is required")


async def test_a_fault_of_ours_sends_everybody_home(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    async with listening(rig) as tail:
        monkeypatch.setattr(Reading, "look", lambda _self, _now: 1 / 0)
        with pytest.raises(EOFError):
            await tail.event()
        monkeypatch.undo()
        async with listening(rig) as again:
            await send(rig, "m-1", "github", "ci")
            await again.expect("message")
