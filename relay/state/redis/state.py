"""The state on Redis or Valkey: one script call per batch, for all its hash tags."""

from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager

from relay.domain.coordinate import coordinate_text
from relay.domain.hold import Hold
from relay.domain.incident import Incident, PersonMark, Verb
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
    StoredIncidents,
    UnreleasedReservation,
)
from relay.state.read_model import (
    LaneHeartbeat,
    LastAttempt,
    LastResponse,
    Openings,
    ParkedHead,
    RowDetails,
    Served,
    Statistics,
    Tally,
)
from relay.state.redis import wire
from relay.state.redis.calls import Decode, decode_texts
from relay.state.redis.problems import about_servers, check, problems_of
from relay.state.redis.record_wire import (
    decode_numberings,
    decode_raws,
    encode,
    encode_numbering,
    encode_parked,
    lane_key,
    ms,
    raw,
)
from relay.state.redis.records import A, Records, T, TagBatch, bools, counts, digests, numbers, of_rows
from relay.state.redis.servers import hints
from relay.state.redis.shared import Part
from relay.state.replies import REFUSALS, refused
from relay.state.rows import TAGS, Parked, RowKey, tag_of

_ALL_OF_TAG, _ITS_SOURCES = "", "s:"
_TAG_OF_INCIDENTS = tag_of("incidents")
_RESTORED = (Restored.FINISHED, Restored.THERE, Restored.PUT_BACK)


def _tag_of_lane(lane: Lane | TopicPartition | LaneHeartbeat) -> int:
    return tag_of(f"l:{lane_key(lane)}")


def _tag_of_key(id: str) -> int:
    return tag_of(f"k:{id}")


