"""What arrived: how often each message came, whether in order, and how late."""

from array import array
from dataclasses import asdict, dataclass
from typing import Final

import msgspec

from bench.histogram import Histogram

_GROWTH: Final = 1 << 20
_MOST: Final = 255


@dataclass(frozen=True, slots=True)
class Tally:
    """A range of serials. `arrived`: different ones; `repeats`: arrivals beyond the first of a message.

    `misordered`: first arrivals behind a later one of the same source and receiver. `first_ns`, `last_ns`: Unix time
    of the first and the last first arrival, 0 if none. `most_ns`: the longest latency.
    """

    arrived: int
    repeats: int
    misordered: int
    first_ns: int
    last_ns: int
    most_ns: int
    buckets: dict[str, int]

    def as_json(self) -> dict[str, object]:
        return asdict(self)

    @classmethod
    def of_json(cls, fields: object) -> "Tally":
        """The reverse of `as_json`. Raises msgspec.ValidationError."""
        return msgspec.convert(fields, cls)


class Ledger:
    """`pairs`: how many pairs of source and receiver there are. Serials grow over all pairs, and are used once."""

    def __init__(self, pairs: int) -> None:
        self._counts = bytearray(_GROWTH)
        self._last = array("q", [-1]) * pairs
        self.arrived = 0
        """First arrivals since `restart`."""
        self._repeats = 0
        self._misordered = 0
        self._first_ns = self._last_ns = 0
        self._latencies = Histogram()

    def note(self, serial: int, pair: int, sent_ns: int, now_ns: int) -> None:
        """A message arrived."""
        counts = self._counts
        if serial >= len(counts):
            counts.extend(bytes(serial - len(counts) + _GROWTH))
        seen = counts[serial]
        if seen:
            self._repeats += 1
            counts[serial] = min(seen + 1, _MOST)
            return
        counts[serial] = 1
        if serial < self._last[pair]:
            self._misordered += 1
        else:
            self._last[pair] = serial
        self.arrived += 1
        self._last_ns = now_ns
        if not self._first_ns:
            self._first_ns = now_ns
        self._latencies.add(now_ns - sent_ns)

    def restart(self) -> None:
        """Begin the next phase. What came before is remembered, so that a late copy still counts as a repeat."""
        self.arrived = self._repeats = self._misordered = 0
        self._first_ns = self._last_ns = 0
        self._latencies = Histogram()

    def tally(self, first: int, end: int) -> Tally:
        """`arrived`: of the serials from `first` to before `end`; all else since `restart`."""
        counts = self._counts[first:end]
        return Tally(
            arrived=len(counts) - counts.count(0),
            repeats=self._repeats,
            misordered=self._misordered,
            first_ns=self._first_ns,
            last_ns=self._last_ns,
            most_ns=self._latencies.most_ns,
            buckets=self._latencies.sparse(),
        )
