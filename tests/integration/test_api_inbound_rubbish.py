"""Tests of POST /v1/in/{source_id} with invalid requests: no 500, nothing unsigned is stored, and a 503 while the log
is away."""

import hashlib
import hmac
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from typing import Final

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from relay.domain.errors import LogUnavailable
from relay.domain.identity import MessageId
from relay.domain.receiver import Inbound
from relay.log.port import Coordinate, NewRecord
from tests.integration.api_rig import NOW, Rig, document, problem, running_api
from tests.unit.test_inbound import SCHEMES

KINDS: Final = {f"{policy.kind}-{sign.__name__}": (policy, sign) for policy, sign in SCHEMES}
SIGNS: Final = sorted(
    {
        *(name for policy, sign in SCHEMES for name in sign(policy.secrets[0], b"{}", int(NOW))),
        *("x-github-event", "x-github-delivery", "x-hub-signature", "ce-id", "ce-specversion", "ce-type", "ce-time"),
        *("content-type", "content-encoding", "webhook-request-origin", "traceparent", "idempotency-key"),
    }
)
USUAL: Final = {"x-github-event": b"push", "x-github-delivery": b"1", "ce-specversion": b"1.0", "ce-id": b"1"}
_TYPES: Final = [b"application/cloudevents+json", b"application/cloudevents-batch+json; charset=utf-16", b"text/plain"]
_FORM: Final = b"application/x-www-form-urlencoded"
_VALUE: Final = (
    st.binary(max_size=40)
    | st.sampled_from([b"", b"1.0", b"sha256=", b"t=1,v1=", b"v0=", b"v1,", b"Bearer ", b"9" * 400, b",=,", b"%ff"])
    | st.sampled_from([*_TYPES, _FORM])
)
_BODY: Final = (
    st.binary(max_size=60)
    | st.sampled_from([b"[" * 9_000, b"{}", b"null", b'{"id": 1}', b'{"type": "url_verification"}', b'{"type": {}}'])
    | st.sampled_from([b'[{"specversion": "1.0", "id": "1", "source": "s", "type": "t"}, 1]', b"payload=%7B%22"])
)


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    async with running_api() as running:
        running.directory.inbound |= {name: replace(policy, receivers=("ci",)) for name, (policy, _) in KINDS.items()}
        yield running


@settings(max_examples=250)
@given(st.sampled_from(sorted(KINDS)), st.dictionaries(st.sampled_from(SIGNS), _VALUE, max_size=5), _BODY)
@example("github-github", {"x-hub-signature-256": b"sha256=\xff\xfe"}, b"")
@example("stripe-stripe", {"stripe-signature": b"t=" + b"9" * 5_000 + b",v1=" + b"0" * 64}, b"{}")
async def test_unsigned_rubbish_is_refused_and_not_kept(
    rig: Rig, kind: str, headers: dict[str, bytes], body: bytes
) -> None:
    lines = [b"%b: %b" % (name.encode(), value) for name, value in headers.items()]
    head = [b"POST /v1/in/%b HTTP/1.1" % kind.encode(), b"host: localhost", b"content-length: %d" % len(body), *lines]
    with capture_logs() as logged:
        status, _ = await rig.raw(b"\r\n".join(head) + b"\r\n\r\n" + body)
    assert status in (400, 401, 415)  # 400: no HTTP at all
    assert [line for line in logged if line["event"] != "request_refused"] == []
    assert rig.records(rig.topics.from_sender) == []


@settings(max_examples=250)
@given(st.sampled_from(sorted(KINDS)), st.dictionaries(st.sampled_from(SIGNS), _VALUE, max_size=5), _BODY)
async def test_signed_rubbish_is_a_message_or_a_mistake_of_its_sender(
    rig: Rig, kind: str, headers: dict[str, bytes], body: bytes
) -> None:
    _, sign = KINDS[kind]
    policy = rig.directory.inbound[kind]
    try:
        signed = sign(policy.secrets[0], body, int(NOW))
    except UnicodeDecodeError:  # the library that signs takes texts alone
        signed = {}
    all_headers = {**USUAL, **headers, **{name: value.encode() for name, value in signed.items()}}
    lines = [b"%b: %b" % (name.encode(), value) for name, value in all_headers.items()]
    head = [b"POST /v1/in/%b HTTP/1.1" % kind.encode(), b"host: localhost", b"content-length: %d" % len(body), *lines]
    with capture_logs() as logged:
        status, _ = await rig.raw(b"\r\n".join(head) + b"\r\n\r\n" + body)
    assert status in (200, 202, 400, 401, 409, 413, 415)
    assert [line for line in logged if line["event"] != "request_refused"] == []


async def test_while_the_log_takes_nothing_the_sender_is_told_to_come_again(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.directory.inbound["app"] = Inbound("github", ("s",), ("ci",))
    mac = hmac.new(b"s", b"{}", hashlib.sha256).hexdigest()
    headers = {"x-github-event": "push", "x-github-delivery": "d-1", "x-hub-signature-256": f"sha256={mac}"}

    async def full(records: Sequence[NewRecord]) -> list[Coordinate]:
        raise LogUnavailable("the log cannot write: MISCONF Errors writing to the AOF file: No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(rig.log, "append", full)
        reply = await rig.request("POST", "/v1/in/app", b"{}", headers)
        detail = problem(reply, 503, "unavailable")["detail"]
    assert int(reply.headers["Retry-After"]) > 0
    assert "accepts no records" in detail
    assert "MISCONF" not in detail
    assert await rig.state.messages([MessageId("app", "d-1")]) == [None]
    again = await rig.request("POST", "/v1/in/app", b"{}", headers)
    assert (again.status, document(again)["duplicate"]) == (202, False)
