"""The timing of a message: as a sender writes it, as records carry it, and what it means for a delivery."""

from dataclasses import replace

import pytest
from msgspec import structs

from relay.domain.errors import InvalidRecord
from relay.domain.filters import FilterInput
from relay.domain.hop import Hop, decode_hop, encode_hop
from relay.domain.identity import DeliveryId
from relay.domain.message import Message, message_digest, message_headers, parse_message, sender_headers
from relay.domain.receiver import Coalescing, Endpoint, Receiver, RetryPolicy
from relay.domain.requests import post_request
from relay.domain.timing import Timing, read_timing, resolved, timing_fault
from relay.engine.decision import Dead, Later
from relay.state.attempts import Change
from tests.fakes.steps import NOW, hop_record
from workers.delivery import Delivery
from workers.records import first_hop

DAY_S = 86_400.0
POLICY = RetryPolicy(base=10, factor=2, cap=1000, max_attempts=4, max_age=3600)
CI = Receiver("ci", Endpoint("https://ci.example/hooks", retry=POLICY))
ID = DeliveryId("ci", "github", "m-1")


def delivery(timing: Timing | None, *, receiver: Receiver = CI, generation: int = 0, age_s: float = 0.0) -> Delivery:
    hop = Hop(ID, accepted_ms=int((NOW - age_s) * 1000), timing=timing, generation=generation)
    return Delivery(hop_record("to_receiver_ci", hop), hop, receiver)


# as it is written


@pytest.mark.parametrize(
    ("given", "timing"),
    [
        ({}, None),
        ({"delay": "10m"}, Timing(600.0)),
        ({"delay": 2.5}, Timing(2.5)),
        ({"deliver_at": "2026-11-23T12:00:00Z"}, Timing(1_795_435_200.0)),
        ({"deliver_at": "2026-11-23t12:00:00z"}, Timing(1_795_435_200.0)),
        ({"deliver_at": 1_795_435_200}, Timing(1_795_435_200.0)),
        ({"deliver_at": "1795435200"}, Timing(1_795_435_200.0)),
        ({"deliver_at": "2000-01-01T00:00:00Z"}, Timing(1e9)),
        ({"deadline": "1970-01-01T00:00:00Z"}, Timing(deadline=1e9)),
        ({"deadline": "30s"}, Timing(deadline=30.0)),
        ({"deadline": 0}, Timing(deadline=1e9)),
        ({"deadline": "0s"}, Timing(deadline=1e9)),
        ({"delay": "1h", "deadline": "2026-11-23T12:00:00+01:00"}, Timing(3600.0, 1_795_431_600.0)),
        ({"delay": 0}, Timing()),
        ({"supersede": "doc-1"}, Timing(key="doc-1")),
        ({"coalesce": {"key": "doc-1", "window": "10s"}}, Timing(key="doc-1", window=10.0)),
        ({"coalesce": '{"key": "doc-1", "window": 10}', "deadline": "1h"}, Timing(0.0, 3600.0, "doc-1", 10.0)),
    ],
)
def test_a_sender_gives_times_in_the_usual_forms(given: dict[str, object], timing: Timing | None) -> None:
    assert read_timing(given) == timing


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"delay": "soon"}, "delay"),
        ({"delay": -1}, "delay"),
        ({"delay": True}, "delay"),
        ({"delay": "31d"}, "delay"),
        ({"delay": "2026-11-23T12:00:00Z"}, "delay"),
        ({"deliver_at": "2026-11-23T12:00:00"}, "deliver_at"),
        ({"deliver_at": "tomorrow"}, "deliver_at: 'tomorrow' is neither a time nor a duration; give Unix seconds"),
        ({"deliver_at": "nan"}, "deliver_at"),
        ({"deadline": float("inf")}, "deadline: it is neither a time nor a duration"),
        ({"deadline": "2026-13-99T00:00:00Z"}, "deadline"),
        ({"delay": "1m", "deliver_at": "2026-11-23T12:00:00Z"}, "delay and deliver_at"),
        ({"supersede": ""}, "supersede"),
        ({"supersede": 7}, "supersede"),
        ({"supersede": "a" * 300}, "supersede"),
        ({"coalesce": "doc-1"}, "coalesce"),
        ({"coalesce": {"key": "doc-1"}}, "coalesce"),
        ({"coalesce": {"key": "doc-1", "window": "31d"}}, "coalesce: window"),
        ({"coalesce": {"key": "\n", "window": 5}}, "coalesce: key"),
        ({"coalesce": {"key": "a", "window": 5, "more": 1}}, "coalesce"),
        ({"coalesce": {"key": "a", "window": 5}, "supersede": "a"}, "supersede and coalesce"),
    ],
)
def test_a_mistake_names_its_field(given: dict[str, object], field: str) -> None:
    with pytest.raises(InvalidRecord, match=f"^{field}"):
        read_timing(given)


