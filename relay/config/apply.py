"""Makes the log's `receiver_config` say what a receivers file says: `relay receivers apply`, and every start."""

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from relay.config.entries import ReceiverEntry
from relay.config.problems import raise_all
from relay.config.receivers_file import Raw, ReceiversFile
from relay.config.registry import Declared, decode, source_key
from relay.domain.errors import NotYet, UserError
from relay.domain.hold import held_owner
from relay.domain.topics import SHARED, Topics, TopicSpec
from relay.log.port import Log, NewRecord

FILE: Final = "file"
"""Who declared an entry, when a receivers file did."""
_UNREADABLE: Final = Declared("", {})
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


async def apply_file(log: Log, file: ReceiversFile, topics: Topics, unfinished: Unfinished) -> Diff:
    """Append the difference between `file` and the topic, after creating the topics of receivers that need one.

    What the file does not mention, and no file declared, is left alone. Repeatable at any point: a second call does
    what a first one did not get to. Raises, having announced nothing: NotYet when a receiver changes its lane or
    partitions while its old lane has something of it to do; UserError when a topic has other partitions than the file
    says, or when the file has lost its receivers.
    """
    await log.create([spec for spec in topics.fixed() if spec.name == topics.receiver_config], {})
    current = await _current(log, topics)
    wanted = _wanted(file)
    diff = compare(current, wanted)
    _refuse_emptied(file, diff)
    await _refuse_undrained(unfinished, file, [(name, current[name].entry) for name in diff.changed])
    await _ensure_topics(log, topics, file, [*diff.added, *diff.changed])
    if diff:
        await log.append(list(_records(topics, wanted, diff)))
    return diff


async def preview_file(log: Log, file: ReceiversFile, topics: Topics) -> Diff:
    """What `apply_file` would do, without doing it."""
    exists = await log.describe([topics.receiver_config])
    return compare(await _current(log, topics) if exists else {}, _wanted(file))


def compare(current: Mapping[str, Declared], wanted: Mapping[str, Declared]) -> Diff:
    """What leads from one to the other. What a file declares wins over the same key declared by anybody else."""
    return Diff(
        added=tuple(sorted(wanted.keys() - current.keys())),
        changed=tuple(sorted(key for key in wanted.keys() & current.keys() if wanted[key] != current[key])),
        removed=tuple(sorted(key for key in current.keys() - wanted.keys() if current[key].by == FILE)),
    )


async def _current(log: Log, topics: Topics) -> dict[str, Declared]:
    found = {}
    for record in await log.snapshot(topics.receiver_config, 0):
        if held_owner(record.key or b"") is not None:
            continue  # what was decided about an endpoint is none of the file's business
        try:
            found[(record.key or b"").decode(errors="replace")] = decode(record.value or b"")
        except UserError:
            found[(record.key or b"").decode(errors="replace")] = _UNREADABLE
    return found


def _wanted(file: ReceiversFile) -> dict[str, Declared]:
    sealed = file.sealed()
    receivers = {name: Declared(FILE, raw) for name, raw in sealed.receivers.items()}
    return receivers | {source_key(source_id): Declared(FILE, raw) for source_id, raw in sealed.sources.items()}


def _refuse_emptied(file: ReceiversFile, diff: Diff) -> None:
    """A file that an editor, a full disk or a wrong mount has emptied is valid, and would remove everybody."""
    removed = [key for key in diff.removed if not key.startswith(source_key(""))]
    if removed and not file.names_receivers:
        raise UserError(
            f"{file.origin}: has no receivers, which would remove all {len(removed)} that are in force; "
            f"if that is meant, write `receivers: {{}}`"
        )


def _records(topics: Topics, wanted: Mapping[str, Declared], diff: Diff) -> Iterator[NewRecord]:
    for key in (*diff.added, *diff.changed):
        yield NewRecord(topics.receiver_config, key.encode(), wanted[key].encode())
    for key in diff.removed:
        yield NewRecord(topics.receiver_config, key.encode(), None)


async def _refuse_undrained(unfinished: Unfinished, file: ReceiversFile, former: Iterable[tuple[str, Raw]]) -> None:
    """Records of the old lane are read by nobody once the receiver has another, or lose their order among more
    partitions: so every one of this receiver has to be finished, also those that are parked."""
    refused = []
    for name, raw in former:
        moved = _moved(raw, file.receivers[name]) if name in file.receivers else None
        if moved is None:
            continue
        lane = SHARED if raw.get("lane") == SHARED else name
        if count := await unfinished(name, lane):
            refused.append(
                f"{file.origin}: receivers.{name}.{moved}: cannot change while {count} messages of {name} are parked "
                f"or unread in its old lane ({lane}); leave it as it was until they are finished"
            )
    if refused:
        raise NotYet("\n".join(refused))


def _moved(raw: Raw, entry: ReceiverEntry) -> str | None:
    if raw.get("lane", "dedicated") != entry.lane:
        return "lane"
    return "partitions" if raw.get("partitions", 1) != entry.partitions else None


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
