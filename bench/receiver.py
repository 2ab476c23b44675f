"""The receiver, as a process of its own: an HTTP/1.1 server that does as little as it can, and counts every message.

`POST /r/<name>` is a delivery, `POST /callback` a result that comes back to the sender. Prints its two ports as a line
of JSON; the second is that of its control (bench/control.py).
"""

import asyncio
import json
import random
import sys
import time
from asyncio import Transport
from typing import Final, cast

import uvloop

from bench.control import Books, Control
from bench.wire import PAIR, PAIR_BASE, SERIAL, SERIAL_BASE, TIME, WIDTH, filler
from relay.config.limits import raise_descriptor_limit

_OK: Final = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"
_OK_WITH_BODY: Final = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
_BUSY: Final = b"HTTP/1.1 503 Service Unavailable\r\nretry-after: %d\r\ncontent-length: 0\r\n\r\n"
_BAD: Final = b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
_LIST: Final = ord("[")
_PAYLOAD: Final = b'{"t":'
_LENGTH: Final = b"\r\ncontent-length:"
_LENGTH_CAPITAL: Final = b"\r\nContent-Length:"


class Behaviour:
    """How deliveries are answered. `latency_s`: after so long; `failing`: the share (0 to 1) that gets a 503, with
    `retry_after_s`; `echo`: with a body that says which message it was, of `answer` bytes; 0: it says no more."""

    __slots__ = ("busy", "echo", "failing", "head", "latency_s", "rest")

    def __init__(self, latency_s: float, failing: float, retry_after_s: int, *, echo: bool, answer: int = 0) -> None:
        self.latency_s = latency_s
        self.failing = failing
        self.busy = _BUSY % retry_after_s
        self.echo = echo
        self.rest = filler(answer, random.Random(answer)) if answer else b"}"
        self.head = _OK_WITH_BODY % (WIDTH + len(self.rest))


class Receiver(asyncio.Protocol):
    """One connection."""

    __slots__ = ("_behaviour", "_books", "_later", "_rest", "_transport", "_write")

    def __init__(self, behaviour: Behaviour, books: Books, loop: asyncio.AbstractEventLoop) -> None:
        self._behaviour = behaviour
        self._books = books
        self._later = loop.call_later
        self._rest = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(Transport, transport)
        self._write = self._transport.write

    def data_received(self, data: bytes) -> None:
        if self._rest:
            data = self._rest + data
        at = 0
        while (head := data.find(b"\r\n\r\n", at)) >= 0:
            length_at = data.find(_LENGTH, at, head)
            if length_at < 0:
                length_at = data.find(_LENGTH_CAPITAL, at, head)
            if length_at < 0:
                return self._refuse()
            length_end = data.find(b"\r", length_at + 17, head + 1)
            end = head + 4 + int(data[length_at + 17 : length_end])
            if len(data) < end:
                break
            if data[head + 4] == _LIST:
                self._take_batch(data[head + 4 : end])
            else:
                self._take(data[at + 5 : at + 8], data[head + 4 : head + 4 + WIDTH])
            at = end
        self._rest = data[at:]
        return None

    def _take_batch(self, body: bytes) -> None:
        """Each payload stands in it as it was sent."""
        now_ns, note, at = time.time_ns(), self._books.deliveries.note, body.find(_PAYLOAD)
        while at >= 0:
            stamp = body[at : at + WIDTH]
            note(int(stamp[SERIAL]) - SERIAL_BASE, int(stamp[PAIR]) - PAIR_BASE, int(stamp[TIME]), now_ns)
            at = body.find(_PAYLOAD, at + WIDTH)
        if self._behaviour.latency_s:
            self._later(self._behaviour.latency_s, self._answer, _OK)
        else:
            self._write(_OK)

    def _take(self, path: bytes, stamp: bytes) -> None:
        books, behaviour = self._books, self._behaviour
        try:
            serial, pair = int(stamp[SERIAL]) - SERIAL_BASE, int(stamp[PAIR]) - PAIR_BASE
            sent_ns = int(stamp[TIME])
        except ValueError:
            return self._refuse()
        if path == b"/ca":
            books.callbacks.note(serial, pair, sent_ns, time.time_ns())
            self._write(_OK)
            return None
        if behaviour.failing and random.random() < behaviour.failing:
            books.refused += 1
            self._write(behaviour.busy)
            return None
        books.deliveries.note(serial, pair, sent_ns, time.time_ns())
        answer = behaviour.head + stamp + behaviour.rest if behaviour.echo else _OK
        if books.held.wanted:
            books.held.add(self._transport, answer)
        elif behaviour.latency_s:
            self._later(behaviour.latency_s, self._answer, answer)
        else:
            self._write(answer)
        return None

    def _answer(self, answer: bytes) -> None:
        if not self._transport.is_closing():
            self._write(answer)

    def _refuse(self) -> None:
        self._books.bad += 1
        self._write(_BAD)
        self._transport.close()


async def serve(behaviour: Behaviour, pairs: int) -> None:
    """Until this process is ended."""
    loop = asyncio.get_running_loop()
    raise_descriptor_limit()
    books = Books(pairs)
    server = await loop.create_server(lambda: Receiver(behaviour, books, loop), "127.0.0.1", 0, backlog=1024)
    control = await asyncio.start_server(Control(books).handle, "127.0.0.1", 0)
    ports = [each.sockets[0].getsockname()[1] for each in (server, control)]
    sys.stdout.write(json.dumps({"port": ports[0], "control": ports[1]}) + "\n")
    sys.stdout.flush()
    await server.serve_forever()


def main() -> None:
    """One argument: JSON with `pairs`, and what Behaviour takes."""
    knobs = json.loads(sys.argv[1])
    pairs = knobs.pop("pairs")
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve(Behaviour(**knobs), pairs))


if __name__ == "__main__":
    main()
