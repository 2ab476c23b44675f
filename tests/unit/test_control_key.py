"""Keys of `receiver_config`: each kind of record has one, and no key is of two kinds."""

from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.domain.control_key import ENTRIES, JOBS, KEYS, PREFIXES, ROUTES, ControlKey, Kind, control_key, decode_key

WITH_ID = sorted(PREFIXES.keys() - {"receiver", "keys-closed"})


@given(st.sampled_from(WITH_ID), st.text(st.characters(exclude_categories=["Cs"]), min_size=1))
def test_a_key_is_read_as_it_was_written(kind: Kind, id: str) -> None:
    key = ControlKey(kind, id)
    assert decode_key(key.encode()) == control_key(key.text) == key


def test_every_kind_has_a_prefix_of_its_own() -> None:
    assert (
        PREFIXES.keys()
        == set(get_args(Kind))
        == ENTRIES | ROUTES | JOBS | KEYS | {"hold", "verification", "event-type", "erasure"}
    )
    assert len(set(PREFIXES.values())) == len(PREFIXES)


@pytest.mark.parametrize(
    ("raw", "key"),
    [
        (b"ci", ControlKey("receiver", "ci")),
        (b"source:hold:r:x", ControlKey("source", "hold:r:x")),
        (b"cut:3:ci", ControlKey("cut", "3:ci")),
        (b"hold:r:replay", ControlKey("hold", "r:replay")),
        (b"keys:closed", ControlKey("keys-closed", "")),
        (b"keys", ControlKey("receiver", "keys")),
        (b"replay-ci", ControlKey("receiver", "replay-ci")),
        (b"key:\xff", ControlKey("key", "\ufffd")),  # an unreadable API key closes the API all the same
        (b"keys:other", ControlKey("receiver", "keys:other")),  # refused as an entry, since the name is invalid
        (b"of-a-newer-version:x", ControlKey("receiver", "of-a-newer-version:x")),
        (b"", None),
        (None, None),
        (b"\xff", None),
        (b"source:\xff", None),
    ],
)
def test_keys_as_they_are_on_the_topic(raw: bytes | None, key: ControlKey | None) -> None:
    assert decode_key(raw) == key
