"""Restrictions of owners who manage their own receivers with a limited API key. Pure.

Their receivers are in the shared lane, because a lane of its own needs new topics. They subscribe only to sources that
the key may read; otherwise they would get other owners' messages. They refer to no variables; otherwise they would get
other owners' secrets.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from relay.config.receiver_entry import ReceiverEntry
from relay.config.receivers_file import Raw, raw_entry
from relay.control.patch import Fault, Faulty
from relay.domain.errors import RelayError
from relay.domain.identity import OWN_SOURCE
from relay.domain.topics import SHARED


class NotTheirs(RelayError):
    """The receiver belongs, or would belong, to another owner or to none."""


class TooManyReceivers(RelayError):
    """The owner's limit of receivers is reached."""


@dataclass(frozen=True, slots=True)
class OwnerScope:
    """The owners whose receivers may be changed, each with at most `most` receivers. `reads`: whether the key may
    read a source, or all sources of a pattern."""

    owners: frozenset[str]
    most: int
    reads: Callable[[str], bool]

    def of_new(self, draft: Mapping[str, object]) -> Raw:
        """The draft of a new receiver with its owner. Raises NotTheirs, and Faulty if the draft has to name the
        owner."""
        said = draft.get("owner")
        if said is None and len(self.owners) == 1:
            [said] = self.owners
        if said is None:
            raise Faulty([Fault("/owner", "required, because the key has several owners")])
        self.check_own({"owner": said})
        return {**draft, "owner": said}

    def check_own(self, entry: Mapping[str, object]) -> None:
        """Raises NotTheirs unless the entry belongs to one of the owners."""
        owner = entry.get("owner")
        if not isinstance(owner, str) or owner not in self.owners:
            raise NotTheirs

    def check(self, before: Raw, entry: ReceiverEntry) -> None:
        """Raises NotTheirs or Faulty unless `before` (empty for a new receiver) may be changed to `entry`."""
        if before and before.get("owner") != entry.owner:
            raise NotTheirs
        if faults := [*_of_lane(before, entry), *_of_proof(before, entry), *self._of_subscription(before, entry)]:
            raise Faulty(faults)

    def _of_subscription(self, before: Raw, entry: ReceiverEntry) -> list[Fault]:
        had, had_types, had_filter = _texts(before, "sources"), _texts(before, "event_types"), before.get("filter")
        as_filtered = had_filter is None or raw_entry(entry).get("filter") == had_filter
        if set(entry.sources) <= set(had) and set(entry.event_types) <= set(had_types) and as_filtered:
            return []
        return [
            Fault(f"/sources/{place}", f"the key may not read {pattern[:80]!r}: it lacks the scope read:{pattern[:80]}")
            for place, pattern in enumerate(entry.sources)
            if pattern != OWN_SOURCE and not self.reads(pattern)
        ]


def _of_lane(before: Raw, entry: ReceiverEntry) -> list[Fault]:
    if entry.lane != (before.get("lane", "dedicated") if before else SHARED):
        return [Fault("/lane", "an owner's key cannot change the lane; new receivers are in the shared lane")]
    if entry.partitions != before.get("partitions", 1):
        return [Fault("/partitions", "an owner's key cannot change the lane")]
    return []


def _of_proof(before: Raw, entry: ReceiverEntry) -> list[Fault]:
    asked = before.get("verification", "none")
    if asked in ("none", entry.verification):
        return []
    return [Fault("/verification", f"has to stay {asked!r}; an owner's key cannot change it")]


def _texts(entry: Raw, name: str) -> Collection[str]:
    found = entry.get(name)
    return [found] if isinstance(found, str) else [str(each) for each in found] if isinstance(found, list) else []
