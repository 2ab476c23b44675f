"""Became records of a lane: the form of their copies on `parked_messages`, the order keys that have some, and when they
are due. Pure; times are monotonic seconds."""

from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import islice
from math import inf
from typing import Final, Generic

from relay.domain.errors import InvalidRecord, LogUnavailable
from relay.engine.policy import BudgetShare
from relay.engine.work import Dead, W, Work
from relay.log.port import Coordinate, Flaw, NewRecord, Record
from relay.state.rows import Due, Row, RowKey, tag_of

_PREFIX = "relay-parked-"
OWNER_HEADER = _PREFIX + "owner"
"""Whose it is: `r:<receiver>` or `s:<source_id>`."""
_GENERATION: Final = _PREFIX + "generation"
_LIFE: Final = _PREFIX + "life"
FORM: Final = 1
"""Of the headers of a parked copy; `relay-parked-form` says which one it has, and a copy without that has form 1."""
LIFE_KEY = b"life"
"""Key of the record which says that the state was once ready: an empty state is then a lost one, not a new one."""


@dataclass(frozen=True, slots=True)
class ParkedCopy:
    """What a parked record says: the original as it was read, and in headers of its own where it came from, and what a
    recovery pass needs to put it back.

    `at`, `key`: of the parked record itself. `attempts`: POSTs begun when it was parked. `due_ms`: Unix milliseconds.
    `failing_for_s`: since its first failure until it is due. `out_of_order`: it has stepped aside.
    """

    at: Coordinate
    key: bytes
    record: Record
    row: RowKey
    generation: int
    attempts: int
    queue: bytes | None
    due_ms: int
    poll: bool
    failing_for_s: float = 0.0
    out_of_order: bool = False

    @property
    def is_second(self) -> bool:
        """See `second_copy`."""
        return not self.key.endswith(self.row.digest.hex().encode())


def parked_key(stage: str, row: RowKey) -> bytes:
    """Delivery identity and stage: the key of a parked record, so that a newer copy replaces an older one."""
    return f"{stage}:{row.digest.hex()}".encode()


def life_key(stage: str, row: RowKey, generation: int) -> bytes:
    """The key of a second copy, from the second life on: no tombstone of an earlier life removes it, however late that
    is written. The first copy is the one that processes of the last release know of."""
    return parked_key(stage, row) + b":%d" % generation if generation else parked_key(stage, row)


def wrap(topic: str, stage: str, work: W, row: RowKey, *, due_ms: int, poll: bool) -> NewRecord:
    """The parked copy of the record that `work` came from; see `second_copy`."""
    record = work.record
    own = {
        "from": f"{record.topic}/{record.partition}/{record.offset}",
        "at": str(record.timestamp_ms),
        "owner": row.owner,
        "row": row.digest.hex(),
        "generation": str(work.generation),
        "attempts": str(work.attempts),
        "queue": work.queue.hex() if work.queue is not None else "",
        "due": str(due_ms),
        "poll": "1" if poll else "0",
        "key": record.key.hex() if record.key is not None else "-",
    }
    if work.failing_since is not None:
        own["failing-for"] = f"{max(0.0, work.due - work.failing_since):.3f}"
    if work.out_of_order:
        own["out-of-order"] = "1"
    headers = tuple((_PREFIX + name, value.encode()) for name, value in own.items())
    return NewRecord(
        topic, parked_key(stage, row), record.value if record.value is not None else b"", record.headers + headers
    )


def second_copy(copy: NewRecord, stage: str, row: RowKey, generation: int) -> NewRecord:
    """Under the key of its life, with that in another header: processes of an earlier release take it for none of
    theirs, and would not know its key."""
    headers = tuple((_LIFE if name == _GENERATION else name, value) for name, value in copy.headers)
    return NewRecord(copy.topic, life_key(stage, row, generation), copy.value, headers)


