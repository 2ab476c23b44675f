"""Where a partition lost its end, each time: how often that was names its history. Pure."""

from relay.log.group_consumer import Position


class Cuts:
    """Of one partition, from its first history on, which is 0."""

    def __init__(self) -> None:
        self._ends: list[int] = []

    @property
    def history(self) -> int:
        return len(self._ends)

    def cut(self, end: int) -> None:
        """All from `end` on is lost, acknowledged or not."""
        self._ends.append(end)

    def divergence(self, position: Position) -> int | None:
        """Where it parts from what was read up to `position`; None: it does not."""
        end = min(self._ends[position.history :], default=position.offset)
        return end if end < position.offset else None
