"""The commit watermark of a partition: out-of-order completion, in-order commit."""


class Watermark:
    """Which offset to commit, given which records are finished. Offsets are added in growing order, gaps allowed."""

    def __init__(self) -> None:
        self._unfinished: dict[int, None] = {}  # insertion order is offset order, so the first key is the lowest
        self._seen_next: int | None = None

    def add(self, offset: int) -> None:
        self._unfinished[offset] = None
        self._seen_next = offset + 1

    def done(self, offset: int) -> None:
        """Raises KeyError when `offset` is not unfinished: a record must be finished exactly once."""
        del self._unfinished[offset]

    def __len__(self) -> int:
        """Unfinished records."""
        return len(self._unfinished)

    @property
    def head(self) -> int | None:
        """The lowest unfinished offset."""
        return next(iter(self._unfinished), None)

    @property
    def next_offset(self) -> int | None:
        """The offset to commit: every record before it is finished. None before the first record."""
        head = self.head
        return self._seen_next if head is None else head

    @property
    def span(self) -> int:
        """Offsets between the watermark and the newest record."""
        head = self.head
        return 0 if head is None or self._seen_next is None else self._seen_next - head
