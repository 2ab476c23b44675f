"""Changes the entries of receivers and sources, one change at a time over all processes; never those of the file.

A change is made under the lease that the receivers file is applied under, by a process that has read `receiver_config`
to its end: so it starts from the current entry, and two changes do not overwrite each other. The lease is renewed right
before the records are appended.
"""

import asyncio
import hashlib
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Any, Final, NamedTuple

from relay.clock import Clock
from relay.config.credentials import missing_credentials
from relay.config.problems import Place
from relay.config.receivers_file import Raw
from relay.control.apply import API, FILE, LEASE, Diff, publish_changes
from relay.control.patch import (
    RECEIVER,
    EntryKind,
    Fault,
    Faulty,
    OwnerScope,
    Rules,
    TooManyReceivers,
    check_name,
    checked,
    encrypted,
    merge_patch,
    opened,
    pointer,
    with_verification,
    without_expired,
)
from relay.control.records import EntryRecord, decode
from relay.control.registry import Registry
from relay.domain.errors import LogUnavailable, RelayError, StateUnavailable, UserError
from relay.domain.receiver import Life
from relay.domain.topics import SHARED, Topics
from relay.engine.holding import Holding
from relay.log.port import Log, NewRecord, TopicPartition
from relay.state.lease import keeping_lease, take_lease
from relay.state.port import State

_LOOK_S: Final = 0.05
_PATIENCE_S: Final = 10.0
"""Time limit for the lease, and then for the log: a failover takes seconds, and clients do not wait for long."""
_NOT_FREE: Final = "This name is not free."
"""The detail for a name that is taken. It is the same for every owner, so that it reveals none."""
Kind = EntryKind[Any]
Alter = Callable[[Raw, float], object]
"""Maps an entry in plain text, and the time (Unix seconds), to its new version."""


class Unknown(RelayError):
    """There is no such receiver, or no source with its own entry."""


class NameTaken(RelayError):
    """A receiver or source of that name exists."""


class InFile(RelayError):
    """The entry is declared in the receivers file, and can be changed only there."""


class ChangedMeanwhile(RelayError):
    """The entry is no longer the version that the caller named."""


class CredentialsNeeded(Faulty):
    """A change would send credentials to another origin than they were given for."""


@dataclass(frozen=True, slots=True)
class Written:
    """The record of a receiver or source as it is in force. `tag`: changes with every change of it."""

    name: str
    value: bytes
    secret: str | None = field(default=None, repr=False)
    """The generated secret, in plain text; it is stored nowhere."""

    @property
    def tag(self) -> str:
        return tag_of(self.value)


def tag_of(value: bytes) -> str:
    """Identifies a record among those of the same key: encryption makes each one different."""
    return hashlib.sha256(value).hexdigest()[:16]


class EntryTarget(NamedTuple):
    """The entry that a change is about. `tag`: the one that it must still have; None: any. `behalf`: the owners for
    which it is changed; None: for an administrator."""

    name: str
    tag: str | None = None
    behalf: OwnerScope | None = None
    kind: Kind = RECEIVER


