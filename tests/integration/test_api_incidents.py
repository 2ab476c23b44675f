"""Tests of incidents over HTTP: listed, shown, acknowledged and resolved; and which callers see which."""

import asyncio
import json
import re
from dataclasses import replace
from typing import Any

import pytest

from relay.api.incidents import IncidentList
from relay.api.overview.snapshot import Looker
from relay.domain.dead_letter import DeadLetter, dead_letter_headers
from relay.domain.errors import HistoryUnavailable
from relay.domain.hold import hold
from relay.domain.incident import Party
from relay.domain.incident_kinds import page_of_letter
from relay.domain.statistics import NUMBERS, Counted
from relay.incidents.reader import IncidentReader
from relay.incidents.watch import IncidentWatch
from relay.log.port import NewRecord, TopicPartition
from relay.state.lanes import LaneNow
from relay.state.port import FailedEntry
from relay.state.read_model import LastAttempt, LastResponse, Tally
from relay.telemetry.metrics import Metrics
from tests.fakes.history import MemoryHistory
from tests.integration.api_rig import NOW, Rig, StandingClock, document, problem, running_api
from tests.integration.api_rig import rig as rig
from tests.integration.test_api_overview import serve_all


async def fail(
    rig: Rig, reason: str, receivers: tuple[str, ...] = ("ci",), *, status: int | None = 422, source: str = "billing"
) -> None:
    """Store dead letters of `source`, a minute old, on the log and in the index."""
    for number, receiver in enumerate(receivers):
        detail = f"POST https://x.example/hooks: {status}: no thanks"
        letter = DeadLetter(reason, detail, "t-to_sender", None, 3, round((NOW - 60 + number) * 1000), status)
        hop = (("ce_id", f"m-{number}".encode()), ("ce_source", source.encode()), ("relay-receiver", receiver.encode()))
        record = NewRecord(rig.topics.failed_messages, source.encode(), b"{}", dead_letter_headers(hop, letter))
        [at] = await rig.log.append([record])
        await rig.state.index_failed([FailedEntry(receiver, at, NOW - 60 + number, reason, source, f"m-{number}")])


async def listed(rig: Rig, query: str = "", **headers: str) -> list[Any]:
    return list(document(await rig.get(f"/v1/incidents{query}", **headers))["items"])


async def test_a_broken_callback_is_one_incident_with_its_source(rig: Rig) -> None:
    await serve_all(rig)
    await fail(rig, "callback_rejected", tuple(f"r{n}" for n in range(6)))
    [one] = await listed(rig, "?state=open")
    assert (one["kind"], one["party"]) == ("callback", {"type": "source", "name": "billing"})
    assert (one["state"], one["waiting"], one["count"]) == ("open", 6, 6)
    assert "6 dead letters can be replayed. Six receivers are not to blame." in one["summary"]
    assert "(422" in one["summary"]
    assert one["opened_at"] == "2023-11-14T22:12:20.000Z"
    assert one["action"] == {"kind": "callback", "label": "Change the callback", "href": f"/ui/incidents/{one['id']}"}
    whole = document(await rig.get(f"/v1/incidents/{one['id']}"))
    assert whole["replay"] == {"source": "billing", "reason": ["callback_rejected"]}
    assert "no thanks" in whole["evidence"]["detail"]
    assert whole["evidence"]["message"] == {"source_id": "billing", "message_id": "m-5"}


async def test_two_people_who_acknowledge_at_once_both_learn_who_was_first(rig: Rig) -> None:
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


async def test_resolved_by_hand_it_stays_so_until_there_is_another_failure(rig: Rig) -> None:
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


async def test_the_evidence_is_the_last_exchange(rig: Rig) -> None:
    await serve_all(rig)
    await fail(rig, "exhausted", status=401)
    last = LastAttempt(NOW - 2, 401, None, 0.1)
    response = LastResponse(NOW - 2, 401, {"content-type": "text/plain"}, "who are you?", False)
    await rig.state.tally("p", 1, [Tally("r:ci", Counted((1,) * NUMBERS), last, response)])
    [one] = await listed(rig)
    evidence = document(await rig.get(f"/v1/incidents/{one['id']}"))["evidence"]
    assert (evidence["status"], evidence["body"]) == (401, "who are you?")


