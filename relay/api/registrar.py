"""Changes the entries of receivers and sources, one change at a time over all processes; never those of the file.

A change is made under the lease that the receivers file is applied under, by a process that has read `receiver_config`
to its end: so it starts from the current entry, and two changes do not overwrite each other. The lease is renewed right
before the records are appended.
"""

import asyncio
import hashlib
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Any, Final, NamedTuple, cast

from relay.api.access import OWNED, forbidden
from relay.api.problems import (
    CHANGED_MEANWHILE,
    CREDENTIALS_NEEDED,
    DECLARED_IN_FILE,
    INVALID_RECEIVER,
    INVALID_SOURCE,
    NO_SECRETS_KEY,
    NOT_FOUND,
    RECEIVER_EXISTS,
    SOURCE_EXISTS,
    TOO_MANY_RECEIVERS,
    Problem,
    ProblemKind,
)
from relay.clock import Clock
from relay.config.credentials import missing_credentials
from relay.config.entry_types import Entry
from relay.config.problems import Place
from relay.config.receiver_entry import ReceiverEntry
from relay.config.receivers_file import Raw, raw_entry
from relay.control.apply import API, FILE, LEASE, Decided, Diff, publish_changes
from relay.control.patch import (
    RECEIVER,
    EntryKind,
    Fault,
    Faulty,
    NoKey,
    NotTheirs,
    OwnerScope,
    Rules,
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
from relay.domain.errors import LogUnavailable, StateUnavailable, UserError
from relay.domain.receiver import Life
from relay.domain.topics import SHARED, Topics
from relay.engine.holding import Holding
from relay.log.port import Log, NewRecord, TopicPartition
from relay.state.lease import keeping_lease, take_lease
from relay.state.port import State

_LOOK_S: Final = 0.05
_PATIENCE_S: Final = 10.0
"""Time limit for the lease, and then for the log: a failover takes seconds, and clients do not wait for long."""
_INVALID: Final = {"receiver": INVALID_RECEIVER, "source": INVALID_SOURCE}
_TAKEN: Final = {"receiver": RECEIVER_EXISTS, "source": SOURCE_EXISTS}
"""Problems by the word of the kind of entry."""
Kind = EntryKind[Any]
Alter = Callable[[Raw, float], object]
"""Maps an entry in plain text, and the time (Unix seconds), to its new version."""


@dataclass(frozen=True, slots=True)
class Written:
    """The record of a receiver or source as it is in force. `tag`: changes with every change of it."""

    name: str
    value: bytes
    secret: str | None = field(default=None, repr=False)
    """The generated secret, in plain text; it is stored nowhere."""

    @property
    def tag(self) -> str:
        return hashlib.sha256(self.value).hexdigest()[:16]  # encryption makes each record different


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

    Its methods raise Problems, and Unavailable: then it is not known whether the change was made.
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

    def find(self, name: str, *, kind: Kind = RECEIVER) -> Written | None:
        """The record of an entry, from the file or the API."""
        value = self.registry.record(kind.key(name))
        return None if value is None else Written(name, value)

    def written(self, name: str, *, kind: Kind = RECEIVER) -> Written:
        """As `find`; raises a Problem if there is none."""
        found = self.find(name, kind=kind)
        if found is None:
            raise Problem(NOT_FOUND, f"There is no {kind.word} named {name[:80]!r}.")
        return found

    async def create(
        self, body: Mapping[str, object], behalf: OwnerScope | None = None, *, kind: Kind = RECEIVER
    ) -> Written:
        """Declare one: its name or id, and the fields of its entry. A receiver is in the shared lane unless it names
        another. A secret is made for an endpoint that has none, unless it is not signed."""
        with _problems(kind):
            body = body if behalf is None else behalf.of_new(body)
            name = check_name(body.get(kind.id_field), kind)
            draft, secret = _begun(body, kind, self.new_secret)
            entry, key = self._checked(draft, {}, behalf, kind), kind.key(name)
            declared = EntryRecord(API, encrypted(name, entry, self.rules, kind))
        async with self._alone():
            if behalf is not None:
                await self._check_room(name, declared, behalf)
            if (there := self.registry.record(key)) is not None:
                raise Problem(_TAKEN[kind.word], _taken(name, there, kind))
            forget = None
            if kind is RECEIVER:
                if name in self.registry.of_origins:
                    raise Problem(RECEIVER_EXISTS, f"{name} stands for an origin of RELAY_ADHOC_ENDPOINTS.")
                declared, forget = replace(declared, life=await self._new_life()), self._forget_former
            value = await self._declare(key, declared, Diff(added=(key,)), forget)
        return Written(name, value, secret)

    async def change(self, target: EntryTarget, patch: Mapping[str, object]) -> Written:
        """Merge `patch` into an entry (RFC 7396)."""

        def patched(there: Raw, _now: float) -> object:
            wanted = merge_patch(there, dict(patch))
            if isinstance(wanted, dict):
                _check_credentials(missing_credentials(there, wanted, patch, self.rules.variables))
            return wanted

        return await self.alter(target, patched)

    async def alter(self, target: EntryTarget, altered: Alter) -> Written:
        """Declare what `altered` makes of its entry in clear, unless that is the same: its secrets, encrypted anew,
        would be another version."""
        name, _, behalf, kind = target
        async with self._alone():
            there, now, key = self.own(target), self.clock.time(), kind.key(name)
            known = opened(name, there.entry, self.rules, kind)
            entry = without_expired(known, now)
            with _problems(kind):
                wanted = self._checked(altered(entry, now), entry, behalf, kind)
                if raw_entry(wanted) == known:
                    return self.written(name, kind=kind)
                declared = EntryRecord(API, encrypted(name, wanted, self.rules, kind))
            life, forget = there.life, None
            if _owner_in(there) not in (None, _owner_in(declared)):
                life, forget = await self._new_life(), self._forget_former
            declared = replace(declared, life=life)
            value = await self._declare(key, declared, Diff(changed=(key,)), forget)
        return Written(name, value)

    async def remove(self, target: EntryTarget) -> None:
        """Declare it no longer; what it has accepted is finished."""
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
        """The record that was declared over the API. Raises a Problem if it may not be changed."""
        name, tag, behalf, kind = target
        written = self.written(name, kind=kind)
        there = readable(written.value)
        if behalf is not None:
            with _problems(kind):
                behalf.check_own({} if there is None else there.entry)
        if there is None or there.by != API:
            raise Problem(DECLARED_IN_FILE, _not_ours(name, there, kind))
        if tag is not None and tag != written.tag:
            raise Problem(CHANGED_MEANWHILE, f"The {kind.word} {name} was changed meanwhile: look at it again.")
        return there

    async def _check_room(self, name: str, declared: EntryRecord, behalf: OwnerScope) -> None:
        """Raises a Problem if the owner has enough receivers, or if data of a former owner of the name remain, which
        the next owner must not see."""
        count = len(self.registry.names("", behalf.most, _owner_in(declared) or ""))
        if count >= behalf.most:
            raise Problem(TOO_MANY_RECEIVERS, f"There are {count} receivers of this owner, and there may be no more.")
        last = self.registry.removed(name)
        is_anothers = self.registry.is_gone(name) and (last is None or last.owner not in behalf.owners)
        is_free = not (self.registry.is_declared(name) or name in self.registry.of_origins or is_anothers)
        if not is_free or (last is None and await self.state.failed(name, limit=1)):
            raise Problem(RECEIVER_EXISTS, "This name is not free.")  # the same for every owner: it reveals none

    def _checked(self, draft: object, former: Raw, behalf: OwnerScope | None, kind: Kind) -> Entry:
        if isinstance(draft, dict) and kind is RECEIVER:
            draft = with_verification(draft, former, self.rules)
        entry: Entry = checked(kind, draft, self.rules if behalf is None else replace(self.rules, allowed=()))
        if behalf is not None:
            behalf.check(former, cast(ReceiverEntry, entry))  # owners declare no sources
        return entry

    async def _new_life(self) -> Life:
        """Starts a new life of a name that is registered or gets another owner, so that the owner does not see earlier
        messages."""
        topics = (self.topics.receiver_config, self.topics.from_sender)
        topic_id = await self.log.topic_id(self.topics.from_sender)
        there = await self.log.describe(topics)
        places = [TopicPartition(name, n) for name, state in there.items() for n in range(state.spec.partitions)]
        ends = await self.log.ends(places)
        begins = tuple(ends[place] for place in places if place.topic == self.topics.from_sender)
        # its record will be behind that end: no other registration has the same
        id = f"{ends[TopicPartition(self.topics.receiver_config, 0)]}-{int(self.clock.time())}"
        if await self.log.topic_id(self.topics.from_sender) != topic_id:
            raise LogUnavailable(f"{self.topics.from_sender} was created again meanwhile")
        return Life(id, self.topics.from_sender, begins, topic_id)

    async def _forget_former(self, diff: Diff) -> None:
        """Deletes the health and the hold of the endpoint that had the receiver's name before. A later response from it
        does not hold the next one."""
        [name] = diff.added + diff.changed
        owner = f"r:{name}"
        [health] = await self.state.endpoints([owner])
        if health.hold is not None:
            await self._holding.resume(owner)
        await self.state.forget_endpoint(owner)
        await self.state.resume(owner)

    async def _declare(self, key: str, declared: EntryRecord, diff: Diff, decided: Decided | None) -> bytes:
        try:
            await self._publish_changes({key: declared}, diff, decided)
        except UserError as error:  # its topics have more partitions, and none can be taken away
            raise _faulty(INVALID_RECEIVER, [Fault("/partitions", str(error).partition(".partitions: ")[2])]) from None
        return declared.encode()

    async def _publish_changes(
        self, wanted: Mapping[str, EntryRecord], diff: Diff, decided: Decided | None = None
    ) -> None:
        await self._hold()
        there, says = self.registry.topic(), "the request"
        await publish_changes(self.log, self.topics, there, wanted, diff, origin=says, says=says, decided=decided)
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
        raise _faulty(CREDENTIALS_NEEDED, faults)


@contextmanager
def _problems(kind: Kind) -> Iterator[None]:
    """Translates errors of drafts into Problems."""
    try:
        yield
    except Faulty as error:
        raise _faulty(_INVALID[kind.word], error.faults) from None
    except NotTheirs:
        raise forbidden(OWNED) from None
    except NoKey as error:
        raise Problem(NO_SECRETS_KEY, str(error)) from None


def _faulty(kind: ProblemKind, faults: list[Fault]) -> Problem:
    errors = tuple({"detail": fault.detail, "pointer": fault.pointer} for fault in faults)
    return Problem(kind, str(Faulty(faults)), errors=errors)


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