def unwrap(parked: Record) -> ParkedCopy:
    """The original record and its surroundings. Raises InvalidRecord where a header is missing or wrong; and
    LogUnavailable where a newer release wrote it: it is an obligation, and waits for a process that can read it."""
    try:
        own = {name[len(_PREFIX) :]: value.decode() for name, value in parked.headers if name.startswith(_PREFIX)}
        if (form := int(own.get("form", FORM))) > FORM:
            raise LogUnavailable(
                f"the parked record at {parked.coordinate} has form {form}: a newer release wrote it, and this one"
                f" reads forms up to {FORM}; let processes of the newer release finish it (docs/upgrading.md)"
            )
        topic, partition, offset = own["from"].rsplit("/", 2)
        original = Record(
            topic,
            int(partition),
            int(offset),
            None if own["key"] == "-" else bytes.fromhex(own["key"]),
            parked.value,
            tuple(header for header in parked.headers if not header[0].startswith(_PREFIX)),
            int(own["at"]),
        )
        return ParkedCopy(
            parked.coordinate,
            parked.key or b"",
            original,
            RowKey(own["owner"], bytes.fromhex(own["row"])),
            int(own["generation" if "generation" in own else "life"]),
            int(own["attempts"]),
            bytes.fromhex(own["queue"]) or None,
            int(own["due"]),
            own["poll"] == "1",
            float(own.get("failing-for", 0)),
            own.get("out-of-order") == "1",
        )
    except (KeyError, ValueError) as error:
        raise InvalidRecord("invalid", f"parked record at {parked.coordinate} is not one of ours: {error}") from error


def lost_copy(due: Due, key: bytes, row: Row) -> ParkedCopy:
    """In place of a copy that the log has lost: it becomes a dead letter with what its row knows."""
    known = f"{row.attempts} attempts, {row.polls} status requests, last status {row.last_status}"
    if row.result is not None:
        known += f", outcome {row.result.outcome} with status {row.result.status}"
    place = f"{due.at.topic}/{due.at.partition}/{due.at.offset}"
    detail = f"the log lost the record that waited at {place}; known of it: row {due.row.digest.hex()}, {known}"
    flaw = Flaw("lost", detail, omitted="value=0, headers=0")
    kind, _, name = due.row.owner.partition(":")
    whose = ("relay-receiver" if kind == "r" else "ce_source", name.encode())
    headers = (whose, ("relay-generation", b"%d" % due.generation))
    record = Record(*due.at, None, None, headers, 0, flaw)
    return ParkedCopy(due.at, key, record, due.row, due.generation, row.attempts, None, 0, poll=False)


def unwrap_ours(parked: Record) -> ParkedCopy | None:
    """As `unwrap`; None: it is not ours, so not an obligation of ours. Raises LogUnavailable as that does."""
    try:
        return unwrap(parked)
    except InvalidRecord:
        return None


@dataclass(frozen=True, slots=True)
class NotParked:
    """There is no room, for anybody (`over_all`) or for its owner."""

    over_all: bool


class Stored(Enum):
    """What became of a work that was to be parked, but for those without room (`NotParked`) and the unfit (`Dead`)."""

    PARKED = "parked"
    NOT_NEEDED = "an outcome is stored"


Became = Stored | NotParked | Dead


ROOM_S: Final = 1.0
"""How soon those are tried again that found no room."""
LOOK_S: Final = 10.0
"""How often those that wait behind parked ones look, while the endpoint is closed, whether these are over."""


class _Offsets:
    """Offsets of works by order key, in the order in which they were added: the lowest first, as works of a key are
    moved in their order."""

    def __init__(self) -> None:
        self._of: dict[bytes, dict[int, None]] = {}

    def __contains__(self, queue: bytes) -> bool:
        return queue in self._of

    def add(self, work: Work) -> None:
        if work.queue is not None:
            self._of.setdefault(work.queue, {})[work.record.offset] = None

    def discard(self, work: Work) -> None:
        offsets = self._of.get(work.queue) if work.queue is not None else None
        if offsets is not None and work.queue is not None:
            offsets.pop(work.record.offset, None)
            if not offsets:
                del self._of[work.queue]

    def have_before(self, work: Work) -> bool:
        offsets = self._of.get(work.queue) if work.queue is not None else None
        return offsets is not None and next(iter(offsets)) < work.record.offset