class RedisState(Records):
    """Implements `relay.state.port.State`."""

    async def start(self) -> None:
        await check(self._servers, self._calls.spare_key)

    async def problems(self) -> list[str]:
        return await problems_of(self._servers)

    async def about(self) -> str:
        return await about_servers(self._servers)

    async def time(self) -> float:
        return await self._calls.time()

    async def close(self) -> None:
        await self._servers.close()

    # messages, rows, counts
    async def parked_total(self) -> Counts:
        return await self._parked_of_each_tag(_ALL_OF_TAG)

    async def parked_results(self) -> int:
        return (await self._parked_of_each_tag(_ITS_SOURCES)).retries

    async def _parked_of_each_tag(self, owners: str) -> Counts:
        replies = await self._calls.try_run("parked", _to_each(range(TAGS), encode([owners])), counts)
        found = [count for part in replies if not isinstance(part, REFUSALS) for count in part]
        if not found:
            raise refused([part for part in replies if isinstance(part, REFUSALS)])
        return Counts(sum(one.retries for one in found), sum(one.polls for one in found))

    # owners
    async def epochs(self, lane: Lane, tags: Sequence[int]) -> dict[int, int]:
        found = await self._calls.run("epochs", _to_each(tags, encode((lane_key(lane), lane.epoch))), numbers)
        return {tag: highest for tag, numbers in zip(tags, found, strict=True) for highest in numbers}

    async def begin_anew(self, lane: Lane, seen: Mapping[int, int]) -> bool:
        parts = [(tag, encode((lane_key(lane), lane.epoch, epoch))) for tag, epoch in seen.items()]
        done = await self._calls.run("begin_anew", parts, bools)
        return all(is_lanes for (is_lanes,) in done)

    # records being processed
    async def reserve(self, lane: Lane, before: int) -> UnreleasedReservation | None:
        part = _tag_of_lane(lane), encode((lane_key(lane), lane.epoch, before))
        (found,) = await self._calls.run("reserve", [part], numbers)
        return UnreleasedReservation(found[0], dict(zip(found[1::2], found[2::2], strict=True))) if found else None

    async def suspect(self, lane: Lane, offset: int, times: int) -> None:
        part = _tag_of_lane(lane), encode((lane_key(lane), offset, times))
        await self._calls.run("suspect", [part], numbers)

    async def leave(self, lane: Lane) -> None:
        part = _tag_of_lane(lane), encode((lane_key(lane), lane.epoch))
        await self._calls.run("leave", [part], numbers)

    # life and recovery
    async def lost(self, edition: int = 0) -> frozenset[int]:
        """Start a recovery pass, to which later calls of `restore` and `ready` belong.

        If a tag's memory is lost again before the pass has ended, they raise StateRecovering for it: start again.
        """
        return await self._calls.lost(edition)

    async def set_edition(self, edition: int) -> bool:
        replies = await self._calls.try_run("set_edition", _to_each(range(TAGS), b"%d" % edition), numbers)
        refusals = [reply for reply in replies if not isinstance(reply, list)]
        if len(refusals) == len(replies):
            raise refused(refusals)
        return not refusals

    def forgotten(self) -> frozenset[int]:
        return self._calls.forgotten

    def outdated(self) -> bool:
        return self._calls.outdated

    async def restore(self, lane: Lane, parked: Sequence[Parked]) -> list[Restored]:
        batch = of_rows(parked)
        parts = [
            (
                tag,
                encode((lane_key(lane), self._calls.pass_of(tag), digests(part), list(map(encode_parked, part)))),
            )
            for tag, part in batch.parts()
        ]
        return batch.join(await self._calls.run("restore", parts, numbers), _RESTORED.__getitem__)

    async def ready(self, tags: Sequence[int], *, in_doubt_s: float, ends: LaneEnds | None = None) -> None:
        in_doubt_ms = round(in_doubt_s * 1000)
        arguments = {tag: None if ends is None else wire.encode_ends(ends.get(tag, {})) for tag in tags}
        parts = [(tag, encode((self._calls.pass_of(tag), in_doubt_ms, arguments[tag]))) for tag in tags]
        await self._calls.run("ready", parts, numbers)

    async def number_again(self, numberings: Mapping[str, Numbering]) -> None:
        batch = TagBatch(list(numberings.items()), [tag_of(owner) for owner in numberings])
        parts = [(tag, encode([(owner, encode_numbering(one)) for owner, one in part])) for tag, part in batch.parts()]
        await self._calls.run("number_again", parts, numbers)

    async def numbering(self, owner: str) -> Numbering | None:
        (found,) = await self._calls.run("numbering", [(tag_of(owner), owner.encode())], decode_numberings)
        return found[0].numbering() if found else None

    async def gaps(self, tags: Sequence[int]) -> dict[int, Gap]:
        found = await self._calls.run("gaps", _to_each(tags, b""), numbers)
        return {tag: Gap(said[0] / 1000, said[1] / 1000) for tag, said in zip(tags, found, strict=True) if said}

    async def close_gaps(self, gaps: Mapping[int, Gap]) -> None:
        parts = [(tag, encode([round(gap.since * 1000)])) for tag, gap in gaps.items()]
        await self._calls.run("close_gap", parts, numbers)

    async def lease(self, name: str, owner: str, ttl_s: float) -> bool:
        part = tag_of(f"l:{name}"), encode((name, owner, max(1, round(ttl_s * 1000))))
        ((holds,),) = await self._calls.run("lease", [part], bools)
        return holds

    async def release(self, name: str, owner: str | None) -> None:
        await self._calls.run("release", [(tag_of(f"l:{name}"), encode((name, owner)))], numbers)

    # endpoints
    async def _of_owners(
        self, name: str, owners: Sequence[str], decode: Decode[T], translate: Callable[[T], A]
    ) -> list[A]:
        """The reply of script `name` for each owner."""
        batch = TagBatch(owners, [tag_of(owner) for owner in owners])
        parts = [(tag, encode(part)) for tag, part in batch.parts()]
        return batch.join(await self._calls.run(name, parts, decode), translate)

    async def endpoints(self, owners: Sequence[str]) -> list[EndpointHealth]:
        return await self._of_owners("endpoints", owners, wire.decode_health, wire.WireHealth.health)

    async def attend(self, tags: Sequence[int]) -> float:
        found = await self._calls.run("attend", _to_each(tags, b""), numbers)
        return max((ahead_ms for arguments in found for ahead_ms in arguments), default=0) / 1000

    async def hold(self, owner: str, hold: Hold) -> bool:
        arguments = encode(([wire.encode_hold(owner, hold)], 0, 0))
        [refused] = await self._calls.run("hold", [(tag_of(owner), arguments)], numbers)
        return not refused

    async def hold_again(
        self, holds: Mapping[str, Hold], *, tags: Collection[int] = (), before: float = 0.0
    ) -> list[str]:
        parts = dict(TagBatch(list(holds.items()), [tag_of(owner) for owner in holds]).parts())
        concerned = sorted({*parts, *tags})
        arguments = [
            ([wire.encode_hold(owner, hold) for owner, hold in parts.get(tag, ())], 1, ms(before) * (tag in tags))
            for tag in concerned
        ]
        replies = await self._calls.run("hold", list(zip(concerned, map(encode, arguments), strict=True)), numbers)
        return [parts[tag][place][0] for tag, refused in zip(concerned, replies, strict=True) for place in refused]

    async def resume(self, owner: str) -> None:
        await self._calls.run("resume", [(tag_of(owner), owner.encode())], numbers)

    async def probe_soon(self, owners: Sequence[str]) -> None:
        parts = TagBatch(owners, [tag_of(owner) for owner in owners]).parts()
        await self._calls.run("probe_soon", [(tag, encode(part)) for tag, part in parts], numbers)

    # quotas
    async def charge(self, charges: Sequence[Charge]) -> list[Balance]:
        batch = TagBatch(charges, [tag_of(one.name) for one in charges])
        parts = [(tag, encode(list(map(wire.encode_charge, part)))) for tag, part in batch.parts()]
        return batch.join(await self._calls.run("charge", parts, wire.decode_balances), wire.WireBalance.balance)

    # keys of the API
    async def use_keys(self, used: Mapping[str, float]) -> None:
        parts = TagBatch(list(used.items()), [_tag_of_key(id) for id in used]).parts()
        arguments = [(tag, encode([(id, round(ago_s * 1000)) for id, ago_s in part])) for tag, part in parts]
        await self._calls.run("use_keys", arguments, numbers)

    async def keys_used(self, ids: Sequence[str]) -> list[float | None]:
        batch = TagBatch(ids, [_tag_of_key(id) for id in ids])
        parts = [(tag, encode(part)) for tag, part in batch.parts()]
        found = await self._calls.run("keys_used", parts, numbers)
        return batch.join(found, lambda ago_ms: None if ago_ms < 0 else ago_ms / 1000)

    # statistics
    async def tally(self, writer: str, number: int, tallies: Sequence[Tally]) -> None:
        parts = TagBatch(tallies, [tag_of(one.owner) for one in tallies]).parts()
        arguments = [(tag, encode((writer, number, list(map(wire.encode_tally, part))))) for tag, part in parts]
        await self._calls.run("tally", arguments, numbers)

    async def statistics(self, owners: Sequence[str]) -> list[Statistics]:
        return await self._of_owners("statistics", owners, wire.decode_statistics, wire.WireStatistics.statistics)

    async def last_attempts(self, owners: Sequence[str]) -> list[LastAttempt | None]:
        return await self._of_owners("last_attempts", owners, decode_raws, wire.last_attempt)

    async def last_response(self, owner: str) -> LastResponse | None:
        [found] = await self._calls.run("last_response", [(tag_of(owner), encode([owner]))], decode_raws)
        return wire.last_response(found[0]) if found else None

    # incidents
    async def incidents(self) -> StoredIncidents:
        [found] = await self._calls.run("incidents", [(_TAG_OF_INCIDENTS, b"")], decode_raws)
        return wire.stored_incidents(found)

    async def keep_incidents(self, kept: Sequence[Incident], dropped: Sequence[str] = ()) -> None:
        await self._write_incidents(kept, dropped, ())

    async def add_incidents(self, new: Sequence[Incident]) -> None:
        await self._write_incidents((), (), new)

    async def _write_incidents(self, kept: Sequence[Incident], dropped: Sequence[str], new: Sequence[Incident]) -> None:
        arguments = [list(map(wire.encode_incident, kept)), list(dropped), list(map(wire.encode_incident, new))]
        await self._calls.run("keep_incidents", [(_TAG_OF_INCIDENTS, encode(arguments))], numbers)

    async def keep_waiting(self, since: Mapping[str, float]) -> None:
        await self._calls.run("keep_waiting", [(_TAG_OF_INCIDENTS, encode(raw(encode(since))))], numbers)

    async def waiting(self) -> dict[str, float]:
        [found] = await self._calls.run("waiting", [(_TAG_OF_INCIDENTS, b"")], decode_raws)
        return wire.waiting(found)

    async def mark_incident(self, id: str, verb: Verb, mark: PersonMark) -> PersonMark:
        part = _TAG_OF_INCIDENTS, encode(wire.encode_mark(id, verb, mark))
        [[found]] = await self._calls.run("mark_incident", [part], decode_raws)
        return wire.mark_of(found)

    # read-only queries
    def hints(self, about: HintTopic = "ends") -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        return hints(self._servers, self._calls.channels(about))

    async def row_details(self, rows: Sequence[RowKey]) -> list[RowDetails]:
        batch = TagBatch(rows, [tag_of(row.owner) for row in rows])
        parts = [(tag, b"".join(row.digest for row in part)) for tag, part in batch.parts()]
        return batch.join(
            await self._calls.run("row_details", parts, wire.decode_row_details), wire.WireRowDetails.details
        )

    async def openings(self, owners: Sequence[str]) -> list[Openings]:
        return await self._of_owners("openings", owners, wire.decode_openings, wire.WireOpenings.openings)

    async def keep_heartbeats(self, beats: Sequence[LaneHeartbeat]) -> None:
        parts = TagBatch(beats, list(map(_tag_of_lane, beats))).parts()
        await self._calls.run(
            "sign", [(tag, encode(list(map(wire.encode_heartbeat, part)))) for tag, part in parts], numbers
        )

    async def heartbeats(self, lanes: Sequence[TopicPartition]) -> list[Served | None]:
        batch = TagBatch(lanes, list(map(_tag_of_lane, lanes)))
        parts = [(tag, encode(list(map(lane_key, part)))) for tag, part in batch.parts()]
        return batch.join(await self._calls.run("signs", parts, wire.decode_served), wire.served_of)

    async def parked_heads(self, lane: TopicPartition, queues: Sequence[tuple[str, bytes]]) -> list[ParkedHead | None]:
        batch = TagBatch(queues, [tag_of(owner) for owner, _ in queues])
        parts = [(tag, encode((lane_key(lane), [raw(queue) for _, queue in part]))) for tag, part in batch.parts()]
        found = await self._calls.run("parked_heads", parts, wire.decode_parked_heads)
        return batch.join(found, wire.parked_head_of)

    async def oldest_parked(self, limit: int) -> list[tuple[str, ParkedHead]]:
        replies = await self._calls.try_run("oldest_parked", _to_each(range(TAGS), encode([limit])), wire.decode_oldest)
        found = [one for part in replies if not isinstance(part, REFUSALS) for one in part]
        found.sort(key=lambda one: (-one.ago_ms, one.owner))
        return [(one.owner, wire.oldest_parked_of(one)) for one in found[:limit]]

    async def forget_endpoint(self, owner: str, lanes: Sequence[Lane] = ()) -> None:
        arguments = encode((owner, [lane_key(lane) for lane in lanes]))
        await self._calls.run("forget_endpoint", [(tag_of(owner), arguments)], numbers)

    # failed messages
    async def index_failed(self, entries: Sequence[FailedEntry]) -> None:
        parts = _of_failed(entries).parts()
        await self._calls.run(
            "index_failed", [(tag, encode(list(map(wire.encode_failed, part)))) for tag, part in parts], numbers
        )

    async def drop_failed(self, entries: Sequence[FailedEntry]) -> None:
        parts = _of_failed(entries).parts()
        arguments = [
            (tag, encode([(entry.receiver, coordinate_text(entry.at)) for entry in part])) for tag, part in parts
        ]
        await self._calls.run("drop_failed", arguments, numbers)

    async def failed(self, receiver: str, *, limit: int, before: float | None = None) -> list[FailedEntry]:
        newer = "" if before is None else f"({before!r}"
        part = tag_of(f"r:{receiver}"), encode((receiver, limit, newer))
        (found,) = await self._calls.run("failed", [part], decode_raws)
        return list(map(wire.entry_of, found))

    async def failed_receivers(self) -> list[str]:
        found = await self._calls.run("failed_receivers", _to_each(range(TAGS), b""), decode_texts)
        return sorted(receiver for receivers in found for receiver in receivers)


def _to_each(tags: Iterable[int], arguments: bytes) -> list[Part]:
    return [(tag, arguments) for tag in tags]


def _of_failed(entries: Sequence[FailedEntry]) -> TagBatch[int, FailedEntry]:
    return TagBatch(entries, [tag_of(f"r:{entry.receiver}") for entry in entries])
