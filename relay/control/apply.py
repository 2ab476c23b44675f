"""Applies a receivers file to the topic `receiver_config`: for `relay receivers apply`, and at every start."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Final, Self

from relay.config.problems import raise_all
from relay.config.receivers_file import Raw, ReceiversFile
from relay.config.redacted_entry import FieldChange, field_changes
from relay.control.records import (
    Declarations,
    EntryRecord,
    Topic,
    lane_of_entry,
    partitions_of_entry,
    read_topic,
    source_key,
)
from relay.domain.control_key import ControlKey, control_key, encode_value
from relay.domain.errors import UserError
from relay.domain.receiver import LaneKind
from relay.domain.route import LaneRoute, next_move
from relay.domain.topics import SHARED, Topics
from relay.log.port import Log, NewRecord

FILE: Final = "file"
"""Origin of an entry from a receivers file."""
API: Final = "api"
"""Origin of an entry from the HTTP API, which no file changes or removes."""
LEASE: Final = "receivers-file"
"""Lease of the only process that changes entries."""
_AT_ONCE: Final = 500
"""Records appended at a time, and maximum number of receivers compared without a thread."""
_IN_WORDS: Final[Mapping[LaneKind, str]] = {"dedicated": "its own lane", "shared": "the shared lane"}


@dataclass(frozen=True, slots=True)
class Diff:
    """Keys of added, changed and removed entries: receivers' names, and `source:<id>`; each sorted. `refused`: entries
    of the file whose name was registered over the API."""

    added: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.added or self.changed or self.removed)

    def __or__(self, other: Self) -> Self:
        """The keys of both."""
        return type(self)(
            *(tuple(sorted({*ours, *theirs})) for ours, theirs in zip(self._keys(), other._keys(), strict=True))
        )

    def _keys(self) -> tuple[tuple[str, ...], ...]:
        return self.added, self.changed, self.removed, self.refused


Decided = Callable[[Diff], Awaitable[None]]
"""Runs before the records of a difference are appended, if nothing is wrong with them."""


async def apply_file(
    log: Log,
    file: ReceiversFile,
    topics: Topics,
    *,
    prune: bool = False,
    there: Topic | None = None,
    decided: Decided | None = None,
    announced: Callable[[int], None] = lambda _records: None,
) -> Diff:
    """Append the difference between `file` and the topic, after creating the topics of receivers that need one.

    Entries that are neither in the file nor declared by a file stay. Idempotent: a second call completes an interrupted
    first one. A receiver that changes its lane, or gets more partitions, then moves without further help. Raises
    UserError, before any change, if a topic has more partitions than the file says, or, without `prune`, if no receiver
    would be left.

    `there`: the current content of the topic, if known. `announced`: called repeatedly with the number of records
    appended so far.
    """
    await log.create([spec for spec in topics.fixed() if spec.name == topics.receiver_config], {})
    if there is None:
        there = await read_topic(log, topics)
    wanted, diff = await _compared(there, file)
    if not prune and (why := _emptied(file, diff)) is not None:
        raise UserError(why)
    await publish_changes(log, topics, there, wanted, diff, origin=file.origin, decided=decided, announced=announced)
    return diff


async def publish_changes(
    log: Log,
    topics: Topics,
    there: Topic,
    wanted: Mapping[str, EntryRecord],
    diff: Diff,
    *,
    origin: str,
    says: str = "the file",
    decided: Decided | None = None,
    announced: Callable[[int], None] = lambda _records: None,
) -> None:
    """Append the records of `diff`, after creating the topics of receivers that need one. `there`, `announced`: as for
    `apply_file`. Raises UserError, which names `origin`, if a topic has more partitions than `says` declares."""
    sizes = await _ensure_topics(log, topics, wanted, [*diff.added, *diff.changed], origin, says)
    if decided is not None:
        await decided(diff)
    records, count = _records(topics, there, wanted, diff, sizes), 0
    while some := list(islice(records, _AT_ONCE)):
        await log.append(some)
        announced(count := count + len(some))


def refusal_of(key: str) -> str:
    """The error text for a key in `Diff.refused`."""
    return f"{key} was registered over the API and stays as it is; delete it there first, or use another name"


@dataclass(frozen=True, slots=True)
class ApplyPreview:
    """The changes that applying a receivers file would make. `fields`: changed fields of each key. `refusal`: why
    nothing would be applied; None if it would be."""

    diff: Diff
    fields: Mapping[str, Sequence[FieldChange]]
    refusal: str | None = None


async def preview_file(log: Log, file: ReceiversFile, topics: Topics, *, prune: bool = False) -> ApplyPreview:
    """The changes that `apply_file` would make."""
    exists = await log.describe([topics.receiver_config])
    if not exists:
        return ApplyPreview(compare(None, _wanted(file)), {})
    there = await read_topic(log, topics)
    wanted, diff = await _compared(there, file)
    fields = {key: field_changes(there.declared[key].entry, wanted[key].entry) for key in diff.changed}
    return ApplyPreview(diff, fields, None if prune else _emptied(file, diff))


async def awaited(log: Log, topics: Topics) -> dict[str, str]:
    """Descriptions of pending changes by receiver: what has to end before the declared settings are in effect."""
    there = await read_topic(log, topics)
    found = {}
    for name in there.routes.all().keys() | there.routes.hot.keys():
        declared = there.declared.get(name)
        if declared is None:
            continue
        route = there.routes.current(name, lane_of_entry(declared.entry))
        if (text := _awaited(name, route, *there.wanted_lane(name, declared.entry))) is not None:
            found[name] = text
    for name in (name for name in there.routes.removed if name not in there.declared):
        found[name] = "is removed; its lanes continue until its last messages have ended"
    return dict(sorted(found.items()))


def _awaited(name: str, route: LaneRoute, wanted: LaneKind, partitions: int) -> str | None:
    following = next_move(route, wanted, partitions)
    lane = route.lane if route.moving else following and following[0]
    if lane is None:
        return None
    grows = wanted == "dedicated" and partitions > route.partitions
    if grows and route.left and not route.moving and lane == wanted:
        return f"gets {partitions} partitions once the pending answers in its own lane have arrived"
    new, old = (_IN_WORDS[lane], _IN_WORDS["shared" if lane == "dedicated" else "dedicated"])
    text = f"moves from {old} to {new}, which starts once {old} has finished its messages of {name}"
    if grows:
        text += f"; it returns with {partitions} partitions instead of {route.partitions}"
    held_back = lane != wanted and not route.moving  # the shared lane must not get more than it may park
    return "waits until its backlog fits into a quarter of its limit of parked messages; then it " * held_back + text


async def _compared(there: Topic, file: ReceiversFile) -> tuple[Mapping[str, EntryRecord], Diff]:
    """The entries of the file, and their difference to the topic."""

    def compared() -> tuple[Mapping[str, EntryRecord], Diff]:
        wanted = _wanted(file)
        return wanted, compare(there.declared, wanted)

    if len(file.receivers) <= _AT_ONCE:
        return compared()
    return await asyncio.to_thread(compared)  # takes seconds for thousands of receivers


def compare(current: Declarations | None, wanted: Mapping[str, EntryRecord]) -> Diff:
    """The difference between two sets of entries. A file's entry replaces one of the same key unless that is the
    API's."""
    if current is None:
        return Diff(added=tuple(sorted(wanted)))
    former = {key: current.get(key) for key in wanted}
    refused = tuple(sorted(key for key, each in former.items() if each is not None and each.by == API))
    former = {key: each for key, each in former.items() if each is None or each.by != API}
    return Diff(
        added=tuple(sorted(key for key, each in former.items() if each is None)),
        changed=tuple(sorted(key for key, each in former.items() if each is not None and each != wanted[key])),
        removed=tuple(sorted(key for key in current.by(FILE) if key not in wanted)),
        refused=refused,
    )


