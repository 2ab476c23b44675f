"""Resolves records of `receiver_config` to receivers and sources, or reads them without their secrets, and keeps the
sources in effect."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Final

from relay.config.encryption import KeyRing
from relay.config.problems import SECRET_FIELDS
from relay.config.receiver_entry import ReceiverEntry
from relay.config.receivers_file import ANY_SOURCE, Raw, check_entry, resolve, resolve_source
from relay.config.references import references_in
from relay.config.source_entry import SourceEntry
from relay.control.records import ORIGIN, decode, read_topic
from relay.domain.control_key import control_key
from relay.domain.errors import UserError
from relay.domain.expression import Expression
from relay.domain.filters import UNDECIDED
from relay.domain.identity import OWN_SOURCE, is_receiver_name
from relay.domain.receiver import Encryption, Endpoint, LaneKind, Receiver, Source
from relay.domain.topics import SHARED, Topics
from relay.log.port import LogReader
from relay.state.rows import TAGS, tag_of

_NOWHERE: Final = "https://unusable.invalid"
"""Stands for the URL of an endpoint that is not resolved here."""
_SIGNED_WITH: Final = SECRET_FIELDS | {"signature", "signature_digest"}
_SENT_WITH: Final = _SIGNED_WITH | {"verification", "oauth2", "tls", "proxy", "encrypt"}
"""Fields of a receiver that only a process that sends to it needs."""
_LANE: Final = frozenset({"lane", "partitions", "ordering", "enabled", "owner", "senders"})
_SUBSCRIPTION: Final = frozenset({"sources", "event_types", "filter"})
_ROUTED_BY: Final = _LANE | _SUBSCRIPTION | {"forward_headers", "coalesce"}


def receiver_of(name: str, value: bytes, environ: Mapping[str, str], ring: KeyRing) -> Receiver:
    """The receiver, with the lane of its entry. Raises UserError."""
    declared = decode(value)
    return replace(resolve(name, _entry(name, declared.entry), environ, ORIGIN, ring), life=declared.life)


def unusable_receiver(name: str, value: bytes, why: str) -> Receiver | None:
    """A receiver of which only the routing is known here, with `why` as `unusable`. It has the fields that are readable
    despite a newer release's format or unresolved references. None if not even its lane is readable."""
    try:
        declared = decode(value)
    except UserError:
        return None
    entry = declared.entry
    raw = {field: each for field, each in entry.items() if next(references_in(each), None) is None}
    if not entry.keys() & _SUBSCRIPTION <= raw.keys():
        raw = {field: each for field, each in raw.items() if field not in _SUBSCRIPTION}
    for fields in (ReceiverEntry.model_fields.keys() - _SENT_WITH, _ROUTED_BY, _ROUTED_BY - {"filter"}, _LANE):
        known: Raw = {"post_endpoint": _NOWHERE} | {field: each for field, each in raw.items() if field in fields}
        try:
            found = resolve(name, _entry(name, known), {}, ORIGIN)
        except UserError:
            continue
        kept = replace(_with_subscription(found, entry), encrypt=_encryption(name, entry))
        return replace(kept, unusable=why, life=declared.life)
    return None


def _encryption(name: str, entry: Raw) -> Encryption | None:
    """The encryption of its payloads, which dead letters need, too; without a key if that cannot be read."""
    if entry.get("encrypt") is None:
        return None
    try:
        return resolve(name, _entry(name, {"post_endpoint": _NOWHERE, "encrypt": entry["encrypt"]}), {}, ORIGIN).encrypt
    except UserError:
        return Encryption()


def _with_subscription(known: Receiver, entry: Raw) -> Receiver:
    """`known`, the readable part of `entry`, with unreadable parts of its subscription left undecided."""
    if entry.get("sources") and not known.sources:
        return replace(known, sources=("*",), event_types=("*",), filter=UNDECIDED)
    return known if entry.get("filter") is None or known.filter is not None else replace(known, filter=UNDECIDED)


def unusable_source(source_id: str, value: bytes, why: str) -> Source:
    """An unusable source, whose results wait if its record has a callback or is unreadable. So do its messages unless
    it is known what the callback needs of them."""
    try:
        raw = decode(value).entry
        source = replace(_readable(source_id, raw, "answers", "failures", "quota"), keep=_keep(source_id, raw))
    except UserError:
        raw, source = {"callback": {}}, Source(source_id, keep=None)
    callback = raw.get("callback")
    return replace(
        source,
        callback=None if callback is None or callback == "kafka" else Endpoint(_NOWHERE),
        kafka=callback == "kafka",
        unusable=why,
    )


def _keep(source_id: str, raw: Raw) -> Mapping[str, Expression] | None:
    try:
        return _readable(source_id, raw, "keep").keep
    except UserError:
        return None


def _readable(source_id: str, raw: Raw, *fields: str) -> Source:
    """The source with only these fields of its entry. Raises UserError."""
    known = {field: raw[field] for field in fields if field in raw}
    return resolve_source(source_id, _source_entry(source_id, known), {}, ORIGIN)


def wanted_lane(name: str, value: bytes) -> tuple[LaneKind, int]:
    """(lane, partitions) in its entry. Raises UserError."""
    entry = _entry(name, decode(value).entry)
    return entry.lane, entry.partitions


