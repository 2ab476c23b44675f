"""The unfinished work of a stopped relay for one record, by its rows. Pure."""

from enum import Enum
from typing import Final

from relay.domain.hop import Hop
from relay.state.rows import Row, Stage
from relay.transfer.form import Kind

_ENDED: Final = frozenset({Stage.PUBLISHED, Stage.DONE, Stage.FAILED})
_POSTED: Final = _ENDED | {Stage.AWAITING}
_NOT_PUBLISHED: Final = frozenset({Stage.ACCEPTED, Stage.RESULT})


class Left(Enum):
    """OVER: nothing left. ALL: its step. IN_DOUBT: an attempt was started, and its outcome is unknown.
    NOT_PUBLISHED: an outcome is stored, and not on the log: only the relay itself publishes it."""

    OVER = "over"
    ALL = "all"
    IN_DOUBT = "in doubt"
    NOT_PUBLISHED = "not published"


def left_of_delivery(kind: Kind, hop: Hop, row: Row) -> Left:
    """What a record on `to_receiver_*` or `pending_from_receiver_*` still needs, by its row."""
    if row.generation > hop.generation:
        return Left.OVER
    stage = row.stage if row.generation == hop.generation else Stage.NONE
    if stage in (_POSTED if kind == "to_receiver" else _ENDED):
        return Left.OVER
    if stage in _NOT_PUBLISHED:
        return Left.NOT_PUBLISHED
    return Left.IN_DOUBT if kind == "to_receiver" and stage is Stage.SENDING else Left.ALL


def left_of_result(hop: Hop, delivery: Row, callback: Row) -> Left:
    """What a record on `to_sender` with a callback still needs, by its row. A callback in flight is repeated, as in the
    relay itself."""
    if callback.stage is Stage.DONE:
        return Left.OVER
    if callback.stage in _NOT_PUBLISHED:
        return Left.NOT_PUBLISHED
    if hop.outcome == "failed":
        return Left.ALL
    over = delivery.generation > hop.generation or delivery.stage is Stage.DONE
    return Left.OVER if over else Left.ALL
