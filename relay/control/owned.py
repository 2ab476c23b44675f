"""What owners may say of their own receivers, with keys that are no administrator's. Pure.

They have receivers in the shared lane, as topics are made for those with a lane of their own. They subscribe to what
their key may read, else they would have others' messages sent to them; and they refer to no variable, else they would
have others' secrets sent there.
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
    """It belongs to another owner, or to none, or is to do so."""


class TooManyReceivers(RelayError):
    """The owner has as many receivers as one may have."""


@dataclass(frozen=True, slots=True)
class OwnerScope:
    """For whom receivers are changed: `owners`, of whom each may have `most`. `reads`: whether they may see the
    messages of a source, or of all sources that a pattern means."""

    owners: frozenset[str]
    most: int
    reads: Callable[[str], bool]

    def of_new(self, draft: Mapping[str, object]) -> Raw:
        """The draft of a new receiver with its owner. Raises NotTheirs, and Faulty where it has to be said which owner
        is meant."""
        said = draft.get("owner")
        if said is None and len(self.owners) == 1:
            [said] = self.owners
        if said is None:
            raise Faulty([Fault("/owner", "required: the key is of several owners")])
        self.check_own({"owner": said})
        return {**draft, "owner": said}

    def check_own(self, entry: Mapping[str, object]) -> None:
        """Raises NotTheirs unless a receiver with this entry is one of theirs."""
        owner = entry.get("owner")
        if not isinstance(owner, str) or owner not in self.owners:
            raise NotTheirs

    def check(self, before: Raw, entry: ReceiverEntry) -> None:
        """Whether an entry may become this one; an empty one: there was none. Raises NotTheirs and Faulty."""
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
        return [Fault("/lane", "the key of an owner changes no lane; new receivers are in the shared one")]
    if entry.partitions != before.get("partitions", 1):
        return [Fault("/partitions", "the key of an owner changes no lane")]
    return []


def _of_proof(before: Raw, entry: ReceiverEntry) -> list[Fault]:
    asked = before.get("verification", "none")
    if asked in ("none", entry.verification):
        return []
    return [Fault("/verification", f"has to stay {asked!r}; the key of an owner does not change that")]


def _texts(entry: Raw, name: str) -> Collection[str]:
    found = entry.get(name)
    return [found] if isinstance(found, str) else [str(each) for each in found] if isinstance(found, list) else []
