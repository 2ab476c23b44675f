"""Requests to receivers and senders: which headers, what they say, and that nothing can be smuggled into them."""

import json
import re
from dataclasses import replace
from urllib.parse import unquote

import pytest
from cloudevents.core.bindings.http import HTTPMessage, from_binary
from cloudevents.core.formats.json import JSONFormat
from cloudevents.core.v1.event import CloudEvent
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace as replace_hop

from relay.domain.egress import Egress, Tls
from relay.domain.exchange import Request
from relay.domain.headers import check_header_name, header_value
from relay.domain.hop import Hop
from relay.domain.identity import DeliveryId, callback_id, webhook_id
from relay.domain.receiver import Endpoint, Receiver, RetryPolicy, SigningPolicy
from relay.domain.requests import (
    attribute_value,
    callback_request,
    challenge_request,
    consent_request,
    nonce_request,
    ping_request,
    post_request,
    status_request,
)
from relay.domain.signing import verify_standard

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
NOW = 1_700_000_000.75
DELIVERY = DeliveryId("ci", "github", "m 1")

anything = st.text()  # lone surrogates too
hops = st.builds(
    Hop,
    delivery=st.builds(
        DeliveryId,
        st.just("ci"),
        st.text(st.characters(exclude_categories=["Cs"])),
        st.text(st.characters(exclude_categories=["Cs"])),
    ),
    event_type=st.none() | anything,
    time=st.none() | anything,
    content_type=st.none() | anything,
    outcome=st.sampled_from([None, "answered", "delivered", "failed"]),
    reason=st.none() | anything,
)


def receiver(**endpoint: object) -> Receiver:
    given_or_default: dict[str, object] = {"signing": SigningPolicy(secrets=(SECRET,))} | endpoint
    return Receiver("ci", Endpoint("https://ci.example/hooks", **given_or_default))  # type: ignore[arg-type]


def post(
    to: Receiver, hop: Hop, payload: bytes = b"{}", *, sequence: int | None = None, answer_url: str | None = None
) -> Request:
    return post_request(
        to, hop, payload, attempt=3, sequence=sequence, now=NOW, answer_url=answer_url, user_agent="relay/1.0"
    )


def test_a_result_is_an_event_that_names_its_cause() -> None:
    to = Endpoint("https://sender.example/results", cloudevents=True)
    hop = Hop(DELIVERY, content_type="text/plain", outcome="answered", answer_status=200)
    sent = callback_request(to, hop, b"ok", now=NOW, user_agent="relay", attempt=1)
    event = from_binary(HTTPMessage(dict(sent.headers), sent.body), JSONFormat(), CloudEvent)
    assert (event.get_id(), event.get_type(), event.get_source()) == (
        callback_id(DELIVERY, 0, failed=False),
        "relay.answer",
        "/receivers/ci",
    )
    assert (event.get_subject(), event.get_data()) == ("github", "ok")
    assert {name: event.get_extension(name) for name in ("correlationid", "causationid")} == {
        "correlationid": "m 1",
        "causationid": "m 1",
    }
    failed = callback_request(to, replace_hop(hop, outcome="failed"), b"{}", now=NOW, user_agent="relay", attempt=1)
    assert dict(failed.headers)["ce-type"] == "relay.failure"


PAYLOAD_URL = "https://relay.example/v1/payloads/token"


@pytest.mark.parametrize("url", [PAYLOAD_URL, None])
def test_a_thin_event_has_nothing_of_the_payload(url: str | None) -> None:
    to = replace(receiver(), payload="thin" if url else "metadata")
    hop = Hop(DELIVERY, event_type="push", time="2026-01-01T00:00:00Z", content_type="text/x-secret")
    sent = post_request(
        to, hop, b"a secret", attempt=1, sequence=None, now=NOW, answer_url=None, payload_url=url, user_agent="relay"
    )
    identity = webhook_id(DELIVERY.source_id, DELIVERY.message_id)
    known = {"id": "m 1", "source": "github", "type": "push", "time": "2026-01-01T00:00:00Z", "webhook_id": identity}
    assert json.loads(sent.body) == (known if url is None else {**known, "payload_url": url})
    headers = dict(sent.headers)
    assert (headers["content-type"], headers.get("relay-payload-url")) == ("application/json", url)
    assert b"secret" not in repr(sent).encode().replace(SECRET.encode(), b"")
    assert verify_standard([SECRET], headers, sent.body, NOW)