def source_of(source_id: str, value: bytes, environ: Mapping[str, str], ring: KeyRing) -> Source:
    """The source. Raises UserError."""
    return resolve_source(source_id, _source_entry(source_id, decode(value).entry), environ, ORIGIN, ring)


def last_settings(name: str, value: bytes, environ: Mapping[str, str], ring: KeyRing) -> Receiver:
    """The last settings of a removed receiver, without secrets that are no longer known; if more is unknown, only its
    routing, as `unusable_receiver`. Raises UserError."""
    declared, why = decode(value), ""
    bare = {field: each for field, each in declared.entry.items() if field not in _SIGNED_WITH}
    for known in (declared.entry, bare):
        try:
            return replace(resolve(name, _entry(name, known), environ, ORIGIN, ring), life=declared.life)
        except UserError as error:
            why = str(error)
    unusable = unusable_receiver(name, value, why)
    if unusable is None:
        raise UserError(why)
    return unusable


def _entry(name: str, raw: object) -> ReceiverEntry:
    return check_entry(ReceiverEntry, raw, ORIGIN, ("receivers", name))


def _source_entry(source_id: str, raw: Raw) -> SourceEntry:
    return check_entry(SourceEntry, raw, ORIGIN, ("sources", source_id))


OTHERS_KEPT: Final = 16_384


OWN: Final = Source(OWN_SOURCE, answers="none", failures=False)
"""The source of the relay's own events, whose results are not returned; otherwise the callback of `*` would get
them."""


class EffectiveSources:
    """Sources in effect, resolved."""

    def __init__(self) -> None:
        self._sources: dict[str, Source] = {}
        self._others: dict[str, Source] = {}  # made from that of `*`

    def source(self, source_id: str) -> Source:
        """The source: its own entry, or that of `*` with this id, or a source without callback."""
        if source_id == OWN_SOURCE:
            return OWN
        if (own := self._sources.get(source_id)) is not None:
            return own
        other = self._others.get(source_id)
        if other is None:
            any_ = self._sources.get(ANY_SOURCE, Source(ANY_SOURCE))
            if len(self._others) >= OTHERS_KEPT:
                self._others.clear()
            other = self._others[source_id] = replace(any_, source_id=source_id, inbound=None)
        return other

    def all(self) -> Mapping[str, Source]:
        """All sources by source_id, including `*`. The mapping is live."""
        return self._sources

    def may_be_replaced_by_unusable(self, source_id: str) -> bool:
        """Whether no usable entry of the source is in effect."""
        own = self._sources.get(source_id)
        return own is None or own.unusable is not None

    def put(self, source: Source) -> list[str]:
        """Put the source in effect; returns the owners of callbacks that have become usable."""
        source_id, former = source.source_id, self._sources.get(source.source_id)
        waited = former is not None and former.unusable is not None and source.unusable is None
        resumed = [f"s:{each}" for each in (self._others if source_id == ANY_SOURCE else [source_id]) if waited]
        self._sources[source_id] = source
        self._others.clear()
        return resumed

    def drop(self, source_id: str) -> None:
        self._sources.pop(source_id, None)
        self._others.clear()


@dataclass(frozen=True, slots=True)
class DeclaredEntries:
    """`lanes`: names of the receivers with a lane of their own, or with records left in one. `sources`: their callbacks
    are not usable."""

    lanes: frozenset[str]
    sources: EffectiveSources


async def read_declared(log: LogReader, topics: Topics) -> DeclaredEntries:
    """The current content of the topic. Only the key is used of an entry that a newer version wrote; one of a kind that
    is unknown here has no name of a receiver, and so no lane."""
    there = await read_topic(log, topics)
    own = there.declared.own()
    keys = [control_key(text) for text in own]
    sources = EffectiveSources()
    for key in (each for each in keys if each.kind == "source"):
        sources.put(_source(key.id, there.declared[key.text].entry))
    names = [key.id for key in keys if key.kind == "receiver"]
    lanes = {name for name in names if _has_own_lane(name, there.declared[name].entry)}
    lanes |= {name for name, route in there.routes.all().items() if route.has_own_lane}
    lanes |= {name for name in there.routes.removed if _has_own_lane(name, there.last_entry(name))}
    return DeclaredEntries(frozenset(filter(is_receiver_name, lanes)), sources)


async def lanes_of_receivers(log: LogReader, topics: Topics) -> dict[str, Collection[int]]:
    """Topic of each lane -> hash tags of its receivers."""
    own = (await read_declared(log, topics)).lanes
    return {topics.to_receiver(SHARED): range(TAGS), **{topics.to_receiver(one): {tag_of(f"r:{one}")} for one in own}}


def _has_own_lane(name: str, entry: Raw) -> bool:
    try:
        return _entry(name, entry).lane != SHARED
    except UserError:
        return True


def _source(source_id: str, raw: Raw) -> Source:
    try:
        entry = _source_entry(source_id, raw)
    except UserError:
        return Source(source_id)
    called = entry.callback is not None and entry.callback != "kafka"
    return Source(
        source_id,
        callback=Endpoint(_NOWHERE) if called else None,
        kafka=entry.callback == "kafka",
        answers=entry.answers,
        failures=entry.failures,
    )
