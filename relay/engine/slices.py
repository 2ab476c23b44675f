"""Appends in slices that are bounded in bytes and records; acknowledged records are not appended again. Pure."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, TypeVar

from relay.engine.work import Work
from relay.log.port import Coordinate, NewRecord, Record, size_of

T = TypeVar("T")

SLICE_BYTES: Final = 4 * 1024**2
"""Limit of one call to log or state: to copy, pack and send that much blocks the event loop for some ten
milliseconds."""
SLICE_RECORDS: Final = 1_000
LEAST_BYTES: Final = SLICE_BYTES // SLICE_RECORDS
"""Minimum weight of a record, so that one number bounds bytes and records."""


def measured(records: Sequence[NewRecord], shared: bytes | None) -> tuple[int, int]:
    """The weight of `records`, and their bytes in memory. For the latter a value that several records have counts once,
    and `shared`, which is counted elsewhere, not at all."""
    if len(records) == 1:  # nearly always
        size, value = size_of(records[0]), records[0].value
        return max(LEAST_BYTES, size), size if value is not shared else size - len(value or b"")
    values = {id(record.value): len(record.value or b"") for record in records}
    values.pop(id(shared), None)
    beside = sum([size_of(record) - len(record.value or b"") for record in records])
    return weight_of(records), sum(values.values()) + beside


def weight_of(records: Iterable[NewRecord | Record]) -> int:
    return sum([size if (size := size_of(record)) > LEAST_BYTES else LEAST_BYTES for record in records])


def slices(items: Sequence[T], weights: Iterable[int]) -> Iterator[Sequence[T]]:
    """`items` in order, a slice at a time; an item that weighs more than a slice is alone."""
    start, weight = 0, 0
    for number, added in enumerate(weights):
        if number > start and weight + added > SLICE_BYTES:
            yield items[start:number]
            start, weight = number, 0
        weight += added
    if start < len(items):
        yield items[start:]


class Slices:
    """Progress of an append of `records`."""

    __slots__ = ("_known", "_left", "_next", "records")

    def __init__(
        self, records: Sequence[NewRecord], known: Mapping[int, Coordinate] | None = None, *, weight: int | None = None
    ) -> None:
        """`known`: places of records that are acknowledged already, by index. `weight`: of all records, if known."""
        self.records = records
        self._known = dict(known) if known else {}
        self._left: Iterator[Sequence[int]] = iter(())
        self._next: Sequence[int] = range(len(records))
        if self._known or weight is None or weight > SLICE_BYTES:
            missing = [index for index in self._next if index not in self._known]
            self._left = slices(missing, [weight_of((records[index],)) for index in missing])
            self._next = ()

    @property
    def places(self) -> Mapping[int, Coordinate]:
        """Places of the records that are acknowledged, by index."""
        return self._known

    def next(self) -> Sequence[NewRecord]:
        """The records to append now; none if all are acknowledged."""
        if self._known:
            self._next = [index for index in self._next if index not in self._known]
        if not self._next:
            self._next = next(self._left, ())
        if len(self._next) == len(self.records):
            return self.records
        return [self.records[index] for index in self._next]

    def acknowledged(self, at: Sequence[Coordinate]) -> None:
        """All of the last slice are on the log."""
        self._known.update(zip(self._next, at, strict=True))

    def partly(self, at: Mapping[int, Coordinate]) -> None:
        """Some of the last slice are on the log, by their index in it."""
        self._known.update({self._next[index]: where for index, where in at.items()})

    def indexes(self, of_slice: Iterable[int]) -> list[int]:
        """The indexes of records of the last slice, by their index in it."""
        return [self._next[index] for index in of_slice]

    def all_places(self) -> Sequence[Coordinate]:
        return [self._known[index] for index in range(len(self.records))]


def places_of(works: Sequence[Work]) -> dict[int, Coordinate]:
    """Places of the acknowledged records, by their index in the records of all works."""
    found: dict[int, Coordinate] = {}
    start = 0
    for work in works:
        found.update({start + index: at for index, at in (work.places or {}).items()})
        start += len(work.out)
    return found


def note_places(works: Sequence[Work], places: Mapping[int, Coordinate]) -> None:
    start = 0
    for work in works:
        work.places = {index: places[start + index] for index in range(len(work.out)) if start + index in places}
        start += len(work.out)
