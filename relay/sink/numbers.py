"""Checks the numbers of a receiver with `ordering: receiver`, and shows missing ones."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Final

from relay.domain.numbering import GAP_HEADER, NumberGap, gap_text, gaps_in
from relay.schema.streams import MissingLine, NumberedLine
from relay.sink.arrival import ReceivedPost
from relay.telemetry.redaction import escape_control

_UNSETTLED: Final = frozenset({"in_progress", "unknown"})
"""Reasons of numbers that the relay may deliver yet, or that its history may have later."""


class NumberCheck:
    """What has arrived so far. `last`: the highest number of an accepted message; 0 for none. `missing`: numbers that
    were neither accepted nor named."""

    def __init__(self) -> None:
        self.last = 0
        self.missing: list[NumberGap] = []
        self.found_missing = asyncio.Event()

    def look(self, arrival: ReceivedPost) -> Iterator[str]:
        """Lines about an arrival: gaps that it names, and holes before it."""
        number = arrival.sequence
        if number is None or arrival.status is None or arrival.status >= 300:
            return
        if arrival.generation and number <= self.last:
            return  # a replay of what failed has its old number
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
                self.found_missing.set()
                yield f"   MISSING: {expected} to {gap.first - 1}"
            expected = max(expected, gap.last + 1)
        self.last = number

    async def fetch(self, catch_up: Callable[[int], AsyncIterator[NumberedLine | MissingLine]]) -> AsyncIterator[str]:
        """Lines about the missing numbers, which are fetched. `catch_up`: what follows a number, in order."""
        if not self.missing:
            return
        end = self.missing[-1].last
        async for item in catch_up(self.missing[0].first - 1):
            if "sequence" in item:
                first = last = item["sequence"]
                text = f"fetched {first}: {item['source_id']} {item['message_id']}, {item['size']} bytes"
            else:
                first, last = item["first"], item["last"]
                text = f"{first} to {last} do not arrive: {item['reason']}"
            if first > end:
                return
            if ("sequence" in item or item["reason"] not in _UNSETTLED) and self._settle(first, last):
                yield f"   {escape_control(text)}"

    def _settle(self, first: int, last: int) -> bool:
        """Take numbers off the missing ones; returns whether any of them was missing."""
        before = self.missing
        self.missing = [
            NumberGap(low, high, hole.reason)
            for hole in before
            for low, high in ((hole.first, min(hole.last, first - 1)), (max(hole.first, last + 1), hole.last))
            if low <= high
        ]
        return self.missing != before

    def __str__(self) -> str:
        """A summary in one line."""
        missing = sum(gap.last - gap.first + 1 for gap in self.missing)
        return f"numbers up to {self.last}, {missing} missing"
