"""Removes the end of a stopped broker's log, as a crash does whose last writes did not reach the disk."""

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from relay.log.port import Coordinate
from tests.servers.kafka import KafkaBroker

_FRAME: Final = struct.Struct(">qi")


def cut_log(broker: KafkaBroker, at: Coordinate) -> None:
    """Remove the partition's records from offset `at` on, which has to be the first offset of a batch. The broker must
    have been killed: after a clean shutdown it trusts its indexes."""
    folder = _folder(broker, at.topic, at.partition)
    for segment in sorted(folder.glob("*.log")):
        places = [place for offset, place in _batches(segment) if offset >= at.offset]
        if places:
            with segment.open("r+b") as file:
                file.truncate(places[0])
            for other in folder.iterdir():
                if other.suffix in (".index", ".timeindex", ".snapshot"):
                    other.unlink()  # the broker rebuilds it from the log


def last_batches(broker: KafkaBroker, topic: str, partition: int, count: int) -> list[int]:
    """The first offsets of the last `count` batches."""
    segments = sorted(_folder(broker, topic, partition).glob("*.log"))
    return [offset for segment in segments for offset, _ in _batches(segment)][-count:]


def _folder(broker: KafkaBroker, topic: str, partition: int) -> Path:
    return broker.data / f"{topic}-{partition}"


def _batches(segment: Path) -> Iterator[tuple[int, int]]:
    """The first offset of each batch, and its position in the file."""
    data, place = segment.read_bytes(), 0
    while len(data) - place >= _FRAME.size:
        base, length = _FRAME.unpack_from(data, place)
        if length <= 0:
            return  # preallocated space
        yield base, place
        place += _FRAME.size + length