def callback(hop: Hop, body: bytes = b"ok", endpoint: Endpoint | None = None) -> Request:
    to = endpoint or Endpoint("https://sender.example/results", SigningPolicy(secrets=(SECRET,)), timeout=7)
    return callback_request(to, hop, body, now=NOW, user_agent="relay/1.0", attempt=2)


def named(request: Request) -> dict[str, str]:
    names = [name.lower() for name, _ in request.headers]
    assert len(set(names)) == len(names)
    return dict(request.headers)


def test_what_a_receiver_gets() -> None:
    to = receiver(timeout=9, retry=RetryPolicy(max_age=3600), headers=(("Authorization", "Bearer t"),))
    hop = Hop(
        DELIVERY,
        "push",
        "2026-01-02T03:04:05Z",
        "text/plain; charset=utf-8",
        generation=1,
        accepted_ms=1_699_999_990_999,
    )
    request = post(to, hop, b"payload", sequence=7, answer_url="https://relay.example/v1/answers/t")
    headers = named(request)
    signature = headers.pop("webhook-signature")
    assert signature.startswith("v1,")
    assert headers == {
        "content-type": "text/plain; charset=utf-8",
        "webhook-id": webhook_id("github", "m 1"),
        "webhook-timestamp": "1700000000",
        "ce-specversion": "1.0",
        "ce-id": "m%201",
        "ce-source": "github",
        "ce-type": "push",
        "ce-time": "2026-01-02T03:04:05Z",
        "relay-attempt": "3",
        "relay-generation": "1",
        "relay-deadline": "1700003590",
        "relay-sequence": "7",
        "relay-answer-url": "https://relay.example/v1/answers/t",
        "user-agent": "relay/1.0",
        "Authorization": "Bearer t",
    }
    assert (request.method, request.url, request.timeout_s) == ("POST", "https://ci.example/hooks", 9)
    assert request.body == b"payload"
    assert verify_standard([SECRET], {**headers, "webhook-signature": signature}, request.body, NOW)


def test_what_is_not_known_is_left_out_and_content_is_json_by_default() -> None:
    headers = named(post(receiver(signing=SigningPolicy()), Hop(DELIVERY)))
    assert headers["content-type"] == "application/json"
    absent = {"ce-type", "ce-time", "relay-deadline", "relay-sequence", "relay-answer-url", "webhook-signature"}
    assert not absent & headers.keys()


def test_the_webhook_id_is_the_same_on_every_attempt_and_replay() -> None:
    first = named(post(receiver(), Hop(DELIVERY, attempt=1)))
    replayed = named(post(receiver(), Hop(DELIVERY, attempt=9, generation=4)))
    assert first["webhook-id"] == replayed["webhook-id"]


def test_a_cloudevents_receiver_understands_it() -> None:
    hop = Hop(DeliveryId("ci", "/gît hub/%20", 'm "1"'), "push", "2026-01-02T03:04:05Z", "application/json")
    request = post(receiver(), hop, b'{"a":1}')
    event = from_binary(HTTPMessage(headers=named(request), body=request.body), JSONFormat(), CloudEvent)
    assert (event.get_source(), event.get_id(), event.get_type()) == ("/gît hub/%20", 'm "1"', "push")
    assert event.get_data() == json.loads(request.body)


@pytest.mark.parametrize(
    "name",
    [
        "content-type",
        "Content-Length",
        "TRANSFER-ENCODING",
        "Host",
        "User-Agent",
        "Webhook-Id",
        "webhook-signature",
        "X-Hub-Signature-256",
        "Stripe-Signature",
        "CE-id",
        "Relay-Sequence",
        "",
        "a b",
        "a:b",
        "a\r\nb",
        "é",
    ],
)
def test_static_headers_cannot_override_ours_or_break_the_request(name: str) -> None:
    own = ((name, "mine"), ("x-team", "b\r\nx-evil: 1"))
    for request in (
        post(receiver(headers=own), Hop(DELIVERY)),
        status_request("https://ci.example/1", receiver(headers=own), user_agent="relay/1.0", timeout_s=4),
        callback(Hop(DELIVERY, outcome="delivered"), endpoint=Endpoint("https://s.example", headers=own)),
    ):
        assert "mine" not in named(request).values()
        assert request.headers[-1] == ("x-team", "b%0D%0Ax-evil: 1")


