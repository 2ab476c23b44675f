"""Places for live streams: for each browser the newest ones, and for each key or owner a fair share."""

from relay.pages.streams import StreamPlace, Streams


def entered(streams: Streams, party: str, browsers: int) -> list[tuple[str, StreamPlace]]:
    """Those of one stream each that got a place."""
    names = [f"{party}-{number}" for number in range(browsers)]
    return [(name, place) for name in names if (place := streams.enter(name, party)) is not None]


def test_the_oldest_stream_of_a_browser_ends_for_its_newest() -> None:
    streams = Streams(most=64, each=2)
    places = [streams.enter("browser", "key:a") for _ in range(3)]
    assert [place is not None and place.ended.is_set() for place in places] == [True, False, False]


def test_browsers_of_one_owner_leave_places_for_others() -> None:
    streams = Streams(most=64, each=8)
    first = entered(streams, "owner:alice", 64)
    assert len(first) == 16
    assert entered(streams, "owner:alice", 1) == []
    assert len(entered(streams, "owner:bob", 1)) == 1
    assert len(entered(streams, "key:ops", 64)) == 8


def test_a_place_that_was_left_is_free_again_and_an_evicted_one_counts_once() -> None:
    streams = Streams(most=4, each=1)
    [(_, evicted)], [(_, place)] = (entered(streams, "key:a", 1) for _ in range(2))
    streams.leave("key:a-0", evicted)
    assert streams.enter("another", "key:a") is None
    streams.leave("key:a-0", place)
    assert streams.enter("another", "key:a") is not None


def test_once_the_server_stops_all_end_and_none_begins() -> None:
    streams = Streams(most=64, each=8)
    [(_, place)] = entered(streams, "key:a", 1)
    streams.end()
    assert place.ended.is_set()
    assert entered(streams, "key:b", 1) == []
