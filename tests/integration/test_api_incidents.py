"""Incidents over HTTP: listed, shown, acknowledged and resolved; and who sees which."""

import asyncio
import json
from typing import Any

import pytest

from relay.domain.dead_letter import DeadLetter, dead_letter_headers
from relay.domain.hold import hold
from relay.domain.statistics import NUMBERS, Counted
from relay.log.port import NewRecord
from relay.state.port import FailedEntry
from relay.state.read_model import LastAttempt, LastResponse, Sign, Tally
from tests.integration.api_rig import NOW, Rig, document, problem, running_api


async def serve_all(rig: Rig) -> None:
    topics = [spec for spec in rig.topics.fixed() if spec.name in rig.topics.fixed_groups()]
    await rig.state.sign([Sign(spec.name, number) for spec in topics for number in range(spec.partitions)])


async def fail(
    rig: Rig, reason: str, receivers: tuple[str, ...] = ("ci",), *, status: int | None = 422, source: str = "billing"
) -> None:
    """Messages of `source` that were given up, a minute ago, as they are on the log and in the index."""
    for number, receiver in enumerate(receivers):
        detail = f"POST https://x.example/hooks: {status}: no thanks"
        letter = DeadLetter(reason, detail, "t-to_sender", None, 3, round((NOW - 60 + number) * 1000), status)
        hop = (("ce_id", f"m-{number}".encode()), ("ce_source", source.encode()), ("relay-receiver", receiver.encode()))
        record = NewRecord(rig.topics.failed_messages, source.encode(), b"{}", dead_letter_headers(hop, letter))
        [at] = await rig.log.append([record])
        await rig.state.index_failed([FailedEntry(receiver, at, NOW - 60 + number, reason, source, f"m-{number}")])


async def listed(rig: Rig, query: str = "", **headers: str) -> list[Any]:
    return list(document(await rig.get(f"/v1/incidents{query}", **headers))["items"])


async def test_a_broken_callback_is_one_incident_with_its_source() -> None:
    async with running_api() as rig:
        await serve_all(rig)
        await fail(rig, "callback_rejected", tuple(f"r{n}" for n in range(6)))
        [one] = await listed(rig, "?state=open")
        assert (one["kind"], one["party"]) == ("callback", {"type": "source", "name": "billing"})
        assert (one["state"], one["waiting"], one["count"]) == ("open", 6, 6)
        assert "6 results wait. Six receivers are not to blame." in one["summary"]
        assert "(422" in one["summary"]
        assert one["opened_at"] == "2023-11-14T22:12:20.000Z"
        assert one["action"] == {
            "kind": "callback",
            "label": "Change the callback",
            "href": f"/ui/incidents/{one['id']}",
        }
        whole = document(await rig.get(f"/v1/incidents/{one['id']}"))
        assert whole["replay"] == {"source": "billing", "reason": ["callback_rejected"]}
        assert "no thanks" in whole["evidence"]["detail"]
        assert whole["evidence"]["message"] == {"source_id": "billing", "message_id": "m-5"}


async def test_two_people_who_acknowledge_at_once_both_learn_who_was_first() -> None:
    async with running_api() as rig:
        await serve_all(rig)
        await fail(rig, "exhausted", status=401)
        [one] = await listed(rig)
        assert one["cause"] == "The receiver rejected our credentials (401)"
        path = f"/v1/incidents/{one['id']}/acknowledge"
        replies = await asyncio.gather(*(rig.post(path, b"") for _ in range(2)))
        assert [reply.status for reply in replies] == [200, 200]
        assert len({document(reply)["acknowledged_at"] for reply in replies}) == 1
        assert {document(reply)["state"] for reply in replies} == {"acknowledged"}
        assert not await listed(rig, "?state=open")
        [known] = await listed(rig, "?state=acknowledged")
        assert known["acknowledged_by"] == "anybody"


async def test_resolved_by_hand_it_stays_so_until_there_is_another_failure() -> None:
    async with running_api() as rig:
        await serve_all(rig)
        await fail(rig, "exhausted", status=401)
        [one] = await listed(rig)
        over = document(await rig.post(f"/v1/incidents/{one['id']}/resolve", b""))
        assert (over["state"], over["resolved_by"]) == ("resolved", "anybody")
        assert not await listed(rig, "?state=open")
        assert not document(await rig.get("/v1/overview"))["attention"]
        rig.clock.now += 100
        await rig.state.index_failed([FailedEntry("ci", (await at(rig)), NOW + 90, "exhausted", "billing", "m-9")])
        rig.clock.now += 10
        assert [item["state"] for item in await listed(rig, "?party=ci")] == ["open"]


async def at(rig: Rig) -> Any:
    letter = DeadLetter("exhausted", "POST https://x.example/hooks: 401", "t-to_receiver_ci", None, 3, 0, 401)
    hop = (("ce_id", b"m-9"), ("ce_source", b"billing"), ("relay-receiver", b"ci"))
    [place] = await rig.log.append(
        [NewRecord(rig.topics.failed_messages, b"billing", b"{}", dead_letter_headers(hop, letter))]
    )
    return place


