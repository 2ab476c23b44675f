"""Messages with a key that take the place of older ones which were not sent.

The state notes the newest message of each key, whose record its lane has. Then the end of those before it is stored in
their rows, if no attempt of them has begun; their lane writes their dead letters, as for cancelled ones. Nothing is
decided without the rows: another owner of the lane may have sent an older one in the meantime.
"""

from collections.abc import Iterable
from typing import Final

from relay.domain.identity import digest12
from relay.domain.reasons import REPLACED, replaced_detail
from relay.engine.decision import Dead
from relay.engine.work import Seen, row_of
from relay.state.attempts import Change, Settlement
from relay.state.port import State
from relay.state.replies import answered
from relay.state.rows import Result, Row, RowKey, Superseding
from workers.delivery import Delivery

_LATE_S: Final = 3600.0
"""Seconds that a message is remembered beyond the time at which it may be sent, because clocks differ and lanes lag."""


def has_key(work: Delivery) -> bool:
    return work.timing is not None and bool(work.timing.key)


async def supersede(state: State, works: Iterable[tuple[Delivery, Seen]], now: float) -> None:
    """For works of a lane that were just looked up, in their order. `now`: monotonic seconds.

    One that a newer one replaces gets its end, and one that waits for newer ones its due time. Can be repeated.
    """
    keyed = [work for work, seen in works if _registers(work, seen)]
    if not keyed:
        return
    found = await state.supersede(list(map(_superseding, keyed)))
    ends: dict[RowKey, Settlement] = {}
    for work, result in zip(keyed, found, strict=True):
        row = row_of(work)
        if result.by is not None:
            ends[row] = _end(row, result.by, work.hop.accepted_ms)
        for digest in result.replaced:
            older = RowKey(row.owner, digest)
            ends[older] = _end(older, work.hop.delivery.message_id, result.at_ms)
    rows = dict(zip(ends, await answered(state.settle(list(ends.values()))), strict=True)) if ends else {}
    for work, result in zip(keyed, found, strict=True):
        end = _replaced_by(rows.get(row_of(work)))
        if end is not None:
            work.end = end
        elif result.wait_s:
            work.due = max(work.due, now + result.wait_s)


def key_of(work: Delivery) -> bytes:
    """Digest of its key, which messages of other sources do not share."""
    if work.timing is None:
        raise AssertionError("it has no key")
    kind = "window" if work.timing.window else "key"
    return digest12("newest", work.gate, work.hop.delivery.source_id, kind, work.timing.key)


def _registers(work: Delivery, seen: Seen) -> bool:
    """A parked one was registered before, and one that was tried stays as it is."""
    is_new = seen in (Seen.READY, Seen.BEHIND) and work.parked_at is None and not work.attempts and work.end is None
    return is_new and has_key(work) and work.hop.origin is not None


def _superseding(work: Delivery) -> Superseding:
    hop, timing = work.hop, work.timing
    if hop.origin is None or timing is None:
        raise AssertionError("it has no key")
    recorded_ms, age_s = work.record.timestamp_ms, work.receiver.post.retry.max_age
    keep_s = max(0.0, timing.deliver_at - recorded_ms / 1000) + timing.window + age_s + _LATE_S
    place = hop.origin.partition, hop.origin.offset, recorded_ms
    return Superseding(key_of(work), row_of(work), *place, hop.delivery.message_id, keep_s, timing.window)


def _end(row: RowKey, message_id: str, unsent_ms: int) -> Settlement:
    result = Result("dead", reason=REPLACED, detail=replaced_detail(message_id))
    return Settlement(row, 0, b"", Change.RESULT, result=result, unsent_ms=unsent_ms)


def _replaced_by(row: Row | None) -> Dead | None:
    """The end that is stored, if it is this one."""
    result = None if row is None or row.generation else row.result
    return Dead(REPLACED, result.detail or "") if result is not None and result.reason == REPLACED else None
