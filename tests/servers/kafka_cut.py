"""Cuts the log of a broker that does not run, as a crash does whose last writes never reached the disk."""

import struct
from pathlib import Path
from typing import Final

from relay.log.port import Coordinate
from tests.servers.kafka import KafkaBroker

_FRAME: Final = struct.Struct(">qi")


def cut_log(broker: KafkaBroker, at: Coordinate) -> None:
    """Remove the records of that partition from `at` on, which has to be the first of its batch. The broker must have
    been killed: after a clean shutdown it trusts its indexes."""
    folder = broker.data / f"{at.topic}-{at.partition}"
    for segment in sorted(folder.glob("*.log")):
        if (place := _place(segment, at.offset)) is not None:
            with segment.open("r+b") as file:
                file.truncate(place)
            for other in folder.iterdir():
                if other.suffix in (".index", ".timeindex", ".snapshot"):
                    other.unlink()  # made anew of what is there


def _place(segment: Path, offset: int) -> int | None:
    """Where in the file the first batch from `offset` on begins; None: nowhere."""
    data, place = segment.read_bytes(), 0
    while len(data) - place >= _FRAME.size:
        base, length = _FRAME.unpack_from(data, place)
        if base >= offset:
            return place
        place += _FRAME.size + length
    return None
