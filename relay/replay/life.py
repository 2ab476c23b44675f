"""The life of a delivery that a replay of its dead letter begins, and a discard ends, by the delivery's row. Pure."""

from collections.abc import Mapping
from typing import Final, NamedTuple

from relay.domain.identity import DeliveryId
from relay.domain.reasons import DISCARDED, ON_PURPOSE, REASON_CODES
from relay.replay.letter import Letter
from relay.state.rows import Row, RowKey, Stage

_DELIVERED_AT: Final[Mapping[str | None, frozenset[Stage]]] = {
    "from_sender": frozenset({Stage.AWAITING, Stage.PUBLISHED, Stage.DONE}),
    "to_receiver": frozenset({Stage.AWAITING, Stage.PUBLISHED, Stage.DONE}),
    "pending": frozenset({Stage.PUBLISHED, Stage.DONE}),
}
"""Stages of a row which show that its life did not end with a letter."""
REPLAYED: Final = "replayed"
_CLAIMS: Final = frozenset({DISCARDED, REPLAYED})


class Claim(NamedTuple):
    """Ends a life before its records are appended, unless it has begun: of a replay and a discard of one letter, only
    one acts. `row`: of the delivery, or of its callback. `detail`: of the dead letter that a lane writes where it finds
    the claim."""

    delivery: DeliveryId
    row: RowKey
    generation: int
    reason: str
    detail: str = ""


def next_life(letter: Letter, row: Row) -> int | str:
    """The life that a replay of `letter` begins; or why there is none: `replayed`, `discarded`, `delivered`."""
    if row.stage is Stage.NONE or row.generation < letter.generation:
        return letter.generation + 1
    if row.generation == letter.generation:
        return "delivered" if row.stage in _DELIVERED_AT.get(letter.stage, ()) else letter.generation + 1
    if row.stage is Stage.FAILED and row.at == letter.place:
        return row.generation + 1  # its notice was replayed since, which is no life of the delivery's own
    if is_claimed(row) and row.generation == letter.generation + 1:
        return row.generation  # nothing may have been appended: the process that claimed it may have died
    return ended_as(row)


def ended_as(row: Row) -> str:
    """What became of a letter, by the row of the life after it: `discarded` or `replayed`."""
    return "discarded" if row.stage is Stage.FAILED and row.code == REASON_CODES[DISCARDED] else "replayed"


def is_claimed(row: Row) -> bool:
    """Whether a discard, or a replay, has ended its life, whose record may not be on the log yet."""
    return row.stage is Stage.RESULT and row.result is not None and row.result.reason in _CLAIMS


def is_open(letter: Letter, row: Row) -> bool:
    """Whether a dead letter is still open, by its delivery's row."""
    return letter.dead.reason not in ON_PURPOSE and isinstance(next_life(letter, row), int)


def marked_place(letter: Letter, row: Row) -> tuple[int, int] | None:
    """The place of the dead letter in the row of the delivery, if that is another one, of the same life. If both have
    the same cause, `letter` is a copy, which a process wrote that died before it could mark the row."""
    own = row.stage is Stage.FAILED and row.generation == letter.generation and not letter.is_of_sender
    return row.at if own and row.at != letter.place else None


def is_copy(letter: Letter, marked: Letter) -> bool:
    """Whether both letters are of one end of a delivery. `marked`: the one that its row names."""
    return _cause(letter) == _cause(marked)


def _cause(letter: Letter) -> tuple[object, ...]:
    return letter.delivery, letter.generation, letter.is_of_sender, letter.dead.reason  # its step may differ
