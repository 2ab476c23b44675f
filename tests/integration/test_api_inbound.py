"""Tests of POST /v1/in/{source_id}: webhooks in the formats of other services, authenticated by their signatures."""

import hashlib
import hmac
import json
from collections.abc import Mapping
from typing import Any

import pytest
from cloudevents.core.bindings.http import to_binary_event, to_structured_event
from cloudevents.core.formats.json import JSONFormat
from cloudevents.core.v1.event import CloudEvent

from relay.domain.expression import ROUTING, Expression
from relay.domain.message import Message, parse_message
from relay.domain.receiver import Inbound, Quota
from relay.sink import samples
from tests.fakes.steps import CountingMeter
from tests.integration.api_rig import NOW, PAYLOAD_CAP, Reply, Rig, document, problem, running_api
from tests.integration.api_rig import rig as rig

SECRET = "the secret"
GITHUB = Inbound("github", (SECRET, "the one before"), receivers=("ci",))
BEARER = Inbound("cloudevents", ("token",), receivers=("ci",))
BODY = b'{"action": "opened",  "number": 1}'


def signed(body: bytes = BODY, /, secret: str = SECRET, **headers: str) -> dict[str, str]:
    mac = hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()
    usual = {"x-github-event": "pull_request", "x-github-delivery": "d-1", "content-type": "application/json"}
    given = {name.replace("_", "-"): value for name, value in headers.items()}
    return usual | {"x-hub-signature-256": f"sha256={mac}"} | given


async def send(rig: Rig, headers: Mapping[str, str], body: bytes = BODY, target: str = "/v1/in/app") -> Reply:
    return await rig.request("POST", target, body, headers)


def stored(rig: Rig) -> list[Message]:
    return [parse_message(record.value, record.headers) for record in rig.records(rig.topics.from_sender)]


async def test_a_webhook_of_github_is_a_message_without_any_key() -> None:
    async with running_api(api_key="a key that GitHub has not") as rig:
        rig.directory.inbound["app"] = GITHUB
        reply = await send(rig, signed())
        assert reply.status == 202
        assert reply.headers["Location"] == "/v1/sources/app/messages/d-1"
        assert document(reply) == {
            "source_id": "app",
            "message_id": "d-1",
            "status": "arrived",
            "duplicate": False,
            "detail": None,
            "deliveries": [{"receiver": "ci", "status": "arrived", "generation": 0, "reason": None}],
        }
        (message,) = stored(rig)
        assert (message.id, message.event_type, message.receivers) == (("app", "d-1"), "pull_request.opened", ("ci",))
        assert (message.payload, message.content_type) == (BODY, "application/json")
        problem(await rig.get("/v1/sources/app/messages/d-1"), 401, "unauthorized")


async def test_what_does_not_prove_where_it_comes_from_is_counted_and_not_kept() -> None:
    meter = CountingMeter()
    async with running_api(meter=meter) as rig:
        rig.directory.inbound["app"] = GITHUB
        rig.directory.inbound["paid"] = Inbound("stripe", ("s",))
        unsigned = {name: value for name, value in signed().items() if name != "x-hub-signature-256"}
        old = hmac.new(b"s", b"%d.%b" % (NOW - 301, BODY), hashlib.sha256).hexdigest()
        for headers, body, target in (
            (signed(secret="another"), BODY, "/v1/in/app"),
            (signed(), BODY + b" ", "/v1/in/app"),
            (unsigned, BODY, "/v1/in/app"),
            # before the signature is right, nothing else is looked at
            (signed(secret="another", x_github_delivery="", x_github_event=""), b"[", "/v1/in/app?receiver=cd"),
            ({"stripe-signature": f"t={NOW - 301:.0f},v1={old}"}, BODY, "/v1/in/paid"),
        ):
            refused = await send(rig, headers, body, target)
            problem(refused, 401, "bad-signature")
            assert refused.headers["WWW-Authenticate"] == 'Webhook realm="relay"'
        assert stored(rig) == []
        whys = [("github", "wrong"), ("github", "wrong"), ("github", "missing"), ("github", "wrong"), ("stripe", "old")]
        assert meter.told == [("refused", *why) for why in whys]


async def test_the_secret_before_is_good_while_it_is_listed(rig: Rig) -> None:
    rig.directory.inbound["app"] = GITHUB
    assert (await send(rig, signed(secret="the one before"))).status == 202
    rig.directory.inbound["app"] = Inbound("github", (SECRET,), receivers=("ci",))
    problem(await send(rig, signed(secret="the one before")), 401, "bad-signature")


async def test_a_repeated_id_changes_nothing_and_tells_how_the_first_is(rig: Rig) -> None:
    rig.directory.inbound["app"] = GITHUB
    assert document(await send(rig, signed()))["duplicate"] is False
    again = await send(rig, signed())
    assert (again.status, document(again)["duplicate"]) == (202, True)
    assert len(stored(rig)) == 1
    problem(await send(rig, signed(b"{}"), b"{}"), 409, "id-conflict")


