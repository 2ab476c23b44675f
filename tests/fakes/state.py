"""The state in memory: every rule of the port, a clock that tests turn, and memory that they can lose."""

import asyncio
import math
import sys
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial

from msgspec.structs import astuple

from relay.domain.errors import StateRecovering
from relay.domain.hold import Hold
from relay.domain.identity import MessageId
from relay.domain.numbering import Numbering
from relay.log.port import TopicPartition
from relay.state.port import (
    Balance,
    Charge,
    Counts,
    EndpointHealth,
    FailedEntry,
    Gap,
    HintTopic,
    Lane,
    LaneEnds,
    Restored,
    UnreleasedReservation,
)
from relay.state.read_model import LaneHeartbeat, Openings, ParkedHead, RowDetails, Served
from relay.state.rows import TAGS, Mark, MessageRow, Parked, RowKey, Stage
from tests.fakes.state_memory import Taken
from tests.fakes.state_numbers import Numbers
from tests.fakes.state_records import Records
from tests.fakes.state_rows import remember
from tests.fakes.state_statistics import StatisticsKept

_NEWEST_FAILED = 10_000
_SIGN_KEPT_S = 7 * 86_400
_KEY_USE_KEPT_S = 400 * 86_400


class MemoryState(StatisticsKept, Records):
    """Implements `relay.state.port.State`."""

    async def start(self) -> None:
        return

    async def problems(self) -> list[str]:
        return []

    async def about(self) -> str:
        return "memory"

    async def time(self) -> float:
        return self.server_now

    async def close(self) -> None:
        return

    # messages, rows, counts
    async def messages(self, ids: Sequence[MessageId]) -> list[MessageRow | None]:
        self._reach_owners(f"s:{one.source_id}" for one in ids)
        return [self._message(one) for one in ids]

    async def remember(self, marks: Sequence[Mark]) -> None:
        self._reach_owners(one.row.owner for one in marks)
        for one in marks:
            tag = self._of(one.row.owner)
            remember(tag.rows, one, self.now, partial(tag.free, now=self.now), tag.lost_at)

    async def parked_total(self) -> Counts:
        return self._parked_of("")

    async def parked_results(self) -> int:
        return self._parked_of("s:").retries

    def intents(self) -> int:
        """Rows with an intent to park."""
        return sum(len(tag.rows.intents) for tag in self._tags)

    def _parked_of(self, owners: str) -> Counts:
        if not any(tag.ready for tag in self._tags):
            self._reach(range(TAGS))
        ready = [tag for tag in self._tags if tag.ready]
        each = [tag.parked(owner) for tag in ready for owner in tag.owners() if owner.startswith(owners)]
        return Counts(sum(one.retries for one in each), sum(one.polls for one in each))

    # owners
    async def epochs(self, lane: Lane, tags: Sequence[int]) -> dict[int, int]:
        self._reach(tags)
        found = {tag: self._tags[tag].lane(lane).fence(lane.epoch, self.now) for tag in tags}
        return {tag: epoch for tag, (epoch, _) in found.items() if epoch >= 0}

    async def begin_anew(self, lane: Lane, seen: Mapping[int, int]) -> bool:
        self._reach(seen)
        done = True
        for tag, epoch in seen.items():
            index = self._tags[tag].lane(lane)
            against, fenced = index.fence(lane.epoch, self.now)
            if fenced and against == epoch:
                index.epoch, index.before, index.before_until = lane.epoch, epoch, self.now + self._window_s
                index.take_back(sys.maxsize, self.now)
            done = done and index.epoch == lane.epoch
        return done

    # who was at what
    async def reserve(self, lane: Lane, before: int) -> UnreleasedReservation | None:
        key = (lane.topic, lane.partition)
        known = self._taken.setdefault(key, Taken(lane.epoch, before, {}))
        if known.epoch is None:
            known.epoch = lane.epoch
        elif known.epoch != lane.epoch:
            known = self._taken[key] = Taken(lane.epoch, before, known.marked, left=known.before, first=before)
        if known.left is None or known.first != before:
            known.before = before
            return None
        known.before = max(before, known.left)
        return UnreleasedReservation(known.left, dict(known.marked))

    async def suspect(self, lane: Lane, offset: int, times: int) -> None:
        taken = self._taken.setdefault((lane.topic, lane.partition), Taken(None, 0, {}))
        if times:
            taken.marked[offset] = times
        else:
            taken.marked.pop(offset, None)

    async def leave(self, lane: Lane) -> None:
        key = (lane.topic, lane.partition)
        if key in self._taken and self._taken[key].epoch == lane.epoch:
            del self._taken[key]

    # life and recovery
    async def lost(self, edition: int = 0) -> frozenset[int]:
        self._outdated = False
        for tag in self._tags:
            is_outdated = bool(tag.ready) and tag.edition < edition
            self._outdated |= is_outdated
            if is_outdated:
                tag.rows.active.clear()
                tag.rows.finished.clear()
                tag.messages.clear()
            if tag.ready is None or is_outdated:
                tag.ready, tag.lost_at, tag.recovery_pass = False, self.now, next(self._pass_numbers)
        self._forgotten = frozenset(number for number, tag in enumerate(self._tags) if not tag.ready)
        return self._forgotten

    async def set_edition(self, edition: int) -> bool:
        for tag in self._tags:
            tag.edition = max(tag.edition, edition)
        return True

    def outdated(self) -> bool:
        return self._outdated

    def forgotten(self) -> frozenset[int]:
        return self._forgotten

    async def restore(self, lane: Lane, parked: Sequence[Parked]) -> list[Restored]:
        return [self._restore(lane, one) for one in parked]

    def _restore(self, lane: Lane, one: Parked) -> Restored:
        tag = self._of(one.row.owner)
        row = tag.rows.load(one.row.digest, self.now)
        if row is not None and (row.generation, row.stage >= Stage.DONE) >= (one.generation, True):
            return Restored.FINISHED
        tag.intend(lane, one.row.digest)
        index = tag.lane(lane)
        later = index.keeps(one.row.digest, one.generation + 1)
        if later or (index.keeps(one.row.digest, one.generation) and index.is_listed(one.row.digest)):
            return Restored.THERE
        is_over = row is not None and row.generation == one.generation and row.stage >= Stage.RESULT
        self._put(tag, lane, replace(one, due_in_s=0.0) if is_over else one)
        return Restored.PUT_BACK

    async def ready(self, tags: Sequence[int], *, in_doubt_s: float, ends: LaneEnds | None = None) -> None:
        missing = frozenset(tag for tag in tags if self._tags[tag].ready is None)
        if missing:
            raise StateRecovering(missing)
        for number, tag in ((number, self._tags[number]) for number in tags):
            if not tag.ready:
                tag.ends = None if ends is None else ends.get(number, {})
                tag.ready, tag.doubt_until = True, max(tag.doubt_until, self.now + in_doubt_s)
                tag.gap = Gap(tag.lost_at, 0.0) if in_doubt_s > 0 else None

    async def number_again(self, numberings: Mapping[str, Numbering]) -> None:
        for owner, numbering in numberings.items():
            numbers = self._of(owner).rows.numbers
            known = numbers.setdefault(owner, Numbers())
            if known.last < numbering.last and not self._of(owner).ready:
                numbers[owner] = Numbers.of(numbering)
                continue
            for gap in numbering.gaps:
                for number in sorted(known.open.intersection(range(gap.first, gap.last + 1))):
                    known.end(number, gap.reason, 0)

    async def numbering(self, owner: str) -> Numbering | None:
        found = self._of(owner).rows.numbers.get(owner)
        return None if found is None or not found.last else found.shown()

    async def gaps(self, tags: Sequence[int]) -> dict[int, Gap]:
        self._reach(tags)
        return {tag: gap for tag in tags if (gap := self._tags[tag].gap) is not None}

    async def close_gaps(self, gaps: Mapping[int, Gap]) -> None:
        self._reach(gaps)
        for number, gap in gaps.items():
            if self._tags[number].gap == gap:
                self._tags[number].gap = None

    async def lease(self, name: str, owner: str, ttl_s: float) -> bool:
        holder, until = self._leases.get(name, (owner, math.inf))
        if holder != owner and until > self.now:
            return False
        self._leases[name] = (owner, self.now + ttl_s)
        return True

    async def release(self, name: str, owner: str | None) -> None:
        if name in self._leases and owner in (None, self._leases[name][0]):
            del self._leases[name]

    # endpoints
    async def endpoints(self, owners: Sequence[str]) -> list[EndpointHealth]:
        self._reach_owners(owners)
        for owner in owners:
            self._of(owner).rows.count_absence(self.now)
        return [self._of(owner).rows.endpoint(owner).health(self.now) for owner in owners]

    async def attend(self, tags: Sequence[int]) -> float:
        for tag in tags:
            rows = self._tags[tag].rows
            rows.count_absence(self.now)
            rows.there_at = self.now
        return self._ahead_s

    async def hold(self, owner: str, hold: Hold) -> bool:
        endpoint, now = self._of(owner).rows.endpoint(owner), self.server_now
        if endpoint.hold is None and hold.reason != "paused" and endpoint.was_resumed(hold.since, now):
            return False
        if endpoint.hold is not None and endpoint.hold.reason == hold.reason != "paused":
            hold = endpoint.hold
        endpoint.keep(hold, max(now, hold.since))
        return True

    async def hold_again(
        self, holds: Mapping[str, Hold], *, tags: Collection[int] = (), before: float = 0.0
    ) -> list[str]:
        refused, now = [], self.server_now
        for owner, hold in holds.items():
            endpoint = self._of(owner).rows.endpoint(owner)
            if endpoint.hold is None and endpoint.was_resumed(hold.since, now):
                refused.append(owner)
            elif endpoint.hold is None or endpoint.decided(now) < hold.since:
                endpoint.keep(hold, hold.since)
        for rows in (self._tags[tag].rows for tag in tags):
            for owner, endpoint in rows.endpoints.items():
                if endpoint.hold is not None and owner not in holds and endpoint.decided(self.server_now) < before:
                    endpoint.resume(self.server_now)
        return refused

    async def resume(self, owner: str) -> None:
        self._of(owner).rows.endpoint(owner).resume(self.server_now)

    async def probe_soon(self, owners: Sequence[str]) -> None:
        for owner in owners:
            with self._waking(owner):
                self._of(owner).rows.endpoint(owner).probe_soon(self.now)

    # intake
    async def charge(self, charges: Sequence[Charge]) -> list[Balance]:
        return [self._charge(one) for one in charges]

    def _charge(self, charge: Charge) -> Balance:
        key = (charge.name, charge.quota.window_s)
        used, ends = self._charged.get(key, (0, 0.0))
        longest = self.server_now + charge.quota.window_s
        used, ends = (0, longest) if ends <= self.server_now else (used, min(ends, longest))
        granted = used + charge.messages <= charge.quota.messages
        if granted:
            used += charge.messages
            self._charged[key] = (used, ends)
        return Balance(granted, max(0, charge.quota.messages - used), ends - self.server_now)

    # for those who only look
    @asynccontextmanager
    async def hints(self, about: HintTopic = "ends") -> AsyncIterator[AsyncIterator[bytes]]:
        listener = asyncio.Queue[bytes]()
        self._listeners[listener] = about
        try:
            yield _all_of(listener)
        finally:
            del self._listeners[listener]

    async def row_details(self, rows: Sequence[RowKey]) -> list[RowDetails]:
        self._reach_owners(row.owner for row in rows)
        return [self._of(row.owner).watched(row.digest, self.now) for row in rows]

    async def openings(self, owners: Sequence[str]) -> list[Openings]:
        self._reach_owners(owners)
        return [self._of(owner).rows.endpoint(owner).openings(self.now) for owner in owners]

    async def use_keys(self, used: Mapping[str, float]) -> None:
        for id, ago_s in used.items():
            self._key_uses[id] = max(self._key_uses.get(id, -math.inf), self.server_now - ago_s)

    async def keys_used(self, ids: Sequence[str]) -> list[float | None]:
        ago = [max(0.0, self.server_now - self._key_uses.get(id, -math.inf)) for id in ids]
        return [ago_s if ago_s < _KEY_USE_KEPT_S else None for ago_s in ago]

    async def keep_heartbeats(self, beats: Sequence[LaneHeartbeat]) -> None:
        at, until = self.server_now, self.now + _SIGN_KEPT_S
        self._signs |= {TopicPartition(beat.topic, beat.partition): (at, until, beat) for beat in beats}

    async def heartbeats(self, lanes: Sequence[TopicPartition]) -> list[Served | None]:
        found = [self._signs.get(lane, (0.0, -math.inf, LaneHeartbeat("", 0))) for lane in lanes]
        return [
            Served(*astuple(sign.content), ago_s=max(0.0, self.server_now - at)) if self.now < until else None
            for at, until, sign in found
        ]

    async def parked_heads(self, lane: TopicPartition, queues: Sequence[tuple[str, bytes]]) -> list[ParkedHead | None]:
        self._reach_owners(owner for owner, _ in queues)
        return [self._of(owner).lane(Lane(*lane, 0)).parked_head(queue) for owner, queue in queues]

    async def oldest_parked(self, limit: int) -> list[tuple[str, ParkedHead]]:
        lanes = [lane for tag in self._tags if tag.ready for lane in tag.lanes.values()]
        found: dict[str, tuple[float, bytes, ParkedHead]] = {}
        for lane in lanes:
            for member, at in lane.first_at.items():
                owner = lane.references[member].row.owner
                one = at, member, ParkedHead(member, lane.references[member].at)
                found[owner] = min(one, found.get(owner, one))
        ranked = sorted(found.items(), key=lambda item: (item[1][0], item[0]))
        return [(owner, head) for owner, (_, _, head) in ranked[:limit]]

    async def forget_endpoint(self, owner: str, lanes: Sequence[Lane] = ()) -> None:
        self._reach_owners([owner])
        tag = self._of(owner)
        tag.rows.endpoints.pop(owner, None)
        self._statistics.pop(owner, None)
        self._responses.pop(owner, None)
        tag.rows.reserved.pop(owner, None)
        tag.rows.numbers.get(owner, Numbers()).gaps.clear()
        for lane in lanes:
            tag.lane(lane).epoch = tag.lane(lane).before = -1

    # failed messages
    async def index_failed(self, entries: Sequence[FailedEntry]) -> None:
        self._reach_owners(f"r:{entry.receiver}" for entry in entries)
        for entry in entries:
            index = self._of(f"r:{entry.receiver}").failed.setdefault(entry.receiver, {})
            index[entry.at] = entry
            if len(index) > _NEWEST_FAILED:
                del index[min(index.values(), key=lambda one: one.failed_at).at]

    async def drop_failed(self, entries: Sequence[FailedEntry]) -> None:
        self._reach_owners(f"r:{entry.receiver}" for entry in entries)
        for entry in entries:
            self._of(f"r:{entry.receiver}").failed.get(entry.receiver, {}).pop(entry.at, None)

    async def failed(self, receiver: str, *, limit: int, before: float | None = None) -> list[FailedEntry]:
        self._reach_owners([f"r:{receiver}"])
        entries = self._of(f"r:{receiver}").failed.get(receiver, {}).values()
        left = (one for one in entries if before is None or one.failed_at <= before)
        return sorted(left, key=lambda one: (one.failed_at, one.at), reverse=True)[:limit]

    async def failed_receivers(self) -> list[str]:
        self._reach(range(TAGS))
        return sorted(receiver for tag in self._tags for receiver, entries in tag.failed.items() if entries)


async def _all_of(listener: asyncio.Queue[bytes]) -> AsyncIterator[bytes]:
    while True:
        yield await listener.get()
