"""Declares checks, above the function that makes each, and their context: the relay's settings, and access to its log,
state and receivers."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, Generic, Literal, NamedTuple, TypeVar

from relay.clock import Clock
from relay.config.receivers_file import ReceiversFile
from relay.config.settings import Settings
from relay.control.keys import ApiKeys
from relay.control.registry import Registry
from relay.domain.diagnosis import Checked
from relay.domain.errors import UserError
from relay.domain.receiver import Receiver, Source
from relay.domain.topics import SHARED, Topics, lane_of
from relay.history.port import History
from relay.log.port import Log
from relay.state.port import State

T = TypeVar("T")

MOST_KNOWN: Final = 1_000
"""Most receivers to check, in the order of their names."""
_REFUSED_SHOWN: Final = 20


async def _nothing(_it: object) -> None:
    return


class Opened(Generic[T]):
    """A resource that is opened once for all its users, and closed at the end. `make`: opens it. The first caller
    starts that; all callers get the result or the error."""

    def __init__(self, make: Callable[[], Awaitable[T]], close: Callable[[T], Awaitable[None]] = _nothing) -> None:
        self._make = make
        self._close = close
        self._making: asyncio.Task[T] | None = None

    async def __call__(self) -> T:
        """Raises the errors of `make`."""
        if self._making is None:
            self._making = asyncio.ensure_future(self._make())
        return await asyncio.shield(self._making)

    @property
    def is_open(self) -> bool:
        return (
            self._making is not None
            and self._making.done()
            and not self._making.cancelled()
            and (self._making.exception() is None)
        )

    async def close(self) -> None:
        """Closes it, also while it is being opened. Never raises the errors of opening."""
        if self._making is None:
            return
        if not self._making.done():
            self._making.cancel()
        await asyncio.wait([self._making])
        if self.is_open:
            await self._close(self._making.result())


def already(opened: T, close: Callable[[T], Awaitable[None]] = _nothing) -> Opened[T]:
    """For a resource that needs no opening."""

    async def make() -> T:
        return opened

    return Opened(make, close)


@dataclass(frozen=True, slots=True)
class KnownEntries:
    """The known receivers and sources. `refused`: why entries cannot be used, by `receivers.<name>` or
    `sources.<id>`; `refused_more`: the number of further ones. `left_out`: the number of receivers that are not
    checked. `keys` None: the log was not read."""

    receivers: Mapping[str, Receiver]
    sources: Mapping[str, Source]
    refused: Mapping[str, str] = field(default_factory=dict)
    refused_more: int = 0
    left_out: int = 0
    keys: ApiKeys | None = None


class LaneTopic(NamedTuple):
    """A topic that a role has to read. `receiver`: the owner; None: a topic of all, or of the shared lane."""

    topic: str
    role: str
    partitions: int
    receiver: str | None = None


@dataclass(frozen=True, slots=True)
class CheckContext:
    """A relay to check. `log` and `state` raise Unavailable if they cannot be opened; `known` does without them.

    `mistakes`: those of the settings and the receivers file, a line each. `receiver`: check only this one. `data_dir`:
    of an embedded relay, which has no Kafka. `history_behind`: the lag of the history in seconds (None: unknown); it
    raises HistoryUnavailable if the store does not answer, and LogUnavailable if only the log does not; None: there is
    no history. `history`: its store, if it is opened for this check.
    """

    settings: Settings
    roles: frozenset[str]
    clock: Clock
    log: Opened[Log]
    state: Opened[State]
    known: Opened[KnownEntries]
    mistakes: Sequence[str] = ()
    answer_secrets: Sequence[bytes] = field(default=(), repr=False)
    api_url: str | None = None
    receiver: str | None = None
    data_dir: Path | None = None
    history_behind: Callable[[], Awaitable[float | None]] | None = None
    history: Opened[History] | None = None

    @property
    def topics(self) -> Topics:
        return Topics(self.settings.topic_prefix)

    @property
    def embedded(self) -> bool:
        return self.data_dir is not None

    def lanes(self, known: KnownEntries) -> list[LaneTopic]:
        """The topics that have to be read, for all receivers, or for the one that is checked."""
        topics, own = self.topics, self._own_lanes(known)
        groups = topics.fixed_groups()
        if self.receiver is not None:
            one = known.receivers.get(self.receiver)
            groups = topics.lane_groups(SHARED) if one is not None and lane_of(one) == SHARED else {}
        partitions = {spec.name: spec.partitions for spec in topics.fixed()}
        return [*(LaneTopic(topic, self.role_of(group), partitions[topic]) for topic, group in groups.items()), *own]

    def _own_lanes(self, known: KnownEntries) -> list[LaneTopic]:
        topics = self.topics
        return [
            LaneTopic(topic, self.role_of(group), one.partitions, one.name)
            for one in known.receivers.values()
            if lane_of(one) != SHARED
            for topic, group in topics.lane_groups(one.name).items()
        ]

    def role_of(self, group: str) -> str:
        return group.removeprefix(self.topics.group(""))

    async def close(self) -> None:
        for opened in (self.known, self.state, self.log):
            await opened.close()
        if self.history is not None:
            await self.history.close()


def known_to(registry: Registry, receiver: str | None = None) -> KnownEntries:
    """The entries of a process that has read the topic."""
    keys = registry.keys
    if receiver is not None:
        one, why = registry.receiver(receiver), registry.refusal(receiver)
        refused = {} if why is None else {f"receivers.{receiver}": why}
        return KnownEntries({receiver: one} if one is not None and one.unusable is None else {}, {}, refused, keys=keys)
    own = dict(registry.receivers())
    all_of_them = {**own, **registry.shared.some(max(0, MOST_KNOWN - len(own)))}
    looked_at = sorted(all_of_them)[:MOST_KNOWN]
    some = {name: one for name in looked_at if (one := all_of_them[name]).unusable is None}
    sources = {source_id: source for source_id, source in registry.sources().items() if source.unusable is None}
    shown = {_place(key): why for key, why in list(registry.problems.items())[:_REFUSED_SHOWN]}
    total = len(own) + len(registry.shared)
    return KnownEntries(
        some, sources, shown, max(0, registry.refused - len(shown)), max(0, total - len(looked_at)), keys
    )


def _place(key: str) -> str:
    """The place of a topic's key, as in a file."""
    kind, _, rest = key.partition(":")
    return f"sources.{rest}" if kind == "source" else f"receivers.{key}"


