"""Tests of `POST /v1/receivers/{name}/catch-up`: the messages after the last number that a receiver has, in order, with
gaps."""

import json
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from typing import Any

import pytest

from relay.api import receiver_numbers as module
from relay.cli.receivers import receivers
from relay.client import AsyncRelay
from relay.domain.coordinate import Coordinate
from relay.domain.dead_letter import DeadLetter, dead_letter_headers
from relay.domain.hop import Hop, encode_hop
from relay.domain.identity import DeliveryId
from relay.domain.numbering import NumberGap, Numbering
from relay.history.port import FactBatch
from relay.log.port import NewRecord, TopicPartition
from relay.state.port import FailedEntry
from tests.contract.history_facts import NOON, attempt, ending, put
from tests.fakes.state_numbers import Numbers
from tests.integration.api_rig import Reply, Rig, document, problem, run_command
from tests.integration.history_world import KEPT, World, arrived, world
from tests.integration.test_api_keys import ADMIN, SETTING, bearer

CATCH_UP = "/v1/receivers/ledger/catch-up"
MADE = {"name": "ledger", "post_endpoint": "https://ledger.example/", "ordering": "receiver", "max_in_flight": 1,
        "owner": "bob", "signature": "none"}  # fmt: skip


@pytest.fixture(autouse=True)
def _no_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SETTLE_S", 0)


@pytest.fixture
async def at() -> AsyncIterator[World]:
    """`ledger` got the messages 11, 12, 14 and 16 under their numbers, 12 at its second attempt; 13 was rejected, 15 is
    tried, and 17 was left out after a loss."""
    async with world() as at:
        headers = {"Content-Type": "application/json"} | ADMIN
        assert (await at.rig.request("POST", "/v1/receivers", json.dumps(MADE).encode(), headers)).status == 201
        assert at.rig.context.registrar is not None
        whole, known = at.rig.context.registrar.registry.life_of("ledger"), at.rig.directory.receivers
        known["ledger"] = replace(known["ci"], name="ledger", ordering="receiver", owner="bob", life=whole)
        life = whole.id

        def tried(number: int, offset: int, status: int = 204, **more: Any) -> Any:
            return attempt(f"m-{number}", source="github", offset=offset, at=number + offset / 10, receiver="ledger",
                           status=status, number=number, life=life, **more)  # fmt: skip

        await put(
            at.history,
            *(arrived(at.rig, n, source="github", receivers=("ledger",), **KEPT) for n in range(11, 18)),
            tried(11, 20),
            tried(12, 21, 503),
            tried(12, 22, 202, attempt=2),
            tried(13, 23, 422, reason="rejected", code="rejected"),
            tried(14, 24),
            tried(15, 25, 503),
            tried(16, 26),
        )
        [letter] = await at.rig.log.append([rejected(at.rig, "m-13", life)])
        await at.history.write(FactBatch([], [], []), {TopicPartition(*letter[:2]): letter.offset + 1}, {})
        await at.rig.state.index_failed([FailedEntry("ledger", letter, NOON, "rejected", "github", "m-13", number=13)])
        numbering = Numbering(17, ((15, 15),), (NumberGap(17, 17, "renumbered"),))
        at.rig.state._of("r:ledger").rows.numbers["r:ledger"] = Numbers.of(numbering)
        yield at


def rejected(rig: Rig, message_id: str, life: str) -> NewRecord:
    """The dead letter of a message to `ledger`."""
    headers = encode_hop(Hop(DeliveryId("ledger", "github", message_id), life=life))
    dead = DeadLetter("rejected", "422", rig.topics.to_receiver("ledger"), None, 1, 0, 422)
    return NewRecord(rig.topics.failed_messages, b"github", b"{}", dead_letter_headers(headers, dead))


async def caught_up(at: World, after: int, *scopes: str) -> tuple[list[Any], dict[str, Any]]:
    """Of each line the number and message, or the range and reason; and the last line."""
    *lines, end = [json.loads(line) for line in (await post(at, after, *scopes)).body.splitlines()]
    shown = [
        (one["sequence"], one["message_id"]) if "sequence" in one else (one["first"], one["last"], one["reason"])
        for one in lines
    ]
    return shown, end


async def post(at: World, after: object, *scopes: str, path: str = CATCH_UP) -> Reply:
    headers = bearer(await at.rig.keys.make(*scopes, now=at.rig.clock.time())) if scopes else ADMIN
    body = json.dumps({"after": after}).encode()
    return await at.rig.request("POST", path, body, {"Content-Type": "application/json"} | headers)


async def test_what_follows_the_last_number_comes_in_order_with_its_payload(at: World) -> None:
    lines, end = await caught_up(at, 11)
    assert lines == [
        (12, "m-12"),
        (13, 13, "rejected"),
        (14, "m-14"),
        (15, 15, "in_progress"),
        (16, "m-16"),
        (17, 17, "renumbered"),
    ]
    assert end == {"delivered": 3, "complete": True, "detail": None, "last": 17}
    first = json.loads((await post(at, 11)).body.splitlines()[0])
    assert (first["payload"], first["payload_kept"]) == (KEPT["body"].decode(), "truncated")


async def test_the_last_number_continues_it(at: World) -> None:
    assert await caught_up(at, 14) == (
        [(15, 15, "in_progress"), (16, "m-16"), (17, 17, "renumbered")],
        {"delivered": 1, "complete": True, "detail": None, "last": 17},
    )
    assert await caught_up(at, 17) == ([], {"delivered": 0, "complete": True, "detail": None, "last": 17})
    found = problem(await post(at, 18), 409, "no-such-number")
    assert found["detail"] == "`after` is 18, and the highest number of ledger is 17."


