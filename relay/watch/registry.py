"""Keeps the receivers of a running process up to date: follows the registry, and applies the receivers file, which it
watches."""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from math import inf
from pathlib import Path
from typing import Final, NamedTuple

from relay.clock import Clock, set_within
from relay.config.plan import ProcessPlan
from relay.config.receivers_file import ReceiversFile, load_receivers_file
from relay.config.settings import Settings
from relay.control.apply import LEASE, Diff, apply_file, refusal_of
from relay.control.registry import Registry
from relay.domain.errors import LogUnavailable, UserError
from relay.domain.topics import Topics
from relay.engine.supervision import Retrier
from relay.log.port import Log, TopicPartition
from relay.state.lease import keeping_lease, take_lease
from relay.state.port import State
from relay.telemetry.logging import get_logger
from relay.telemetry.metrics import Metrics


class Stamp(NamedTuple):
    """Identifies a version of a file: changes if it is edited or replaced (an editor's rename, a mounted secret)."""

    inode: int
    modified_ns: int
    size: int


def file_stamp(path: Path) -> Stamp | None:
    """The file's stamp; None if it does not exist."""
    try:
        found = path.stat()
    except OSError:
        return None
    return Stamp(found.st_ino, found.st_mtime_ns, found.st_size)


async def watch_file(
    path: Path,
    on_change: Callable[[], Awaitable[None]],
    on_problem: Callable[[UserError], None],
    hangup: asyncio.Event,
    *,
    on_gone: Callable[[], None] = lambda: None,
    since: Stamp | None,
    poll_s: float = 1.0,
) -> None:
    """Await `on_change` whenever the file differs from `since` (its version when last read) and has been the same for
    `poll_s`, and whenever `hangup` is set, which is cleared. Never returns.

    A UserError of `on_change` is passed to `on_problem`, once per version of the file. If the file disappears,
    `on_gone` is called once, and the watch continues when it is back.
    """
    applied = now = since
    while True:
        await set_within(hangup, poll_s)
        requested = hangup.is_set()
        hangup.clear()
        before, now = now, file_stamp(path)
        if now is None:
            if before is not None:
                on_gone()
            continue
        # one that has just changed may be half written, and valid without its last receivers
        if (now == applied or now != before) and not requested:
            continue
        try:
            await on_change()
        except UserError as error:
            on_problem(error)
        applied = now


NAMES_SHOWN: Final = 50

LEASE_LOOK_S: Final = 0.2

_log = get_logger("relay.process")


async def follow_registry(registry: Registry, log: Log, retrier: Retrier) -> None:
    """Runs until cancelled; while the log is unavailable, the known entries stay in effect."""
    while True:
        try:
            await registry.follow(log)
        except LogUnavailable as error:
            await retrier.pause("follow the registry", error)


class MovedEndpoints:
    """Endpoints with a new URL: an outage of the former URL says nothing about it, so it is probed at once.
    `resumed`: makes lanes ask again."""

    def __init__(self, resumed: Callable[[str], None]) -> None:
        self._resumed = resumed
        self._owners: set[str] = set()
        self._noted = asyncio.Event()

    def note(self, owner: str) -> None:
        self._owners.add(owner)
        self._noted.set()

    async def run(self, state: State, retrier: Retrier) -> None:
        """Runs until cancelled."""
        while True:
            await self._noted.wait()
            self._noted.clear()
            owners, self._owners = self._owners, set()
            await retrier.until_done("look at moved endpoints", partial(state.probe_soon, sorted(owners)))
            for owner in owners:
                self._resumed(owner)


async def count_refused(registry: Registry, metrics: Metrics) -> None:
    """Runs until cancelled."""
    async for _ in registry.changes():
        metrics.receivers_refused.set(registry.refused)


def log_unknown(registry: Registry, wanted: Collection[str]) -> None:
    """An unknown name may be a typo, or a receiver that is registered later."""
    unknown = sorted(name for name in wanted if registry.receiver(name) is None)
    if unknown:
        own = sorted(registry.receivers())[:NAMES_SHOWN]
        _log.warning("receivers_unknown", names=unknown, known=own, shared=len(registry.shared))


