"""The numbers of one receiver's deliveries, in plain Python, for the fake state."""

from dataclasses import dataclass, field
from itertools import pairwise

from relay.domain.numbering import RENUMBERED, NumberGap, Numbering
from relay.state.attempts import NumberRequest

MOST_GAPS = 100
MOST_CARRIED = 20


@dataclass(slots=True)
class Numbers:
    """`gaps` by id, in the order in which they came up. One that grows gets another id."""

    last: int = 0
    open: set[int] = field(default_factory=set)
    gaps: dict[int, NumberGap] = field(default_factory=dict)
    newest: int = 0

    @classmethod
    def of(cls, numbering: Numbering) -> "Numbers":
        numbers = {number for first, last in numbering.open for number in range(first, last + 1)}
        return cls(numbering.last, numbers, dict(enumerate(numbering.gaps, 1)), len(numbering.gaps))

    def shown(self) -> Numbering:
        ranges: list[tuple[int, int]] = []
        for number in sorted(self.open):
            if ranges and ranges[-1][1] == number - 1:
                ranges[-1] = (ranges[-1][0], number)
            else:
                ranges.append((number, number))
        return Numbering(self.last, tuple(ranges), tuple(self.gaps.values()))

    def give(self, ask: NumberRequest, *, lost: bool) -> tuple[int, bool]:
        """The number of a delivery, and whether it is new. `lost`: all before the first may have been lost."""
        if ask.known:
            if ask.first == 0 and ask.known > self.last:
                self.open.update(range(self.last + 1 if self.last else ask.known, ask.known + 1))
                self.last = ask.known
            return ask.known, False
        if not self.last and lost and ask.first > 1:
            self.newest, self.gaps = 1, {1: NumberGap(1, ask.first - 1, RENUMBERED)}
        self.last = self.last + 1 if self.last else ask.first
        self.open.add(self.last)
        return self.last, True

    def end(self, number: int, reason: str | None, named: int) -> None:
        """`named`: the newest gap that its requests have carried."""
        if number not in self.open:
            return
        self.open.remove(number)
        if reason:
            self._add_gap(number, reason)
        elif named:
            self.gaps = {id: gap for id, gap in self.gaps.items() if id > named or gap.last > number}

    def carried(self, number: int) -> tuple[tuple[NumberGap, ...], int]:
        """The gaps that go with a request, and the id of the newest one."""
        found = [(id, gap) for id, gap in self.gaps.items() if gap.last < number][:MOST_CARRIED]
        return tuple(gap for _, gap in found), found[-1][0] if found else 0

    def _add_gap(self, number: int, reason: str) -> None:
        newest = max(self.gaps, default=0)
        gap = self.gaps.get(newest)
        if gap is not None and gap.reason == reason and gap.last == number - 1:
            first = self.gaps.pop(newest).first
        else:
            first = number
            if len(self.gaps) >= MOST_GAPS:
                self._join_gaps()
        self.newest += 1
        self.gaps[self.newest] = NumberGap(first, number, reason)

    def _join_gaps(self) -> None:
        for (older, one), (newer, other) in pairwise(self.gaps.items()):
            first, last = min(one.first, other.first), max(one.last, other.last)
            if not any(first <= number <= last for number in self.open):
                self.gaps[newer] = NumberGap(first, last, one.reason)
                del self.gaps[older]
                return
