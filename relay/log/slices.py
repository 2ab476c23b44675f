"""Reads many records of which little is needed: so many of them are in memory at a time, however large they are."""

from collections.abc import Callable, Sequence
from typing import Final, TypeVar

from relay.log.port import Coordinate, LogReader, Record

AT_ONCE: Final = 32

T = TypeVar("T")


async def read_each(
    log: LogReader, wanted: Sequence[tuple[Coordinate, bytes | None]], made: Callable[[Record | None], T]
) -> list[T]:
    """As `LogReader.read`, of each record what `made` keeps of it."""
    found = list[T]()
    for start in range(0, len(wanted), AT_ONCE):
        found += map(made, await log.read(wanted[start : start + AT_ONCE]))
    return found