@given(
    name=st.text(st.characters(codec="ascii"), min_size=1)
    | st.sampled_from(["Host", "User-Agent", "x-hub-signature", "X-Team"])
)
def test_what_the_check_of_a_file_lets_pass_is_sent(name: str) -> None:
    try:
        passes = bool(check_header_name(name))
    except ValueError:
        passes = False
    request = post(receiver(headers=((name, "mine"),)), Hop(DELIVERY))
    assert (request.headers[-1] == (name, "mine")) == passes


TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


@pytest.mark.parametrize(
    ("taken", "sent"),
    [
        (TRACE, TRACE),
        (None, None),
        ("00-1", None),
        ("ff" + TRACE[2:], None),
        (TRACE.replace("00f067aa0ba902b7", "0" * 16), None),
        (TRACE.upper(), None),
        (TRACE + "\r\nx: y", None),
    ],
)
def test_a_trace_goes_on_to_receiver_and_callback(taken: str | None, sent: str | None) -> None:
    hop = Hop(DELIVERY, outcome="delivered", traceparent=taken)
    for request in (post(receiver(headers=(("traceparent", "own"),)), hop), callback(hop)):
        assert named(request).get("traceparent") == sent


@pytest.mark.parametrize(
    ("traceparent", "state", "sent"),
    [
        (TRACE, "a=1,b=2", {"traceparent": TRACE, "tracestate": "a=1,b=2"}),
        (TRACE, None, {"traceparent": TRACE}),
        (TRACE, "a=1\r\nx: y", {"traceparent": TRACE}),
        (TRACE, "a" * 513, {"traceparent": TRACE}),
        ("00-1", "a=1", {}),
        (None, "a=1", {}),
    ],
)
def test_the_state_of_a_trace_goes_with_it_or_not_at_all(
    traceparent: str | None, state: str | None, sent: dict[str, str]
) -> None:
    hop = Hop(DELIVERY, outcome="delivered", traceparent=traceparent, tracestate=state)
    asked = status_request("https://ci.example/1", receiver(), user_agent="relay/1", timeout_s=1, hop=hop)
    for request in (post(receiver(), hop), callback(hop), asked):
        assert {name: value for name, value in request.headers if name.startswith("trace")} == sent


def test_the_status_get() -> None:
    to = receiver(headers=(("authorization", "Bearer t"),))
    request = status_request("https://ci.example/hooks/1", to, user_agent="relay/1.0", timeout_s=4)
    expected = (("user-agent", "relay/1.0"), ("authorization", "Bearer t"))
    assert request == Request("GET", "https://ci.example/hooks/1", expected, timeout_s=4)


def test_every_request_to_an_endpoint_goes_the_way_it_asks_for() -> None:
    egress = Egress(Tls(ca="x"))
    to = receiver(egress=egress)
    asked = status_request("https://ci.example/1", to, user_agent="relay/1", timeout_s=1)
    pinged = ping_request(to.post, "1", now=NOW, user_agent="relay/1")
    verified = (
        challenge_request(to.post, "c", user_agent="relay/1", timeout_s=1),
        nonce_request(to.post, "n", now=NOW, user_agent="relay/1", timeout_s=1),
        consent_request(to.post, "relay.example", None, user_agent="relay/1", timeout_s=1),
    )
    answered = callback(Hop(DELIVERY, outcome="answered"), endpoint=to.post)
    requests = (post(to, Hop(DELIVERY)), asked, pinged, answered, *verified)
    assert {request.egress for request in requests} == {egress}


