"""What a receiver whose deliveries are numbered can rely on."""

import re
from collections.abc import Iterable, Iterator, Mapping

from relay.domain.numbering import SKIPPED
from tests.fakes.state_numbers import Numbers
from tests.fakes.strikes import Fuse
from tests.fakes.world import World, message, receiver

_GAP = re.compile(r"first=(\d+); last=(\d+); reason=[a-z_]+")


def named_gaps(headers: Mapping[str, str]) -> set[int]:
    """Numbers that a delivery says do not come."""
    given = headers.get("relay-gap", "")
    found = [match for part in given.split(", ") if given and (match := _GAP.fullmatch(part))]
    assert len(found) == (len(given.split(", ")) if given else 0), given
    return {number for each in found for number in range(int(each[1]), int(each[2]) + 1)}


def wrong_numbers(arrived: Iterable[Mapping[str, str]]) -> Iterator[str]:
    """`arrived`: headers of what a receiver has processed, in this order. It must miss no message if it ignores each
    number that it has, also from a replay."""
    had: set[str] = set()
    owner: dict[int, str] = {}
    for headers in arrived:
        message, sequence = f"{headers['ce-source']} {headers['ce-id']}", headers.get("relay-sequence")
        if sequence is None:
            continue
        number, is_first = int(sequence), headers["relay-generation"] == "0" and message not in had
        if is_first and owner.setdefault(number, message) != message:
            yield f"{message} has the number {number}, which {owner[number]} had before"
        had.add(message)
        owner.setdefault(number, message)


def holes(arrived: Iterable[Mapping[str, str]], left: Numbers) -> set[int]:
    """Numbers that nothing was delivered with, and that no gap names. `left`: what the state still knows. A replay of
    what was delivered has a new number."""
    known: set[int] = set()
    for headers in arrived:
        if "relay-sequence" in headers:
            known.add(int(headers["relay-sequence"]))
        known |= named_gaps(headers)
    untold = {number for gap in left.gaps.values() for number in range(gap.first, gap.last + 1)}
    numbers = known | untold
    return set(range(min(numbers, default=1), left.last + 1)) - numbers


async def a_loss_of_numbers_in_the_shared_lane() -> None:
    """Its offsets are also those of its neighbours."""
    world = await World(
        [receiver(name, f"/{name}", ordering="receiver", lane="shared") for name in ("r", "n")]
    ).create()
    for first in (0, 6):
        await world.send(*(message(number, "a", "rn"[number % 2]) for number in range(first, first + 6)))
        await world.run(Fuse(), 60, until=lambda: not world.uncommitted())
        world.state.lose()
    arrived = [headers for path, headers, _ in world.outside.posts if path == "/r"]
    assert list(wrong_numbers(arrived)) == []
    numbers = [int(headers["relay-sequence"]) for headers in arrived]
    assert numbers == [1, 2, 3, *(SKIPPED + number for number in (4, 5, 6))]