class ParkedKeys(Generic[W]):
    """Order keys that have parked records, as far as known here: whoever comes later of such a key may not overtake
    them. And the works that wait in memory to queue up behind parked ones, in order."""

    def __init__(self) -> None:
        self._parked: dict[bytes, str] = {}  # keys that have parked records, as far as known here -> of whom
        self._under_way = _Offsets()  # of works that are being parked
        self._looked_up = _Offsets()  # of works that have left their key, and are looked up before that
        self._behind: deque[W] = deque()
        self._behind_keys: Counter[bytes] = Counter()
        self._crowded_at = inf
        self._looked_at = -inf
        self._refused_at = -inf

    def blocks(self, queue: bytes | None) -> bool:
        """Whether records of this order key have to queue behind parked ones."""
        return queue is not None and (queue in self._parked or queue in self._under_way or self._behind_keys[queue] > 0)

    def look_up(self, work: W) -> None:
        """`work` has left its order key, to be looked up: what comes later of the key is to be looked up, too."""
        self._looked_up.add(work)

    def was_looked_up(self, work: W) -> None:
        """What becomes of it is decided next."""
        self._looked_up.discard(work)

    def looks_up_before(self, work: W) -> bool:
        """Whether an earlier one of its order key has left that, and is being looked up."""
        return self._looked_up.have_before(work)

    def moves_before(self, work: W) -> bool:
        """Whether an earlier one of its order key is on its way: looked up, being parked, or without room for that."""
        if self._looked_up.have_before(work) or self._under_way.have_before(work):
            return True
        return self.has_behind(work.queue) and any(
            each.queue == work.queue and each.record.offset < work.record.offset for each in self._behind
        )

    def has_parked(self, queue: bytes | None) -> bool:
        """Whether something of it is parked for sure."""
        return queue in self._parked

    def has_behind(self, queue: bytes | None) -> bool:
        return queue is not None and self._behind_keys[queue] > 0

    def parked(self, limit: int) -> list[tuple[bytes, str]]:
        """Those that have parked records, as far as known here, with the owner of their rows; up to `limit`."""
        return list(islice(self._parked.items(), limit))

    def known(self, queue: bytes | None, owner: str) -> None:
        """It has parked records, of rows of `owner`."""
        if queue is not None:
            self._parked[queue] = owner

    def emptied(self, queue: bytes) -> None:
        """Nothing of this order key is parked any more."""
        if queue not in self._under_way:
            self._parked.pop(queue, None)

    def going(self, work: W) -> None:
        """`work` is on its way to be parked."""
        self._under_way.add(work)

    def gone(self, work: W) -> None:
        """It is not any more, however that ended."""
        self._under_way.discard(work)

    # room

    def refused(self, now: float) -> None:
        self._refused_at = now

    def has_room(self, now: float) -> bool:
        """False for a moment after works were refused."""
        return now >= self._refused_at + ROOM_S

    # those that wait behind

    def wait_behind(self, work: W, now: float) -> None:
        """Not in the lane's order: it would overtake the parked ones. The window fills, and intake stops."""
        if work.queue is None:
            raise AssertionError("it can wait behind nothing")
        self._behind_keys[work.queue] += 1
        self._behind.append(work)
        self._crowded_at = min(self._crowded_at, now)

    def next_look(self, *, still: bool) -> float:
        """When to look whether those behind can go on. `still`: the lane stands still."""
        if not self._behind:
            return inf
        return max(self._crowded_at + ROOM_S, self._looked_at + LOOK_S if still else -inf)

    def firsts(self, now: float) -> Mapping[bytes, W]:
        """The first that waits behind of each key: to be looked up, as nothing may be parked any more."""
        self._looked_at = now
        return {work.queue: work for work in reversed(self._behind) if work.queue is not None}

    def take_behind(self, now: float) -> Iterable[W]:
        """All of them, in order: where they go is decided anew."""
        waiting, self._behind = self._behind, deque()
        self._behind_keys.clear()
        self._crowded_at = inf
        return waiting


