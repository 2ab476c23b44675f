"""One-off deliveries: the receivers that stand for origins, and what a message with an endpoint may reach."""

from dataclasses import replace

import pytest
from msgspec import structs

from relay.domain.errors import InvalidRecord, UserError
from relay.domain.exchange import Response
from relay.domain.hop import Hop, decode_hop, encode_hop
from relay.domain.identity import DeliveryId, is_receiver_name
from relay.domain.message import Message, message_headers, parse_message
from relay.domain.one_off import ENDPOINT_HEADER, OneOff, encode_one_off
from relay.domain.receiver import Endpoint, Receiver
from relay.domain.recipients import may_name, may_reach, receiver_name, receiver_of
from relay.engine.decision import Dead, Done, Later
from relay.log.port import Record
from relay.state.attempts import Change
from relay.state.rows import Result
from tests.expecting import expect
from tests.fakes.state import MemoryState
from tests.fakes.steps import NOW, TOPICS, Rig, hop_record, stepped
from workers.from_sender import FromSender
from workers.to_receiver import ToReceiver

ORIGIN = "https://hooks.example"
ONE_OFF = OneOff(f"{ORIGIN}/a?b=c", "sealed")
OF_ORIGIN = receiver_of(ORIGIN)
DELIVERY = DeliveryId(OF_ORIGIN.name, "app", "m-1")
HOP = Hop(DELIVERY, content_type="text/plain", accepted_ms=int((NOW - 60) * 1000), one_off=ONE_OFF)
MESSAGE = Message("app", "m-1", (OF_ORIGIN.name,), one_off=ONE_OFF)
SECRET = "whsec_Y2lyY2xlY2ktY2lyY2xlY2ktY2lyY2xlY2kh"


@pytest.mark.parametrize("origin", [ORIGIN, "http://127.0.0.1:8080", "https://[::1]:9", f"https://{'a' * 200}.example"])
def test_the_name_of_an_origin_is_one_of_a_receiver(origin: str) -> None:
    assert is_receiver_name(receiver_name(origin))
    assert receiver_name(origin) == receiver_name(f"{origin}/path")
    assert receiver_name(origin) != receiver_name("https://hooks.example:444")


def test_only_a_message_with_an_endpoint_there_may_name_it() -> None:
    ci = Receiver("ci", Endpoint("https://ci.example/"))
    assert may_name(OF_ORIGIN, MESSAGE)
    assert not may_name(OF_ORIGIN, structs.replace(MESSAGE, one_off=None))
    assert not may_name(OF_ORIGIN, structs.replace(MESSAGE, one_off=OneOff("https://other.example/")))
    assert not may_name(ci, structs.replace(MESSAGE, receivers=("ci",)))
    assert not may_reach(replace(ci, post=Endpoint(ORIGIN)), ONE_OFF)


def test_it_is_kept_in_the_records_of_the_message_and_its_delivery() -> None:
    assert parse_message(b"", message_headers(MESSAGE)).one_off == ONE_OFF
    assert decode_hop(encode_hop(HOP)) == HOP


@pytest.mark.parametrize(
    "value", [b"{}", b"[", b'{"url": "ftp://x/"}', b'{"url": "https://x y/"}', b'{"url": "/path"}']
)
def test_a_forged_one_is_no_message(value: bytes) -> None:
    headers = tuple(pair for pair in message_headers(MESSAGE) if pair[0] != ENDPOINT_HEADER)
    with pytest.raises(InvalidRecord, match=ENDPOINT_HEADER):
        parse_message(b"", (*headers, (ENDPOINT_HEADER, value)))


def test_it_goes_with_one_receiver() -> None:
    with pytest.raises(InvalidRecord, match="one receiver"):
        parse_message(b"", message_headers(structs.replace(MESSAGE, receivers=None)))


def rig_of(secret: str | Exception = SECRET) -> tuple[Rig, ToReceiver]:
    rig = Rig()
    rig.know(OF_ORIGIN)

    def opened(delivery: DeliveryId, sealed: str) -> str:
        assert (delivery, sealed) == (DELIVERY, "sealed")
        if isinstance(secret, Exception):
            raise secret
        return secret

    outside = replace(rig.outside, opened_secret=opened)
    return rig, ToReceiver(TOPICS, rig.known, MemoryState(), rig.letters, outside, rig.known)


async def test_it_is_posted_to_its_endpoint_signed_with_its_secret() -> None:
    rig, step = rig_of()
    rig.http.replies = [Response(200, {}, b"")]
    work = step.admit(hop_record(TOPICS.to_receiver("shared"), HOP))
    assert step.overdue(work) is None
    assert isinstance(await stepped(step, work), Done)
    [request] = rig.http.requests
    assert request.url == ONE_OFF.url
    assert dict(request.headers)["webhook-signature"].startswith("v1,")
    assert work.endpoint_id == f"r:{OF_ORIGIN.name}"


async def test_what_shows_its_secret_is_masked() -> None:
    rig, step = rig_of()
    rig.http.replies = [Response(422, {}, f"wrong secret {SECRET}".encode())]
    decision = expect(Dead, await stepped(step, step.admit(hop_record(TOPICS.to_receiver("shared"), HOP))))
    assert SECRET not in decision.detail


def test_one_whose_secret_cannot_be_decrypted_waits_alone() -> None:
    _, step = rig_of(UserError("encrypted with another key"))
    wait = expect(Later, step.overdue(step.admit(hop_record(TOPICS.to_receiver("shared"), HOP))))
    assert (wait.change, wait.pause_s) == (Change.RELEASED, 0.0)
    assert "another key" in wait.reason


def test_an_origin_that_is_not_allowed_any_more_ends_its_messages() -> None:
    rig, step = rig_of()
    work = step.admit(hop_record(TOPICS.to_receiver("shared"), HOP))
    rig.known.receivers.clear()
    assert isinstance(step.overdue(work), Dead)


def test_an_answer_on_its_way_back_does_not_have_it() -> None:
    _, step = rig_of()
    work = step.admit(hop_record(TOPICS.to_receiver("shared"), HOP))

    done = expect(Done, step.resume(work, Result("answered", 200, "text/plain", b"ok")))
    assert ENDPOINT_HEADER not in dict(done.records[0].headers)


def test_it_is_routed_to_the_lane_of_its_origin() -> None:
    rig = Rig()
    rig.know(OF_ORIGIN)
    step = FromSender(
        TOPICS, rig.known, MemoryState(), rig.letters, rig.outside, max_payload_bytes=1_000, moves=rig.known
    )
    for one_off, topic in (
        (ONE_OFF, TOPICS.to_receiver("shared")),
        (OneOff("https://other.example/"), TOPICS.failed_messages),
    ):
        headers = message_headers(structs.replace(MESSAGE, one_off=one_off))
        work = step.admit(Record(TOPICS.from_sender, 0, 1, b"app", b"x", headers, int(NOW * 1000)))
        done = expect(Done, step.step(work))
        assert [record.topic for record in done.records] == [topic]
        assert encode_one_off(ONE_OFF) in dict(done.records[0].headers).values() or topic == TOPICS.failed_messages