@pytest.mark.parametrize(
    ("timing", "fault"),
    [
        (Timing(30 * DAY_S), None),
        (Timing(NOW + 30 * DAY_S), None),
        (Timing(NOW - 5), None),
        (Timing(NOW + 31 * DAY_S), "deliver_at"),
        (Timing(60.0, 30.0), "deadline"),
        (Timing(60.0, NOW + 60), "deadline"),
        (Timing(60.0, NOW + 61), None),
        (Timing(deadline=NOW - 5), None),
    ],
)
def test_too_far_ahead_or_contradicting_times_are_invalid(timing: Timing, fault: str | None) -> None:
    found = timing_fault(timing, NOW)
    assert found is None if fault is None else found is not None and found.startswith(fault)


@pytest.mark.parametrize(
    "timing", [Timing(600.0, 1_795_435_200.0), Timing(NOW + 0.25), Timing(key="é"), Timing(5.0, 0.0, "k", 1.5)]
)
def test_records_carry_it_in_both_forms(timing: Timing) -> None:
    message = Message("github", "m-1", ("ci",), payload=b"{}", timing=timing)
    headers = message_headers(message)
    assert parse_message(message.payload, headers).timing == timing
    assert parse_message(message.payload, sender_headers(headers)).timing == timing, "routed anew after a failure"
    hop = Hop(ID, timing=resolved(timing, NOW))
    assert decode_hop(encode_hop(hop)).timing == hop.timing


def test_an_envelope_has_it_as_fields_and_else_its_record_as_headers() -> None:
    value = b'{"source_id": "a", "message_id": "b", "payload": {}, "delay": "5m", "deadline": 600}'
    assert parse_message(value, ()).timing == Timing(300.0, 600.0)
    assert parse_message(value, (("relay-deadline", b"900"), ("relay-delay", b"1"))).timing == Timing(300.0, 600.0)
    plain = b'{"source_id": "a", "message_id": "b", "payload": {}}'
    assert parse_message(plain, (("relay-deadline", b"900"),)).timing == Timing(deadline=900.0)
    assert parse_message(plain, ()).timing is None


def test_it_does_not_tell_two_messages_apart() -> None:
    one = Message("github", "m-1", ("ci",), payload=b"{}")
    assert message_digest(one) == message_digest(structs.replace(one, timing=Timing(60.0)))


@pytest.mark.parametrize("value", [b"", b"[]", b'{"deliver_at": "x"}', b"\xff", b'{"deadline": "1"}'])
def test_a_hop_with_another_timing_is_invalid(value: bytes) -> None:
    with pytest.raises(InvalidRecord, match="relay-timing"):
        decode_hop((*encode_hop(Hop(ID)), ("relay-timing", value)))


