"""Messages over the relay's HTTP API, on keep-alive connections: one by one, or as batches.

A source's messages all go over the same connection, one request at a time, so that their order is kept. A batch is what
has come together for a source while its connection was busy, or is due in the same slice.
"""

import asyncio
import re
from asyncio import Transport
from collections import deque
from typing import Final, NamedTuple, cast
from urllib.parse import urlsplit

from bench.drawing import Drawing, receiver_name, source_name
from bench.wire import Payloads, prefix

_CONNECTIONS: Final = 64
_MOST: Final = 500
_ACCEPTED: Final = re.compile(rb'"accepted": ?(\d+)')


class Due(NamedTuple):
    """A message that waits for its connection."""

    source: str
    receiver: str
    serial: int
    payload: bytes


class _Connection(asyncio.Protocol):
    """Sends due messages, a request at a time."""

    def __init__(self, outlet: "HttpOutlet") -> None:
        self.due: deque[Due] = deque()
        self._outlet = outlet
        self._under_way = 0
        self._received = b""
        self._transport: Transport | None = None

    @property
    def idle(self) -> bool:
        return not self.due and not self._under_way

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(Transport, transport)

    def connection_lost(self, error: Exception | None) -> None:
        lost, self._under_way = self._under_way + len(self.due), 0
        self.due.clear()
        self._transport = None
        self._outlet.note(0, lost)

    def data_received(self, data: bytes) -> None:
        self._received += data
        head, end, body = self._received.partition(b"\r\n\r\n")
        if not end:
            return
        at = head.lower().find(b"content-length:")
        if len(body) < int(head[at + 15 :].split(b"\r\n", 1)[0]):
            return
        sent, self._under_way, self._received = self._under_way, 0, b""
        accepted = self._outlet.accepted(head, body)
        self._outlet.note(accepted, sent - accepted)
        self.pump()

    def pump(self) -> None:
        """Send the next request, if there is one and none is in flight."""
        if self._under_way or not self.due:
            return
        if self._transport is None:
            self._outlet.note(0, len(self.due))
            self.due.clear()
            return
        taken = [self.due.popleft()]
        while self._outlet.batches and self.due and self.due[0].source == taken[0].source and len(taken) < _MOST:
            taken.append(self.due.popleft())
        self._under_way = len(taken)
        self._transport.write(self._outlet.request(taken))

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()


class HttpOutlet:
    """`api`: the API's URL. `batches`: send what can go together in one request."""

    def __init__(self, api: str, drawing: Drawing, payloads: Payloads, *, batches: bool) -> None:
        self.acked = 0
        self.failed = 0
        self.produced = 0
        self.batches = batches
        self._host = urlsplit(api).netloc
        self._drawing = drawing
        self._payloads = payloads
        self._connections: list[_Connection] = []
        self._settled = asyncio.Event()

    async def start(self) -> None:
        host, _, port = self._host.partition(":")
        loop = asyncio.get_running_loop()
        for _ in range(min(_CONNECTIONS, self._drawing.sources)):
            _transport, connection = await loop.create_connection(lambda: _Connection(self), host, int(port))
            self._connections.append(connection)

    async def send(self, first: int, times_ns: list[int]) -> None:
        touched = set()
        for serial, time_ns in enumerate(times_ns, first):
            pair = self._drawing.pair(serial)
            source = self._drawing.source_of(pair)
            payload = prefix(time_ns, serial, pair) + self._payloads.behind(serial)
            connection = self._connections[source % len(self._connections)]
            receiver = receiver_name(self._drawing.receiver_of(pair))
            connection.due.append(Due(source_name(source), receiver, serial, payload))
            touched.add(connection)
        for connection in touched:
            connection.pump()

    async def flush(self) -> None:
        while not all(connection.idle for connection in self._connections):
            self._settled.clear()
            await self._settled.wait()

    async def close(self) -> None:
        for connection in self._connections:
            connection.close()

    def note(self, accepted: int, failed: int) -> None:
        """A request is over."""
        self.acked += accepted
        self.failed += failed
        self._settled.set()

    def accepted(self, head: bytes, body: bytes) -> int:
        """How many messages of a request were accepted."""
        if not self.batches:
            return int(head.startswith(b"HTTP/1.1 202"))
        found = _ACCEPTED.search(body, max(0, len(body) - 200)) if head.startswith(b"HTTP/1.1 200") else None
        return int(found[1]) if found else 0

    def request(self, messages: list[Due]) -> bytes:
        first = messages[0]
        if not self.batches:
            target = f"{first.source}/messages?receiver={first.receiver}&type=push"
            return self._post(target, f"application/json\r\nce-id: {first.serial}", first.payload)
        line = b'{"message_id":"%d","receiver":"%s","type":"push","payload":%s}'
        lines = [line % (each.serial, each.receiver.encode(), each.payload) for each in messages]
        return self._post(f"{first.source}/messages:batch", "application/x-ndjson", b"\n".join(lines))

    def _post(self, target: str, content_type: str, body: bytes) -> bytes:
        head = f"POST /v1/sources/{target} HTTP/1.1\r\nhost: {self._host}\r\ncontent-type: {content_type}\r\n"
        return f"{head}content-length: {len(body)}\r\n\r\n".encode() + body
