"""Kafka's Produce request, written by hand: one for all partitions of a leader, and nothing awaited for it.

The usual client spends 0.1 ms on each batch, and a slice of the load has one for every partition: with a few messages
in each that would be much of the machine. A connection's requests are worked off one after another, so order is kept.
Source: the Kafka protocol guide, Produce version 7, request header 1.
"""

import asyncio
import struct
from asyncio import Transport
from collections import deque
from collections.abc import Callable, Mapping
from typing import Final, cast

_API: Final = 0
_VERSION: Final = 7
_ALL: Final = -1
_TIMEOUT_MS: Final = 30_000
_CLIENT: Final = b"bench"
_ANSWER_ITEM: Final = struct.Struct(">ihqqq")

Done = Callable[[int, int], None]
"""Called for each partition of a request with its error code (0: none) and how many records it had."""


class Leader(asyncio.Protocol):
    """A connection to the broker that leads some partitions of `topic`. `broken`: it was lost."""

    def __init__(self, topic: str, done: Done) -> None:
        name = topic.encode()
        self._topic = struct.pack(">h", len(name)) + name
        self._done = done
        self._waiting: deque[dict[int, int]] = deque()
        self._received = b""
        self._correlation = 0
        self._transport: Transport | None = None

    @property
    def idle(self) -> bool:
        return not self._waiting

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(Transport, transport)

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        while self._waiting:
            for count in self._waiting.popleft().values():
                self._done(_ALL, count)

    def send(self, batches: Mapping[int, bytes], counts: dict[int, int]) -> None:
        """A batch for each partition, and how many records it has."""
        if self._transport is None:
            for count in counts.values():
                self._done(_ALL, count)
            return
        self._correlation += 1
        parts = [
            struct.pack(">hhih", _API, _VERSION, self._correlation, len(_CLIENT)) + _CLIENT,
            struct.pack(">hhii", -1, _ALL, _TIMEOUT_MS, 1) + self._topic,
            struct.pack(">i", len(batches)),
        ]
        for partition, batch in batches.items():
            parts += (struct.pack(">ii", partition, len(batch)), batch)
        request = b"".join(parts)
        self._waiting.append(counts)
        self._transport.write(struct.pack(">i", len(request)) + request)

    def data_received(self, data: bytes) -> None:
        self._received += data
        while len(self._received) >= 4:
            end = 4 + struct.unpack_from(">i", self._received)[0]
            if len(self._received) < end:
                return
            self._answer(self._received[4:end])
            self._received = self._received[end:]

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def _answer(self, answer: bytes) -> None:
        """Correlation id, one topic with its name, and for each partition an item."""
        counts = self._waiting.popleft()
        at = 8 + len(self._topic)
        (partitions,) = struct.unpack_from(">i", answer, at)
        for number in range(partitions):
            partition, error, *_ = _ANSWER_ITEM.unpack_from(answer, at + 4 + number * _ANSWER_ITEM.size)
            self._done(error, counts[partition])