async def test_the_evidence_is_the_last_exchange() -> None:
    async with running_api() as rig:
        await serve_all(rig)
        await fail(rig, "exhausted", status=401)
        last = LastAttempt(NOW - 2, 401, None, 0.1)
        response = LastResponse(NOW - 2, 401, {"content-type": "text/plain"}, "who are you?", False)
        await rig.state.tally("p", 1, [Tally("r:ci", Counted((1,) * NUMBERS), last, response)])
        [one] = await listed(rig)
        evidence = document(await rig.get(f"/v1/incidents/{one['id']}"))["evidence"]
        assert (evidence["status"], evidence["body"]) == (401, "who are you?")


async def test_what_was_tried_is_read_from_the_audit() -> None:
    async with running_api() as rig:
        await serve_all(rig)
        registrar = rig.context.registrar
        assert registrar is not None
        body = {
            "name": "new",
            "post_endpoint": "https://new.example/hooks",
            "secret": "whsec_bmV3LW5ldy1uZXctbmV3LW5ldy1uZXctbmV3LW5ldw==",
        }
        reply = await rig.post("/v1/receivers", json.dumps(body).encode(), content_type="application/json")
        assert reply.status == 201, reply
        await registrar.registry.catch_up()
        await rig.state.hold("r:new", hold("gone", NOW - 60, "it said so"))
        [one] = await listed(rig, "?party=new")
        assert one["kind"] == "gone"
        tried = document(await rig.get(f"/v1/incidents/{one['id']}"))["tried"]
        assert [(line["what"], line["whom"]) for line in tried] == [("receiver.created", "new")]


async def test_while_the_state_is_away_that_is_what_is_listed() -> None:
    async with running_api() as rig:
        await serve_all(rig)
        await fail(rig, "exhausted", status=401)
        assert len(await listed(rig)) == 1
        rig.clock.now += 20

        async def away() -> Any:
            from relay.domain.errors import StateUnavailable

            raise StateUnavailable("refused")

        rig.state.incidents = away  # type: ignore[method-assign]
        rig.trouble["state"] = "it does not answer"
        found = {one["kind"]: one for one in await listed(rig)}
        assert set(found) == {"credentials", "store_away"}
        assert "it does not answer" in found["store_away"]["summary"]


async def test_there_is_no_such_incident() -> None:
    async with running_api() as rig:
        problem(await rig.get("/v1/incidents/inc_aaaaaaaaaaaaaaaa"), 404, "not-found")
        problem(await rig.post("/v1/incidents/inc_aaaaaaaaaaaaaaaa/acknowledge", b""), 404, "not-found")
        problem(await rig.get("/v1/incidents?state=odd"), 400, "invalid-request")
        problem(await rig.get("/v1/incidents?cursor=odd"), 400, "invalid-request")


async def test_many_come_in_pages() -> None:
    async with running_api() as rig:
        await serve_all(rig)
        await fail(rig, "exhausted", tuple(f"r{n}" for n in range(7)), status=401)
        first = document(await rig.get("/v1/incidents?limit=4"))
        rest = document(await rig.get(f"/v1/incidents?limit=4&cursor={first['cursor']}"))
        names = [one["party"]["name"] for one in (*first["items"], *rest["items"])]
        assert sorted(names) == [f"r{n}" for n in range(7)]
        assert rest["cursor"] is None


@pytest.mark.parametrize(
    ("scope", "seen"),
    [
        ("receiver:ci", {"ci"}),
        ("read:billing", {"billing"}),
        ("read:other", set()),
        ("admin", {"ci", "cd", "billing", "state"}),
    ],
)
async def test_callers_see_those_of_their_own_receivers_and_sources(scope: str, seen: set[str]) -> None:
    async with running_api(api_key="the-admin-key") as rig:
        await serve_all(rig)
        admin = {"authorization": "Bearer the-admin-key"}
        body = json.dumps({"name": "x", "scopes": [scope]}).encode()
        made = document(await rig.post("/v1/keys", body, content_type="application/json", **admin))
        await fail(rig, "exhausted", ("ci", "cd"), status=401)
        await fail(rig, "callback_rejected", ("ci",))
        rig.trouble["state"] = "slow"
        key = {"authorization": f"Bearer {made['key']}"}
        found = await listed(rig, **key)
        assert {one["party"]["name"] for one in found} == seen
        others = {one["id"] for one in await listed(rig, **admin)} - {one["id"] for one in found}
        for id in others:
            problem(await rig.get(f"/v1/incidents/{id}", **key), 404, "not-found")
            problem(await rig.post(f"/v1/incidents/{id}/resolve", b"", **key), 404, "not-found")