def _wanted(file: ReceiversFile) -> dict[str, EntryRecord]:
    sealed = file.sealed
    receivers = {name: EntryRecord(FILE, raw) for name, raw in sealed.receivers.items()}
    return receivers | {source_key(source_id): EntryRecord(FILE, raw) for source_id, raw in sealed.sources.items()}


def _emptied(file: ReceiversFile, diff: Diff) -> str | None:
    """Why an empty file is rejected: one emptied by an editor, a full disk or a wrong mount would remove all
    receivers."""
    removed = [key for key in diff.removed if control_key(key).kind == "receiver"]
    if not (removed and file.is_empty):
        return None
    return (
        f"{file.origin}: has no receivers, which would remove all {len(removed)} that are in effect; "
        f"if that is intended, run `relay receivers apply --prune`"
    )


def _records(
    topics: Topics, there: Topic, wanted: Mapping[str, EntryRecord], diff: Diff, sizes: Mapping[str, int]
) -> Iterator[NewRecord]:
    """Records in order: routes before entries, so that a process that reads an entry's new lane already knows the
    old."""
    topic = topics.receiver_config
    for name in filter(_is_receiver, (*diff.added, *diff.changed)):
        route = _route(there, name, wanted[name].entry, sizes.get(name))
        if route != there.routes.route(name):
            yield NewRecord(topic, ControlKey("route", name).encode(), encode_value(route))
    for name in filter(_is_receiver, diff.removed):
        yield NewRecord(topic, ControlKey("removed", name).encode(), there.declared[name].encode())
    for name in filter(_is_receiver, diff.added):
        if wanted[name].entry.get("verification", "none") != "none":  # an earlier proof belongs to another receiver
            yield NewRecord(topic, ControlKey("verification", name).encode(), None)
    for key in (*diff.added, *diff.changed):
        yield NewRecord(topic, key.encode(), wanted[key].encode())
    for key in diff.removed:
        yield NewRecord(topic, key.encode(), None)
    for name in (each for each in diff.added if each in there.routes.removed):
        yield NewRecord(topic, ControlKey("removed", name).encode(), None)