@dataclass(eq=False, repr=False)
class Registrar:
    """One per process. `owner`: unique per process. `new_secret`: makes a signing secret.

    Its methods raise Unavailable, and then it is not known whether the change was made; and NotTheirs for an entry of
    another owner than `behalf` names.
    """

    log: Log
    state: State
    topics: Topics
    registry: Registry
    clock: Clock
    rules: Rules
    new_secret: Callable[[], str]
    _: KW_ONLY
    owner: str

    def __post_init__(self) -> None:
        self.ring = self.rules.ring
        self._holding = Holding(self.log, self.state, self.topics.receiver_config)
        self._owner = f"{self.owner}-api"  # not who applies the file in this process
        self._turn = asyncio.Lock()

    def written(self, name: str, *, kind: Kind = RECEIVER) -> Written:
        """The record of an entry, from the file or the API. Raises Unknown."""
        value = self.registry.record(kind.key(name))
        if value is None:
            raise Unknown(f"There is no {kind.word} named {name[:80]!r}.")
        return Written(name, value)

    async def create(
        self, body: Mapping[str, object], behalf: OwnerScope | None = None, *, kind: Kind = RECEIVER
    ) -> Written:
        """Declare one: its name or id, and the fields of its entry. A receiver is in the shared lane unless it names
        another. A secret is made for an endpoint that has none, unless it is not signed. Raises Faulty, NoKey,
        Taken, TooManyReceivers."""
        body = body if behalf is None else behalf.of_new(body)
        name = check_name(body.get(kind.id_field), kind)
        draft, secret = _begun(body, kind, self.new_secret)
        declared, key = self._sealed(name, draft, {}, behalf, kind), kind.key(name)
        async with self._alone():
            if behalf is not None:
                await self._check_room(name, declared, behalf)
            if (there := self.registry.record(key)) is not None:
                raise NameTaken(_taken(name, there, kind))
            if kind is RECEIVER:
                declared = replace(declared, life=await self._new_life())
                await self._forget_former(name)
            value = await self._declare(key, declared, Diff(added=(key,)))
        return Written(name, value, secret)

    async def change(self, target: EntryTarget, patch: Mapping[str, object]) -> Written:
        """Merge `patch` into an entry (RFC 7396). Raises Unknown, InFile, ChangedMeanwhile, Faulty, CredentialsNeeded,
        NoKey."""

        def patched(there: Raw, _now: float) -> object:
            wanted = merge_patch(there, dict(patch))
            if isinstance(wanted, dict):
                _check_credentials(missing_credentials(there, wanted, patch, self.rules.variables))
            return wanted

        return await self.alter(target, patched)

    async def alter(self, target: EntryTarget, altered: Alter) -> Written:
        """Declare what `altered` makes of its entry in clear. Raises as `change` does, and as `altered`."""
        name, _, behalf, kind = target
        async with self._alone():
            there, now, key = self.own(target), self.clock.time(), kind.key(name)
            entry = without_expired(opened(name, there.entry, self.rules, kind), now)
            declared = self._sealed(name, altered(entry, now), entry, behalf, kind)
            is_anothers = _owner_in(there) not in (None, _owner_in(declared))
            declared = replace(declared, life=await self._new_life() if is_anothers else there.life)
            value = await self._declare(key, declared, Diff(changed=(key,)))
        return Written(name, value)

    async def remove(self, target: EntryTarget) -> None:
        """Declare it no longer; what it has accepted is finished. Raises Unknown, InFile, ChangedMeanwhile."""
        async with self._alone():
            self.own(target)
            await self._publish_changes({}, Diff(removed=(target.kind.key(target.name),)))

    async def rewrite(self, records: Callable[[], Sequence[NewRecord]]) -> int:
        """Append what `records` returns for the current entries: the same entries in another form. Returns their
        number."""
        async with self._alone():
            found = records()
            if found:
                await self._hold()
                await self.log.append(found)
                await self._reach_end()
        return len(found)

    def own(self, target: EntryTarget) -> EntryRecord:
        """The record that was declared over the API. Raises Unknown, InFile, ChangedMeanwhile."""
        name, tag, behalf, kind = target
        written = self.written(name, kind=kind)
        there = readable(written.value)
        if behalf is not None:
            behalf.check_own({} if there is None else there.entry)
        if there is None or there.by != API:
            raise InFile(_not_ours(name, there, kind))
        if tag is not None and tag != written.tag:
            raise ChangedMeanwhile(f"The {kind.word} {name} was changed meanwhile: look at it again.")
        return there

    async def _check_room(self, name: str, declared: EntryRecord, behalf: OwnerScope) -> None:
        """Raises TooManyReceivers, and NameTaken if data of a former owner of the name remain, which the next owner
        must not see."""
        count = owned(self.registry, _owner_in(declared) or "", behalf.most)
        if count >= behalf.most:
            raise TooManyReceivers(f"There are {count} receivers of this owner, and there may be no more.")
        last = self.registry.removed(name)
        is_anothers = self.registry.is_gone(name) and (last is None or last.owner not in behalf.owners)
        if self.registry.is_declared(name) or is_anothers:
            raise NameTaken(_NOT_FREE)
        if last is None and await self.state.failed(name, limit=1):
            raise NameTaken(_NOT_FREE)

    def _sealed(self, name: str, draft: object, former: Raw, behalf: OwnerScope | None, kind: Kind) -> EntryRecord:
        if isinstance(draft, dict) and kind is RECEIVER:
            draft = with_verification(draft, former, self.rules)
        entry = checked(kind, draft, self.rules if behalf is None else replace(self.rules, allowed=()))
        if behalf is not None:
            behalf.check(former, entry)
        return EntryRecord(API, encrypted(name, entry, self.rules, kind))

    async def _new_life(self) -> Life:
        """Starts a new life of a name that is registered or gets another owner, so that the owner does not see earlier
        messages."""
        topics = (self.topics.receiver_config, self.topics.from_sender)
        there = await self.log.describe(topics)
        places = [TopicPartition(name, n) for name, state in there.items() for n in range(state.spec.partitions)]
        ends = await self.log.ends(places)
        begins = tuple(ends[place] for place in places if place.topic == self.topics.from_sender)
        # its record will be behind that end: no other registration has the same
        id = f"{ends[TopicPartition(self.topics.receiver_config, 0)]}-{int(self.clock.time())}"
        return Life(id, self.topics.from_sender, begins)

    async def _forget_former(self, name: str) -> None:
        """Deletes the health and the hold of the endpoint that had the name before."""
        owner = f"r:{name}"
        [health] = await self.state.endpoints([owner])
        if health.hold is not None:
            await self._holding.resume(owner)
        await self.state.forget_endpoint(owner)

    async def _declare(self, key: str, declared: EntryRecord, diff: Diff) -> bytes:
        try:
            await self._publish_changes({key: declared}, diff)
        except UserError as error:  # its topics have more partitions, and none can be taken away
            raise Faulty([Fault("/partitions", str(error).partition(".partitions: ")[2])]) from None
        return declared.encode()

    async def _publish_changes(self, wanted: Mapping[str, EntryRecord], diff: Diff) -> None:
        await self._hold()
        await publish_changes(
            self.log, self.topics, self.registry.topic(), wanted, diff, origin="the request", says="the request"
        )
        await self._reach_end()

    @asynccontextmanager
    async def _alone(self) -> AsyncIterator[None]:
        """Holds the lease of changes: no other process changes anything, and all earlier changes are known here."""
        async with self._turn:
            await self._hold()
            async with keeping_lease(self.state, self.clock, LEASE, self._owner):
                await self._reach_end()
                yield

    async def _hold(self) -> None:
        lease = take_lease(self.state, self.clock, LEASE, self._owner, patience_s=_PATIENCE_S, look_s=_LOOK_S)
        if not await lease:
            raise StateUnavailable("another process has been changing receivers for too long")

    async def _reach_end(self) -> None:
        try:
            async with asyncio.timeout(_PATIENCE_S):
                topic = self.topics.receiver_config
                [end] = (await self.log.ends([TopicPartition(topic, 0)])).values()
                await self.registry.reach(end)
        except TimeoutError:
            raise LogUnavailable(f"{self.topics.receiver_config} is not read to its end") from None


