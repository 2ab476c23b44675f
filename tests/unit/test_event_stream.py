"""Server-sent events are put together from whatever pieces they come in."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.api.tail.event import encoded_event
from relay.client.sse import EventReader, ServerSentEvent

STREAM = b"retry: 1000\n\n" + encoded_event("message", {"id": "a\n\nb"}) + b": alive\n\n" + encoded_event("away", {})
EVENTS = [ServerSentEvent("message", {"id": "a\n\nb"}), ServerSentEvent("away", {})]


@given(st.lists(st.integers(0, len(STREAM))))
def test_however_they_are_cut(cuts: list[int]) -> None:
    reader, at, found = EventReader(), 0, list[ServerSentEvent]()
    for cut in [*sorted(cuts), len(STREAM)]:
        found += reader.feed(STREAM[at:cut])
        at = cut
    assert found == EVENTS


@given(st.binary())
def test_what_is_no_event_is_passed_over(rubbish: bytes) -> None:
    reader = EventReader()
    found = list(reader.feed(rubbish + b"\n\n" + STREAM))
    assert found[-2:] == EVENTS


def test_one_that_never_ends_is_refused() -> None:
    reader = EventReader(most_bytes=100)
    with pytest.raises(ValueError, match="more than 100 bytes"):
        list(reader.feed(b"event: message\ndata: " + b"x" * 200))


@given(st.text())
def test_whatever_a_value_holds_it_comes_through(text: str) -> None:
    data = {"text": text.encode(errors="replace").decode()}
    assert list(EventReader().feed(encoded_event("answer", data))) == [
        ServerSentEvent("answer", json.loads(json.dumps(data)))
    ]