def test_a_ping_is_a_cloudevent_of_nobody_signed_like_any_other() -> None:
    endpoint = receiver(headers=(("x-team", "core"),)).post
    request = ping_request(endpoint, "00ff", now=NOW, user_agent="relay/1")
    headers = dict(request.headers)
    assert (request.method, request.url, request.timeout_s) == ("POST", endpoint.url, endpoint.timeout)
    assert json.loads(request.body) == {"type": "relay.ping"}
    assert verify_standard([SECRET], headers, request.body, now=NOW)
    assert headers["webhook-id"] == headers["ce-id"] == "ping_00ff"
    assert headers["x-team"] == "core"
    assert not any(name.startswith("relay-") for name in headers)
    event = from_binary(HTTPMessage(headers=headers, body=request.body), JSONFormat(), CloudEvent)
    assert (event.get_type(), event.get_source()) == ("relay.ping", "relay")


def test_what_a_sender_gets_for_an_answer() -> None:
    hop = Hop(
        DELIVERY, content_type="text/html", generation=2, outcome="answered", answer_status=201, answer_truncated=True
    )
    request = callback(hop, b"<p>")
    headers = named(request)
    assert verify_standard([SECRET], headers, b"<p>", NOW)
    del headers["webhook-signature"]
    assert headers == {
        "webhook-id": callback_id(DELIVERY, 2, failed=False),
        "webhook-timestamp": "1700000000",
        "relay-source": "github",
        "relay-message-id": "m%201",
        "relay-receiver": "ci",
        "relay-attempt": "2",
        "content-type": "text/html",
        "relay-outcome": "answered",
        "relay-answer-status": "201",
        "relay-answer-truncated": "true",
        "user-agent": "relay/1.0",
    }
    assert (request.url, request.timeout_s, request.body) == ("https://sender.example/results", 7, b"<p>")


def test_what_a_sender_gets_for_a_failure() -> None:
    headers = named(callback(Hop(DELIVERY, outcome="failed", reason="exhausted"), b""))
    assert headers["webhook-id"] == callback_id(DELIVERY, 0, failed=True)
    assert headers["webhook-id"].startswith("fail_")
    assert (headers["relay-outcome"], headers["relay-reason"]) == ("failed", "exhausted")
    assert not {"content-type", "relay-answer-status", "relay-answer-truncated"} & headers.keys()


def test_only_a_failure_has_a_reason() -> None:
    assert "relay-reason" not in named(callback(Hop(DELIVERY, outcome="delivered", reason="left over")))


PRINTABLE = re.compile("[\t\x20-\x7e]*")


@given(hops, anything, anything, anything)
def test_no_header_can_be_broken_out_of(hop: Hop, answer_url: str, agent: str, own: str) -> None:
    to = receiver(headers=(("x-own", own),))
    requests = (
        post_request(to, hop, b"", attempt=1, sequence=1, now=NOW, answer_url=answer_url, user_agent=agent),
        status_request("https://ci.example", to, user_agent=agent, timeout_s=1),
        callback_request(to.post, hop, b"", now=NOW, user_agent=agent, attempt=1),
    )
    for request in requests:
        for name, value in request.headers:
            assert PRINTABLE.fullmatch(name + value), (name, value)


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_an_attribute_can_be_read_back(text: str) -> None:
    value = attribute_value(text)
    assert unquote(value) == text
    assert re.fullmatch(r"[!#-~]*", value)


@pytest.mark.parametrize(
    ("text", "value"), [('"', "%22"), ("%", "%25"), (" ", "%20"), ("é", "%C3%A9"), ("a/b:c", "a/b:c")]
)
def test_an_attribute_is_encoded_as_cloudevents_has_it(text: str, value: str) -> None:
    assert attribute_value(text) == value


@pytest.mark.parametrize("text", ['multipart/x; boundary="a b%"', "Bearer a/b+c==", "text/plain;\tcharset=utf-8", ""])
def test_a_good_header_value_is_left_alone(text: str) -> None:
    assert header_value(text) == text


@pytest.mark.parametrize(
    "url", ["https://evil.example/x", "http://ci.example/x", "https://ci.example:444/x", "nonsense"]
)
def test_no_url_that_is_not_the_receivers_gets_its_credentials(url: str) -> None:
    to = receiver(headers=(("authorization", "Bearer token"),))
    with pytest.raises(ValueError, match="not the receiver's"):
        status_request(url, to, user_agent="relay/1.0", timeout_s=1)