async def test_a_number_that_the_history_may_still_get_is_not_skipped(at: World) -> None:
    numbers = at.rig.state._of("r:ledger").rows.numbers
    numbers["r:ledger"] = Numbers.of(Numbering(19, ((15, 15),), (NumberGap(17, 17, "renumbered"),)))
    lines, end = await caught_up(at, 16)
    assert lines == [(17, 17, "renumbered"), (18, 19, "unknown")], "the history has read all"
    unread = NewRecord(at.rig.topics.delivery_attempts, b"k", b"v")
    await at.rig.log.append([unread])
    at.rig.clock.now += 5
    lines, end = await caught_up(at, 16)
    assert (lines, end["last"], end["complete"]) == ([(17, 17, "renumbered")], 17, False)


async def test_a_gap_that_a_request_has_named_and_a_result_that_was_not_taken(at: World) -> None:
    """The state has forgotten the gap. The receiver has a message whose callback failed."""
    life = at.rig.directory.receivers["ledger"].life.id
    numbers = at.rig.state._of("r:ledger").rows.numbers
    numbers["r:ledger"] = Numbers.of(Numbering(20))
    named = attempt("m-18", source="github", offset=41, at=41, receiver="ledger", number=20, life=life,
                    headers={"relay-gap": "first=17; last=19; reason=renumbered"})  # fmt: skip
    refused = ending("m-18", source="github", offset=9, at=42, receiver="ledger", status="failed", life=life,
                     reason="callback_rejected")  # fmt: skip
    await put(at.history, arrived(at.rig, 18, source="github", receivers=("ledger",), **KEPT), named, refused)
    assert (await caught_up(at, 16))[0] == [(17, 19, "renumbered"), (20, "m-18")]


async def test_the_first_number_may_be_any_and_one_that_nobody_knows_is_named(at: World) -> None:
    assert (await caught_up(at, 0))[0][0] == (11, "m-11")
    assert (await caught_up(at, 4))[0][:2] == [(5, 10, "unknown"), (11, "m-11")]


async def test_a_response_has_a_limited_count_of_numbers_the_lowest_first(
    at: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MOST_NUMBERS", 2)
    lines, end = await caught_up(at, 11)
    assert lines == [(12, "m-12"), (13, 13, "rejected")]
    assert (end["complete"], end["last"]) == (False, 13)
    assert (await caught_up(at, 13))[0] == [(14, "m-14"), (15, 15, "in_progress")]


async def test_the_client_asks_until_it_has_all(at: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_NUMBERS", 2)
    async with AsyncRelay(at.rig.url, SETTING) as relay:
        lines = [line async for line in relay.receivers.catch_up("ledger", after=11)]
    assert [line.get("sequence") for line in lines] == [12, None, 14, None, 16, None]


async def test_a_receiver_without_payloads_catches_up_without_them(at: World) -> None:
    known = at.rig.directory.receivers
    known["ledger"] = replace(known["ledger"], payload="metadata")
    for scopes, payload, kept in (
        (("receiver:ledger",), None, "withheld"),
        (("receiver:ledger", "read:github"), KEPT["body"].decode(), "truncated"),
    ):
        first = json.loads((await post(at, 11, *scopes)).body.splitlines()[0])
        assert (first["payload"], first["payload_base64"], first["payload_kept"]) == (payload, None, kept)


async def test_a_key_of_the_receiver_or_its_owner_catches_up_and_no_other(at: World) -> None:
    for scope in ("receiver:ledger", "owner:bob"):
        assert len((await caught_up(at, 11, scope))[0]) == 6
    for scope in ("receiver:ci", "owner:alice", "read:github"):
        assert (await post(at, 11, scope)).status in (403, 404)


@pytest.mark.parametrize("after", [-1, 10**18, 1.5, "12", None])
async def test_what_is_no_number_is_refused(at: World, after: object) -> None:
    problem(await post(at, after), 400, "invalid-request")


async def test_a_receiver_without_numbers_is_told_so(at: World) -> None:
    found = problem(await post(at, 1, path="/v1/receivers/ci/catch-up"), 409, "no-such-number")
    assert found["detail"] == "The messages of ci have no numbers: it has no `ordering: receiver`."
    problem(await post(at, 1, path="/v1/receivers/nobody/catch-up"), 404, "not-found")


async def test_the_command_writes_lines_and_where_it_ended(at: World) -> None:
    done = await run_command(at.rig.url, receivers, "catch-up", "ledger", "--after", "11", key=SETTING)
    assert done.exception is None, done
    assert done.stderr == "3 messages up to number 17\n"
    assert [json.loads(line).get("sequence") for line in done.stdout.splitlines()] == [12, None, 14, None, 16, None]


async def test_a_page_of_gaps_reads_no_more_letters_than_it_needs(at: World, monkeypatch: pytest.MonkeyPatch) -> None:
    read = list[FailedEntry]()

    async def seen(_context: object, _request: object, entries: Sequence[FailedEntry]) -> Sequence[FailedEntry]:
        read.extend(entries)
        return entries

    monkeypatch.setattr(module, "seen_entries", seen)
    reasons = ("rejected", "expired")
    letters = [
        FailedEntry("ledger", Coordinate("failed_messages", 0, n), NOON, reasons[n % 2], "github", f"x-{n}", n)
        for n in range(1_999, 999, -1)
    ]
    await at.rig.state.index_failed(letters)
    reply = await at.rig.request("GET", "/v1/receivers/ledger/gaps?after=999&limit=10", headers=ADMIN)
    page = document(reply)
    assert [gap["first"] for gap in page["items"]] == list(range(1_000, 1_010))
    assert page["cursor"]
    assert len(read) < 100
