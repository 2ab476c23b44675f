"""Receivers in the shared lane, which may be millions: resolved on demand.

A new record is only checked briefly: whether it is readable, and whether its variables exist. The rest is validated
when the receiver is first used, and errors are logged then.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

import msgspec

from relay.config.encryption import NO_KEYS, KeyRing
from relay.control.resolve import unusable_receiver
from relay.control.shared_index import NOTHING, IndexedRecord, Loaded, RecordHeader, SharedIndex, lacks
from relay.control.subscriptions import subscribes
from relay.domain.errors import UserError
from relay.domain.receiver import Receiver

READY_KEPT: Final = 20_000
"""Maximum number of resolved receivers in memory: 2 kB each, and 0.2 ms of CPU to resolve."""
_LOGGED: Final = 100
"""Maximum number of refused receivers that a process logs."""

_log = logging.getLogger(__name__)

Resolve = Callable[[str, bytes, Mapping[str, str]], Receiver]
"""(name, record, variables) -> receiver. Raises UserError."""


@dataclass(eq=False, repr=False)
class SharedReceivers:
    """The receivers in `index`. `environ`: variables for references; call `learned` when it changes. `ring`: decrypts
    secrets. `resumed`: called with the owner of a requested receiver that was unusable and is usable now; `moved`: with
    the owner of a receiver in use whose record has changed. Any method may raise IndexBroken.
    """

    resolve: Resolve
    environ: Mapping[str, str]
    ring: KeyRing = NO_KEYS
    resumed: Callable[[str], None] = lambda _owner: None
    moved: Callable[[str], None] = lambda _owner: None
    index: SharedIndex = field(default_factory=SharedIndex)
    """The current index, for others to query only."""
    _young: dict[str, Receiver] = field(default_factory=dict)
    _old: dict[str, Receiver] = field(default_factory=dict)  # receivers used before `_young` was created
    _logged: int = 0
    refused: int = 0
    """Number of receivers whose newest record is known to be unusable here."""

    def __post_init__(self) -> None:
        self.index.seal()
        self._variables = self.ring.beginnings.union(name.encode() for name in self.environ)

    # queries

    def receiver(self, name: str) -> Receiver | None:
        """The receiver in effect, or an `unusable` one."""
        return self._young.get(name) or self._fetched(name)

    def refusal(self, name: str) -> str | None:
        """Why the newest record of the receiver is not in effect here; None if it is."""
        row = self.index.get(name)
        if row is None:
            return None
        try:
            self.resolve(name, row.value, self.environ)
        except UserError as error:
            return str(error)
        return None

    def value(self, name: str) -> bytes | None:
        """The receiver's record."""
        row = self.index.get(name)
        return None if row is None else row.value

    def matching(self, source_id: str, event_type: str, most: int) -> set[str]:
        """Names of the receivers that subscribe to such messages, at most `most`."""
        found = self.index.matching(source_id, event_type, most)
        return {name for name in found if (one := self.receiver(name)) and subscribes(one, source_id, event_type)}

    def some(self, most: int) -> dict[str, Receiver]:
        """The first receivers, by name."""
        names = self.index.names("", most)
        return {name: one for name in names if (one := self.receiver(name)) is not None}

    def __len__(self) -> int:
        return len(self.index)

    # updates

    def replace(self, index: SharedIndex) -> None:
        """Use a new, sealed index that was built from rows of `loaded`."""
        self.index.close()
        self.index = index
        self.forget()
        self.refused = index.refused

    def loaded(self, offset: int, name: str, value: bytes, seen: RecordHeader) -> Loaded:
        """The row of a record, for an index under construction."""
        refused = lacks(value, self._variables)
        if refused:
            self._log_refusal(name, value)
        return offset, name, value, refused, self._with_patterns(name, value, seen)

    def put(self, offset: int, name: str, value: bytes, seen: RecordHeader | None) -> None:
        """Take a new record. If it cannot be used here, the former one stays in effect. `seen`: None if it is
        unreadable."""
        row = self.index.get(name)
        if row is not None and row.value == value and not row.refused:
            return
        former, in_use = self._former(row), name in self._young or name in self._old
        refused = seen is None or lacks(value, self._variables)
        self.forget(name)
        header = NOTHING if seen is None else self._with_patterns(name, value, seen)
        self.index.put(IndexedRecord(offset, name, value, former, refused), header)
        if in_use and not refused:
            self.moved(f"r:{name}")
        self.refused += refused - (row is not None and row.refused)
        if refused:
            self._log_refusal(name, value)

    def drop(self, name: str) -> IndexedRecord | None:
        """Remove a receiver that is no longer in the shared lane; returns its row."""
        self.forget(name)
        row = self.index.drop(name)
        if row is not None:
            self.refused -= row.refused
        return row

    def learned(self) -> None:
        """Check refused receivers again, because variables were added."""
        self._variables = self.ring.beginnings.union(name.encode() for name in self.environ)
        self.forget()
        if self.refused:
            self.index.forgive(lambda value: lacks(value, self._variables))
            self.refused = self.index.refused

    # resolving

    def _fetched(self, name: str) -> Receiver | None:
        found = self._old.get(name) or self._made(name)
        if found is not None:
            if len(self._young) >= READY_KEPT // 2:
                self._old, self._young = self._young, {}
            self._young[name] = found
        return found

    def _made(self, name: str) -> Receiver | None:
        row = self.index.get(name)
        if row is None:
            return None
        if not row.refused:
            try:
                return self.resolve(name, row.value, self.environ)
            except UserError:
                self.index.refuse(name)
                self.refused += 1
                self._log_refusal(name, row.value)
        former = None if row.former is None else self._resolved(name, row.former)
        return former or unusable_receiver(name, row.value, self.refusal(name) or "it could not be used before")

    def _former(self, row: IndexedRecord | None) -> bytes | None:
        """The newest usable record of `row`, which stays in effect if the next record is refused."""
        if row is None or row.former is None:
            return None if row is None or row.refused else row.value
        usable = not row.refused and self._resolved(row.name, row.value) is not None
        return row.value if usable else row.former

    def _resolved(self, name: str, value: bytes) -> Receiver | None:
        try:
            return self.resolve(name, value, self.environ)
        except UserError:
            return None

    def forget(self, name: str | None = None) -> None:
        """Resolve the receiver, or all of them, again at the next use."""
        dropped: list[Receiver] = []
        for known in (self._young, self._old):
            if name is None:
                dropped += known.values()
                known.clear()
            elif (one := known.pop(name, None)) is not None:
                dropped.append(one)
        for one in dropped:
            if one.unusable is not None:
                self.resumed(f"r:{one.name}")

    def _with_patterns(self, name: str, value: bytes, seen: RecordHeader) -> RecordHeader:
        """`seen` with references in its patterns resolved; almost no entry has any."""
        entry = seen.entry
        if not entry.sources or "${" not in "".join((*entry.sources, *entry.event_types)):
            return seen
        known = self._resolved(name, value) or unusable_receiver(name, value, "")
        if known is None:
            return seen
        entry = msgspec.structs.replace(entry, sources=known.sources, event_types=known.event_types)
        return msgspec.structs.replace(seen, entry=entry)

    def _log_refusal(self, name: str, value: bytes) -> None:
        self._logged += 1
        if self._logged > _LOGGED:
            return
        try:
            self.resolve(name, value, self.environ)
        except UserError as error:
            log_refused(name, error)
        if self._logged == _LOGGED:
            _log.warning(
                "receiver_config_more_refused", extra={"problem": "the metric receivers_refused counts them all"}
            )


def log_refused(key: str, error: UserError) -> None:
    """Log why an entry cannot be used here."""
    for problem in str(error).splitlines():
        _log.warning("receiver_config_entry_refused", extra={"key": key, "problem": problem})
