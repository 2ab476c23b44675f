"""What messages are in order by, where that is a value of their own."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.domain.filters import FilterInput, order_digest
from relay.domain.message import Message


def event(payload: bytes, **headers: str) -> FilterInput:
    return FilterInput(
        Message("github", "m-1", ("ci",), event_type="push", payload=payload, headers=tuple(headers.items()))
    )


PUSH = event(b'{"repository": {"full_name": "a/b", "id": 7}, "forced": false, "commits": []}', tenant="t1")


def test_a_pointer_leads_to_the_value() -> None:
    same = event(b'{"repository": {"full_name": "a/b"}, "other": 1}')
    other = event(b'{"repository": {"full_name": "a/c"}}')
    found = [order_digest("/repository/full_name", each) for each in (PUSH, same, other)]
    assert found[0] == found[1] != found[2]
    assert order_digest("/repository/id", PUSH) is not None
    assert order_digest("/forced", PUSH) is not None
    assert order_digest("/a", event(b'{"a": 1}')) == order_digest("/a", event(b'{"a": "1"}')), "compared as text"


def test_a_header_does_likewise_also_an_attribute() -> None:
    assert order_digest("header:tenant", PUSH) == order_digest("header:tenant", event(b"", tenant="t1"))
    assert order_digest("header:tenant", PUSH) != order_digest("header:tenant", event(b"", tenant="t2"))
    assert order_digest("header:ce-type", PUSH) == order_digest("header:ce-type", event(b""))


@pytest.mark.parametrize("by", ["source", "receiver", "none", "/nothing", "/repository", "/commits", "header:other"])
def test_there_may_be_none(by: str) -> None:
    assert order_digest(by, PUSH) is None


@pytest.mark.parametrize("payload", [b"", b"no json", b'{"a": null}', b"[" * 5_000, b"\xff"])
def test_a_payload_without_it_is_no_fault(payload: bytes) -> None:
    assert order_digest("/a", event(payload)) is None


@given(st.one_of(st.text(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.booleans()))
def test_any_value_has_a_digest(value: object) -> None:
    digest = order_digest("/a", event(json.dumps({"a": value}).encode()))
    assert digest is not None
    assert len(digest) == 24