def _is_receiver(key: str) -> bool:
    return control_key(key).kind == "receiver"


def _route(there: Topic, name: str, wanted: Raw, size: int | None) -> LaneRoute:
    """The route that keeps the current lane in effect when the entry changes. `size`: partitions of its own topics."""
    known, former = there.routes.route(name), there.former(name)
    if name in there.routes.unreadable:
        return known
    if former is None and known.lane is None:
        return known if size is None or size >= partitions_of_entry(wanted) else _pinned(known, wanted, size)
    if former is not None and name not in there.declared:
        # another process may be completing its removal: a new life makes that process's records void
        return replace(_pinned(known, former.entry, size), life=known.life + 1)
    pinned = _pinned(known, former.entry if former is not None else wanted, size)
    return known if next_move(pinned, lane_of_entry(wanted), partitions_of_entry(wanted)) is None else pinned


def _pinned(known: LaneRoute, entry: Raw, size: int | None) -> LaneRoute:
    if known.lane is not None:
        return known
    partitions = partitions_of_entry(entry)
    return replace(known, lane=lane_of_entry(entry), partitions=min(partitions, size or partitions))


async def _ensure_topics(
    log: Log, topics: Topics, wanted: Mapping[str, EntryRecord], keys: Iterable[str], origin: str, says: str
) -> dict[str, int]:
    """Create the receivers' own topics. Returns the number of partitions of each receiver's topics, at most the
    declared number."""
    own = [name for name in filter(_is_receiver, keys) if lane_of_entry(wanted[name].entry) != SHARED]
    if not own:
        return {}
    specs = {name: topics.lane_specs(name, partitions_of_entry(wanted[name].entry)) for name in own}
    groups = {topic: group for name in own for topic, group in topics.lane_groups(name).items()}
    await log.create([spec for of_one in specs.values() for spec in of_one], groups)
    states = await log.describe(list(groups))
    sizes = {topic: state.spec.partitions for topic, state in states.items()}
    raise_all(
        f"{origin}: receivers.{name}.partitions: topic {spec.name} has {sizes[spec.name]} partitions, {says} "
        f"says {spec.partitions}, and none can be removed: write partitions: {sizes[spec.name]}, or lane: shared"
        for name, of_one in specs.items()
        for spec in of_one
        if sizes.get(spec.name, 0) > spec.partitions
    )
    return {name: min(sizes.get(spec.name, spec.partitions) for spec in of_one) for name, of_one in specs.items()}
