"""Tests of the benchmark's HTTP receiver: it finds the messages however the bytes are split."""

import asyncio
import json

import pytest

from bench.control import Books
from bench.receiver import Behaviour, Receiver
from bench.wire import PAIR_BASE, WIDTH, prefix


class Wire(asyncio.Transport):
    """A transport that keeps the written bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.closed = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += data

    def close(self) -> None:
        self.closed = True

    def is_closing(self) -> bool:
        return self.closed


def post(path: str, serial: int, *, length: str = "content-length", pair: int = 0) -> bytes:
    body = prefix(10**18, serial, pair) + b',"data":"\r\n\r\n content-length: 7"}'
    return (
        f"POST {path} HTTP/1.1\r\nhost: h\r\ncontent-type: x\r\n{length}: {len(body)}\r\nx: y\r\n\r\n".encode() + body
    )


def connected(behaviour: Behaviour) -> tuple[Receiver, Books, Wire]:
    books, wire = Books(4), Wire()
    receiver = Receiver(behaviour, books, asyncio.get_running_loop())
    receiver.connection_made(wire)
    return receiver, books, wire


@pytest.mark.parametrize("size", [1, 7, 100, 10_000])
@pytest.mark.parametrize("length", ["content-length", "Content-Length"])
async def test_requests_in_pieces_of_any_size_are_each_counted_once(size: int, length: str) -> None:
    receiver, books, wire = connected(Behaviour(0, 0, 0, echo=False))
    stream = b"".join(post("/r/r3", serial, length=length) for serial in range(3)) + post("/callback", 0)
    for at in range(0, len(stream), size):
        receiver.data_received(stream[at : at + size])
    deliveries, callbacks = books.deliveries.tally(0, 3), books.callbacks.tally(0, 1)
    assert (deliveries.arrived, deliveries.repeats, callbacks.arrived, books.bad) == (3, 0, 1, 0)
    assert wire.written.count(b"HTTP/1.1 200 OK") == 4


async def test_an_echo_says_which_message_it_answers() -> None:
    receiver, _, wire = connected(Behaviour(0, 0, 0, echo=True))
    receiver.data_received(post("/r/r0", 5, pair=2))
    head, _, body = wire.written.partition(b"\r\n\r\n")
    assert body == prefix(10**18, 5, 2) + b"}"
    assert f"content-length: {WIDTH + 1}".encode() in head


async def test_an_echo_is_as_long_as_asked() -> None:
    receiver, _, wire = connected(Behaviour(0, 0, 0, echo=True, answer=200))
    receiver.data_received(post("/r/r0", 5, pair=2))
    _, _, body = wire.written.partition(b"\r\n\r\n")
    assert len(body) == 200
    assert json.loads(body)["p"] == PAIR_BASE + 2


async def test_a_failing_receiver_refuses_and_does_not_count() -> None:
    receiver, books, wire = connected(Behaviour(0, 1.0, 0, echo=False))
    receiver.data_received(post("/r/r0", 0))
    assert (books.deliveries.arrived, books.refused) == (0, 1)
    assert wire.written.startswith(b"HTTP/1.1 503 ")
    assert b"\r\nretry-after: 0\r\n" in wire.written


async def test_what_is_held_is_counted_and_answered_on_release() -> None:
    receiver, books, wire = connected(Behaviour(0, 0, 0, echo=False))
    books.held.wanted = True
    receiver.data_received(post("/r/r0", 0) + post("/r/r0", 1))
    assert (books.deliveries.arrived, books.held.count, wire.written) == (2, 2, b"")
    books.held.release()
    assert (wire.written.count(b" 200 OK"), books.held.count) == (2, 0)
    receiver.data_received(post("/r/r0", 2))
    assert wire.written.count(b" 200 OK") == 3


async def test_who_has_hung_up_holds_nothing() -> None:
    receiver, books, wire = connected(Behaviour(0, 0, 0, echo=False))
    books.held.wanted = True
    receiver.data_received(post("/r/r0", 0))
    wire.close()
    assert books.held.count == 0
    books.held.release()
    assert wire.written == b""


@pytest.mark.parametrize(
    "request_", [b"GET / HTTP/1.1\r\nhost: h\r\n\r\n", post("/r/r0", 0).replace(b'"t":1', b'"t":x')]
)
async def test_what_is_none_of_ours_is_refused_and_told(request_: bytes) -> None:
    receiver, books, wire = connected(Behaviour(0, 0, 0, echo=False))
    receiver.data_received(request_)
    assert (books.bad, wire.closed, books.deliveries.arrived) == (1, True, 0)