async def test_only_sources_with_inbound_take_webhooks(rig: Rig) -> None:
    problem(await send(rig, signed()), 404, "not-found")
    rig.directory.inbound["app"] = GITHUB
    problem(await send(rig, signed(), target="/v1/in/other"), 404, "not-found")
    problem(await rig.get("/v1/in/app"), 405, "method-not-allowed")
    assert stored(rig) == []


async def test_a_source_whose_secret_is_missing_here_is_to_try_again(rig: Rig) -> None:
    """The source is known, and its sender must not discard the webhook."""
    rig.directory.unusable["app"] = "${GITHUB_WEBHOOK_SECRET} is not set"
    refused = await send(rig, signed())
    problem(refused, 503, "unavailable")
    assert int(refused.headers["Retry-After"]) > 0
    assert "GITHUB_WEBHOOK_SECRET" not in refused.text


async def test_who_receives_it_is_not_the_senders_to_say(rig: Rig) -> None:
    rig.directory.inbound["app"] = GITHUB
    problem(await send(rig, signed(), target="/v1/in/app?receiver=cd"), 400, "invalid-request")
    rig.directory.inbound["github"] = Inbound("github", (SECRET,))
    reply = await send(rig, signed(ce_receiver="cd"), target="/v1/in/github")
    assert [one["receiver"] for one in document(reply)["deliveries"]] == ["audit"]  # who subscribes


async def test_a_form_is_refused_where_the_source_reads_fields_of_the_payload(rig: Rig) -> None:
    body, headers = b"payload=%7B%7D", {"content_type": "application/x-www-form-urlencoded"}
    rig.directory.inbound["app"] = GITHUB
    assert (await send(rig, signed(body, **headers), body)).status == 202
    rig.directory.keep = {"sha": Expression("payload.after", ROUTING)}
    reply = await send(rig, signed(body, x_github_delivery="d-2", **headers), body)
    refused = problem(reply, 415, "unsupported-media-type")
    assert refused["detail"].endswith("set the content type of the webhook to application/json.")
    problem(await send(rig, signed(body, secret="wrong", **headers), body), 401, "bad-signature")
    assert len(stored(rig)) == 1


async def test_a_ping_nobody_wants_is_answered_and_another_event_says_so(rig: Rig) -> None:
    rig.directory.inbound["app"] = Inbound("github", (SECRET,))
    assert (await send(rig, signed(x_github_event="ping"))).status == 200
    refused = problem(await send(rig, signed()), 422, "no-receiver")
    assert "in `inbound` of the source" in refused["detail"], "its sender cannot name a receiver"
    assert stored(rig) == []


async def test_its_body_has_the_bounds_of_a_message(rig: Rig) -> None:
    rig.directory.inbound["app"] = GITHUB
    large = b" " * (PAYLOAD_CAP + 1)
    problem(await send(rig, signed(large), large), 413, "too-large")
    problem(await send(rig, signed(content_encoding="gzip")), 415, "unsupported-media-type")
    just = b" " * PAYLOAD_CAP
    assert (await send(rig, signed(just), just)).status == 202


@pytest.mark.parametrize(
    "headers", [{"x_github_delivery": ""}, {"x_github_event": ""}, {"x_github_delivery": "1" * 257}]
)
async def test_what_is_signed_and_no_message_says_why(rig: Rig, headers: dict[str, str]) -> None:
    rig.directory.inbound["app"] = GITHUB
    problem(await send(rig, signed(**headers)), 400, "invalid-request")
    assert stored(rig) == []


@pytest.mark.parametrize("name", [name for name in samples.names() if len(samples.load(name).payload) <= PAYLOAD_CAP])
async def test_real_payloads_pass_unchanged(rig: Rig, name: str) -> None:
    sample = samples.load(name)
    rig.directory.inbound["app"] = GITHUB
    headers = signed(sample.payload, x_github_event=sample.event_type.partition(".")[0])
    assert (await send(rig, headers, sample.payload)).status == 202
    (message,) = stored(rig)
    assert (message.event_type, message.payload) == (sample.event_type, sample.payload)


async def test_slack_gets_its_challenge_back_once_it_is_slack(rig: Rig) -> None:
    body = b'{"type": "url_verification", "challenge": "3eZbrw1aB", "token": "x"}'
    mac = hmac.new(b"s", b"v0:%d:%b" % (NOW, body), hashlib.sha256).hexdigest()
    headers = {"x-slack-signature": f"v0={mac}", "x-slack-request-timestamp": f"{NOW:.0f}"}
    rig.directory.inbound["app"] = Inbound("slack", ("s",), receivers=("ci",))
    reply = await send(rig, headers, body)
    assert (reply.status, reply.text) == (200, "3eZbrw1aB")
    assert reply.headers["Content-Type"].startswith("text/plain")
    problem(await send(rig, {**headers, "x-slack-signature": "v0=0"}, body), 401, "bad-signature")
    assert stored(rig) == []


