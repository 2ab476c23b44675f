"""Who the receivers and sources are, as a process knows them now."""

from collections.abc import Collection
from typing import Protocol

from relay.domain.receiver import Receiver, Source
from relay.domain.route import Cut, Marker


class Directory(Protocol):
    """Looked up per message, in memory."""

    def receiver(self, name: str) -> Receiver | None: ...

    def removed(self, name: str) -> Receiver | None:
        """The last settings of a receiver that was removed, while something of it is left."""
        ...

    def refusal(self, name: str) -> str | None:
        """Why the receiver's newest entry is not in force in this process; None: it is, or there is none."""
        ...

    def source(self, source_id: str) -> Source:
        """Settings of a source; those of `*` where it has none of its own, else the defaults."""
        ...

    def subscribers(self, source_id: str, event_type: str | None) -> tuple[str, ...]:
        """Names of the receivers that subscribe to such messages. Raises InvalidRecord where there are too many."""
        ...

    def filtered(self, source_id: str, event_type: str | None) -> Collection[str]:
        """Those of `subscribers` that have a filter besides. Raises InvalidRecord as that does."""
        ...


class Moves(Protocol):
    """Receivers that change their lane, as this process knows them now (see `relay/domain/route.py`)."""

    async def catch_up(self) -> None:
        """Return when every move that was announced before this call is known here. Raises LogUnavailable."""
        ...

    def announced(self, marker: Marker) -> bool:
        """Whether it is a marker of a move that was announced, also of one that is over."""
        ...

    def is_under_way(self, marker: Marker) -> bool:
        """Whether its move is. A sender can make a marker of one that is over: it must not have any effect."""
        ...

    def cut(self, name: str, version: int, partition: int) -> int | None:
        """The offset in that partition of `from_sender` where the move takes effect, if that is known."""
        ...

    def note(self, cut: Cut) -> None:
        """A marker was met there. The first one counts."""
        ...


class NoMoves:
    """`Moves` where no receiver ever changes its lane."""

    async def catch_up(self) -> None:
        return

    def announced(self, marker: Marker) -> bool:
        return False

    def is_under_way(self, marker: Marker) -> bool:
        return False

    def cut(self, name: str, version: int, partition: int) -> int | None:
        return None

    def note(self, cut: Cut) -> None:
        return