RECHECK_S: Final = 30.0
"""How often the due index is looked at although nothing is known to be due: references that others put there."""
FULL_S: Final = 1.0
"""How soon to look again when as many are in hand as may be."""


@dataclass(frozen=True, slots=True)
class TakeUp:
    """Learn when something of `tags` is due next; `limit` > 0: after taking so much of what is due. `token`: of that
    take."""

    tags: tuple[int, ...]
    limit: int
    token: bytes = b""


@dataclass(frozen=True, slots=True)
class Took:
    """What came of a TakeUp. `upcoming`: by tag, seconds until its first is due. `copies`: parked records that were
    taken. `promoted`: owners of whom something is due that was not before."""

    upcoming: Mapping[int, float]
    copies: Sequence[ParkedCopy] = ()
    promoted: Sequence[str] = ()


class DueIndex:
    """What is known here of one lane's part of the due index. `most`: parked records in hand at a time. One may always
    be, however full the `memory` is: what fills it may wait for just that one."""

    def __init__(self, tags: tuple[int, ...], most: int, memory: BudgetShare) -> None:
        self._tags = tags
        self._most = most
        self._memory = memory
        self._in_hand: set[bytes] = set()
        self._next: dict[int, float] = {}
        self._news: dict[int, float] = {}  # what was heard about tags while the index was being asked
        self._looked_at = -inf
        self._full_at = -inf

    @property
    def full(self) -> bool:
        """As many are in hand as may be."""
        return len(self._in_hand) >= self._most or (self._memory.full and bool(self._in_hand))

    def next_look(self) -> float:
        """When to call `take_up` next."""
        if self.full:
            return self._full_at + FULL_S
        return min((self._looked_at + RECHECK_S, *self._next.values()))

    def expect(self, owner: str, at: float) -> None:
        """Something of `owner` will be due then (0: is due)."""
        tag = tag_of(owner)
        if tag not in self._tags:
            return  # it is not ours, as it may be when an endpoint was resumed
        self._next[tag] = min(at, self._next.get(tag, at))
        self._news[tag] = min(at, self._news.get(tag, at))

    def put_down(self, digest: bytes) -> None:
        """A work has ended, is parked again, or is left to its lease."""
        if self.full:
            self._full_at = -inf
        self._in_hand.discard(digest)

    def take_up(self, token: bytes, now: float) -> TakeUp | None:
        """What to ask for now, under that token."""
        if self.full:
            self._full_at = now
            return None
        self._news.clear()
        if now >= self._looked_at + RECHECK_S:
            self._looked_at = now
            return TakeUp(self._tags, 0)
        tags = tuple(tag for tag, at in self._next.items() if at <= now)
        if not tags:
            return None
        return TakeUp(tags, max(1, (self._most - len(self._in_hand)) // len(tags)), token)

    def looked(self, asked: TakeUp, upcoming: Mapping[int, float], now: float) -> None:
        """`upcoming`: seconds until the first of each tag is due."""
        for tag in asked.tags:
            at = min(now + upcoming.get(tag, inf), self._news.get(tag, inf))
            if at < inf:
                self._next[tag] = at
            else:
                self._next.pop(tag, None)

    def take_in_hand(self, digest: bytes) -> None:
        self._in_hand.add(digest)

    def is_new(self, due: Due) -> bool:
        return due.row.digest not in self._in_hand
