"""The commit watermark of a lane. Pure."""


class Watermark:
    """The offset to commit, given the finished records. Offsets are added in growing order; gaps are allowed."""

    def __init__(self) -> None:
        self.unfinished: dict[int, int] = {}
        """Offsets with the sizes of their records, in the order of the offsets."""
        self.seen_next: int | None = None
        """The offset after the newest record."""

    def add(self, offset: int, size: int = 0) -> None:
        self.unfinished[offset] = size
        self.seen_next = offset + 1

    def done(self, offset: int) -> int:
        """Returns its size. Raises KeyError if `offset` is not unfinished: a record is finished exactly once."""
        return self.unfinished.pop(offset)

    @property
    def head(self) -> int | None:
        """The lowest unfinished offset."""
        return next(iter(self.unfinished), None)

    @property
    def next_offset(self) -> int | None:
        """The offset to commit: every record before it is finished. None before the first record."""
        return next(iter(self.unfinished), self.seen_next)

    @property
    def span(self) -> int:
        """Offsets between the watermark and the newest record."""
        return 0 if self.seen_next is None else self.seen_next - next(iter(self.unfinished), self.seen_next)
