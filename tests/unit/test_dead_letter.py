"""Dead letters: headers round trip, the failed record stays whole, identities are found where they can be, and parts
too large for the log are left out one by one, until it fits."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.domain.coordinate import Coordinate, Headers
from relay.domain.dead_letter import (
    MAX_DETAIL_BYTES,
    DeadLetter,
    Form,
    dead_letter_headers,
    identity_of,
    original_headers,
    parse_dead_letter,
    reduced_forms,
)
from relay.domain.hop import NO_RECEIVER, Hop, encode_hop
from relay.domain.identity import DeliveryId
from relay.domain.reasons import REASONS

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=60)
counts = st.integers(0, 2**53)
coordinates = st.builds(Coordinate, st.from_regex(r"[a-zA-Z0-9._-]{1,40}", fullmatch=True), counts, counts)
letters = st.builds(
    DeadLetter,
    reason=st.sampled_from(sorted(REASONS)),
    detail=texts,
    stage=texts,
    origin=st.none() | coordinates,
    attempts=counts,
    first_failed_ms=counts,
    last_status=st.none() | st.integers(100, 599),
)
# what a failed record may carry: a sender's and the hop's headers, with whatever bytes
originals = st.lists(
    st.tuples(st.sampled_from(["ce_id", "x-any", "relay-reason", "relay-origin", "relay-attempt"]), st.binary()),
    max_size=8,
).map(tuple)

LETTER = DeadLetter("rejected", "400: no", "to_receiver_ci", Coordinate("from_sender", 1, 2), 3, 1_700_000_000_000, 400)


@given(originals, letters)
def test_letter_and_original_both_come_back(original: Headers, letter: DeadLetter) -> None:
    headers = dead_letter_headers(original, letter)
    assert parse_dead_letter(headers) == letter
    assert original_headers(headers) == original


@given(originals, letters, letters)
def test_a_dead_letter_that_fails_again_has_one_set_of_headers(
    original: Headers, first: DeadLetter, second: DeadLetter
) -> None:
    assert dead_letter_headers(dead_letter_headers(original, first), second) == dead_letter_headers(original, second)


@given(originals, letters)
def test_our_headers_are_there_once_and_utf8(original: Headers, letter: DeadLetter) -> None:
    ours = dead_letter_headers(original, letter)[len(original) :]
    assert len({name for name, _ in ours}) == len(ours)
    for _, value in ours:
        value.decode()


def test_the_wire_form() -> None:
    assert dead_letter_headers((("ce_id", b"1"), ("x-bad", b"\xff")), LETTER) == (
        ("ce_id", b"1"),
        ("x-bad", b"\xff"),
        ("relay-reason", b"rejected"),
        ("relay-reason-class", b"receiver"),
        ("relay-detail", b"400: no"),
        ("relay-stage", b"to_receiver_ci"),
        ("relay-attempts", b"3"),
        ("relay-first-failed", b"1700000000000"),
        ("relay-origin", b"from_sender/1/2"),
        ("relay-last-status", b"400"),
    )


def test_a_sender_cannot_forge_our_headers() -> None:
    forged = tuple((name, b"7") for name, _ in dead_letter_headers((), LETTER))
    letter = DeadLetter("invalid", "", "from_sender", None, 0, 0, None)
    assert parse_dead_letter(dead_letter_headers(forged, letter)) == letter
    assert parse_dead_letter(dead_letter_headers((("relay-last-status", b"7"),), letter)) == letter


@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1).map(lambda text: text * 9_000))
def test_the_detail_is_cut_between_characters(detail: str) -> None:
    letter = DeadLetter("poison", detail, "s", None, 0, 0, None)
    cut = dict(dead_letter_headers((), letter))["relay-detail"]
    assert MAX_DETAIL_BYTES - 3 <= len(cut) <= MAX_DETAIL_BYTES
    assert detail.startswith(cut.decode())


def test_a_lone_surrogate_in_the_detail_does_not_stop_a_dead_letter() -> None:
    letter = DeadLetter("poison", "said \udcff", "s", None, 0, 0, None)
    assert parse_dead_letter(dead_letter_headers((), letter)).detail == "said ?"


def test_a_bare_record_reads_as_poison() -> None:
    assert parse_dead_letter(()) == DeadLetter("poison", "", "", None, 0, 0, None)


ENVELOPE = b'{"source_id":"s","message_id":"m","receiver":%b,"payload":1}'


@pytest.mark.parametrize(
    ("value", "headers", "expected"),
    [
        (b"", encode_hop(Hop(DeliveryId("ci", "s", "m"))), ("ci", "s", "m")),
        (b"", encode_hop(Hop(DeliveryId(NO_RECEIVER, "s", "m"))), (None, "s", "m")),
        (b"", (("ce_id", b"m"), ("ce_source", b"s"), ("ce_receiver", b"ci")), ("ci", "s", "m")),
        (b"", (("ce_id", b"m"), ("ce_receiver", b"ci,cd")), (None, None, "m")),
        (b"", (("ce_id", b"\xff"), ("ce_source", b"a\nb"), ("ce_receiver", b"C I")), (None, None, None)),
        (b"", (("ce_id", b"m" * 257), ("ce_source", b"s")), (None, "s", None)),
        (None, (("ce_source", b"s"),), (None, "s", None)),
        (ENVELOPE % b'"ci"', (), ("ci", "s", "m")),
        (ENVELOPE % b'["ci"]', (), ("ci", "s", "m")),
        (ENVELOPE % b'["ci","cd"]', (), (None, "s", "m")),
        (ENVELOPE % b"[1]", (), (None, "s", "m")),
        (ENVELOPE % b"[]", (), (None, "s", "m")),
        (b'{"source_id":1,"message_id":"m"}', (), (None, None, "m")),
        (b'{"source_id":"\\ud800","message_id":"m"}', (), (None, None, None)),
        (b'{"source_id":"\xff","message_id":"m"}', (), (None, None, "m")),
        (b"[" * 200_000, (), (None, None, None)),
        (b'{"source_id":"s","x":' + b"[" * 200_000, (), (None, None, None)),
        (b"not json", (), (None, None, None)),
        (b"[1]", (), (None, None, None)),
        (None, (), (None, None, None)),
    ],
)
def test_identity_as_far_as_it_can_be_told(
    value: bytes | None, headers: Headers, expected: tuple[str | None, str | None, str | None]
) -> None:
    assert identity_of(value, headers) == expected


# --- one that is too large for the log ----------------------------------------------------------------------------

LONGEST_TOPIC = "t" * 249
LARGE = DeadLetter("too_large", "d" * 9_000, LONGEST_TOPIC, Coordinate(LONGEST_TOPIC, 2**31 - 1, 2**53), 3, 2**50, 599)
IDS: Headers = (("ce_id", b"m-1"), ("ce_source", b"github"), ("ce_receiver", b"ci"))

headers = st.lists(
    st.tuples(
        st.sampled_from(["ce_id", "ce_source", "ce_receiver", "relay-receiver", "x-any", "relay-raw-%FF"]),
        st.binary(max_size=40) | st.integers(0, 5_000).map(bytes),
    ),
    max_size=6,
).map(tuple)
keys = st.none() | st.integers(0, 70_000).map(bytes)
values = st.none() | st.integers(0, 70_000).map(bytes)


def size(form: Form) -> int:
    return sum(len(name) + len(text) for name, text in form.headers) + len(form.key or b"") + len(form.value or b"")


def first_that_fits(limit: int, forms: list[Form]) -> Form:
    return next(form for form in forms if size(form) <= limit)


@given(keys, values, headers, st.integers(900, 200_000))
def test_some_form_fits_whatever_the_limit(
    key: bytes | None, value: bytes | None, original: Headers, limit: int
) -> None:
    forms = list(reduced_forms(key, value, dead_letter_headers(original, LARGE)))
    form = first_that_fits(limit, forms)
    letter = parse_dead_letter(form.headers)
    assert (letter.reason, letter.origin) == (LARGE.reason, LARGE.origin)
    assert letter.omitted or (not value and form.key == key and {*dict(original)} <= {*dict(form.headers)})


def test_the_forms_behind_the_first_are_bounded_and_each_is_smaller() -> None:
    huge = tuple((name, bytes(10**6)) for name, _ in (*IDS, ("x", b"")))
    sizes = [size(form) for form in reduced_forms(bytes(10**6), bytes(10**6), dead_letter_headers(huge, LARGE))]
    assert sizes == sorted(sizes, reverse=True)
    assert [each < bound for each, bound in zip(sizes[1:], (4_096, 3_072, 2_048, 1_024), strict=True)] == [True] * 4


def test_what_is_left_out_is_told() -> None:
    original = (*IDS, ("x-one", b"1"), ("x-two", b"2"))
    without_value, bounded, *_ = reduced_forms(b"github", bytes(62_914_560), dead_letter_headers(original, LARGE))
    assert (without_value.key, without_value.value) == (b"github", None)
    assert without_value.headers[:5] == original
    assert parse_dead_letter(without_value.headers).omitted == "value=62914560"
    assert [name for name, _ in bounded.headers if not name.startswith("relay-")] == [
        "ce_id",
        "ce_source",
        "ce_receiver",
    ]
    assert parse_dead_letter(bounded.headers).omitted == "value=62914560, headers=2"
    assert identity_of(None, bounded.headers) == ("ci", "github", "m-1")


def test_an_id_of_which_only_the_beginning_is_left_is_nobodys() -> None:
    """It may be the id of another message, which would then be reported as failed."""
    original = (("ce_id", b"m" * 300), ("ce_source", b"github"))
    [bounded, *_] = reduced_forms(None, None, dead_letter_headers(original, LARGE))
    assert dict(bounded.headers)["ce_id"] == b"m" * 256
    assert parse_dead_letter(bounded.headers).omitted == "cut=ce_id"
    assert identity_of(None, bounded.headers) == (None, "github", None)


def test_the_ids_of_an_envelope_outlive_it() -> None:
    envelope = b'{"source_id": "github", "message_id": "m-1", "receiver": "ci", "payload": "%b"}' % (b"x" * 1_000)
    [without_value, *_] = reduced_forms(None, envelope, dead_letter_headers((), LARGE))
    assert identity_of(None, without_value.headers) == ("ci", "github", "m-1")


def test_the_receiver_of_a_hop_is_told() -> None:
    hop = encode_hop(Hop(DeliveryId("ci", "github", "m-1"), event_type="push"))
    _, bounded, *_ = reduced_forms(None, b"x", dead_letter_headers(hop, LARGE))
    assert parse_dead_letter(bounded.headers).omitted == "value=1, headers=5"
    assert identity_of(None, bounded.headers) == ("ci", "github", "m-1")


def test_a_letter_that_dies_again_still_tells_what_it_lacks() -> None:
    [without_value, *_] = reduced_forms(None, b"value", dead_letter_headers(IDS, LARGE))
    again = dead_letter_headers(without_value.headers, LARGE)
    assert parse_dead_letter(again).omitted == "value=5"
    _, bounded, *_ = reduced_forms(b"k" * 300, b"x", dead_letter_headers((("relay-omitted", b"forged"),), LARGE))
    assert parse_dead_letter(bounded.headers).omitted == "value=1, key=300"
