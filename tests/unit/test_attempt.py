"""An attempt as it is logged: the partition of its record, and the messages whose attempts are logged."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.domain.attempt import Attempt, decode_attempt, is_sampled, key_of
from relay.domain.errors import InvalidRecord


def attempt(**facts: str | None) -> Attempt:
    return Attempt("post", 1.0, 1.0, "POST", "https://ci.example", {}, "done", **facts)  # type: ignore[arg-type]


def test_attempts_of_one_message_are_in_one_partition() -> None:
    keys = {
        key_of(attempt(receiver=receiver, source_id="github", message_id=message))
        for receiver in ("ci", "cd")
        for message in ("m-1", "m-2")
    }
    assert keys == {b"github\nm-1", b"github\nm-2"}
    assert key_of(attempt(receiver="ci")) == b"ci"
    assert key_of(attempt(source_id="github")) == b"github"


@given(st.text(), st.text())
def test_all_or_none_are_in_the_sample_at_its_ends(source_id: str, message_id: str) -> None:
    assert is_sampled(source_id, message_id, 1.0)
    assert not is_sampled(source_id, message_id, 0.0)


@pytest.mark.parametrize("share", [0.01, 0.1, 0.5])
def test_a_sample_is_about_the_share_that_was_asked_for_and_part_of_every_larger_one(share: float) -> None:
    ids = [f"m-{number}" for number in range(20_000)]
    sample = {each for each in ids if is_sampled("github", each, share)}
    assert len(sample) == pytest.approx(share * len(ids), rel=0.15)
    assert sample <= {each for each in ids if is_sampled("github", each, 2 * share)}


@pytest.mark.parametrize("value", [None, b"", b"{", b"\xff", b'{"kind":"nothing"}', b'{"newer":' * 100_000])
def test_what_is_no_attempt(value: bytes | None) -> None:
    with pytest.raises(InvalidRecord):
        decode_attempt(value)