async def test_what_was_tried_is_read_from_the_audit(rig: Rig) -> None:
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
    await rig.state.hold("r:new", hold("gone", NOW, "it said so"))
    [one] = await listed(rig, "?party=new")
    assert one["kind"] == "gone"
    tried = document(await rig.get(f"/v1/incidents/{one['id']}"))["tried"]
    assert [(line["what"], line["whom"]) for line in tried] == [("receiver.created", "new")]


async def test_what_was_tried_about_a_source_is_found_whatever_characters_its_id_has(rig: Rig) -> None:
    await serve_all(rig)
    json_ = {"content_type": "application/json"}
    created = await rig.post("/v1/sources", json.dumps({"source_id": "größe/7"}).encode(), **json_)
    assert created.status == 201, created
    changed = await rig.request(
        "PATCH", "/v1/sources/gr%C3%B6%C3%9Fe%2F7", b'{"failures": false}', {"content-type": "application/json"}
    )
    assert changed.status == 200, changed
    await fail(rig, "callback_rejected", tuple(f"r{n}" for n in range(6)), source="größe/7")
    [one] = await listed(rig)
    tried = document(await rig.get(f"/v1/incidents/{one['id']}"))["tried"]
    assert [line["what"] for line in tried] == ["source.changed", "source.created"]


async def test_the_host_of_an_endpoint_that_looks_well_by_now_is_known(rig: Rig) -> None:
    await serve_all(rig)
    secret = "whsec_bmV3LW5ldy1uZXctbmV3LW5ldy1uZXctbmV3LW5ldw=="
    body = {"source_id": "shop", "callback": {"url": "https://shop.example/results", "secret": secret}}
    reply = await rig.post("/v1/sources", json.dumps(body).encode(), content_type="application/json")
    assert reply.status == 201, reply
    assert rig.context.registrar is not None
    await rig.context.registrar.registry.catch_up()
    await fail(rig, "callback_rejected", source="shop")
    [one] = await listed(rig, "?party=shop")
    assert one["summary"].startswith("shop's callback at shop.example has rejected every result")


async def test_while_the_state_is_away_that_is_what_is_listed(rig: Rig) -> None:
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


async def test_there_is_no_such_incident(rig: Rig) -> None:
    problem(await rig.get("/v1/incidents/inc_aaaaaaaaaaaaaaaa"), 404, "not-found")
    problem(await rig.post("/v1/incidents/inc_aaaaaaaaaaaaaaaa/acknowledge", b""), 404, "not-found")
    problem(await rig.get("/v1/incidents?state=odd"), 400, "invalid-request")
    problem(await rig.get("/v1/incidents?cursor=odd"), 400, "invalid-request")


async def overview(rig: Rig) -> dict[str, Any]:
    """The alerts of the overview, by kind."""
    return {item["kind"]: item for item in document(await rig.get("/v1/overview"))["attention"]}


def other_process(rig: Rig) -> IncidentList:
    """The incidents of another process, which has no problems of its own."""
    context = replace(rig.context, ready=dict, history=None)
    return IncidentList(context, Looker(context))


async def test_what_is_listed_can_be_read_although_it_was_stored_a_moment_later(rig: Rig) -> None:
    await serve_all(rig)
    rig.trouble["state"] = "slow"
    item = (await overview(rig))["part_away"]
    later = StandingClock()
    later.now += 0.6
    reader = IncidentReader(rig.log, rig.state, rig.topics, rig.context.registry, later, lambda: rig.trouble, dict)

    async def no_lanes() -> list[LaneNow]:
        return []

    await IncidentWatch(reader, rig.state, no_lanes, later, Metrics("0"), []).look()
    whole = document(await rig.get(f"/v1/incidents/{item['incident']}"))
    assert (whole["state"], whole["cleared_at"]) == ("open", None)