def known_to_file(
    file: ReceiversFile | None, variables: Mapping[str, str], receiver: str | None = None
) -> KnownEntries:
    """The entries of the receivers file alone, if the log cannot be read."""
    if file is None:
        return KnownEntries({}, {})
    refused = file.refusals(variables)
    receivers, sources = _usable(file, variables, refused)
    if receiver is not None:
        key = f"receivers.{receiver}"
        receivers = {name: one for name, one in receivers.items() if name == receiver}
        return KnownEntries(receivers, {}, {key: refused[key]} if key in refused else {})
    some = {name: receivers[name] for name in sorted(receivers)[:MOST_KNOWN]}
    shown = dict(list(refused.items())[:_REFUSED_SHOWN])
    return KnownEntries(some, sources, shown, len(refused) - len(shown), len(receivers) - len(some))


def _usable(
    file: ReceiversFile, variables: Mapping[str, str], refused: Mapping[str, str]
) -> tuple[dict[str, Receiver], dict[str, Source]]:
    kept = replace(
        file,
        receivers={name: each for name, each in file.receivers.items() if f"receivers.{name}" not in refused},
        sources={name: each for name, each in file.sources.items() if f"sources.{name}" not in refused},
    )
    try:
        return kept.resolve(variables)
    except UserError:  # a variable has been removed meanwhile
        return {}, {}


# --- checks ---------------------------------------------------------------------------------------------------------


Look = Callable[[CheckContext], Awaitable[Sequence[Checked]]]
Dependency = Literal["log", "state"]
ReadyPart = Literal["start", "receivers", "log", "state", "stopping", "disk"]
"""The parts of a process that /readyz lists. Scripts read these names, so they never change."""
ReadyWarning = Literal["parked", "clock", "topics", "configuration"]
"""The warnings of /readyz and of the overview; likewise."""


@dataclass(frozen=True, slots=True)
class Check:
    """A check. docs/doctor.md has what it looks at and finds, and the other places that report the same problem.

    `also`: the names of checks that the same function makes. `per_receiver`: it is also made for a single receiver.
    `limit_s`: its longest duration. `needs`: without these it is skipped, which is no failure of its own. `if_away`:
    advice if it fails itself.
    """

    name: str
    also: tuple[str, ...] = ()
    per_receiver: bool = False
    limit_s: float = 8.0
    needs: tuple[Dependency, ...] = ()
    if_away: str | None = None

    def __call__(self, look: Look) -> "Probe":
        """Declares the function below as the one that makes this check."""
        return Probe(self, look)


class Probe(NamedTuple):
    """A function that makes a check."""

    check: Check
    look: Look
