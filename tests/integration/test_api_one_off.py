"""Tests of messages that name their own endpoint: accepted and refused ones, and the record on the log."""

import json
from collections.abc import AsyncIterator
from urllib.parse import quote

import pytest

from relay.config.encryption import KeyRing, secret_place
from relay.domain.message import parse_message
from relay.domain.one_off import OneOff
from relay.domain.recipients import receiver_name
from tests.integration.api_rig import NEW_KEY, Rig, document, problem, running_api

ORIGIN = "https://hooks.example"
URL = f"{ORIGIN}/a/b?c=d"
PATH = f"/v1/sources/app/messages?endpoint={quote(URL, safe='')}"
SECRET = "whsec_Y2lyY2xlY2ktY2lyY2xlY2ktY2lyY2xlY2kh"


async def sent(rig: Rig, target: str = PATH, **headers: str) -> OneOff:
    reply = await rig.post(target, b"{}", **headers)
    assert reply.status == 202, reply
    [record] = rig.records(rig.topics.from_sender)
    assert SECRET not in repr(record)
    message = parse_message(record.value, record.headers)
    assert message.receivers == (receiver_name(ORIGIN),)
    assert [each["receiver"] for each in document(reply)["deliveries"]] == [receiver_name(ORIGIN)]
    assert message.one_off is not None
    return message.one_off


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    async with running_api(adhoc_endpoints=[ORIGIN]) as running:
        yield running


async def test_an_endpoint_of_an_allowed_origin_is_a_receiver_for_this_message(rig: Rig) -> None:
    assert await sent(rig) == OneOff(URL)
    assert (await rig.post(PATH, ce_id="m")).status == 202


@pytest.mark.parametrize("as_header", [True, False])
async def test_its_secret_is_on_the_log_only_encrypted_for_this_message(rig: Rig, as_header: bool) -> None:
    if as_header:
        found = await sent(rig, "/v1/sources/app/messages", ce_id="m", relay_endpoint=URL, relay_signing_secret=SECRET)
    else:
        found = await sent(rig, f"{PATH}&signing_secret={SECRET}", ce_id="m")
    assert found.secret is not None
    ring = KeyRing([NEW_KEY])
    assert ring.opened(found.secret, secret_place("app", "m")) == SECRET
    with pytest.raises(Exception, match="another place"):
        ring.opened(found.secret, secret_place("app", "n"))


async def test_the_same_message_again_is_a_duplicate_and_one_to_another_url_conflicts(rig: Rig) -> None:
    target = f"{PATH}&signing_secret={SECRET}"
    await sent(rig, target, ce_id="m")
    assert document(await rig.post(target, ce_id="m"))["duplicate"]
    other = f"/v1/sources/app/messages?endpoint={quote(ORIGIN + '/other', safe='')}"
    problem(await rig.post(other, ce_id="m"), 409, "id-conflict")


@pytest.mark.parametrize(
    ("query", "status", "kind", "parameters"),
    [
        (f"endpoint={quote(URL)}&receiver=ci", 400, "invalid-request", ["endpoint", "receiver"]),
        ("signing_secret=abc&receiver=ci", 400, "invalid-request", ["signing_secret"]),
        ("endpoint=nonsense", 400, "invalid-request", ["endpoint"]),
        ("endpoint=https%3A%2F%2Fuser%3Ame%40hooks.example%2F", 400, "invalid-request", ["endpoint"]),
        (f"endpoint={quote(URL)}&signing_secret=whsec_short", 400, "invalid-request", ["signing_secret"]),
        ("endpoint=https%3A%2F%2Fother.example%2F", 422, "endpoint-not-allowed", []),
        ("endpoint=http%3A%2F%2Fhooks.example%2F", 422, "endpoint-not-allowed", []),
        ("endpoint=https%3A%2F%2Fhooks.example%3A8443%2F", 422, "endpoint-not-allowed", []),
        ("endpoint=https%3A%2F%2Fhooks.example.evil%2F", 422, "endpoint-not-allowed", []),
        (f"receiver={receiver_name(ORIGIN)}", 422, "unknown-receiver", ["receiver"]),
    ],
)
async def test_what_contradicts_or_is_not_allowed_is_refused(
    rig: Rig, query: str, status: int, kind: str, parameters: list[str]
) -> None:
    refused = problem(await rig.post(f"/v1/sources/app/messages?{query}"), status, kind)
    assert [each["parameter"] for each in refused["errors"]] == parameters
    assert "whsec_short" not in json.dumps(refused)
    assert rig.records(rig.topics.from_sender) == []


async def test_an_item_of_a_batch_has_one_as_fields(rig: Rig) -> None:
    items = [
        {"payload": 1, "message_id": "a", "endpoint": URL, "signing_secret": SECRET},
        {"payload": 2, "endpoint": URL, "receiver": "ci"},
        {"payload": 3, "endpoint": "https://other.example/"},
        {"payload": 4, "signing_secret": SECRET},
        {"payload": 5, "receiver": "ci"},
    ]
    body = "\n".join(map(json.dumps, items)).encode()
    reply = await rig.post("/v1/sources/app/messages:batch?receiver=cd", body, content_type="application/x-ndjson")
    assert [item["status"] for item in document(reply)["items"]] == [202, 400, 422, 400, 202]
    records = rig.records(rig.topics.from_sender)
    found = [parse_message(record.value, record.headers) for record in records]
    assert [(each.receivers, each.one_off is None) for each in found] == [
        ((receiver_name(ORIGIN),), False),
        (("ci",), True),
    ]
    assert SECRET not in repr(records)


async def test_it_is_off_by_default_and_secrets_need_a_key() -> None:
    async with running_api() as rig:
        refused = problem(await rig.post(PATH), 422, "endpoint-not-allowed")
        assert "RELAY_ADHOC_ENDPOINTS" in refused["detail"]
    async with running_api(adhoc_endpoints=[ORIGIN], secrets_keys=()) as rig:
        assert (
            "RELAY_SECRETS_KEY"
            in problem(await rig.post(f"{PATH}&signing_secret={SECRET}"), 409, "no-secrets-key")["detail"]
        )
        await sent(rig)
