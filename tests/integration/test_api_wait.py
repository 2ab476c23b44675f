"""Tests of requests that wait for the receiver's answer, over a real socket."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from relay.config.limits import ApiLimits, limits_of
from relay.config.settings import Settings
from relay.domain.dead_letter import DeadLetter, dead_letter_headers
from relay.domain.hop import Hop, encode_hop, result_headers
from relay.domain.identity import DeliveryId
from relay.domain.reasons import REASON_CODES
from relay.log.port import NewRecord
from relay.state.read_model import RowDetails
from relay.state.replies import answered
from relay.state.rows import Mark, RowKey, Stage, delivery_row
from tests.integration.api_rig import NOW, Reply, Rig, document, problem, running_api
from tests.integration.test_api_keys import SETTING, bearer

POST = "/v1/sources/app/messages?receiver=ci"
GET = "/v1/sources/app/messages/m-1"
DELIVERY = DeliveryId("ci", "app", "m-1")
OFTEN = ApiLimits(look_s=0.02, waiters=2)
BINARY = bytes(range(256))


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    async with running_api(limits=OFTEN) as running:
        yield running


async def answer(rig: Rig, body: bytes = b"green", stage: Stage = Stage.PUBLISHED, *, awaited: bool = False) -> None:
    """Store the receiver's answer as another process would: first its record, then the mark."""
    hop = Hop(DELIVERY, content_type="text/x", attempt=2, outcome="answered", answer_status=201)
    headers = result_headers(hop)
    (at,) = await rig.log.append([NewRecord(rig.topics.to_sender, b"app", body, headers)])
    await answered(rig.state.mark([Mark(delivery_row(DELIVERY), 0, stage, (at.partition, at.offset), awaited=awaited)]))


async def fail(rig: Rig) -> str:
    """Store a dead letter of the delivery. Returns its path."""
    letter = DeadLetter("rejected", "it said 422: no such branch", "t-to_receiver_ci", None, 3, 1, 422)
    headers = dead_letter_headers(encode_hop(Hop(DELIVERY)), letter)
    (at,) = await rig.log.append([NewRecord(rig.topics.failed_messages, b"app", b"{}", headers)])
    place = at.partition, at.offset
    await answered(rig.state.mark([Mark(delivery_row(DELIVERY), 0, Stage.FAILED, place, REASON_CODES["rejected"])]))
    return f"/v1/failed/{at.partition}/{at.offset}"