async def test_what_is_listed_can_be_read_in_another_process_and_after_its_end(rig: Rig) -> None:
    await serve_all(rig)
    rig.trouble["state"] = "slow"
    item = (await overview(rig))["part_away"]
    found = await other_process(rig).now()
    assert item["incident"] in found.known
    [stored] = (await rig.state.incidents()).incidents.values()
    assert not stored.reported  # that is up to the process that publishes it
    rig.trouble["state"] = None
    rig.clock.now += 20
    assert document(await rig.get(f"/v1/incidents/{item['incident']}"))["state"] == "resolved"


async def test_the_page_that_sentry_links_to_is_of_the_incident_or_of_its_party() -> None:
    async with running_api(pages=True) as rig:
        await serve_all(rig)
        await fail(rig, "exhausted", status=401)
        [one] = await listed(rig)
        party = Party("receiver", "ci")
        page = await rig.get(page_of_letter(party, "credentials"))
        assert page_of_letter(party, "credentials").startswith(f"/ui/incidents/{one['id']}?")
        assert (page.status, "rejected our credentials" in page.text) == (200, True)
        other = await rig.get(page_of_letter(party, "tls"))  # of a letter that is not the newest of its reason
        assert (other.status, other.headers["Location"]) == (303, "/ui/incidents?party=ci")
        assert "rejected our credentials" in (await rig.get("/ui/incidents?party=ci")).text
        assert (await rig.get("/ui/incidents/inc_aaaaaaaaaaaaaaaa")).status == 404


async def test_each_party_that_is_linked_has_a_page() -> None:
    async with running_api(pages=True) as rig:
        await serve_all(rig)
        await fail(rig, "unknown_receiver", source="shop")
        await fail(rig, "poison")
        await fail(rig, "rejected", ("-",))
        await fail(rig, "callback_rejected", source="no/entry")
        items = document(await rig.get("/v1/overview"))["attention"]
        pages = [f"/ui/incidents/{item['incident']}" for item in items]
        assert len(pages) == 4
        for page in ("/ui/", *pages):
            html = (await rig.get(page)).text
            for link in re.findall(r'href="(/ui/(?:receivers|sources|incidents|failed)/[^"]*)"', html):
                assert (await rig.get(link)).status == 200, (page, link)


async def test_a_cause_that_is_better_known_a_moment_later_leads_to_that() -> None:
    async with running_api(pages=True) as rig:
        await serve_all(rig)
        await fail(rig, "exhausted", status=500)
        [before] = await listed(rig)
        await fail(rig, "exhausted", status=401)
        rig.clock.now += 2
        [now] = await listed(rig)
        assert (before["kind"], now["kind"]) == ("failing", "credentials")
        former = document(await rig.get(f"/v1/incidents/{before['id']}"))
        assert (former["state"], former["merged_into"]) == ("resolved", now["id"])
        page = (await rig.get(f"/ui/incidents/{before['id']}")).text
        assert f'<a href="/ui/incidents/{now["id"]}">See that incident</a>' in page
        assert "All back" not in page
        assert now["merged_into"] is None
        assert not await listed(rig, "?state=resolved")


async def test_a_history_that_lags_is_an_incident_like_others() -> None:
    class Away(MemoryHistory):
        async def next_offsets(self) -> dict[TopicPartition, int]:
            raise HistoryUnavailable("refused")

    async with running_api(history=Away()) as rig:
        await serve_all(rig)
        assert not await overview(rig)
        rig.clock.now += 20
        await serve_all(rig)
        item = (await overview(rig))["warning"]
        assert item["since"] == "2023-11-14T22:13:20.000Z"
        whole = document(await rig.get(f"/v1/incidents/{item['incident']}"))
        assert (whole["party"]["name"], whole["state"]) == ("history", "open")
        assert item["incident"] in (await other_process(rig).now()).known


async def test_many_come_in_pages(rig: Rig) -> None:
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
