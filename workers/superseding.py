"""Messages with a key that take the place of older ones which were not sent.

The state notes the newest message of each key, whose record its lane has. Then the end of those before it is stored in
their rows, if no attempt of them has begun; their lane writes their dead letters, as for cancelled ones.
"""

from collections.abc import Iterable, Sequence
from typing import Final

from relay.domain.identity import digest12
from relay.domain.reasons import REPLACED, replaced_detail
from relay.engine.decision import Dead
from relay.engine.work import Seen, row_of
from relay.state.attempts import Change, Settlement
from relay.state.port import State
from relay.state.replies import answered
from relay.state.rows import Result, RowKey, Superseding
from workers.delivery import Delivery

_LATE_S: Final = 3600.0
"""Seconds that a message is remembered beyond the time at which it may be sent, because clocks differ and lanes lag."""


def has_key(work: Delivery) -> bool:
    return work.timing is not None and bool(work.timing.key)


async def supersede(state: State, works: Iterable[tuple[Delivery, Seen]], now: float) -> None:
    """For works of a lane that were just looked up, in their order. `now`: monotonic seconds.

    One that a newer one replaces gets its end, and one that waits for newer ones its due time. Several records of one
    delivery, whose message was sent again, count as one. Can be repeated.
    """
    newest: dict[bytes, list[Delivery]] = {}
    for work, seen in works:
        if not _registers(work, seen):
            continue
        same = newest.setdefault(key_of(work), [])
        if same and row_of(same[0]) != row_of(work):
            if _is_older(work, same[0]):
                work.end = _replaced_by(same[0].hop.delivery.message_id)
                continue
            for older in same:
                older.end = _replaced_by(work.hop.delivery.message_id)
            same.clear()
        same.append(work)
    if not newest:
        return
    found = await state.supersede([_superseding(key, same[0]) for key, same in newest.items()])
    ends: list[Settlement] = []
    for same, result in zip(newest.values(), found, strict=True):
        for work in same:
            if result.by is not None:
                work.end = _replaced_by(result.by)
            elif result.wait_s:
                work.due = max(work.due, now + result.wait_s)
        if result.by is None:
            ends += _ends(row_of(same[0]).owner, result.replaced, same[0].hop.delivery.message_id)
    if ends:
        await answered(state.settle(ends))


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


def _is_older(work: Delivery, other: Delivery) -> bool:
    """Whether its message came first, although its record is behind: it was sent again."""
    here, there = work.hop.origin, other.hop.origin
    return here is not None and there is not None and here[:2] == there[:2] and here.offset < there.offset


def _superseding(key: bytes, work: Delivery) -> Superseding:
    hop, timing = work.hop, work.timing
    if hop.origin is None or timing is None:
        raise AssertionError("it has no key")
    recorded_ms, age_s = work.record.timestamp_ms, work.receiver.post.retry.max_age
    keep_s = max(0.0, timing.deliver_at - recorded_ms / 1000) + timing.window + age_s + _LATE_S
    place = hop.origin.partition, hop.origin.offset, recorded_ms
    return Superseding(key, row_of(work), *place, hop.delivery.message_id, keep_s, timing.window)


def _replaced_by(message_id: str) -> Dead:
    return Dead(REPLACED, replaced_detail(message_id))


def _ends(owner: str, rows: Sequence[bytes], message_id: str) -> list[Settlement]:
    dead = _replaced_by(message_id)
    result = Result("dead", reason=dead.reason, detail=dead.detail)
    return [Settlement(RowKey(owner, row), 0, b"", Change.RESULT, result=result, unsent=True) for row in rows]
