"""Tests of the list of dead letters: each is on exactly one page, whatever their timestamps and whatever arrives
meanwhile."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from relay.api import failed
from relay.domain.dead_letter import DeadLetter, dead_letter_headers
from relay.domain.hop import Hop, encode_hop
from relay.domain.identity import DeliveryId
from relay.domain.message import Message, message_digest, message_headers
from relay.domain.reasons import REASON_CODES
from relay.domain.receiver import Encryption
from relay.domain.times import rfc3339
from relay.log.port import NewRecord
from relay.state.port import FailedEntry
from relay.state.replies import answered
from relay.state.rows import Arrival, Mark, MessageStage, Stage, delivery_row
from tests.integration.api_rig import NOW, Rig, document, pages, problem, running_api
from tests.integration.api_rig import rig as rig


async def add_dead_letter(
    rig: Rig, receiver: str, moments: Sequence[float], *, first: int = 0, stage: str = "to_receiver"
) -> list[FailedEntry]:
    """Store a dead letter for each time, in seconds after NOW. Returns their entries in the index."""
    entries, topics = [], rig.topics
    of_stage = {
        "from_sender": topics.from_sender,
        "to_receiver": topics.to_receiver(receiver),
        "to_sender": topics.to_sender,
    }
    for number, moment in enumerate(moments, first):
        delivery = DeliveryId(receiver, "github", f"{receiver}-{number}")
        letter = DeadLetter("rejected", "it said no", of_stage[stage], None, 1, int(NOW * 1000), 422)
        headers = dead_letter_headers(encode_hop(Hop(delivery, "push")), letter)
        [at] = await rig.log.append([NewRecord(rig.topics.failed_messages, b"github", b"{}", headers)])
        entries.append(FailedEntry(receiver, at, NOW + moment, "rejected", "github", delivery.message_id))
    await rig.state.index_failed(entries)
    return entries


async def test_a_message_that_no_receiver_takes_says_why(rig: Rig) -> None:
    message = Message("app", "m-1", None, "push", None, None, b"{}")
    (at,) = await rig.log.append([NewRecord(rig.topics.from_sender, b"app", b"{}", message_headers(message))])
    row = Arrival(message.id, message_digest(message), at.partition, at.offset, MessageStage.ENQUEUED)
    await answered(rig.state.arrive([row]))
    path = "/v1/sources/app/messages/m-1"
    assert "reason" not in document(await rig.get(path)), "its dead letter is not indexed yet"
    for number, (reason, detail) in enumerate((("unknown_receiver", "none subscribes"), ("id_conflict", "again"))):
        letter = DeadLetter(reason, detail, rig.topics.from_sender, at, 0, int(NOW * 1000), None)
        headers = dead_letter_headers(message_headers(message), letter)
        [buried] = await rig.log.append([NewRecord(rig.topics.failed_messages, b"app", b"{}", headers)])
        await rig.state.index_failed([FailedEntry("-", buried, NOW + number, reason, "app", "m-1")])
    found: Any = document(await rig.get(path))
    shown = [found[name] for name in ("status", "deliveries", "reason", "detail")]
    assert shown == ["failed", [], "unknown_receiver", "none subscribes"]


async def ids_of(rig: Rig, limit: int, query: str = "") -> list[list[str]]:
    return [[letter["message_id"] for letter in page] for page in await letters_of(rig, limit, query)]


async def letters_of(rig: Rig, limit: int, query: str = "") -> list[list[Any]]:
    return [page["items"] async for page in pages(rig.get, f"/v1/failed?limit={limit}{query}")]


@pytest.mark.parametrize("limit", [1, 2, 3, 7, 50])
async def test_each_letter_is_on_one_page_also_where_many_are_of_one_moment(rig: Rig, limit: int) -> None:
    await add_dead_letter(rig, "ci", [0, 0, 0, 0, 0, 1, 2, 2, 2])
    await add_dead_letter(rig, "cd", [0, 0, 1.5, 2, 2, 9])
    found = await ids_of(rig, limit)
    names = [name for page in found for name in page]
    assert len(names) == len(set(names)) == 15
    assert [len(page) for page in found] == [limit] * (15 // limit) + ([15 % limit] if 15 % limit else [])
    assert names[0] == "cd-5"
    own = await ids_of(rig, limit, "&receiver=ci")
    assert sorted(name for page in own for name in page) == [f"ci-{number}" for number in range(9)]


@pytest.mark.parametrize("stage", ["from_sender", "to_receiver"])
@pytest.mark.parametrize("limit", [1, 50])
async def test_a_copy_of_a_letter_is_not_listed_beside_it(rig: Rig, limit: int, stage: str) -> None:
    """A process that dies before it has marked its letter leaves one; the next process writes, and marks, another. It
    may be of an earlier step, if the receiver was removed after the message was routed to it."""
    await add_dead_letter(rig, "ci", [0, 1], stage=stage)
    _, last = [entry.at for entry in await add_dead_letter(rig, "ci", [0, 1])]
    row = delivery_row(DeliveryId("ci", "github", "ci-1"))
    mark = Mark(row, 0, Stage.FAILED, (last.partition, last.offset), REASON_CODES["rejected"])
    await answered(rig.state.mark([mark]))
    items = [item for page in await letters_of(rig, limit) for item in page if item["message_id"] == "ci-1"]
    assert [(item["partition"], item["offset"]) for item in items] == [(last.partition, last.offset)]


@pytest.mark.parametrize("limit", [7, 64, 200])
async def test_each_letter_is_on_one_page_also_where_most_of_the_newest_are_of_one_receiver(
    rig: Rig, limit: int
) -> None:
    """The list reads a few dead letters of each receiver at first, and more if these are not enough."""
    await add_dead_letter(rig, "ci", range(300, 500))
    await add_dead_letter(rig, "cd", range(0, 500, 2))
    await add_dead_letter(rig, "qa", [0.0] * 50)
    found = [name for page in await ids_of(rig, limit) for name in page]
    assert len(found) == len(set(found)) == 500
    moments = {f"ci-{n}": 300 + n for n in range(200)} | {f"cd-{n}": 2 * n for n in range(250)}
    times = [moments.get(name, 0) for name in found]
    assert times == sorted(times, reverse=True)


async def test_a_cursor_stays_good_whatever_comes_meanwhile() -> None:
    async with running_api() as rig:
        await add_dead_letter(rig, "ci", [0, 1, 2, 3])
        page: Any = document(await rig.get("/v1/failed?limit=2"))
        await add_dead_letter(rig, "ci", [5, 6, 7], first=4)
        rest: Any = document(await rig.get(f"/v1/failed?limit=9&cursor={page['cursor']}"))
    assert [letter["message_id"] for letter in page["items"]] == ["ci-3", "ci-2"]
    assert [letter["message_id"] for letter in rest["items"]] == ["ci-1", "ci-0"]
    assert rest["cursor"] is None


@pytest.mark.parametrize("limit", [2, 7, 50])
async def test_letters_are_found_behind_more_than_a_page_looks_at(limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failed, "MOST_LOOKED_AT", 20)
    async with running_api() as rig:
        old = await add_dead_letter(rig, "calm", [0, 0, 0, 1, 2])
        many = await add_dead_letter(rig, "loud", range(10, 25)) + await add_dead_letter(rig, "noisy", range(10, 25))
        found = await ids_of(rig, limit)
        listed = [id for page in found for id in page]
        assert sorted(listed) == sorted(entry.message_id for entry in [*old, *many])
        calm = await ids_of(rig, limit, "&source=github&reason=rejected")
        assert [id for page in calm for id in page] == listed


@pytest.mark.parametrize("cursor", ["", "1", "1_x", "-1_1-1", "1_1-1_1", "%C2%B2_1-1"])
async def test_a_cursor_that_is_none_of_ours_is_refused(cursor: str) -> None:
    async with running_api() as rig:
        said = problem(await rig.get(f"/v1/failed?cursor={cursor}"), 400, "invalid-request")
    assert [error["parameter"] for error in said["errors"]] == ["cursor"]


async def test_letters_of_the_way_back_are_listed_by_their_source(rig: Rig) -> None:
    await add_dead_letter(rig, "ci", [0, 1])
    await add_dead_letter(rig, "cd", [2], stage="to_sender")
    for query, names in (
        ("stage=to_sender", ["cd-0"]),
        ("stage=to_receiver", ["ci-1", "ci-0"]),
        ("source=github&stage=to_sender", ["cd-0"]),
        ("source=shop", []),
        ("reason=rejected&reason=expired", ["cd-0", "ci-1", "ci-0"]),
        ("reason=expired", []),
    ):
        page: Any = document(await rig.get(f"/v1/failed?{query}"))
        assert [letter["message_id"] for letter in page["items"]] == names, query
    assert (await rig.get("/v1/failed?stage=x")).status == 400
    problem(await rig.get("/v1/failed?source=%01"), 400, "invalid-request")


async def groups(rig: Rig, query: str = "", key: Mapping[str, str] | None = None) -> Any:
    return document(await rig.request("GET", f"/v1/failed/groups{query}", b"", key or {}))


async def test_they_are_counted_by_receiver_and_reason(rig: Rig) -> None:
    await add_dead_letter(rig, "ci", [-3_700, -20, -10])
    await add_dead_letter(rig, "cd", [-5], stage="to_sender")
    found = await groups(rig)
    assert [(one["receiver"], one["reason"], one["count"]) for one in found["items"]] == [
        ("ci", "rejected", 3),
        ("cd", "rejected", 1),
    ]
    assert (found["left_out"], found["more"]) == (0, False)
    [ci, _] = found["items"]
    assert (ci["newest"]["message_id"], ci["hours"][-2:]) == ("ci-2", [1, 2])
    assert (ci["first_at"], ci["newest_at"]) == (rfc3339(NOW - 3_700), rfc3339(NOW - 10))
    assert [one["receiver"] for one in (await groups(rig, "?receiver=cd&source=github"))["items"]] == ["cd"]
    assert (await groups(rig, "?source=other"))["items"] == []
    assert (await groups(rig, "?reason=gone"))["items"] == []
    assert (await groups(rig, "?limit=1"))["left_out"] == 1


async def test_letters_that_the_log_has_no_more_are_not_counted(rig: Rig) -> None:
    entries = await add_dead_letter(rig, "ci", [-30, -20])
    assert [one["count"] for one in (await groups(rig))["items"]] == [2]
    rig.broker.drop_before(entries[1].at)
    rig.clock.now += 60  # else the counts of the last request are given
    assert [one["count"] for one in (await groups(rig))["items"]] == [1]
    rig.broker.cut(entries[0].at)
    rig.clock.now += 60
    assert (await groups(rig))["items"] == (await letters_of(rig, 9))[0] == []


@pytest.mark.parametrize("between", [1, 600], ids=["near", "in another chunk"])
async def test_a_copy_of_a_letter_is_counted_once_by_groups_and_dry_runs(between: int) -> None:
    async with running_api() as rig:
        await add_dead_letter(rig, "ci", [0, 1])
        await add_dead_letter(rig, "cd", range(between))
        _, last = [entry.at for entry in await add_dead_letter(rig, "ci", [0, 1])]
        row = delivery_row(DeliveryId("ci", "github", "ci-1"))
        mark = Mark(row, 0, Stage.FAILED, (last.partition, last.offset), REASON_CODES["rejected"])
        await answered(rig.state.mark([mark]))
        counts = {one["receiver"]: one["count"] for one in (await groups(rig))["items"]}
        preview = await rig.post("/v1/replays", b'{"dry_run": true}', Content_Type="application/json")
        found = document(preview)
    assert counts == {"ci": 2, "cd": between}
    assert (found["counted"], found["to_send"], found["skipped"]) == (2 + between, 2 + between, 0)


async def test_a_key_of_a_receiver_counts_its_own_alone(rig: Rig) -> None:
    await add_dead_letter(rig, "ci", range(-300, 0))
    await add_dead_letter(rig, "cd", [-5])
    await rig.keys.make("admin", now=NOW)
    key = {"Authorization": f"Bearer {await rig.keys.make('receiver:ci', now=NOW)}"}
    found = await groups(rig, key=key)
    assert [(one["receiver"], one["count"]) for one in found["items"]] == [("ci", 200)]
    assert found["more"] is True
    assert (await rig.request("GET", "/v1/failed/groups?receiver=cd", b"", key)).status == 403


ENCRYPTS = {"encrypt": Encryption(url="https://ci.example/jwks.json")}


@pytest.mark.parametrize(
    ("settings", "stage", "body"),
    [
        ({"payload": "metadata"}, "to_receiver", None),
        ({"payload": "metadata"}, "from_sender", None),
        (ENCRYPTS, "to_receiver", "{}"),  # which is encrypted there
        (ENCRYPTS, "from_sender", None),
    ],
)
async def test_a_key_of_a_receiver_sees_no_payload_that_is_kept_from_it(
    rig: Rig, settings: dict[str, Any], stage: str, body: str | None
) -> None:
    await add_dead_letter(rig, "ci", [-5], stage=stage)
    receivers = rig.directory.receivers
    receivers["ci"] = replace(receivers["ci"], **settings)
    await rig.keys.make("admin", now=NOW)
    shown = {}
    for scope in ("receiver:ci", "read:github"):
        key = {"Authorization": f"Bearer {await rig.keys.make(scope, now=NOW)}"}
        [letter] = document(await rig.request("GET", "/v1/failed", b"", key))["items"]
        path = f"/v1/failed/{letter['partition']}/{letter['offset']}"
        shown[scope] = document(await rig.request("GET", path, b"", key))["payload"]
    assert shown["receiver:ci"] == {"body": body, "body_base64": None}
    assert shown["read:github"] == {"body": "{}", "body_base64": None}


async def test_a_key_of_a_receiver_sees_no_header_that_is_the_sender_s_alone() -> None:
    async with running_api() as rig:
        delivery, own = DeliveryId("ci", "github", "m-1"), (("x-of-the-sender", "canary"),)
        hop = encode_hop(Hop(delivery, "push", keep='{"sha": "canary"}', headers=own))
        letter = DeadLetter("rejected", "it said no", rig.topics.from_sender, None, 1, int(NOW * 1000), 422)
        headers = dead_letter_headers((*hop, ("ce_receiver", b"ci,canary")), letter)
        [at] = await rig.log.append([NewRecord(rig.topics.failed_messages, b"github", b"{}", headers)])
        await rig.keys.make("admin", now=NOW)
        shown = {}
        for scope in ("receiver:ci", "read:github"):
            key = {"Authorization": f"Bearer {await rig.keys.make(scope, now=NOW)}"}
            path = f"/v1/failed/{at.partition}/{at.offset}"
            shown[scope] = document(await rig.request("GET", path, b"", key))["headers"]
    assert "canary" not in str(shown["receiver:ci"])
    assert ["ce_id", "m-1"] in shown["receiver:ci"]
    names = {name for name, value in shown["read:github"] if "canary" in value}
    assert names == {"relay-keep", "relay-header-x-of-the-sender", "ce_receiver"}


@pytest.mark.parametrize("payload", [',"payload": {"n": 1}', ""])
async def test_a_key_of_a_receiver_does_not_see_the_other_receivers_that_an_envelope_names(payload: str) -> None:
    async with running_api() as rig:
        value = f'{{"source_id": "github", "message_id": "m-1", "receiver": ["ci", "canary"]{payload}}}'.encode()
        letter = DeadLetter("rejected", "it said no", rig.topics.from_sender, None, 0, int(NOW * 1000), None)
        headers = dead_letter_headers((("relay-receiver", b"ci"),), letter)
        [at] = await rig.log.append([NewRecord(rig.topics.failed_messages, b"github", value, headers)])
        await rig.keys.make("admin", now=NOW)
        shown = {}
        for scope in ("receiver:ci", "read:github"):
            key = {"Authorization": f"Bearer {await rig.keys.make(scope, now=NOW)}"}
            found: Any = document(await rig.request("GET", f"/v1/failed/{at.partition}/{at.offset}", b"", key))
            shown[scope] = found["payload"]["body"]
    assert shown == {"receiver:ci": '{"n": 1}' if payload else None, "read:github": value.decode()}
