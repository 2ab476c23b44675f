"""What a receiver whose deliveries are numbered can rely on."""

import re
from collections.abc import Iterable, Iterator, Mapping

from tests.fakes.state_numbers import Numbers

_GAP = re.compile(r"first=(\d+); last=(\d+); reason=[a-z_]+")


def named_gaps(headers: Mapping[str, str]) -> set[int]:
    """Numbers that a delivery says do not come."""
    given = headers.get("relay-gap", "")
    found = [match for part in given.split(", ") if given and (match := _GAP.fullmatch(part))]
    assert len(found) == (len(given.split(", ")) if given else 0), given
    return {number for each in found for number in range(int(each[1]), int(each[2]) + 1)}


def wrong_numbers(arrived: Iterable[Mapping[str, str]]) -> Iterator[str]:
    """`arrived`: headers of what a receiver has processed, in this order. It must miss no message if it ignores each
    number that it has."""
    had: set[str] = set()
    owner: dict[int, str] = {}
    for headers in arrived:
        message, sequence = f"{headers['ce-source']} {headers['ce-id']}", headers.get("relay-sequence")
        if sequence is None or headers["relay-generation"] != "0":
            continue
        number = int(sequence)
        if message not in had and owner.setdefault(number, message) != message:
            yield f"{message} has the number {number}, which {owner[number]} had before"
        had.add(message)
        owner.setdefault(number, message)


def holes(arrived: Iterable[Mapping[str, str]], left: Numbers) -> set[int]:
    """Numbers that nothing was delivered with, and that no gap names. `left`: what the state still knows."""
    known: set[int] = set()
    for headers in arrived:
        if "relay-sequence" in headers and headers["relay-generation"] == "0":
            known.add(int(headers["relay-sequence"]))
        known |= named_gaps(headers)
    untold = {number for gap in left.gaps.values() for number in range(gap.first, gap.last + 1)}
    numbers = known | untold
    return set(range(min(numbers, default=1), left.last + 1)) - numbers
