"""What a stopped relay had still to do with a record, as rows tell it. Pure."""

from enum import Enum
from typing import Final

from relay.domain.hop import Hop
from relay.state.rows import Row, Stage
from relay.transfer.form import Kind

_ENDED: Final = frozenset({Stage.PUBLISHED, Stage.DONE, Stage.FAILED})
_POSTED: Final = _ENDED | {Stage.AWAITING}
_NOT_TOLD: Final = frozenset({Stage.ACCEPTED, Stage.RESULT})


class Left(Enum):
    """OVER: nothing. ALL: its step. IN_DOUBT: an attempt was begun, and nobody knows what came of it. NOT_TOLD: an
    outcome is stored, and not on the log: only the relay itself puts it there."""

    OVER = "over"
    ALL = "all"
    IN_DOUBT = "in doubt"
    NOT_TOLD = "not told"


def left_of_delivery(kind: Kind, hop: Hop, row: Row) -> Left:
    """Of a record on `to_receiver_*` or `pending_from_receiver_*`."""
    if row.generation > hop.generation:
        return Left.OVER
    stage = row.stage if row.generation == hop.generation else Stage.NONE
    if stage in (_POSTED if kind == "to_receiver" else _ENDED):
        return Left.OVER
    if stage in _NOT_TOLD:
        return Left.NOT_TOLD
    return Left.IN_DOUBT if kind == "to_receiver" and stage is Stage.SENDING else Left.ALL


def left_of_result(hop: Hop, delivery: Row, callback: Row) -> Left:
    """Of a record on `to_sender` that somebody is to be called with. A callback that was under way is made again, as it
    would be by the relay itself."""
    if callback.stage is Stage.DONE:
        return Left.OVER
    if callback.stage in _NOT_TOLD:
        return Left.NOT_TOLD
    if hop.outcome == "failed":
        return Left.ALL
    over = delivery.generation > hop.generation or delivery.stage is Stage.DONE
    return Left.OVER if over else Left.ALL
