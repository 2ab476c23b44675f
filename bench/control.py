"""What the receiver has seen and holds back, which its connections write, and its control, which reads it:
`GET /tally?first=A&end=B`, `GET /progress`, and `POST /restart`, `/hold` and `/release`, answered with JSON."""

import asyncio
import json
from asyncio import Transport
from urllib.parse import parse_qs, urlsplit

from bench.ledger import Ledger


class Held:
    """Deliveries that are not answered yet, as long as that is `wanted`."""

    __slots__ = ("_waiting", "wanted")

    def __init__(self) -> None:
        self.wanted = False
        self._waiting: list[tuple[Transport, bytes]] = []

    @property
    def count(self) -> int:
        """Of those whose connections are still open."""
        return sum(not transport.is_closing() for transport, _ in self._waiting)

    def add(self, transport: Transport, answer: bytes) -> None:
        self._waiting.append((transport, answer))

    def release(self) -> None:
        self.wanted = False
        waiting, self._waiting = self._waiting, []
        for transport, answer in waiting:
            if not transport.is_closing():
                transport.write(answer)


class Books:
    """What this process has seen. `refused`: answered with 503; `bad`: requests that were none of ours."""

    __slots__ = ("bad", "callbacks", "deliveries", "held", "refused")

    def __init__(self, pairs: int) -> None:
        self.deliveries = Ledger(pairs)
        self.callbacks = Ledger(pairs)
        self.held = Held()
        self.refused = 0
        self.bad = 0


class Control:
    """Answers one request per connection: it is asked a few times a second."""

    def __init__(self, books: Books) -> None:
        self._books = books

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        method, target, _ = head.split(b"\r\n", 1)[0].decode().split(" ")
        body = json.dumps(self._answer(method, target)).encode()
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nconnection: close\r\n")
        writer.write(b"content-length: %d\r\n\r\n" % len(body) + body)
        await writer.drain()
        writer.close()

    def _answer(self, method: str, target: str) -> dict[str, object]:
        books, url = self._books, urlsplit(target)
        if method == "POST":
            self._change(url.path)
        if url.path != "/tally":
            arrived = books.deliveries.arrived, books.callbacks.arrived
            return {"deliveries": arrived[0], "callbacks": arrived[1], "held": books.held.count}
        query = parse_qs(url.query)
        first, end = int(query["first"][0]), int(query["end"][0])
        return {
            "deliveries": books.deliveries.tally(first, end).as_json(),
            "callbacks": books.callbacks.tally(first, end).as_json(),
            "refused": books.refused,
            "bad": books.bad,
        }

    def _change(self, path: str) -> None:
        books = self._books
        if path == "/restart":
            books.deliveries.restart()
            books.callbacks.restart()
            books.refused = books.bad = 0
        elif path == "/hold":
            books.held.wanted = True
        elif path == "/release":
            books.held.release()


async def ask(port: int, method: str, target: str) -> dict[str, object]:
    """One request to the control at `port`, and its answer."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(f"{method} {target} HTTP/1.1\r\nhost: control\r\n\r\n".encode())
        head_and_body = await reader.read()
    finally:
        writer.close()
    answer: dict[str, object] = json.loads(head_and_body.partition(b"\r\n\r\n")[2])
    return answer
