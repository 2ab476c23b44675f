"""Tests of a message's payload over the API: the sent bytes, wherever they are still stored, and nothing that runs in a
browser."""

from dataclasses import replace
from typing import Any

import pytest
from msgspec import structs

from relay.domain.identity import MessageId
from relay.domain.message import Message, message_headers
from relay.domain.receiver import Encryption
from relay.log.port import NewRecord
from relay.state.rows import Arrival, MessageStage
from tests.contract.history_facts import arrival, put
from tests.integration.api_rig import document, problem, running_api
from tests.integration.history_world import KEPT, World, arrived
from tests.integration.history_world import at as at

MESSAGE = "/v1/sources/github/messages/m-1"


@pytest.mark.parametrize("content_type", ["text/html", None])
async def test_a_payload_is_what_was_sent_and_nothing_that_a_browser_runs(content_type: str | None) -> None:
    async with running_api(history=None) as rig:
        payload = b"<script>alert(1)</script>\x00\xff"
        headers = {"ce-id": "m-1"} | ({} if content_type is None else {"Content-Type": content_type})
        assert (await rig.request("POST", "/v1/sources/github/messages", payload, headers)).status == 202
        shown = await rig.get(f"{MESSAGE}/payload")
        assert (shown.status, shown.body) == (200, payload)
        assert shown.headers["Content-Type"] == (content_type or "application/octet-stream")
        assert shown.headers["Content-Disposition"].startswith('attachment; filename="msg_')
        assert shown.headers["Content-Security-Policy"] == "sandbox; default-src 'none'"
        assert shown.headers["X-Content-Type-Options"] == "nosniff"
        assert shown.headers["Cache-Control"] == "no-store"


async def test_the_payload_of_an_envelope_is_the_slice_of_it() -> None:
    async with running_api() as rig:
        envelope = b'{"source_id": "github", "message_id": "m-1", "payload": {"b": 1.0,  "a": "\\u0041"}}'
        [at] = await rig.log.append([NewRecord(rig.topics.from_sender, b"github", envelope)])
        identity = MessageId("github", "m-1")
        await rig.state.enqueued([Arrival(identity, b"digest", at.partition, at.offset, MessageStage.ENQUEUED)])
        shown = await rig.get(f"{MESSAGE}/payload")
        assert (shown.status, shown.body) == (200, b'{"b": 1.0,  "a": "\\u0041"}')
        assert shown.headers["Content-Type"] == "application/json"


async def test_a_payload_that_only_the_history_points_at_is_read_from_the_log(at: World) -> None:
    message = Message("github", "old", ("ci",), None, None, "text/plain", b"whole \xff")
    record = NewRecord(at.rig.topics.from_sender, b"github", message.payload, message_headers(message))
    [place] = await at.rig.log.append([record])
    await put(at.history, structs.replace(arrival(5, source="github", name="old", receivers=("ci",)), at=place))
    for scope in ("read:github", "receiver:ci"):
        shown = await at.get("/v1/sources/github/messages/old/payload", scope)
        assert (shown.status, shown.body, shown.headers["Content-Type"]) == (200, b"whole \xff", "text/plain")
        assert "relay-payload-truncated" not in shown.headers


@pytest.mark.parametrize(
    "settings", [{"encrypt": Encryption(url="https://ci.example/jwks.json")}, {"payload": "metadata"}]
)
async def test_a_payload_that_its_receiver_does_not_get_plain_is_shown_to_readers_of_the_source_alone(
    at: World, settings: dict[str, Any]
) -> None:
    await put(at.history, arrived(at.rig, 7, source="github", size=10, receivers=("ci", "cd"), **KEPT))
    path, receivers = "/v1/sources/github/messages/m-7/payload", at.rig.directory.receivers
    receivers["ci"] = replace(receivers["ci"], **settings)
    problem(await at.get(path, "receiver:ci"), 410, "payload-gone")
    for scopes, is_shown in ((("receiver:ci",), False), (("receiver:ci", "receiver:cd"), True)):
        listed = document(await at.get("/v1/messages", *scopes))["items"]
        [preview] = [each["preview"] for each in listed if each["message_id"] == "m-7"]
        assert (preview is not None) is is_shown
    found = {}
    for scopes in (("receiver:ci",), ("read:github",), ("receiver:cd",), ("receiver:ci", "receiver:cd")):
        listed = document(await at.get("/v1/messages?payload=/repository/name=relay", *scopes))["items"]
        found[scopes] = "m-7" in {each["message_id"] for each in listed}
        assert (await at.get(path, *scopes)).status == (410 if scopes == ("receiver:ci",) else 200)
    assert [scopes for scopes, is_found in found.items() if not is_found] == [("receiver:ci",)]


@pytest.mark.parametrize(("size", "truncated"), [(len(KEPT["body"]), None), (10_000, "true")])
async def test_a_payload_that_is_gone_from_the_log_is_what_was_kept(
    at: World, size: int, truncated: str | None
) -> None:
    await put(at.history, arrived(at.rig, 7, source="github", size=size, receivers=("ci",), **KEPT))
    shown = await at.get("/v1/sources/github/messages/m-7/payload", "receiver:ci")
    assert (shown.status, shown.body) == (200, KEPT["body"])
    assert shown.headers.get("relay-payload-truncated") == truncated
    assert shown.headers["Content-Disposition"].startswith("attachment")


async def test_a_payload_that_nobody_has_any_more_is_gone(at: World) -> None:
    gone = problem(await at.get("/v1/sources/github/messages/m-2/payload"), 410, "payload-gone")
    assert "2000 bytes" in gone["detail"]
    # another record is where it was: the topic was made anew
    message = Message("github", "other", ("ci",), payload=b"{}")
    record = NewRecord(at.rig.topics.from_sender, b"github", b"{}", message_headers(message))
    [place] = await at.rig.log.append([record])
    await put(at.history, structs.replace(arrival(8, source="github"), at=place))
    problem(await at.get("/v1/sources/github/messages/m-8/payload"), 410, "payload-gone")
