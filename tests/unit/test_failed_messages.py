"""FailedMessages: the recipients of a failure; and no dead letter, whatever its content, blocks others."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from relay.domain.coordinate import Coordinate, Headers
from relay.domain.dead_letter import DeadLetter, dead_letter_headers
from relay.domain.hop import NO_RECEIVER, Hop, decode_hop, encode_hop
from relay.domain.identity import DeliveryId, callback_id, webhook_id
from relay.domain.incident import Kind, Party
from relay.domain.incident_kinds import page_of_letter
from relay.domain.message import Message, message_headers
from relay.domain.reasons import REASONS
from relay.domain.timing import Timing
from relay.engine.decision import Dead, Done
from relay.engine.work import LookupResult, Outcome
from relay.incidents.observations import Rows, groups_of, observations
from relay.log.port import NewRecord, Record
from relay.state.port import Lane
from tests.expecting import expect
from tests.fakes.state import MemoryState
from tests.fakes.steps import DELIVERY, NOW, TOPICS, Rig, hop_of, letter_of, record
from workers.failed_messages import FailedMessages, entry_of, incident_of

HOP = Hop(DELIVERY, event_type="push", generation=2, attempt=1)
HEADERS = encode_hop(HOP)
ORIGIN = Coordinate("from_sender", 1, 5)
LANE = Lane(TOPICS.failed_messages, 3, 1)


class Reports:
    """Keeps all reports."""

    def __init__(self) -> None:
        self.told: list[tuple[object, ...]] = []

    def report_failure(self, *about: Any, **_: Any) -> None:
        self.told.append(about[:6])


def worker(reports: Reports | None = None, state: MemoryState | None = None) -> FailedMessages:
    return FailedMessages(TOPICS, state or MemoryState(), Rig().letters, reports or Reports())


def buried(reason: str, stage: str | None = None, headers: Headers = HEADERS, value: bytes = b"x") -> Record:
    letter = DeadLetter(reason, "why", stage or TOPICS.to_receiver("ci"), ORIGIN, 4, int(NOW * 1000), 500)
    return record(TOPICS.failed_messages, dead_letter_headers(headers, letter), value)


def notice_of(letter: Record) -> NewRecord | None:
    """The record of the failure notice for `letter`."""
    step = worker()
    records = step.step(step.admit(letter)).records
    assert all((one.topic, one.key) == (TOPICS.to_sender, b"github") for one in records)
    return records[0] if records else None


def told(letter: Record) -> Hop:
    """What the headers of the failure notice for `letter` say."""
    return hop_of(expect(NewRecord, notice_of(letter)))


def test_a_notice_is_in_the_trace_of_its_message() -> None:
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    traced = structs.replace(HOP, traceparent=trace, tracestate="a=1")
    notice = told(buried("exhausted", headers=encode_hop(traced)))
    assert (notice.traceparent, notice.tracestate) == (trace, "a=1")


@pytest.mark.parametrize("reason", sorted(set(REASONS) - {"id_conflict", "callback_rejected", "callback_exhausted"}))
def test_the_sender_is_told(reason: str) -> None:
    assert told(buried(reason)) == Hop(
        DELIVERY,
        content_type="application/problem+json",
        attempt=4,
        generation=2,
        origin=ORIGIN,
        outcome="failed",
        answer_status=500,
        reason=reason,
    )


def test_the_notice_is_a_document_that_says_what_happened() -> None:
    record = expect(NewRecord, notice_of(buried("exhausted")))
    assert json.loads(record.value or b"") == {
        "type": "/problems/exhausted",
        "title": "Every attempt to deliver the message failed",
        "detail": "why",
        "reason": "exhausted",
        "attempts": 4,
        "last_status": 500,
        "source_id": "github",
        "message_id": "m-1",
        "webhook_id": webhook_id("github", "m-1"),
        "receiver": "ci",
        "generation": 2,
    }


def test_a_notice_of_a_reason_that_only_a_newer_writer_knows() -> None:
    record = expect(NewRecord, notice_of(buried("new_one", headers=encode_hop(structs.replace(HOP, generation=0)))))
    document = json.loads(record.value or b"")
    assert (document["type"], document["reason"], bool(document["title"])) == ("/problems/new-one", "new_one", True)


def test_a_record_of_a_notice_has_the_id_that_its_callback_will_have() -> None:
    record = expect(NewRecord, notice_of(buried("exhausted")))
    headers = dict(record.headers)
    assert headers["webhook-id"] == callback_id(DELIVERY, 2, failed=True).encode()
    assert (headers["relay-source"], headers["relay-message-id"]) == (b"github", b"m-1")


@pytest.mark.parametrize("reason", ["callback_rejected", "callback_exhausted", "poison", "invalid"])
def test_but_not_on_the_way_that_failed(reason: str) -> None:
    assert notice_of(buried(reason, TOPICS.to_sender)) is None


def to(*receivers: str) -> Headers:
    return message_headers(Message("github", "m-1", receivers or None, None, None, None, b"x"))


@pytest.mark.parametrize(
    ("reason", "headers", "value", "receiver"),
    [
        ("id_conflict", to("ci"), b"x", NO_RECEIVER),
        ("unknown_receiver", to(), b"x", NO_RECEIVER),
        ("unknown_receiver", to("ci", "cd"), b"x", NO_RECEIVER),
        ("unknown_receiver", (*to("nobody", "ci"), ("relay-receiver", b"nobody")), b"x", "nobody"),
        ("invalid", (), b'{"source_id":"github","message_id":"m-1","receiver":5}', NO_RECEIVER),
    ],
    ids=["not of another message's delivery", "to subscribers", "to two", "one unknown of several", "an envelope"],
)
def test_a_notice_about_what_was_never_routed(reason: str, headers: Headers, value: bytes, receiver: str) -> None:
    notice = told(buried(reason, TOPICS.from_sender, headers, value))
    assert notice.delivery == DeliveryId(receiver, "github", "m-1")


@pytest.mark.parametrize("value", [b"not json", b'{"source_id":"github"}', b'{"source_id":"","message_id":"m"}'])
def test_nobody_is_told_where_nobody_knows_whose_it_is(value: bytes) -> None:
    assert notice_of(buried("invalid", TOPICS.from_sender, (), value)) is None


@pytest.mark.parametrize(
    ("reason", "reason_class"), [("rejected", "receiver"), ("poison", "system"), ("new one", "system")]
)
def test_people_are_told(reason: str, reason_class: str) -> None:
    reports = Reports()
    step = worker(reports)
    step.step(step.admit(buried(reason)))
    assert reports.told == [("ci", reason, reason_class, TOPICS.to_receiver("ci"), 4, 500)]


async def test_it_is_indexed_once_however_often_it_is_read() -> None:
    state = MemoryState()
    step = worker(state=state)
    for _ in range(2):
        work = step.admit(buried("rejected"))
        assert await step.table.intake(LANE, [work]) == [LookupResult.READY]
        await step.table.mark([(work, Outcome(step.step(work), ()))])
    (entry,) = await state.failed("ci", limit=10)
    assert (entry.at, entry.failed_at, entry.reason) == (Coordinate(TOPICS.failed_messages, 3, 7), NOW, "rejected")
    assert (entry.source_id, entry.message_id) == ("github", "m-1")


@pytest.mark.parametrize(
    ("deadline", "generation", "party", "kind"),
    [
        (NOW - 60, 0, Party("source", "github"), "invalid_messages"),
        (NOW + 60, 0, Party("receiver", "ci"), "failing"),
        (NOW - 60, 1, Party("receiver", "ci"), "failing"),
    ],
)
def test_a_deadline_that_had_passed_on_acceptance_is_not_the_receivers_fault(
    deadline: float, generation: int, party: Party, kind: Kind
) -> None:
    hop = structs.replace(HOP, accepted_ms=int(NOW * 1000), generation=generation, timing=Timing(deadline=deadline))
    letter = DeadLetter("expired", "not delivered", TOPICS.to_receiver("ci"), ORIGIN, 0, int(NOW * 1000), None)
    work = worker().admit(record(TOPICS.failed_messages, dead_letter_headers(encode_hop(hop), letter), b"x"))
    [one] = observations(Rows(NOW, letters=groups_of([entry_of(work)], NOW)))
    assert (one.party, one.kind) == (party, kind)
    assert incident_of(work) == page_of_letter(party, kind)


_NAMES = st.sampled_from(
    (
        *("ce_id", "ce_source", "ce_receiver", "relay-receiver", "relay-reason", "relay-stage", "relay-origin"),
        *("relay-attempts", "relay-first-failed", "relay-last-status", "relay-generation", "x"),
    )
)
_VALUES = st.one_of(
    st.binary(max_size=20),
    st.text(max_size=300).map(lambda text: text.encode(errors="surrogatepass")),
    st.sampled_from(
        [b"github", b"ci", b"-", b"9" * 30, b"7", "\u0661".encode(), b"callback_", b"t/1/2", b"1e5", b"\xb2"]
    ),
)


@given(st.lists(st.tuples(_NAMES, _VALUES)), st.one_of(st.none(), st.binary(), st.text().map(str.encode)))
async def test_whatever_is_in_a_dead_letter_it_is_handled(
    headers: list[tuple[str, bytes]], value: bytes | None
) -> None:
    state = MemoryState()
    reports = Reports()
    step = worker(reports, state)
    garbage = record(TOPICS.failed_messages, tuple(headers), value, key=None)
    work = step.admit(garbage)
    decision = step.step(work)
    assert isinstance(decision, Done)
    for told in decision.records:
        assert decode_hop(told.headers).outcome == "failed"  # ToSender can read it
    await step.table.mark([(work, Outcome(decision, ()))])
    assert await state.failed_receivers()
    assert len(reports.told) == 1
    assert letter_of(step.dead_letter(garbage, work, Dead("poison"))).reason == "poison"
