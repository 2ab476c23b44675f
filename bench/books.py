"""What the receiver has seen, and what it holds back: its connections write it, its control reads it."""

from asyncio import Transport

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
