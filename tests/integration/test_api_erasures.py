"""Tests of erasures over the API: an erased message is not shown, exported, copied or replayed."""

import json
from typing import Any

import pytest

from relay.cli.access import erase
from relay.domain.erasure import MOST_ERASURES, Erasure
from relay.domain.errors import HistoryUnavailable
from relay.domain.statistics import NUMBERS, Counted
from relay.state.read_model import LastAttempt, LastResponse, Tally
from tests.contract.history_facts import put
from tests.integration.api_rig import Reply, Rig, document, problem, run_command
from tests.integration.api_world import add_dead_letter
from tests.integration.history_world import KEPT, World, arrived
from tests.integration.history_world import at as at
from tests.integration.test_api_keys import ADMIN, SETTING
from tests.integration.test_api_receiver_export import exported

MESSAGE = "/v1/sources/github/messages/m-7"


async def post(at: World, **what: str) -> Reply:
    at.rig.clock.now += 10
    headers = ADMIN | {"Content-Type": "application/json"}
    return await at.rig.request("POST", "/v1/erasures", json.dumps(what).encode(), headers)


def made_of(reply: Reply) -> Any:
    assert reply.status == 201, reply
    return document(reply)


async def add_kept_message(at: World) -> None:
    """`m-7` went to `ci` and `deploy`; the history keeps its payload."""
    await put(at.history, arrived(at.rig, 7, source="github", receivers=("ci", "deploy"), size=55, **KEPT))


async def test_an_erased_payload_is_gone_from_everything_that_shows_it(at: World) -> None:
    await add_kept_message(at)
    assert (await at.get(f"{MESSAGE}/payload")).status == 200
    made = made_of(await post(at, source_id="github", message_id="m-7"))
    assert (made["in_history"], made["by"], made["receiver"]) == (1, "RELAY_API_KEY", None)
    gone = problem(await at.get(f"{MESSAGE}/payload"), 410, "payload-gone")
    assert gone["detail"] == "It was erased on request."
    copy = await at.rig.request("POST", f"{MESSAGE}/copies", b"{}", ADMIN | {"Content-Type": "application/json"})
    problem(copy, 410, "payload-gone")
    [item] = document(await at.get("/v1/messages?id=m-7"))["items"]
    assert (item["preview"], item["size"]) == (None, 55)
    kept = {one["message_id"]: (one["payload"], one["payload_kept"]) for one in (await exported(at))[0]}
    assert kept["m-7"] == (None, "erased")
    assert kept["m-1"][0] == KEPT["body"].decode()
    assert [one["id"] for one in document(await at.get("/v1/erasures"))["items"]] == [made["id"]]


async def test_the_last_response_of_an_erased_receiver_is_not_shown_as_it_may_repeat_a_payload(at: World) -> None:
    async def answers(number: int) -> None:
        at.rig.clock.now += 1
        now = at.rig.clock.now
        response = LastResponse(now, 422, {}, "it repeats the payload", truncated=False)
        last = Tally("r:ci", Counted((1,) * NUMBERS), LastAttempt(now, 422, None, 0.1), response)
        await at.rig.state.tally("a process", number, [last])

    for number, what in enumerate(({"receiver": "ci"}, {"receiver": "deploy"}), 1):
        await answers(number)
        shown = await at.get("/v1/receivers/ci/last-response")
        assert document(shown)["body"] == "it repeats the payload"
        made_of(await post(at, **what))
        after = (await at.get("/v1/receivers/ci/last-response")).status
        assert after == (404 if what["receiver"] == "ci" else 200)


async def test_an_erasure_says_what_remains_on_the_log_and_until_when(at: World) -> None:
    remains = {
        each["topic"].removeprefix("t-"): each["until"] for each in made_of(await post(at, source_id="x"))["remains"]
    }
    assert remains == {
        "from_sender": "2026-09-28T12:01:10.000Z",
        "to_receiver_*": "2026-09-28T12:01:10.000Z",
        "pending_from_receiver_*": "2026-09-28T12:01:10.000Z",
        "to_sender": "2026-09-28T12:01:10.000Z",
        "failed_messages": "2026-10-21T12:01:10.000Z",
        "delivery_attempts": "2026-09-24T12:01:10.000Z",
        "parked_messages": None,
    }