class Looks:
    """Waits until the state was queried about the delivery so many times."""

    def __init__(self, rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
        self._made = asyncio.Semaphore(0)
        watch = rig.state.row_details

        async def watched(rows: list[RowKey]) -> list[RowDetails]:
            seen = await watch(rows)
            self._made.release()
            return seen

        monkeypatch.setattr(rig.state, "row_details", watched)

    async def made(self, count: int = 1) -> None:
        async with asyncio.timeout(10):
            for _ in range(count):
                await self._made.acquire()


def is_the_answer(reply: Reply, body: bytes = b"green") -> None:
    assert (reply.status, reply.body) == (200, body)
    told = {name.lower(): value for name, value in reply.headers.items()}
    assert told["content-type"] == "text/x"
    assert told["relay-answer-status"] == "201"
    assert told["relay-outcome"] == "answered"
    assert (told["relay-source"], told["relay-message-id"], told["relay-receiver"]) == ("app", "m-1", "ci")
    assert told["webhook-id"].startswith("ans_")
    assert told["content-security-policy"].startswith("sandbox")
    assert (told["content-disposition"], told["x-content-type-options"]) == ("attachment", "nosniff")


@pytest.mark.parametrize("body", [b"green", b"", BINARY])
@pytest.mark.parametrize("stage", [Stage.PUBLISHED, Stage.DONE])
async def test_post_answers_with_the_receivers_answer(
    rig: Rig, body: bytes, stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = Looks(rig, monkeypatch)
    async with asyncio.TaskGroup() as tasks:
        posting = tasks.create_task(rig.post(f"{POST}&wait=20", ce_id="m-1"))
        await looks.made(2)
        assert not posting.done()
        await answer(rig, body, stage)
    is_the_answer(posting.result(), body)


async def test_get_waits_for_the_receiver_that_it_names(rig: Rig) -> None:
    await rig.post("/v1/sources/app/messages?receiver=ci,cd", ce_id="m-1")
    await answer(rig)
    is_the_answer(await rig.get(f"{GET}?receiver=ci&wait=0"))
    late = await rig.get(f"{GET}?receiver=cd&wait=0")
    assert late.status == 202
    assert [each["receiver"] for each in document(late)["deliveries"]] == ["cd"]
    problem(await rig.get(f"{GET}?receiver=audit&wait=0"), 404, "not-found")


async def test_the_answer_of_another_receiver_than_the_named_one_is_not_returned(rig: Rig) -> None:
    await rig.post(POST, ce_id="m-1")
    await answer(rig)
    problem(await rig.get(f"{GET}?receiver=cd&wait=0"), 404, "not-found")


async def test_get_waits_likewise(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    await rig.post(POST, ce_id="m-1")
    looks = Looks(rig, monkeypatch)
    async with asyncio.TaskGroup() as tasks:
        getting = tasks.create_task(rig.get(f"{GET}?wait=20"))
        await looks.made(2)
        await answer(rig)
    is_the_answer(getting.result())
    is_the_answer(await rig.get(f"{GET}?wait=0"))
    repeated = await rig.post(f"{POST}&wait=20", ce_id="m-1")
    is_the_answer(repeated)
    assert repeated.headers["Idempotent-Replayed"] == "true"


async def test_a_key_that_is_revoked_meanwhile_gets_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running_api(api_key=SETTING, limits=OFTEN) as rig:
        headers = bearer(await rig.keys.make("ingest:app", "read:app", now=NOW))
        looks = Looks(rig, monkeypatch)
        async with asyncio.TaskGroup() as tasks:
            asked = rig.request("POST", f"{POST}&wait=20", b"{}", headers | {"ce-id": "m-1"})
            posting = tasks.create_task(asked)
            await looks.made(2)
            [key] = rig.keys.keys.all()
            await rig.keys.revoke(key)
            await answer(rig)
        refused = problem(posting.result(), 401, "unauthorized")
        assert "green" not in str(refused)
        assert posting.result().headers["WWW-Authenticate"].startswith("Bearer")


async def test_a_preference_means_the_same_and_is_told_to_be_applied(rig: Rig) -> None:
    await rig.post(POST, ce_id="m-1")
    await answer(rig)
    reply = await rig.get(GET, Prefer="wait=10")
    is_the_answer(reply)
    assert reply.headers["Preference-Applied"] == "wait=10"


async def test_a_hint_wakes_before_the_next_look(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running_api(limits=ApiLimits(look_s=3600)) as rig, asyncio.timeout(15):
        looks = Looks(rig, monkeypatch)
        posting = asyncio.create_task(rig.post(f"{POST}&wait=20", ce_id="m-1"))
        await looks.made()
        (record,) = rig.records(rig.topics.from_sender)
        assert dict(record.headers)["relay-wait"] == b"20"
        await answer(rig, awaited=True)
        is_the_answer(await posting)


async def test_a_message_may_say_that_a_later_request_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running_api(limits=ApiLimits(look_s=3600)) as rig, asyncio.timeout(15):
        assert (await rig.post(POST, ce_id="m-1", relay_wait="20")).status == 202
        (record,) = rig.records(rig.topics.from_sender)
        assert dict(record.headers)["relay-wait"] == b"20"
        looks = Looks(rig, monkeypatch)
        getting = asyncio.create_task(rig.get(f"{GET}?wait=20"))
        await looks.made()
        await answer(rig, awaited=True)
        is_the_answer(await getting)


@pytest.mark.parametrize("text", ["", "soon", "-1", "1.5", "9" * 10])
async def test_what_says_how_long_it_waits_is_a_number(rig: Rig, text: str) -> None:
    refused = problem(await rig.post(POST, relay_wait=text), 400, "invalid-request")
    assert refused["errors"][0]["header"] == "relay-wait"


async def test_what_failed_for_good_is_a_502_that_says_why(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    looks = Looks(rig, monkeypatch)
    async with asyncio.TaskGroup() as tasks:
        posting = tasks.create_task(rig.post(f"{POST}&wait=20", ce_id="m-1", Prefer="wait=5"))
        await looks.made(2)
        letter = await fail(rig)
    reply = posting.result()
    assert (reply.status, reply.headers["Content-Type"]) == (502, "application/problem+json")
    found = document(reply)
    assert (found["type"], found["status"]) == ("/problems/rejected", 502)
    assert (found["reason"], found["detail"]) == ("rejected", "it said 422: no such branch")
    assert (found["attempts"], found["last_status"], found["receiver"]) == (3, 422, "ci")
    assert found["dead_letter"] == letter
    assert document(await rig.get(found["dead_letter"]))["reason"] == "rejected"
    assert (reply.headers["relay-outcome"], reply.headers["relay-reason"]) == ("failed", "rejected")


@pytest.mark.parametrize("wait", ["0", "0.05"])
async def test_what_takes_longer_is_a_202_that_says_where_to_ask(rig: Rig, wait: str) -> None:
    for reply in (await rig.post(f"{POST}&wait={wait}", ce_id="m-1"), await rig.get(f"{GET}?wait={wait}")):
        assert (reply.status, reply.headers["Location"]) == (202, GET)
        assert int(reply.headers["Retry-After"]) > 0
        assert document(reply)["status"] == "arrived"


async def test_a_preference_was_heeded_also_where_it_took_longer(rig: Rig) -> None:
    for reply in (await rig.post(POST, ce_id="m-1", Prefer="wait=0"), await rig.get(GET, Prefer="wait=0")):
        assert (reply.status, reply.headers["Preference-Applied"]) == (202, "wait=0")


async def test_beyond_the_bound_nobody_waits(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    looks = Looks(rig, monkeypatch)
    async with asyncio.TaskGroup() as tasks:
        waiting = [tasks.create_task(rig.post(f"{POST}&wait=20", ce_id="m-1")) for _ in range(2)]
        await looks.made(3)
        third = await rig.get(GET, Prefer="wait=20")
        assert (third.status, "Preference-Applied" in third.headers) == (202, False)
        await answer(rig)
    for one in waiting:
        is_the_answer(one.result())
    is_the_answer(await rig.get(f"{GET}?wait=20"))


def test_how_many_may_wait_is_a_setting() -> None:
    assert limits_of(Settings(receivers_file="none", api_waiters=1), 1).waiters == 1


async def test_one_caller_leaves_places_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running_api(api_key=SETTING, limits=ApiLimits(look_s=3600, waiters=8)) as rig, asyncio.timeout(15):
        looks = Looks(rig, monkeypatch)
        many, few = [bearer(await rig.keys.make("ingest:app", "read:app", now=NOW)) for _ in range(2)]
        async with asyncio.TaskGroup() as tasks:

            def wait(caller: dict[str, str]) -> asyncio.Task[Reply]:
                return tasks.create_task(rig.request("POST", f"{POST}&wait=20", b"{}", caller | {"ce-id": "m-1"}))

            waiting = [wait(many) for _ in range(7)]
            await looks.made(7)
            assert (await wait(many)).status == 202
            waiting.append(wait(few))
            await answer(rig, awaited=True)
        for one in waiting:
            is_the_answer(one.result())
        is_the_answer(await rig.request("GET", f"{GET}?wait=20", b"", many))


async def test_who_hangs_up_gives_its_place_back(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    looks = Looks(rig, monkeypatch)
    for _ in range(6):
        posting = asyncio.create_task(rig.post(f"{POST}&wait=20", ce_id="m-1"))
        await looks.made()
        posting.cancel()
        await asyncio.wait([posting])
    async with asyncio.TaskGroup() as tasks:
        getting = tasks.create_task(rig.get(f"{GET}?wait=20"))
        await looks.made(3)
        assert not getting.done()
        await answer(rig)
    is_the_answer(getting.result())


async def test_a_look_that_fails_ends_no_wait(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    looks = Looks(rig, monkeypatch)
    async with asyncio.TaskGroup() as tasks:
        posting = tasks.create_task(rig.post(f"{POST}&wait=20", ce_id="m-1"))
        await looks.made(2)
        rig.broker.available = False
        rig.state.lose()
        await rig.post(f"{POST}&wait=0")
        assert not posting.done()
        rig.broker.available = True
        await rig.state.ready(sorted(await rig.state.lost()), in_doubt_s=0)
        await answer(rig)
    is_the_answer(posting.result())


async def test_a_message_is_accepted_although_nobody_can_look(rig: Rig) -> None:
    rig.state.away = {"row_details"}
    reply = await rig.post(f"{POST}&wait=0.05", ce_id="m-1")
    assert (reply.status, len(rig.records(rig.topics.from_sender))) == (202, 1)


async def test_a_server_that_stops_lets_nobody_wait(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    looks = Looks(rig, monkeypatch)
    async with asyncio.TaskGroup() as tasks:
        posting = tasks.create_task(rig.post(f"{POST}&wait=25", ce_id="m-1"))
        await looks.made(2)
        await rig.server.stop()
    assert posting.result().status == 202


async def test_wait_is_for_one_receiver(rig: Rig) -> None:
    for receivers in ("ci&receiver=cd", "ci,cd"):
        refused = await rig.post(f"/v1/sources/app/messages?receiver={receivers}&wait=5", ce_id="m-1", Prefer="wait=1")
        assert (refused.status, [error["parameter"] for error in document(refused)["errors"]]) == (400, ["wait"])
    assert not rig.records(rig.topics.from_sender), "nothing is stored"
    preferred = await rig.post(f"{POST}&receiver=cd", ce_id="m-1", Prefer="wait=5")
    assert (preferred.status, "Preference-Applied" in preferred.headers) == (202, False)
    assert (await rig.get(f"{GET}?wait=5")).status == 400
    assert (await rig.get(GET, Prefer="wait=5")).status == 200


async def test_who_is_found_by_subscription_may_be_that_one(rig: Rig) -> None:
    reply = await rig.post("/v1/sources/github/messages?wait=0&type=push", ce_id="m-1")
    assert (reply.status, [one["receiver"] for one in document(reply)["deliveries"]]) == (202, ["audit"])


@pytest.mark.parametrize("wait", ["soon", "-1", "", "1e9", "9999999999"])
@pytest.mark.parametrize("preference", [{}, {"Prefer": "wait=1"}])
async def test_a_wait_that_is_no_number_of_seconds(rig: Rig, wait: str, preference: dict[str, str]) -> None:
    refused = problem(await rig.post(f"{POST}&wait={wait}", b"{}", ce_id="m-1", **preference), 400, "invalid-request")
    assert [error["parameter"] for error in refused["errors"]] == ["wait"]
    assert not rig.records(rig.topics.from_sender)


async def test_an_unknown_message_is_not_waited_for(rig: Rig) -> None:
    assert (await rig.get("/v1/sources/app/messages/none?wait=20")).status == 404
