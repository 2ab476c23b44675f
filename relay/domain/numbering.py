"""Numbers of a receiver's deliveries, without holes: which numbers have no end yet, and which ones it does not get.

The state assigns them (`relay/state/redis/scripts/_numbers.lua`). A record beside each delivery's end makes them
durable.
"""

import re
from collections.abc import Callable, Collection, Iterable
from typing import Final, NamedTuple

import msgspec
from msgspec import Struct

from relay.domain.json_pointer import NOT_JSON

PREFIX: Final = b"numbers:"
SLOTS: Final = 8
"""Records of a receiver that the log keeps. A former owner of its lane may append one late, which must not replace a
newer one."""
SKIPPED: Final = 10_000
"""Numbers left out after the state was lost: requests may have had as many that no record has, as those of a lane's
window have no end yet."""
RENUMBERED: Final = "renumbered"
"""Reason of a gap: the state was lost, and the messages of these numbers have other ones, or had arrived."""

UNKNOWN: Final = "unknown"
"""Of numbers about which nothing is kept."""

GAP_HEADER: Final = "relay-gap"
_GAP: Final = re.compile(r"first=(\d{1,18}); last=(\d{1,18}); reason=([a-z_]+)")

Range = tuple[int, int]
"""First and last number."""


class NumberGap(NamedTuple):
    """Numbers that the receiver does not get. `reason`: of the dead letters; or `delivered`, if it had the message
    before, and perhaps nothing with this number; or RENUMBERED."""

    first: int
    last: int
    reason: str


class Numbering(Struct, frozen=True):
    """Of one receiver. `last`: the highest number in use. `open`: numbers up to it whose deliveries have no end yet.
    `gaps`: those that no delivered message has named yet."""

    last: int = 0
    open: tuple[Range, ...] = ()
    gaps: tuple[NumberGap, ...] = ()


encode_numbering: Final[Callable[[Numbering], bytes]] = msgspec.json.Encoder().encode
_decode: Final = msgspec.json.Decoder(Numbering).decode


def numbering_key(receiver: str, numbering: Numbering) -> bytes:
    """Key of its record on `parked_messages`."""
    return b"%b%b:%d" % (PREFIX, receiver.encode(), numbering.last % SLOTS)


def decode_numbering(key: bytes | None, value: bytes | None) -> tuple[str, Numbering] | None:
    """The receiver and its numbering; None if it is not a record of ours."""
    if key is None or value is None or not key.startswith(PREFIX):
        return None
    try:
        return key[len(PREFIX) :].rpartition(b":")[0].decode(), _decode(value)
    except NOT_JSON:
        return None


def after_loss(known: Numbering, parked: Collection[int]) -> Numbering:
    """What the state goes on with after it was lost. `known`: the newest one on the log. `parked`: numbers of parked
    copies, which keep them. Other deliveries without an end get new ones, behind all that may have been in use."""
    before = known.last or min(parked, default=0) - 1
    last = max((before, *parked)) + SKIPPED
    unsettled = (*known.open, (before + 1, last))
    kept = sorted(number for number in parked if any(first <= number <= end for first, end in unsettled))
    lost: list[NumberGap] = []
    for first, end in unsettled:
        for number in (*(each for each in kept if first <= each <= end), end + 1):
            if first < number:
                lost.append(NumberGap(first, number - 1, RENUMBERED))
            first = number + 1
    return Numbering(last, tuple((number, number) for number in kept), (*known.gaps, *lost))


def gap_text(gaps: Iterable[NumberGap]) -> str:
    """The value of the header GAP_HEADER."""
    return ", ".join(f"first={gap.first}; last={gap.last}; reason={gap.reason}" for gap in gaps)


def gaps_in(header: str) -> list[NumberGap]:
    """The gaps in a header GAP_HEADER."""
    return [NumberGap(int(first), int(last), reason) for first, last, reason in _GAP.findall(header)]


def explained(first: int, last: int, known: Iterable[NumberGap]) -> list[NumberGap]:
    """The numbers from `first` to `last`, split by the gaps that are known; the rest is UNKNOWN."""
    found: list[NumberGap] = []
    for gap in sorted(known):
        begin, end = max(first, gap.first), min(last, gap.last)
        if begin > end:
            continue
        if first < begin:
            found.append(NumberGap(first, begin - 1, UNKNOWN))
        found.append(NumberGap(begin, end, gap.reason))
        first = end + 1
    return found if first > last else [*found, NumberGap(first, last, UNKNOWN)]