async def test_what_other_receivers_got_is_erased_for_the_named_one_alone(at: World) -> None:
    await add_kept_message(at)
    assert made_of(await post(at, receiver="deploy"))["in_history"] == 0
    problem(await at.get(f"{MESSAGE}/payload", "receiver:deploy"), 410, "payload-gone")
    for scope in ("receiver:ci", "read:github"):
        assert (await at.get(f"{MESSAGE}/payload", scope)).status == 200
    assert {one["payload_kept"] for one in (await exported(at))[0]} == {"whole", "truncated", "gone"}


async def letter(rig: Rig) -> str:
    """The path of a dead letter whose message was received before."""
    place = await add_dead_letter(rig, "m-8")
    return f"/v1/failed/{place.partition}/{place.offset}"


async def test_a_dead_letter_is_shown_without_an_erased_payload_and_is_not_replayed(at: World) -> None:
    path = await letter(at.rig)
    assert document(await at.get(path))["payload"]["body"]
    made_of(await post(at, source_id="github"))
    shown = document(await at.get(path))
    assert (shown["payload"]["body"], shown["reason"]) == ("", "rejected")
    refused = problem(await at.rig.request("POST", f"{path}/replay", b"", ADMIN), 409, "not-replayable")
    assert refused["detail"] == "Its payload was erased on request."
    assert (await at.rig.request("POST", f"{path}/discard", b"", ADMIN)).status == 202
    values = [record.value for record in await _letters(at.rig)]
    assert values[1:] == [None]


async def _letters(rig: Rig) -> list[Any]:
    places = rig.broker.partitions_of(rig.topics.failed_messages)
    return sorted((one for at in places for one in rig.broker[at].records), key=lambda one: len(one.headers))


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        ({}, "/source_id"),
        ({"message_id": "m-1"}, "/source_id"),
        ({"receiver": "ci", "source_id": "github"}, "/receiver"),
        ({"receiver": "ci", "message_id": "m-1"}, "/receiver"),
        ({"receiver": "No Name"}, "/receiver"),
        ({"source_id": ""}, "/source_id"),
        ({"source_id": "a", "message_id": "\n"}, "/message_id"),
    ],
)
async def test_what_names_nothing_or_too_much_is_refused(at: World, body: dict[str, str], pointer: str) -> None:
    assert [one["pointer"] for one in problem(await post(at, **body), 400, "invalid-request")["errors"]] == [pointer]


async def test_only_an_administrator_erases(at: World) -> None:
    for scopes in (("receiver:ci",), ("read:github", "ingest:github"), ("owner:alice",)):
        text = await at.rig.keys.make(*scopes, now=at.rig.clock.time())
        headers = {"Authorization": f"Bearer {text}", "Content-Type": "application/json"}
        reply = await at.rig.request("POST", "/v1/erasures", b'{"receiver": "ci"}', headers)
        problem(reply, 403, "forbidden")
        problem(await at.rig.request("GET", "/v1/erasures", b"", headers), 403, "forbidden")


async def test_an_erasure_counts_although_the_history_is_away(at: World, monkeypatch: pytest.MonkeyPatch) -> None:
    await add_kept_message(at)

    async def away(_erasure: Erasure) -> int:
        raise HistoryUnavailable("its disk is full")

    monkeypatch.setattr(at.history, "erase", away)
    assert made_of(await post(at, source_id="github"))["in_history"] is None
    problem(await at.get(f"{MESSAGE}/payload"), 410, "payload-gone")


async def test_their_number_is_limited_and_old_ones_end(at: World) -> None:
    assert at.rig.context.erasures is not None
    known = at.rig.context.erasures.known
    for number in range(MOST_ERASURES):
        known.add(Erasure(f"{number:016x}", at.rig.clock.now, source_id=f"s-{number}"))
    problem(await post(at, source_id="github"), 409, "too-many-erasures")
    known.add(Erasure("0" * 16, at.rig.clock.now - 91 * 86_400, source_id="s-0"))
    assert (await post(at, source_id="github")).status == 201


async def test_the_command_erases_and_lists(at: World) -> None:
    await add_kept_message(at)
    at.rig.clock.now += 10
    made = await called(at.rig, "--source", "github", "m-7", "--yes")
    assert "payloads of source github/m-7 are erased; 1 deleted from the history" in made
    assert "records remain on t-failed_messages until 2026-10-21" in made
    assert "source github/m-7" in await called(at.rig, "--list")


async def called(rig: Rig, *words: str) -> str:
    done = await run_command(rig.url, erase, *words, key=SETTING)
    assert done.exception is None, done
    return done.stdout