@dataclass(eq=False)
class FileWatch:
    """Applies the receivers file: at the start, and again whenever it changes. `owner`: the process that applies it.
    `hangup`: set it to reload the file."""

    settings: Settings
    plan: ProcessPlan
    registry: Registry
    log: Log
    state: State
    topics: Topics
    clock: Clock
    _: KW_ONLY
    owner: str
    retrier: Retrier
    _stamp: Stamp | None = None
    _file: ReceiversFile | None = None
    _is_there: bool = False
    _unlogged: Diff = Diff()
    _taken: Sequence[str] = ()  # keys of its entries that are registered over the API
    hangup: asyncio.Event = field(default_factory=asyncio.Event)

    async def apply(self) -> None:
        """Read the file and apply it. Raises UserError and Unavailable."""
        await self.read()
        await self.apply_loaded()

    async def apply_loaded(self) -> None:
        """Applies the file that was read: by one process at a time, with the same result in each. The registry has to
        be followed: it knows the file's entries when this returns.

        Raises UserError and Unavailable.
        """
        if self._file is None:
            return
        await take_lease(self.state, self.clock, LEASE, self.owner, patience_s=inf, look_s=LEASE_LOOK_S)
        async with keeping_lease(self.state, self.clock, LEASE, self.owner):
            await self._reach_end()
            there = self.registry.topic()
            refused = (await apply_file(self.log, self._file, self.topics, there=there, decided=self._decide)).refused
        self._taken = refused
        for key in refused:
            _log.error("receivers_file_entry_refused", key=key, problem=refusal_of(key))
        if self._unlogged:
            await self._reach_end()
            diff, self._unlogged = self._unlogged, Diff()
            say = _log.warning if diff.removed else _log.info  # a removed receiver gets nothing any more
            if self._is_there or diff.removed:  # otherwise they are those that `relay dev` adds
                say("receivers_applied", added=diff.added, changed=diff.changed, removed=diff.removed)

    async def _decide(self, diff: Diff) -> None:
        # a failed call may have appended them, and a repeated one then finds no difference
        self._unlogged |= diff

    async def read(self) -> ReceiversFile | None:
        """The file; its literal secrets are registered for masking. Raises UserError."""
        path = self.settings.receivers_file
        self._stamp = file_stamp(path)
        # with thousands of receivers this takes seconds, which must not block the event loop
        read = await asyncio.to_thread(load_receivers_file, path) if path.exists() else None
        self._is_there = read is not None
        self._file = file = self.plan.with_entries(read)
        if file is not None:
            await asyncio.to_thread(lambda: file.sealed)
            self.registry.learn(file)
        return file

    async def _reach_end(self) -> None:
        """Waits until the registry has read the topic up to its present end."""
        [end] = (await self.log.ends([TopicPartition(self.topics.receiver_config, 0)])).values()
        await self.registry.reach(end)

    async def run(self) -> None:
        """Applies changes until cancelled, once log and state are available. A file that cannot be applied is logged,
        and the former one stays in effect."""
        path = self.settings.receivers_file
        apply = partial(self.retrier.until_done, "apply the receivers file", self.apply)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._apply_freed())
            tasks.create_task(self._apply_lost())
            await watch_file(path, apply, self._refused, self.hangup, on_gone=self._gone, since=self._stamp)

    async def _apply_freed(self) -> None:
        """Asks for the file to be applied once an entry that it could not have has been deleted over the API."""
        async for _ in self.registry.changes():
            if any(self.registry.record(key) is None for key in self._taken):
                self._taken = ()
                self.hangup.set()

    async def _apply_lost(self) -> None:
        """Asks for the file to be applied whenever the topic may have lost its entries."""
        while True:
            await self.registry.read_anew.wait()
            self.registry.read_anew.clear()
            self.hangup.set()

    def _refused(self, error: UserError) -> None:
        for mistake in str(error).splitlines():
            _log.error("receivers_file_refused", error=mistake, in_force="the former one")

    def _gone(self) -> None:
        _log.warning("receivers_file_gone", path=str(self.settings.receivers_file), in_force="the former one")
