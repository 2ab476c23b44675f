"""Checks the numbers of a receiver with `ordering: receiver`, and shows missing ones."""

import re
from collections.abc import Iterator
from typing import Final

from relay.domain.numbering import GAP_HEADER, NumberGap, gap_text
from relay.sink.arrival import ReceivedPost

_GAP: Final = re.compile(r"first=(\d{1,18}); last=(\d{1,18}); reason=([a-z_]+)")


def gaps_in(header: str) -> list[NumberGap]:
    """The gaps in a header GAP_HEADER."""
    return [NumberGap(int(first), int(last), reason) for first, last, reason in _GAP.findall(header)]


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
