"""Checks the numbers of a receiver with `ordering: receiver`, and shows missing ones."""

from collections.abc import Iterator

from relay.domain.numbering import GAP_HEADER, NumberGap, gap_text, gaps_in
from relay.sink.arrival import ReceivedPost


class NumberCheck:
    """What has arrived so far. `last`: the highest number of an accepted message; 0 for none. `missing`: numbers that
    were neither accepted nor named."""

    def __init__(self) -> None:
        self.last = 0
        self.missing: list[NumberGap] = []

    def look(self, arrival: ReceivedPost) -> Iterator[str]:
        """Lines about an arrival: gaps that it names, and holes before it."""
        number = arrival.sequence
        if number is None or arrival.generation or arrival.status is None or arrival.status >= 300:
            return
        gaps = gaps_in(arrival.headers.get(GAP_HEADER, ""))
        if gaps:
            yield f"   gap: {gap_text(gaps)}"
        if number <= self.last:
            yield f"   number {number} again"
            return
        expected = self.last + 1 if self.last else number
        for gap in sorted((*gaps, NumberGap(number, number, ""))):
            if gap.first > expected:
                self.missing.append(NumberGap(expected, gap.first - 1, "missing"))
                yield f"   MISSING: {expected} to {gap.first - 1}"
            expected = max(expected, gap.last + 1)
        self.last = number

    def __str__(self) -> str:
        """A summary in one line."""
        missing = sum(gap.last - gap.first + 1 for gap in self.missing)
        return f"numbers up to {self.last}, {missing} missing"
