"""Lines of works, one for each order key: only the head of a line may start, and works that share its request. Pure."""

from collections import deque
from itertools import islice
from typing import Generic

from relay.engine.work import W

NO_TICKET = -1
"""Of a work that does not wait for its turn."""


class OrderLines(Generic[W]):
    """Works by their order key (`work.queue`), in order. Works without a key are in no line."""

    def __init__(self) -> None:
        self.by_key: dict[bytes, deque[W]] = {}
        self.stranded: list[W] = []
        """Works whose order key has left for elsewhere, so that they have to follow it."""
        self._parting: set[bytes] = set()
        """Order keys of which works have left for elsewhere while others of their batch are in flight."""

    def join(self, key: bytes, work: W) -> bool:
        """Put `work` at the end of the line of `key`. Whether it is the head."""
        line = self.by_key.get(key)
        if line is None:
            self.by_key[key] = deque((work,))
            return True
        line.append(work)
        return False

    def leave(self, key: bytes, work: W) -> W | None:
        """Take `work` out of the line of `key`. Returns the next head, if that may start now."""
        line = self.by_key[key]
        was_head = line[0] is work
        if was_head:
            line.popleft()
        else:
            line.remove(work)
        if not line:
            del self.by_key[key]
            self._parting.discard(key)
        elif self._parting and key in self._parting:
            if not any(each.taken for each in line):
                self.stranded += self._take_followers(key)
        elif was_head and not line[0].taken:
            return line[0]
        return None

    def take_out(self, key: bytes) -> list[W]:
        """The whole line, in order; none is left."""
        self._parting.discard(key)
        return list(self.by_key.pop(key))

    def part(self, key: bytes, work: W) -> list[W]:
        """`work` leaves for elsewhere. Returns the others that follow it; they are `stranded` later if some of its
        batch are in flight, which come before them."""
        line = self.by_key[key]
        line.remove(work)
        if any(each.taken for each in line):
            self._parting.add(key)
            return []
        return self._take_followers(key) if line else self.take_out(key)

    def _take_followers(self, key: bytes) -> list[W]:
        """The whole line, in order, but for a head that waits: it comes before the work of its batch that has left."""
        line = self.by_key[key]
        if line[0].ticket == NO_TICKET:
            return self.take_out(key)
        self._parting.discard(key)
        head, *followers = line
        self.by_key[key] = deque((head,))
        return followers

    def take_out_longest(self, enough: int) -> list[W]:
        """Works behind heads in flight, in order per key: of the longest lines first, until there are `enough` works or
        more. Those before one that stays are not among them: it is in flight, or was parked before."""
        lines = self.by_key.items()
        keys = [key for key, line in lines if len(line) > 1 and line[0].taken and key not in self._parting]
        keys.sort(key=lambda key: len(self.by_key[key]), reverse=True)
        out: list[W] = []
        for key in keys:
            if len(out) >= enough:
                break
            line = self.by_key[key]
            last = max(work.record.offset for work in line if work.taken or work.parked_at is not None)
            out += [work for work in line if work.record.offset > last]
            self.by_key[key] = deque(work for work in line if work.record.offset <= last)
        return out

    def in_flight(self, key: bytes) -> bool:
        """Whether a work of the line is in flight."""
        return any(each.taken for each in self.by_key[key])

    def is_before_batch(self, work: W) -> bool:
        """Whether later works of its order key are in flight."""
        line = self.by_key.get(work.queue) if work.queue is not None else None
        return line is not None and line[0].taken and line[0].record.offset > work.record.offset

    def behind(self, work: W) -> int:
        """How many works in memory wait behind a head."""
        return 0 if work.queue is None else len(self.by_key.get(work.queue, (work,))) - 1

    def heads(self, limit: int) -> list[tuple[W, int]]:
        """Heads that others wait behind, and how many do; at most `limit`, those of the oldest keys."""
        if not self.by_key:
            return []
        return list(islice(((line[0], len(line) - 1) for line in self.by_key.values() if len(line) > 1), limit))
