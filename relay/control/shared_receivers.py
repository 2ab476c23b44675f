"""Receivers in the shared lane, of which there may be millions: made ready for use when somebody asks for them.

A record is looked at only briefly when it comes: whether it can be told at all, and whether the variables that it
refers to are there. The rest is checked when the receiver is first used, and what is wrong with it is said then.
"""

import logging
from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from relay.config.encryption import NO_KEYS, KeyRing
from relay.control.record_header import NOTHING, RecordHeader, lacks
from relay.control.resolve import unusable_receiver
from relay.control.shared_index import IndexedRecord, Loaded, SharedIndex
from relay.control.subscriptions import subscribes
from relay.domain.errors import UserError
from relay.domain.receiver import Receiver

READY_KEPT: Final = 20_000
"""Receivers that are kept ready for use, at most: 2 kB each, and 0.2 ms of CPU to make."""
_TOLD: Final = 100
"""Refused receivers that get a line each in the log of a process."""

_log = logging.getLogger(__name__)

Resolve = Callable[[str, bytes, Mapping[str, str]], Receiver]
"""The receiver of a name and its record, with what that may refer to. Raises UserError."""


class SharedReceivers:
    """Those that are in the lane that their entries say, as far as `index` goes. `environ`: what entries may refer to;
    `learned` has to be called when it changes. `ring`: what opens encrypted secrets. `resumed`: called with the owner
    of what was asked for when it could not be used, and can be used now; `moved`: of what is in use, and has another
    record now. Any method may raise IndexBroken.
    """

    def __init__(
        self,
        resolve: Resolve,
        environ: Mapping[str, str],
        ring: KeyRing = NO_KEYS,
        resumed: Callable[[str], None] = lambda _owner: None,
        moved: Callable[[str], None] = lambda _owner: None,
    ) -> None:
        self._resolve = resolve
        self._environ = environ
        self._resumed = resumed
        self._moved = moved
        self._keys = ring.beginnings
        self._index = SharedIndex()
        self._index.seal()
        self._young: dict[str, Receiver] = {}
        self._old: dict[str, Receiver] = {}  # who was used before `_young` was begun
        self._told = 0
        self._variables = self._keys.union(name.encode() for name in environ)
        self.refused = 0
        """How many have a newest record that cannot be used here, as far as is known."""

    # asked

    def receiver(self, name: str) -> Receiver | None:
        """The one in force, or one that is `unusable`."""
        return self._young.get(name) or self._fetched(name)

    def refusal(self, name: str) -> str | None:
        """Why the newest record of the receiver is not in force here."""
        row = self._index.get(name)
        if row is None:
            return None
        try:
            self._resolve(name, row.value, self._environ)
        except UserError as error:
            return str(error)
        return None

    def value(self, name: str) -> bytes | None:
        """The receiver's record."""
        row = self._index.get(name)
        return None if row is None else row.value

    def matching(self, source_id: str, event_type: str, most: int) -> set[str]:
        """Names of those that subscribe to such messages, at most `most`: then there may be more."""
        found = self._index.matching(source_id, event_type, most)
        return {name for name in found if (one := self.receiver(name)) and subscribes(one, source_id, event_type)}

    @property
    def index(self) -> SharedIndex:
        """As it is now; only to be asked."""
        return self._index

    def some(self, most: int) -> dict[str, Receiver]:
        """The first ones, by name."""
        names = self._index.names("", most)
        return {name: one for name in names if (one := self.receiver(name)) is not None}

    def names(self, after: str, most: int, owner: str | None = None) -> list[str]:
        """As `SharedIndex.names`."""
        return self._index.names(after, most, owner)

    def unusable(self, most: int) -> list[str]:
        """As `SharedIndex.unusable`."""
        return self._index.unusable(most)

    def longest_waits(self, most: int) -> dict[str, float]:
        """As `SharedIndex.longest_waits`."""
        return self._index.longest_waits(most)

    def __len__(self) -> int:
        return len(self._index)

    # told

    def replace(self, index: SharedIndex) -> None:
        """Go on with an index that was made of what `loaded` returned, and is sealed."""
        self._index.close()
        self._index = index
        self._forget()
        self.refused = index.refused

    def loaded(self, offset: int, name: str, value: bytes, seen: RecordHeader) -> Loaded:
        """A record, for an index that is being made."""
        refused = lacks(value, self._variables)
        if refused:
            self._tell(name, value)
        return offset, name, value, refused, self._with_patterns(name, value, seen)

    def put(self, offset: int, name: str, value: bytes, seen: RecordHeader | None) -> None:
        """A record has come. One that cannot be used here leaves the former one in force. `seen` None: nobody
        understands it."""
        row = self._index.get(name)
        if row is not None and row.value == value and not row.refused:
            return
        former, in_use = self._former(row), name in self._young or name in self._old
        refused = seen is None or lacks(value, self._variables)
        self._forget(name)
        told = NOTHING if seen is None else self._with_patterns(name, value, seen)
        self._index.put(IndexedRecord(offset, name, value, former, refused), told)
        if in_use and not refused:
            self._moved(f"r:{name}")
        self.refused += refused - (row is not None and row.refused)
        if refused:
            self._tell(name, value)

    def drop(self, name: str) -> IndexedRecord | None:
        """There is no such receiver in the shared lane any more. The row that it had."""
        self._forget(name)
        row = self._index.drop(name)
        if row is not None:
            self.refused -= row.refused
        return row

    def forget(self, name: str) -> None:
        """What its record stands for has changed: it is made ready anew."""
        self._forget(name)

    def learned(self) -> None:
        """Some of those that are refused may be fit for use now."""
        self._variables = self._keys.union(name.encode() for name in self._environ)
        self._forget()
        if self.refused:
            self._index.forgive(lambda value: lacks(value, self._variables))
            self.refused = self._index.refused

    # made ready

    def _fetched(self, name: str) -> Receiver | None:
        found = self._old.get(name) or self._made(name)
        if found is not None:
            if len(self._young) >= READY_KEPT // 2:
                self._old, self._young = self._young, {}
            self._young[name] = found
        return found

    def _made(self, name: str) -> Receiver | None:
        row = self._index.get(name)
        if row is None:
            return None
        if not row.refused:
            try:
                return self._resolve(name, row.value, self._environ)
            except UserError:
                self._index.refuse(name)
                self.refused += 1
                self._tell(name, row.value)
        former = None if row.former is None else self._resolved(name, row.former)
        return former or unusable_receiver(name, row.value, self.refusal(name) or "it could not be used before")

    def _former(self, row: IndexedRecord | None) -> bytes | None:
        """What stays in force of `row` if the next record is refused: the newest that can be used."""
        if row is None or row.former is None:
            return None if row is None or row.refused else row.value
        usable = not row.refused and self._resolved(row.name, row.value) is not None
        return row.value if usable else row.former

    def _resolved(self, name: str, value: bytes) -> Receiver | None:
        try:
            return self._resolve(name, value, self._environ)
        except UserError:
            return None

    def _forget(self, name: str | None = None) -> None:
        dropped: list[Receiver] = []
        for known in (self._young, self._old):
            if name is None:
                dropped += known.values()
                known.clear()
            elif (one := known.pop(name, None)) is not None:
                dropped.append(one)
        for one in dropped:
            if one.unusable is not None:
                self._resumed(f"r:{one.name}")

    def _with_patterns(self, name: str, value: bytes, seen: RecordHeader) -> RecordHeader:
        """With what its patterns refer to: almost none does."""
        entry = seen.entry
        if not entry.sources or "${" not in "".join((*entry.sources, *entry.event_types)):
            return seen
        known = self._resolved(name, value) or unusable_receiver(name, value, "")
        if known is None:
            return seen
        entry = msgspec.structs.replace(entry, sources=known.sources, event_types=known.event_types)
        return msgspec.structs.replace(seen, entry=entry)

    def _tell(self, name: str, value: bytes) -> None:
        self._told += 1
        if self._told > _TOLD:
            return
        try:
            self._resolve(name, value, self._environ)
        except UserError as error:
            log_refused(name, error)
        if self._told == _TOLD:
            _log.warning("receiver_config_more_refused", extra={"problem": "the metric receivers_refused counts them"})


def log_refused(key: str, error: UserError) -> None:
    """Log why an entry cannot be used here."""
    for problem in str(error).splitlines():
        _log.warning("receiver_config_entry_refused", extra={"key": key, "problem": problem})
