"""Holds as records."""

import pytest

from relay.domain.errors import InvalidRecord
from relay.domain.hold import MAX_DETAIL, Hold, decode_hold, encode_hold, hold


def test_what_is_written_is_read() -> None:
    held = hold("gone", 1_700_000_000.12345, "x" * 1000)
    assert held == Hold("gone", 1_700_000_000.123, "x" * MAX_DETAIL)
    assert decode_hold(encode_hold(held)) == held


def test_a_reason_of_a_newer_version_still_holds() -> None:
    assert decode_hold(b'{"hold": "banned", "since": 5, "who": "?"}') == Hold("paused", 5.0)


@pytest.mark.parametrize(
    "value", [b"", b"{}", b"[]", b"1", b'{"hold": "gone"}', b'{"hold": "gone", "since": "x"}', b"\xff"]
)
def test_anything_else_is_refused(value: bytes) -> None:
    with pytest.raises(InvalidRecord):
        decode_hold(value)
