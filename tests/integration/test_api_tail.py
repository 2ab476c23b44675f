"""Tests of the live tail: its events, and which callers get them."""

from dataclasses import replace
from datetime import datetime

import pytest

from relay.api.tail.event import SHOWN_BODY, SHOWN_DELIVERIES
from relay.domain.attempt import AttemptFailure, AttemptResponse
from relay.domain.hop import Hop, encode_hop
from relay.domain.identity import DeliveryId, webhook_id
from relay.log.port import NewRecord
from tests.integration.api_rig import NOW, Rig, document, problem, running_api
from tests.integration.api_rig import rig as rig
from tests.integration.api_world import add_dead_letter
from tests.integration.tail_rig import SETTING, answer, attempt, listening, send

# --- events ---------------------------------------------------------------------------------------------------------


async def test_a_message_is_told_with_whom_it_goes_to(rig: Rig) -> None:
    async with listening(rig) as tail:
        await send(rig, "m-1", "github", "ci", "cd")
        told = await tail.expect("message")
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
            "state": "queued",
            "generation": 0,
            "attempts": 0,
            "last_status": None,
            "reason": None,
            "detail": None,
            "next_attempt_at": None,
            "next_at": None,
            "waiting_for": None,
            "updated_at": told["received_at"],
        }
        await send(rig, "m-2")  # to all subscribers
        assert [one["receiver"] for one in (await tail.expect("message"))["deliveries"]] == ["audit"]


async def test_an_answer_is_told_with_its_beginning_and_a_notice_of_failure_is_none(rig: Rig) -> None:
    async with listening(rig) as tail:
        await answer(rig, "m-0", outcome="failed")
        await answer(rig, "m-1", body=b"\xff" + b"x" * 2 * SHOWN_BODY)
        told = await tail.expect("answer")
        assert told["body"] == "\ufffd" + "x" * (SHOWN_BODY - 1)
        del told["body"]
        assert datetime.fromisoformat(told.pop("at")).timestamp() == NOW
        assert told == {
            "source_id": "github",
            "message_id": "m-1",
            "receiver": "ci",
            "status": 200,
            "content_type": "text/plain",
        }


async def test_a_dead_letter_is_told_as_the_list_has_it(rig: Rig) -> None:
    async with listening(rig, "?failed=true") as tail:
        await add_dead_letter(rig, "m-1")
        told = await tail.expect("failed")
        assert told == document(await rig.get("/v1/failed"))["items"][0]


async def test_what_nobody_can_read_tells_nothing_and_stops_nothing(rig: Rig) -> None:
    async with listening(rig) as tail:
        topics = (rig.topics.from_sender, rig.topics.to_sender, rig.topics.failed_messages)
        for topic in topics:
            rig.broker.spoil(topic)
            rig.broker.spoil(topic, gap=False)
            await rig.log.append([NewRecord(topic, b"github", None)])
        await rig.log.append([NewRecord(rig.topics.to_sender, b"github", b"", (("ce_id", b"\xff"),))])
        told = await tail.expect("failed")  # the letter that says nothing of itself
        assert (told["reason"], told["source_id"], told["receiver"]) == ("poison", None, "-")
        await send(rig, "m-1", "github", "ci")
        assert (await tail.expect("message"))["message_id"] == "m-1"


async def test_a_message_to_very_many_is_told_with_some_of_them() -> None:
    async with running_api(api_key=SETTING) as rig:
        key = await rig.keys.make("receiver:r-90", now=0)
        async with listening(rig, key=SETTING) as tail, listening(rig, key=key) as own:
            await send(rig, "m-1", "github", *(f"r-{n}" for n in range(100)))
            assert len((await tail.expect("message"))["deliveries"]) == SHOWN_DELIVERIES
            assert [one["receiver"] for one in (await own.expect("message"))["deliveries"]] == ["r-90"]


async def test_what_a_payload_or_an_id_holds_breaks_no_event(rig: Rig) -> None:
    async with listening(rig) as tail:
        hostile = "\x1b[2J\n\nevent: failed\ndata: {}\n\n\u2028<script>\u202e"
        await answer(rig, "m-1", body=hostile.encode())
        assert (await tail.expect("answer"))["body"] == hostile


async def test_an_attempt_is_told_with_what_came_back(rig: Rig) -> None:
    async with listening(rig) as tail:
        await attempt(rig, "m-1")
        told = await tail.expect("attempt")
        assert (told["receiver"], told["message_id"], told["duration_ms"]) == ("ci", "m-1", 12.3)
        assert told["request"]["url"] == "https://receiver.example/hooks"
        assert told["response"]["body"] == "built"
        await rig.log.append([NewRecord(rig.topics.delivery_attempts, b"github", b"{")])
        await attempt(rig, "m-2", response=None, error=AttemptFailure("timeout", "nothing came", True))
        assert (await tail.expect("attempt"))["error"] == {"kind": "timeout", "detail": "nothing came", "sent": True}