# --- CloudEvents --------------------------------------------------------------------------------------------------


def event(event_id: str = "e-1", **more: Any) -> CloudEvent:
    """An event of another system. It has a source unknown here, and names a receiver."""
    attributes = {
        "id": event_id,
        "source": "https://shop.example/orders",
        "type": "order.placed",
        "specversion": "1.0",
        "datacontenttype": "application/json",
        "receiver": "cd",
    }
    return CloudEvent(attributes | more, {"total": 7})


TOKEN = {"authorization": "Bearer token"}


async def test_a_cloudevent_comes_in_either_mode() -> None:
    for make in (to_binary_event, to_structured_event):
        async with running_api(api_key="not for them") as rig:
            rig.directory.inbound["app"] = BEARER
            sent = make(event())
            body = sent.body
            refused = await send(rig, {**sent.headers, "authorization": "Bearer other"}, body)
            problem(refused, 401, "bad-signature")
            assert refused.headers["WWW-Authenticate"] == 'Bearer realm="relay"'
            assert (await send(rig, {**sent.headers, **TOKEN}, body)).status == 202
            (message,) = stored(rig)
            assert (message.id, message.event_type, message.receivers) == (("app", "e-1"), "order.placed", ("ci",))
            assert (json.loads(message.payload), message.content_type) == ({"total": 7}, "application/json")


def batch(*events: object) -> bytes:
    return b"[" + b",".join(JSONFormat().write(one) if isinstance(one, CloudEvent) else b"{}" for one in events) + b"]"


async def test_a_batch_is_taken_whole_or_not_at_all(rig: Rig) -> None:
    headers = {"content-type": "application/cloudevents-batch+json; charset=utf-8", **TOKEN}
    rig.directory.inbound["app"] = BEARER
    problem(await send(rig, headers, batch(event("e-1"), "no event")), 400, "invalid-request")
    assert stored(rig) == []
    reply = await send(rig, headers, batch(event("e-1"), event("e-2")))
    assert (reply.status, document(reply)) == (202, {"accepted": 2, "duplicates": 0})
    reply = await send(rig, headers, batch(event("e-2"), event("e-3")))
    assert (reply.status, document(reply)) == (202, {"accepted": 2, "duplicates": 1})
    assert [message.message_id for message in stored(rig)] == ["e-1", "e-2", "e-3"]
    problem(await send(rig, headers, batch(event("e-3", type="another"))), 409, "id-conflict")


async def test_what_is_no_cloudevent_is_refused(rig: Rig) -> None:
    rig.directory.inbound["app"] = BEARER
    structured = {"content-type": "application/cloudevents+json", **TOKEN}
    for headers, body in (
        (TOKEN, b"{}"),
        ({"ce-specversion": "1.0", **TOKEN}, b"{}"),
        ({"ce-specversion": "0.3", "ce-id": "1", **TOKEN}, b"{}"),
        (structured, b"{}"),
        (structured, b'{"id": "1", "specversion": "0.3"}'),
        ({"ce-specversion": "1.0", "ce-id": "1", "ce-time": "yesterday", **TOKEN}, b"{}"),
        (structured, b'{"id": "1", "specversion": "1.0", "time": "2026-01-01"}'),
        (structured, b"[" * 9_000),
    ):
        problem(await send(rig, headers, body), 400, "invalid-request")
    assert stored(rig) == []


async def test_whoever_asks_first_may_send_cloudevents() -> None:
    async with running_api(api_key="not for them") as rig:
        rig.directory.inbound |= {"app": BEARER, "gh": GITHUB}
        asked = {"WebHook-Request-Origin": "shop.example", "WebHook-Request-Rate": "120"}
        reply = await rig.request("OPTIONS", "/v1/in/app", headers=asked)
        assert (reply.status, reply.headers["WebHook-Allowed-Origin"]) == (200, "shop.example")
        assert reply.headers["WebHook-Allowed-Rate"] == "*"
        for quota, rate in ((Quota(50, 1), "3000"), (Quota(7, 120), "3"), (Quota(1, 86_400), "1")):
            rig.directory.quotas["app"] = quota
            reply = await rig.request("OPTIONS", "/v1/in/app", headers=asked)
            assert reply.headers["WebHook-Allowed-Rate"] == rate  # requests per minute
        assert "WebHook-Allowed-Origin" not in (await rig.request("OPTIONS", "/v1/in/gh", headers=asked)).headers
        assert "WebHook-Allowed-Origin" not in (await rig.request("OPTIONS", "/v1/in/app")).headers