def _check_credentials(places: Sequence[Place]) -> None:
    if places:
        faults = [
            Fault(pointer(place), "it was given for another origin: give it anew in the same request, or null")
            for place in places
        ]
        raise CredentialsNeeded(faults)


def owned(registry: Registry, owner: str, most: int) -> int:
    """The number of receivers of `owner`, counted up to `most`."""
    return len(registry.names("", most, owner))


def readable(value: bytes) -> EntryRecord | None:
    """The record's entry; None if a newer version wrote it."""
    try:
        return decode(value)
    except UserError:
        return None


def _owner_in(declared: EntryRecord) -> str | None:
    owner = declared.entry.get("owner")
    return owner if isinstance(owner, str) else None


def _begun(body: Mapping[str, object], kind: Kind, new_secret: Callable[[], str]) -> tuple[Raw, str | None]:
    """The draft of a new entry, and its generated secret, if any."""
    draft: Raw = {field: value for field, value in body.items() if field != kind.id_field}
    if kind is RECEIVER:
        return _signed({"lane": SHARED, **draft}, new_secret)
    callback = draft.get("callback")
    if not isinstance(callback, Mapping):
        return draft, None
    signed, secret = _signed(dict(callback), new_secret)
    return {**draft, "callback": signed}, secret


def _signed(endpoint: Raw, new_secret: Callable[[], str]) -> tuple[Raw, str | None]:
    if "secret" in endpoint or endpoint.get("signature") == "none":
        return endpoint, None
    secret = new_secret()
    return {**endpoint, "secret": secret}, secret


def _taken(name: str, value: bytes, kind: Kind) -> str:
    there = readable(value)
    by = "in the receivers file" if there is not None and there.by == FILE else "already"
    return f"The {kind.word} {name} is declared {by}."


def _not_ours(name: str, there: EntryRecord | None, kind: Kind) -> str:
    if there is not None and there.by == FILE:
        return f"The {kind.word} {name} is declared in the receivers file: change it there."
    return f"The {kind.word} {name} was declared by a newer version of the relay, which has to change it."
