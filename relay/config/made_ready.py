"""Makes receivers and sources that can be used out of what `receiver_config` says of them."""

from collections.abc import Mapping

from relay.config.encryption import KeyRing
from relay.config.entries import ReceiverEntry, SourceEntry
from relay.config.problems import SECRET_FIELDS
from relay.config.receivers_file import check_entry, resolve, resolve_source
from relay.config.topic import ORIGIN, decode
from relay.domain.errors import UserError
from relay.domain.receiver import LaneKind, Receiver, Source


def receiver_of(name: str, value: bytes, environ: Mapping[str, str], ring: KeyRing) -> Receiver:
    """In the lane that its entry says. Raises UserError."""
    return resolve(name, _entry(name, decode(value).entry), environ, ORIGIN, ring)


def wanted_lane(name: str, value: bytes) -> tuple[LaneKind, int]:
    """Lane and partitions that its entry says. Raises UserError."""
    entry = _entry(name, decode(value).entry)
    return entry.lane, entry.partitions


def source_of(source_id: str, value: bytes, environ: Mapping[str, str], ring: KeyRing) -> Source:
    """Raises UserError."""
    entry = check_entry(SourceEntry, decode(value).entry, ORIGIN, ("sources", source_id))
    return resolve_source(source_id, entry, environ, ORIGIN, ring)


def last_settings(name: str, value: bytes, environ: Mapping[str, str], ring: KeyRing) -> Receiver:
    """Of a receiver that was removed; where a secret is not known any more it goes without. Raises UserError."""
    raw = decode(value).entry
    try:
        return resolve(name, _entry(name, raw), environ, ORIGIN, ring)
    except UserError:
        bare = {field: value for field, value in raw.items() if field not in SECRET_FIELDS}
        return resolve(name, _entry(name, bare), environ, ORIGIN, ring)


def _entry(name: str, raw: object) -> ReceiverEntry:
    return check_entry(ReceiverEntry, raw, ORIGIN, ("receivers", name))
