"""Who waits for new records of which topic, within this process."""

import asyncio
from collections.abc import Iterable, Iterator
from contextlib import contextmanager


class Watchers:
    """Events that are set whenever a topic may have a new record."""

    def __init__(self) -> None:
        self._events: dict[str, set[asyncio.Event]] = {}

    def add(self, topics: Iterable[str], event: asyncio.Event) -> None:
        for topic in topics:
            self._events.setdefault(topic, set()).add(event)

    def remove(self, topics: Iterable[str], event: asyncio.Event) -> None:
        for topic in topics:
            events = self._events.get(topic, set())
            events.discard(event)
            if not events:
                self._events.pop(topic, None)

    @contextmanager
    def watching(self, topic: str) -> Iterator[asyncio.Event]:
        event = asyncio.Event()
        self.add([topic], event)
        try:
            yield event
        finally:
            self.remove([topic], event)

    def notify(self, topics: Iterable[str]) -> None:
        for topic in topics:
            for event in self._events.get(topic, ()):
                event.set()

    def notify_all(self) -> None:
        self.notify(list(self._events))
