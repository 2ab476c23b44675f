"""Messages that hold up others of their line: heads of order keys that fail again and again. And how long the oldest
parked message of an endpoint has waited."""

import asyncio
from collections.abc import Sequence
from typing import Final, NamedTuple

from relay.domain.errors import InvalidRecord, LogUnavailable
from relay.domain.hop import hop_of
from relay.engine.parked_copy import parked_key, unwrap
from relay.log.port import LogReader, Record, read_each
from relay.state.lanes import LaneNow, waits_of
from relay.state.port import State
from relay.state.read_model import LineHead, ParkedLine, RowDetails, Waiting
from relay.state.rows import RowKey, Stage

MOST_LINES: Final = 200
"""Lines of each kind that are read: those in memory, and those that are parked."""
FAILED: Final = 2
"""Failed attempts of a head from which its line counts as stuck, unless..."""
LONG_S: Final = 60.0
"""... the next attempt is that far off, which makes it stuck after the first failure."""
_STAGE: Final = "to_receiver"
_SENT: Final = (_STAGE, "to_sender")
"""Stages whose parked records wait for an endpoint, and not for its answer."""
_TO_BE_SENT: Final = frozenset({Stage.ENQUEUED, Stage.SENDING})


class StuckLine(NamedTuple):
    """A message that holds up others for `receiver`: `behind` of them at least. `detail`: the result of its attempts,
    in words."""

    receiver: str
    source_id: str
    message_id: str
    behind: int
    detail: str


class ParkedLines(NamedTuple):
    """The first parked messages of order keys, and of endpoints for what needs no order. `heads`: those of
    `to_receiver`. `waiting`: what each is parked for."""

    heads: Sequence[LineHead] = ()
    waiting: Sequence[Waiting] = ()


async def stuck_lines(state: State, lanes: Sequence[LaneNow], parked: Sequence[LineHead]) -> list[StuckLine]:
    """Lines whose head fails again and again; of very many, a part is read. Raises the errors of the state."""
    served = [lane.recent for lane in lanes if lane.stage == _STAGE and lane.recent is not None]
    found = [head for heartbeat in served for head in heartbeat.heads if head.owner][:MOST_LINES]
    found += parked
    rows = [RowKey(head.owner, head.row) for head in found]
    seen = await state.row_details(rows) if rows else []
    reasons = ((head, why_stuck(one)) for head, one in zip(found, seen, strict=True))
    return [
        StuckLine(head.owner[2:], head.source_id, head.message_id, head.behind, why)
        for head, why in reasons
        if why is not None and head.message_id
    ]


def why_stuck(head: RowDetails) -> str | None:
    """The result of the attempts of a line's head. None if the line moves, or if that is unknown."""
    row = head.row
    over = row.attempts - head.under_way
    if row.stage not in _TO_BE_SENT or over < 1 or (over < FAILED and row.due_in_s < LONG_S):
        return None
    words = head.detail or row.reason
    said = f": {words}" if words else ""
    if row.stage is Stage.SENDING and not head.under_way:
        return f"it is unknown whether attempt {over} arrived{said}"
    return f"attempt {over} did not succeed{said}"


async def parked_lines(log: LogReader, state: State, lanes: Sequence[LaneNow]) -> ParkedLines:
    """Of very many lines, those with the most behind them are read. Raises the errors of the two ports."""
    wanted = [
        (lane, list(lane.recent.parked))
        for lane in lanes
        if lane.stage in _SENT and lane.recent is not None and lane.recent.parked
    ][:MOST_LINES]
    each = await asyncio.gather(*(state.parked_heads(lane.key, lines) for lane, lines in wanted))
    found = [
        (lane.stage, line, head)
        for (lane, lines), heads in zip(wanted, each, strict=True)
        for line, head in zip(lines, heads, strict=True)
        if head is not None
    ]
    some = sorted(found, key=lambda one: one[2].behind, reverse=True)[:MOST_LINES]
    for owner, head in await state.oldest_parked(MOST_LINES):
        some.append(("to_sender" if owner.startswith("s:") else _STAGE, ParkedLine(owner, b""), head))
    places = [(head.at, parked_key(stage, RowKey(line.owner, head.row))) for stage, line, head in some]
    copies = await read_each(log, places, original_of)
    heads = [
        LineHead(line.queue, head.row, *names_of(original), owner=line.owner, behind=head.behind)
        for (stage, line, head), original in zip(some, copies, strict=True)
        if stage == _STAGE
    ]
    waits = [
        waits_of(original).get(stage)
        for (stage, _, _), original in zip(some, copies, strict=True)
        if original is not None
    ]
    return ParkedLines(heads, [one for one in waits if one is not None])


def original_of(copy: Record | None) -> Record | None:
    """The record of a parked copy, without its value; None if it has just gone."""
    try:
        return None if copy is None else unwrap(copy).record.changed(value=None)
    except (InvalidRecord, LogUnavailable):  # LogUnavailable: a newer release has written it
        return None


def names_of(original: Record | None) -> tuple[str, str]:
    """Source and message of a parked record; empty if it has just gone."""
    hop = None if original is None else hop_of(original.headers)
    return ("", "") if hop is None else hop.delivery[1:]
