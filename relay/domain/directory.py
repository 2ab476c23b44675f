"""Interfaces to the receivers, sources and lane moves that this process knows."""

from collections.abc import Collection
from typing import Protocol

from relay.domain.receiver import Receiver, SeenTopic, Source
from relay.domain.route import Cut, Marker


class Directory(Protocol):
    """Receivers and sources in effect, looked up in memory for each message."""

    def receiver(self, name: str) -> Receiver | None: ...

    def removed(self, name: str) -> Receiver | None:
        """The last settings of a removed receiver, until its last deliveries have ended."""
        ...

    def refusal(self, name: str) -> str | None:
        """Why the receiver's newest entry is not in effect in this process; None if it is, or if there is none."""
        ...

    def source(self, source_id: str) -> Source:
        """Settings of a source: its own, or those of `*`, or the defaults."""
        ...

    def subscribers(self, source_id: str, event_type: str | None) -> tuple[str, ...]:
        """Names of the receivers that subscribe to such messages. Raises InvalidRecord if there are too many."""
        ...

    def filtered(self, source_id: str, event_type: str | None) -> Collection[str]:
        """Those of `subscribers` that also have a filter. Raises InvalidRecord like `subscribers`."""
        ...


class Moves(Protocol):
    """Moves of receivers between lanes that this process knows (see `relay/domain/route.py`)."""

    async def catch_up(self) -> None:
        """Return once every move announced before this call is known in this process. Raises LogUnavailable."""
        ...

    async def present_topic(self, topic: str) -> SeenTopic:
        """The present topic of that name. Raises LogUnavailable."""
        ...

    def announced(self, marker: Marker) -> bool:
        """Whether the marker belongs to an announced move, including one that has ended."""
        ...

    def is_in_progress(self, marker: Marker) -> bool:
        """Whether its move is still in progress. A sender can forge a marker of an ended move; it must have no
        effect."""
        ...

    def cut(self, name: str, version: int, partition: int) -> int | None:
        """The offset in that partition of `from_sender` where the move takes effect, if known."""
        ...

    def note(self, cut: Cut) -> None:
        """Record where a marker was read. The first one counts."""
        ...
