"""The life of a receiver's name: from its registration over the API until it is removed, or gets another owner. Pure.

A name that was removed is free for others, and what is on the log of its former life is none of theirs. So each
registration begins a life, each record of its messages has that life's id, and rights are judged by it.
"""

from msgspec import Struct

from relay.domain.coordinate import Coordinate


class Life(Struct, frozen=True, gc=False):
    """`id`: empty for a name that a file declares, or that an earlier release registered. `topic`, `begins`:
    `from_sender`, and the next offset of each of its partitions when the life began."""

    id: str = ""
    topic: str = ""
    begins: tuple[int, ...] = ()

    def has(self, id: str, origin: Coordinate | None = None) -> bool:
        """Whether a record is of this life: by the `id` that it has, or without one by the `origin` of its message."""
        if id or not self.id:
            return id == self.id
        return origin is not None and self.began_before(origin)

    def began_before(self, at: Coordinate) -> bool:
        """Whether a message came after this life began. `at`: its place on `from_sender`."""
        if not self.id:
            return True
        offset = self.begins[at.partition] if at.partition < len(self.begins) else 0
        return at.topic == self.topic and at.offset >= offset


NO_LIFE = Life()
