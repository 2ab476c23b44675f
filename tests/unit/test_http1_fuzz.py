"""Whatever a server sends, in whatever pieces: a request ends once, with a Response or a NoResponse."""

import asyncio
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from relay.delivery.connection import ClientConnection, OpenRequests
from relay.domain.exchange import Exchange, NoResponse, Response

BODY_CAP = 50

VALID = [
    b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nX-A: b\r\n\r\nhello",
    b"HTTP/1.1 202 Accepted\r\nTransfer-Encoding: chunked\r\n\r\n3;x=y\r\nabc\r\n2\r\nde\r\n0\r\nx-t: 1\r\n\r\n",
    b"HTTP/1.1 204 No Content\r\nRetry-After: 3\r\n\r\n",
    b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early\r\nLink: x\r\n\r\nHTTP/1.1 500 No\r\nContent-Length: 0\r\n\r\n",
    b"HTTP/1.0 200 OK\r\nX-A: \xc3\xa9\r\nx-a: \xff\r\n\r\nuntil the end",
    b"HTTP/1.1 304 Not Modified\r\nConnection: close\r\n\r\n",
    b"HTTP/1.1 200 OK\nContent-Length: 2\nX-A: 1\n 2\n\nok",
    b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n" + b"z" * 100,
]


class Wire(asyncio.Transport):
    """Takes all writes; none may follow once it is aborted."""

    def __init__(self, sock: socket.socket) -> None:
        super().__init__({"socket": sock})
        self.aborted = False

    def write(self, data: "bytes | bytearray | memoryview[Any]") -> None:
        assert not self.aborted

    def is_closing(self) -> bool:
        return self.aborted

    def abort(self) -> None:
        self.aborted = True

    def get_write_buffer_size(self) -> int:
        return 0


class Home:
    def __init__(self) -> None:
        self.kept = 0

    def keep(self, connection: ClientConnection) -> None:
        self.kept += 1

    def unanswered(self, connection: ClientConnection) -> None: ...

    def lost(self, connection: ClientConnection) -> None: ...


class Rig:
    """A connection that has been asked once."""

    def __init__(self, loop: asyncio.AbstractEventLoop, sock: socket.socket) -> None:
        self._loop = loop
        self.told: list[Exchange] = []
        self.home = Home()
        calls = OpenRequests(loop)
        self.connection = ClientConnection(("http", "ci.example", 80, None, None), self.home, calls, BODY_CAP)
        self.wire = Wire(sock)
        self.connection.connection_made(self.wire)
        self.connection.ask(calls.begin(self.told.append, 5.0, loop.time()), b"head", b"body")
        self.calls = calls

    def hear(self, parts: Sequence[bytes]) -> None:
        """Feed all parts, then the end, until the connection is closed."""
        for part in parts:
            if part and not self.wire.aborted:
                self.connection.data_received(part)
        if not self.wire.aborted:
            self.connection.eof_received()
        self.connection.connection_lost(None)
        self.calls.close()
        self._loop.run_until_complete(asyncio.sleep(0))

    def result(self) -> Exchange:
        (result,) = self.told
        return result


@contextmanager
def rig() -> Iterator[Rig]:
    loop = asyncio.new_event_loop()
    mine, other = socket.socketpair()
    try:
        yield Rig(loop, mine)
    finally:
        mine.close()
        other.close()
        loop.close()


def heard(parts: Sequence[bytes]) -> tuple[Exchange, int]:
    with rig() as one:
        one.hear(parts)
        return one.result(), one.home.kept


def split(whole: bytes, cuts: Sequence[int]) -> list[bytes]:
    places = [0, *sorted(cut % (len(whole) + 1) for cut in cuts), len(whole)]
    return [whole[start:end] for start, end in pairwise(places)]


def check(result: Exchange) -> None:
    if isinstance(result, NoResponse):
        assert result.sent
        assert result.kind in ("protocol", "disconnected")
    else:
        assert 200 <= result.status <= 999
        assert len(result.body) <= BODY_CAP
        for name, value in result.headers.items():
            assert name == name.lower()
            assert not {"\0", "\r", "\n"} & set(name + value)
            value.encode()


cuts = st.lists(st.integers(0, 1000), max_size=8)
mutations = st.lists(
    st.tuples(st.integers(0, 200), st.sampled_from(["set", "insert", "delete"]), st.binary(max_size=3))
)


def mutated(whole: bytes, changes: Sequence[tuple[int, str, bytes]]) -> bytes:
    for place, how, new in changes:
        at = place % (len(whole) + 1)
        kept = at if how == "insert" else at + len(new) if how == "set" else at + 1
        whole = whole[:at] + (b"" if how == "delete" else new) + whole[kept:]
    return whole


@given(st.binary(max_size=300), cuts)
def test_any_bytes(received: bytes, at: list[int]) -> None:
    check(heard(split(received, at))[0])


@settings(max_examples=300)
@given(st.lists(st.sampled_from(VALID), min_size=1, max_size=3), mutations, cuts)
@example([VALID[0]], [(9, "set", b"101")], [])
@example([VALID[0]], [(9, "set", b"000")], [])
@example([VALID[0]], [(43, "set", b"\0")], [])
@example([VALID[1], VALID[0]], [], [3])
def test_responses_that_were_tampered_with(
    replies: list[bytes], changes: list[tuple[int, str, bytes]], at: list[int]
) -> None:
    check(heard(split(mutated(b"".join(replies), changes), at))[0])


@given(st.sampled_from(VALID), cuts)
def test_pieces_make_no_difference(reply: bytes, at: list[int]) -> None:
    whole = heard([reply])
    assert isinstance(whole[0], Response)
    assert heard(split(reply, at)) == whole


@given(st.sampled_from(VALID[:4]), st.binary(min_size=1, max_size=20).filter(lambda junk: junk.strip(b"\r\n") != b""))
def test_what_follows_in_the_same_piece_spoils_the_connection_only(reply: bytes, junk: bytes) -> None:
    assert heard([reply])[1] == 1
    assert heard([reply + junk]) == (heard([reply])[0], 0)


@given(st.sampled_from(VALID), st.integers(0, 150), st.sampled_from(["timeout", "disconnected"]))
def test_a_request_can_be_abandoned_at_any_byte(reply: bytes, at: int, kind: str) -> None:
    with rig() as one:
        one.connection.data_received(reply[:at])
        if not one.wire.aborted and not one.home.kept:
            left = one.connection.abandon(kind, "enough")
            assert one.wire.aborted
            if isinstance(left, NoResponse):
                assert left == NoResponse(kind, "enough", sent=True)
            else:
                assert left.truncated


def test_a_lost_connection_is_told_once() -> None:
    with rig() as one:
        one.connection.connection_lost(ConnectionResetError("reset"))
        one.hear([])
        assert one.result() == NoResponse("disconnected", "reset", sent=True)
