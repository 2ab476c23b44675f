"""Lines that do not move: messages that wait behind one which fails again and again. Of many some are looked at."""

import asyncio
from collections.abc import Sequence
from typing import Final, NamedTuple

from relay.api.wait_context import named
from relay.engine.parking import parked_key
from relay.log.port import LogReader, read_each
from relay.state.lanes import LaneNow
from relay.state.port import State
from relay.state.read_model import LineHead, Watched
from relay.state.rows import RowKey, Stage

MOST: Final = 200
"""Lines of each kind that are looked at: those in memory, and those that are parked."""
FAILED: Final = 2
"""So many attempts have failed, or the next one is a long time off: one failure is no line that does not move."""
LONG_S: Final = 60.0
_STAGE: Final = "to_receiver"
_TO_BE_SENT: Final = frozenset({Stage.ENQUEUED, Stage.SENDING})


class StuckLine(NamedTuple):
    """A message that does not get through to `receiver`, and how many wait behind it, at least. `detail`: what came of
    it, in words."""

    receiver: str
    source_id: str
    message_id: str
    behind: int
    detail: str


async def stuck_lines(log: LogReader, state: State, lanes: Sequence[LaneNow]) -> list[StuckLine]:
    """Raises what the two ports do."""
    served = [lane for lane in lanes if lane.stage == _STAGE and lane.served and lane.sign is not None]
    found = [head for lane in served if lane.sign is not None for head in lane.sign.heads if head.owner][:MOST]
    found += await _parked(log, state, served)
    rows = [RowKey(head.owner, head.row) for head in found]
    seen = await state.watch(rows) if rows else []
    told = ((head, why_stuck(one)) for head, one in zip(found, seen, strict=True))
    return [
        StuckLine(head.owner[2:], head.source_id, head.message_id, head.behind, why)
        for head, why in told
        if why is not None and head.message_id
    ]


def why_stuck(head: Watched) -> str | None:
    """The result of the attempts of a line's head. None if the line moves, or that is not known."""
    row = head.row
    over = row.attempts - head.under_way
    if row.stage not in _TO_BE_SENT or over < 1 or (over < FAILED and row.due_in_s < LONG_S):
        return None
    words = head.detail or row.reason
    said = f": {words}" if words else ""
    if row.stage is Stage.SENDING and not head.under_way:
        return f"nobody knows whether attempt {over} arrived{said}"
    return f"attempt {over} did not succeed{said}"


async def _parked(log: LogReader, state: State, lanes: Sequence[LaneNow]) -> list[LineHead]:
    asked = [(lane.key, list(lane.sign.parked)) for lane in lanes if lane.sign is not None and lane.sign.parked][:MOST]
    each = await asyncio.gather(*(state.parked_heads(key, lines) for key, lines in asked))
    found = [
        (line, head)
        for (_, lines), heads in zip(asked, each, strict=True)
        for line, head in zip(lines, heads, strict=True)
        if head is not None and head.behind > 0
    ][:MOST]
    wanted = [(head.at, parked_key(_STAGE, RowKey(line.owner, head.row))) for line, head in found]
    names = await read_each(log, wanted, named)
    return [
        LineHead(line.queue, head.row, *name)._replace(owner=line.owner, behind=head.behind)
        for (line, head), name in zip(found, names, strict=True)
    ]