def test_a_receiver_coalesces_by_a_value_of_the_message() -> None:
    receiver = replace(CI, coalesce=Coalescing("/ref", 10.0))

    def timing(payload: bytes, own: Timing | None = None) -> Timing | None:
        message = Message("github", "m-1", ("ci",), payload=payload, timing=own)
        return first_hop(FilterInput(message), receiver, None, int(NOW * 1000), move=0).timing

    main, again, other = (timing(b'{"ref": "%b", "n": %d}' % (ref, n)) for n, ref in enumerate([b"a", b"a", b"b"]))
    assert main == again != other
    assert main is not None
    assert main.window == 10.0
    assert timing(b'{"n": 1}') is None, "it has no value there"
    assert timing(b"no JSON") is None
    assert timing(b'{"ref": "a"}', Timing(key="own")) == Timing(key="own"), "it has a key of its own"
    delayed = timing(b'{"ref": "a"}', Timing(60.0))
    assert delayed == structs.replace(main, deliver_at=NOW + 60)


# what it means for a delivery


def test_a_message_that_is_not_due_waits_and_its_age_counts_from_then() -> None:
    work = delivery(Timing(NOW + 90_000))
    assert work.expired_or_early(NOW) == Later(90_000, "it is not due yet", Change.RELEASED)
    assert work.expired_or_early(NOW + 90_000) is None
    assert work.expired_or_early(NOW + 90_000 + 3599) is None
    assert isinstance(work.expired_or_early(NOW + 90_000 + 3600), Dead)


def test_it_leaves_the_order_of_its_key_and_says_so() -> None:
    ordered, delayed = delivery(None), delivery(Timing(NOW + 60))
    assert (ordered.queue is None, ordered.out_of_order) == (False, False)
    assert (delayed.queue, delayed.out_of_order) == (None, True)
    assert delayed.sequence == ordered.sequence
    unordered = delivery(Timing(NOW + 60), receiver=replace(CI, ordering="none"))
    assert (unordered.queue, unordered.out_of_order, unordered.sequence) == (None, False, None)


@pytest.mark.parametrize(("deadline", "left_s"), [(NOW + 100, 100.0), (NOW + 7200, 3540.0), (NOW - 10, 0.0)])
def test_the_earlier_of_deadline_and_max_age_counts(deadline: float, left_s: float) -> None:
    work = delivery(Timing(deadline=deadline), age_s=60.0)
    assert work.rest_s(NOW) == left_s
    assert isinstance(work.expired_or_early(NOW + left_s), Dead)


def test_the_dead_letter_says_which_limit_it_was() -> None:
    own, usual = delivery(Timing(deadline=NOW + 10)), delivery(Timing(deadline=NOW + 7200))
    own.last_failure = usual.last_failure = "status 500"
    assert own.expired_or_early(NOW + 10) == _expired("before its deadline")
    assert usual.expired_or_early(NOW + 3600) == _expired("within max_age")


def _expired(limit: str) -> Dead:
    return Dead("expired", f"not delivered {limit}; the last: status 500")


def test_a_replay_is_sent_at_once_whatever_its_timing_was() -> None:
    work = delivery(Timing(NOW + 60, NOW + 120), generation=1)
    assert (work.timing, work.out_of_order) == (None, False)


@pytest.mark.parametrize(
    ("timing", "generation", "until"),
    [
        (None, 0, NOW + 3600),
        (Timing(deadline=NOW + 100), 0, NOW + 100),
        (Timing(deadline=NOW + 7200), 0, NOW + 3600),
        (Timing(deadline=NOW + 100), 1, NOW + 3600),
    ],
)
def test_the_receiver_sees_until_when_it_may_come(timing: Timing | None, generation: int, until: float) -> None:
    hop = Hop(ID, accepted_ms=int(NOW * 1000), timing=timing, generation=generation)
    request = post_request(CI, hop, b"{}", attempt=1, sequence=None, now=NOW, answer_url=None, user_agent="relay/1")
    assert dict(request.headers)["relay-deadline"] == str(int(until))
