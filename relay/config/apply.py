"""Makes the log's `receiver_config` say what a receivers file says: `relay receivers apply`, and every start."""

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final, Literal

from relay.config.problems import raise_all
from relay.config.receivers_file import Raw, ReceiversFile, raw_entry
from relay.config.topic import Declared, Topic, lane_of_entry, read_topic, source_key
from relay.domain.errors import NotYet, UserError
from relay.domain.receiver import LaneKind
from relay.domain.route import Route, removed_key, route_key
from relay.domain.topics import SHARED, Topics, TopicSpec
from relay.log.port import Log, NewRecord

FILE: Final = "file"
"""Who declared an entry, when a receivers file did."""
_IN_WORDS: Final[Mapping[LaneKind, str]] = {"dedicated": "its own lane", "shared": "the shared lane"}
Unfinished = Callable[[str, str], Awaitable[int]]
"""How many messages of a receiver are unread or parked in a lane: its own, or the shared one."""


@dataclass(frozen=True, slots=True)
class Diff:
    """Keys of what was added, changed and removed: receivers' names, and `source:<id>`; each sorted."""

    added: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.added or self.changed or self.removed)


async def apply_file(
    log: Log, file: ReceiversFile, topics: Topics, unfinished: Unfinished, *, prune: bool = False
) -> Diff:
    """Append the difference between `file` and the topic, after creating the topics of receivers that need one.

    What the file does not mention, and no file declared, is left alone. Repeatable at any point: a second call does
    what a first one did not get to. A receiver that changes its lane moves from then on, by itself. Raises, having
    announced nothing: NotYet when a receiver changes its partitions while its lane has something to do; UserError when
    a topic has other partitions than the file says, or, without `prune`, when no receiver would be left.
    """
    await log.create([spec for spec in topics.fixed() if spec.name == topics.receiver_config], {})
    there = await read_topic(log, topics)
    wanted = _wanted(file)
    diff = compare(there.declared, wanted)
    if not prune:
        _refuse_emptied(file, diff)
    await _refuse_undrained(unfinished, file, [(name, there.declared[name].entry) for name in diff.changed])
    await _ensure_topics(log, topics, file, [*diff.added, *diff.changed])
    if diff:
        await log.append(list(_records(topics, there, wanted, diff)))
    return diff


async def preview_file(log: Log, file: ReceiversFile, topics: Topics) -> Diff:
    """What `apply_file` would do, without doing it."""
    exists = await log.describe([topics.receiver_config])
    return compare((await read_topic(log, topics)).declared if exists else {}, _wanted(file))


async def awaited(log: Log, topics: Topics) -> dict[str, str]:
    """By receiver, what has to end before what is declared is in force: for people. Empty: nothing."""
    there = await read_topic(log, topics)
    found = {}
    for name, route in there.routes.all().items():
        declared = there.declared.get(name)
        if declared is None or route.lane is None:
            continue
        if route.moving or route.lane != lane_of_entry(declared.entry):
            old, new = (_IN_WORDS[lane] for lane in _ends(route, lane_of_entry(declared.entry)))
            found[name] = f"moves from {old} to {new}, which begins when {old} has finished what it has of {name}"
    for name in there.routes.removed.keys() - there.declared.keys():
        found[name] = "is removed; its lanes run on until nothing of it is left"
    return dict(sorted(found.items()))


def _ends(route: Route, wanted: LaneKind) -> tuple[LaneKind, LaneKind]:
    """From where to where it moves now, or will next."""
    new = route.lane if route.moving and route.lane is not None else wanted
    return ("shared" if new == "dedicated" else "dedicated"), new


def compare(current: Mapping[str, Declared], wanted: Mapping[str, Declared]) -> Diff:
    """What leads from one to the other. What a file declares wins over the same key declared by anybody else."""
    return Diff(
        added=tuple(sorted(wanted.keys() - current.keys())),
        changed=tuple(sorted(key for key in wanted.keys() & current.keys() if wanted[key] != current[key])),
        removed=tuple(sorted(key for key in current.keys() - wanted.keys() if current[key].by == FILE)),
    )


