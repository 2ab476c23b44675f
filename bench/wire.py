"""What a message looks like: a prefix of fixed width that says when, which and whose, and a filler behind it.

`{"t":<19 digits>,"n":<10 digits>,"p":<9 digits>,"data":"..."}`: the intended time of sending in Unix nanoseconds, the
serial of the message, and its pair of source and receiver. It is JSON; the numbers have offsets, so that none begins
with a zero.
"""

import json
import random
from typing import Final, NamedTuple

SERIAL_BASE: Final = 1_000_000_000
PAIR_BASE: Final = 100_000_000
PREFIX: Final = b'{"t":%d,"n":%d,"p":%d'
WIDTH: Final = len(PREFIX % (10**18, SERIAL_BASE, PAIR_BASE))

TIME: Final = slice(5, 24)
SERIAL: Final = slice(29, 39)
PAIR: Final = slice(44, 53)


class Stamp(NamedTuple):
    """What a payload's prefix says."""

    sent_ns: int
    serial: int
    pair: int


def prefix(sent_ns: int, serial: int, pair: int) -> bytes:
    return PREFIX % (sent_ns, serial + SERIAL_BASE, pair + PAIR_BASE)


def stamp(payload: bytes) -> Stamp:
    """Raises ValueError for what has no prefix of ours."""
    return Stamp(int(payload[TIME]), int(payload[SERIAL]) - SERIAL_BASE, int(payload[PAIR]) - PAIR_BASE)


def filler(size: int, random_: random.Random) -> bytes:
    """What follows the prefix in a payload of `size` bytes (at least 200): JSON like a push event's, which does not
    compress to nothing."""
    fields: dict[str, object] = {"action": "opened", "repository": {"id": random_.getrandbits(40), "private": False}}
    commits: list[dict[str, object]] = []
    fields["commits"] = commits
    room = size - WIDTH
    while len(_closed(fields)) + _COMMIT <= room:
        words = " ".join(random_.choice(_WORDS) for _ in range(8))
        commits.append({"id": f"{random_.getrandbits(160):040x}", "message": words})
    text = _closed(fields)
    return text[:-1] + b" " * (room - len(text)) + b"}"


def _closed(fields: dict[str, object]) -> bytes:
    return b"," + json.dumps(fields).encode()[1:]


_COMMIT: Final = 140
"""More than a commit takes."""

_WORDS: Final = ("fix", "the", "parser", "when", "a", "header", "is", "missing", "add", "tests", "for", "build")

_FILLERS: Final = 64


class Payloads:
    """Fillers of a job's payloads, made beforehand: only the prefix differs from message to message."""

    def __init__(self, size: int) -> None:
        random_ = random.Random(size)
        self._fillers = [filler(size, random_) for _ in range(_FILLERS)]

    def behind(self, serial: int) -> bytes:
        """The part of this message behind its prefix."""
        return self._fillers[serial % _FILLERS]