async def test_an_attempt_passes_the_filter_by_the_type_of_its_message_and_by_how_it_ended(rig: Rig) -> None:
    async with listening(rig, "?type=push&failed=true") as tail:
        await send(rig, "m-1", "github", "ci")
        await send(rig, "m-2", "github", "ci", type="pull_request")
        for id in ("m-1", "m-2", "unheard"):
            await attempt(rig, id, kind="status", response=AttemptResponse(202, {}, ""), outcome="retry")  # no failure
            await attempt(rig, id, kind="status", response=AttemptResponse(500, {}, id), outcome="retry")
        assert (await tail.expect("attempt"))["response"]["body"] == "m-1"
        await add_dead_letter(rig, "end")
        await tail.expect("failed")


async def test_what_goes_to_a_sender_is_told_to_who_reads_it_and_not_to_its_receivers() -> None:
    async with running_api(api_key=SETTING) as rig:
        reader, own = await rig.keys.make("read:github", now=0), await rig.keys.make("receiver:ci", now=0)
        async with listening(rig, key=reader) as reads, listening(rig, key=own) as sees:
            await attempt(rig, "m-1", kind="callback")
            await attempt(rig, "m-2", kind="ping", receiver=None, source_id="github", message_id=None)
            await attempt(rig, "m-3", started_at=NOW + 1)
            assert [(await reads.expect("attempt"))["kind"] for _ in range(3)] == ["callback", "ping", "post"]
            assert (await sees.expect("attempt"))["kind"] == "post"


async def test_an_attempt_that_is_written_late_is_told_before_what_it_led_to(rig: Rig) -> None:
    async with listening(rig) as tail:
        await answer(rig, "m-1")
        await attempt(rig, "m-1", started_at=NOW - 1)
        assert [(await tail.event())[0], (await tail.event())[0]] == ["attempt", "answer"]


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
async def test_filters_narrow_it(rig: Rig, query: str, seen: list[str]) -> None:
    async with listening(rig, query) as tail:
        await send(rig, "m-1", "github", "ci")
        await send(rig, "m-2", "github", "ci", "cd", type="pull_request.opened")
        await send(rig, "m-0", "other", "ci", type=None)
        await send(rig, "m-3", "shop", "ci")
        await rig.log.append([_end(rig, query)])
        found = []
        while (told := await tail.event())[0] == "message":
            found.append(told[1]["message_id"])
        assert sorted(found) == seen


def _end(rig: Rig, query: str) -> NewRecord:
    """An answer that passes all of these filters."""
    source = "shop" if "source=shop" in query else "github"
    delivery = DeliveryId("cd", source, "end")
    hop = Hop(delivery, "pull_request.opened" if "pull" in query else "push", outcome="answered", answer_status=200)
    return NewRecord(rig.topics.to_sender, source.encode(), b"", encode_hop(hop))


async def test_filters_that_are_wrong_are_problems(rig: Rig) -> None:
    problem(await rig.get("/v1/tail?failed=perhaps"), 400, "invalid-request")
    problem(await rig.get("/v1/tail?reciever=ci"), 400, "invalid-request")
    problem(await rig.get("/v1/tail?receiver=No%20Name"), 400, "invalid-request")
    problem(await rig.get("/v1/tail?source="), 400, "invalid-request")
    problem(await rig.get("/v1/tail?source=%01"), 400, "invalid-request")
    for wrong in ("a*b", "*.opened", "", "x" * 1025):
        refused = problem(await rig.get(f"/v1/tail?type=push&type={wrong}"), 400, "invalid-request")
        assert "a * only at its end" in refused["detail"]
        assert [error["parameter"] for error in refused["errors"]] == ["type"]


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
            assert [one["receiver"] for one in (await reads.expect("message"))["deliveries"]] == ["ci", "cd"]
            first, second = await owns.expect("message"), await owns.expect("message")
            assert {told["message_id"] for told in (first, second)} == {"m-1", "m-2"}
            assert [one["receiver"] for told in (first, second) for one in told["deliveries"]] == ["ci", "ci"]
            seen = [await sees.expect("message"), await sees.expect("message")]
            assert {told["message_id"] for told in seen} == {"m-1", "m-3"}
            assert [one["receiver"] for told in seen for one in told["deliveries"]] == ["cd", "cd"]
            await add_dead_letter(rig, "m-1")
            assert (await reads.expect("message"))["message_id"] == "m-1"
            assert (await reads.expect("failed"))["receiver"] == "ci"
            assert (await owns.expect("message"))["message_id"] == "m-1"
            assert (await owns.expect("failed"))["receiver"] == "ci"
            await answer(rig, "m-9", "cd")
            assert (await sees.expect("answer"))["receiver"] == "cd"


async def test_nobody_can_ask_for_what_they_may_not_see() -> None:
    async with running_api(api_key=SETTING) as rig:
        own = {"Authorization": f"Bearer {await rig.keys.make('receiver:ci', now=0)}"}
        reads = {"Authorization": f"Bearer {await rig.keys.make('read:shop', now=0)}"}
        problem(await rig.get("/v1/tail?receiver=cd", **own), 403, "forbidden")
        problem(await rig.get("/v1/tail?source=github", **reads), 403, "forbidden")
        problem(await rig.get("/v1/tail"), 401, "unauthorized")