def _wanted(file: ReceiversFile) -> dict[str, Declared]:
    sealed = file.sealed()
    receivers = {name: Declared(FILE, raw) for name, raw in sealed.receivers.items()}
    return receivers | {source_key(source_id): Declared(FILE, raw) for source_id, raw in sealed.sources.items()}


def _refuse_emptied(file: ReceiversFile, diff: Diff) -> None:
    """A file that an editor, a full disk or a wrong mount has emptied is valid, and would remove everybody."""
    removed = [key for key in diff.removed if not key.startswith(source_key(""))]
    if removed and file.is_empty:
        raise UserError(
            f"{file.origin}: has no receivers, which would remove all {len(removed)} that are in force; "
            f"if that is meant, run `relay receivers apply --prune`"
        )


def _records(topics: Topics, there: Topic, wanted: Mapping[str, Declared], diff: Diff) -> Iterator[NewRecord]:
    """What is to stay in force goes before the entries: whoever reads an entry's new lane knows the old one already."""
    topic = topics.receiver_config
    for name in (each for each in (*diff.added, *diff.changed) if not each.startswith(source_key(""))):
        known, former = there.routes.route(name), there.former(name)
        route = known if former is None else _route(known, former.entry, wanted[name].entry)
        if route != known:
            yield NewRecord(topic, route_key(name).encode(), route.encode())
    for name in (each for each in diff.removed if not each.startswith(source_key(""))):
        yield NewRecord(topic, removed_key(name).encode(), there.declared[name].encode())
    for key in (*diff.added, *diff.changed):
        yield NewRecord(topic, key.encode(), wanted[key].encode())
    for key in diff.removed:
        yield NewRecord(topic, key.encode(), None)
    for name in (each for each in diff.added if each in there.routes.removed):
        yield NewRecord(topic, removed_key(name).encode(), None)


def _route(known: Route, former: Raw, wanted: Raw) -> Route:
    """What has to be on the topic for the lane in force to stay in force when the entry changes."""
    moved = _moved(former, wanted)
    if moved == "partitions" and known.lane is not None:
        return replace(known, partitions=_partitions(wanted))
    return _pinned(known, former) if moved == "lane" else known


def _pinned(known: Route, entry: Raw) -> Route:
    if known.lane is not None:
        return known
    return replace(known, lane=lane_of_entry(entry), partitions=_partitions(entry))


async def _refuse_undrained(unfinished: Unfinished, file: ReceiversFile, former: Iterable[tuple[str, Raw]]) -> None:
    """Records lose their order among more partitions: so every one of this receiver has to be finished, also those
    that are parked."""
    refused = []
    for name, raw in former:
        moved = _moved(raw, raw_entry(file.receivers[name])) if name in file.receivers else None
        if moved == "partitions" and (count := await unfinished(name, name)):
            refused.append(
                f"{file.origin}: receivers.{name}.partitions: cannot change while {count} messages of {name} are "
                f"parked or unread in its lane ({name}); leave it as it was until they are finished"
            )
    if refused:
        raise NotYet("\n".join(refused))


def _moved(former: Raw, wanted: Raw) -> Literal["lane", "partitions"] | None:
    if lane_of_entry(former) != lane_of_entry(wanted):
        return "lane"
    return "partitions" if lane_of_entry(wanted) != SHARED and _partitions(former) != _partitions(wanted) else None


def _partitions(entry: Raw) -> int:
    found = entry.get("partitions", 1)
    return found if isinstance(found, int) else 1


async def _ensure_topics(log: Log, topics: Topics, file: ReceiversFile, keys: Iterable[str]) -> None:
    specs: list[TopicSpec] = []
    groups: dict[str, str] = {}
    for name in keys:
        if name in file.receivers and file.receivers[name].lane != SHARED:
            groups |= topics.lane_groups(name)
            specs += topics.lane_specs(name, file.receivers[name].partitions)
    if not specs:
        return
    await log.create(specs, groups)
    states = await log.describe([spec.name for spec in specs])
    raise_all(
        f"{file.origin}: topic {spec.name} has {states[spec.name].spec.partitions} partitions, the file says "
        f"{spec.partitions}: change the file, or the topic with Kafka's own tools"
        for spec in specs
        if spec.name in states and states[spec.name].spec.partitions != spec.partitions
    )
