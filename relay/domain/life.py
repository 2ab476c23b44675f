"""Lives of a receiver's name: a life lasts from a registration over the API until removal or a change of owner. Pure.

A removed name can be registered by another owner, who must not see the earlier owner's messages. So each registration
begins a new life, each record of its messages carries that life's id, and access is decided by it.
"""

from msgspec import Struct

from relay.domain.coordinate import Coordinate


class Life(Struct, frozen=True, gc=False):
    """`id`: empty for a name that was declared in a file, or registered by an earlier release. `topic`, `begins`: the
    name of `from_sender`, and the next offset of each of its partitions when the life began."""

    id: str = ""
    topic: str = ""
    begins: tuple[int, ...] = ()

    def has(self, id: str, origin: Coordinate | None = None) -> bool:
        """Whether a record belongs to this life: by its `id`, or without one by the `origin` of its message."""
        if id or not self.id:
            return id == self.id
        return origin is not None and self.began_before(origin)

    def began_before(self, at: Coordinate) -> bool:
        """Whether this life began before a message arrived. `at`: the message's place on `from_sender`."""
        if not self.id:
            return True
        offset = self.begins[at.partition] if at.partition < len(self.begins) else 0
        return at.topic == self.topic and at.offset >= offset


NO_LIFE = Life()
