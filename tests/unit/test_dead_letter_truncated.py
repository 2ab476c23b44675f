"""Truncation of a dead letter that is too large for its log: which parts go in which order, and that the last form
always fits."""

from hypothesis import given
from hypothesis import strategies as st

from relay.domain.coordinate import Coordinate, Headers
from relay.domain.dead_letter import (
    DeadLetter,
    Form,
    dead_letter_headers,
    identity_of,
    parse_dead_letter,
    reduced_forms,
)
from relay.domain.hop import Hop, encode_hop
from relay.domain.identity import DeliveryId

LONGEST_TOPIC = "t" * 249
LETTER = DeadLetter("too_large", "d" * 9_000, LONGEST_TOPIC, Coordinate(LONGEST_TOPIC, 2**31 - 1, 2**53), 3, 2**50, 599)
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
    forms = list(reduced_forms(key, value, dead_letter_headers(original, LETTER)))
    form = first_that_fits(limit, forms)
    letter = parse_dead_letter(form.headers)
    assert (letter.reason, letter.origin) == (LETTER.reason, LETTER.origin)
    assert letter.omitted or (not value and form.key == key and {*dict(original)} <= {*dict(form.headers)})


def test_the_forms_behind_the_first_are_bounded_and_each_is_smaller() -> None:
    huge = tuple((name, bytes(10**6)) for name, _ in (*IDS, ("x", b"")))
    sizes = [size(form) for form in reduced_forms(bytes(10**6), bytes(10**6), dead_letter_headers(huge, LETTER))]
    assert sizes == sorted(sizes, reverse=True)
    assert [each < bound for each, bound in zip(sizes[1:], (4_096, 3_072, 2_048, 1_024), strict=True)] == [True] * 4


def test_what_is_left_out_is_told() -> None:
    original = (*IDS, ("x-one", b"1"), ("x-two", b"2"))
    without_value, bounded, *_ = reduced_forms(b"github", bytes(62_914_560), dead_letter_headers(original, LETTER))
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
    [bounded, *_] = reduced_forms(None, None, dead_letter_headers(original, LETTER))
    assert dict(bounded.headers)["ce_id"] == b"m" * 256
    assert parse_dead_letter(bounded.headers).omitted == "cut=ce_id"
    assert identity_of(None, bounded.headers) == (None, "github", None)


def test_the_ids_of_an_envelope_outlive_it() -> None:
    envelope = b'{"source_id": "github", "message_id": "m-1", "receiver": "ci", "payload": "%b"}' % (b"x" * 1_000)
    [without_value, *_] = reduced_forms(None, envelope, dead_letter_headers((), LETTER))
    assert identity_of(None, without_value.headers) == ("ci", "github", "m-1")


def test_the_receiver_of_a_hop_is_told() -> None:
    hop = encode_hop(Hop(DeliveryId("ci", "github", "m-1"), event_type="push"))
    _, bounded, *_ = reduced_forms(None, b"x", dead_letter_headers(hop, LETTER))
    assert parse_dead_letter(bounded.headers).omitted == "value=1, headers=5"
    assert identity_of(None, bounded.headers) == ("ci", "github", "m-1")


def test_a_letter_that_dies_again_still_tells_what_it_lacks() -> None:
    [without_value, *_] = reduced_forms(None, b"value", dead_letter_headers(IDS, LETTER))
    again = dead_letter_headers(without_value.headers, LETTER)
    assert parse_dead_letter(again).omitted == "value=5"
    _, bounded, *_ = reduced_forms(b"k" * 300, b"x", dead_letter_headers((("relay-omitted", b"forged"),), LETTER))
    assert parse_dead_letter(bounded.headers).omitted == "value=1, key=300"
