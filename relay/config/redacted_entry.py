"""Entries for display, with secrets masked: every field in effect, or the fields that differ between two versions."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Final

from relay.config.encryption import ENCRYPTED, has_encrypted, map_texts, without_encrypted
from relay.config.endpoint_entry import EndpointEntry
from relay.config.problems import SECRET_FIELDS, Place, dotted
from relay.config.receivers_file import Raw
from relay.config.references import SEALED_PREFIX, is_public, with_references_replaced
from relay.config.source_entry import CallbackEntry, SourceEntry
from relay.domain.secrecy import MASK, masked_url

_NOT_SETTINGS: Final = frozenset({"retry", "retry_after"})


def effective(entry: EndpointEntry) -> dict[str, object]:
    """Every field of an entry, durations in seconds, with literal secrets masked.

    `retry` is the policy in effect, also if the entry has the short form `retry_after`, which is left out here.
    """
    known = entry.model_dump(mode="json", exclude=set(_NOT_SETTINGS))
    return {**map_texts(known, (), _masked), "retry": asdict(entry.retry_policy())}


def effective_source(entry: SourceEntry) -> dict[str, object]:
    """Every field of a source's entry, likewise."""
    known: dict[str, object] = map_texts(entry.model_dump(mode="json"), (), _masked)
    callback = entry.callback
    return known | ({"callback": effective(callback)} if isinstance(callback, CallbackEntry) else {})


def shown_url(url: str) -> str:
    """A URL without its secret parts, literal or encrypted."""
    return masked_url(without_encrypted(url, MASK))


def _masked(text: str, place: Place) -> str:
    if SECRET_FIELDS.intersection(place):
        return text if is_public(text) and not has_encrypted(text) else MASK
    return shown_url(text) if "://" in text else text


_ABSENT: Final = object()


@dataclass(frozen=True, slots=True)
class FieldChange:
    """A changed field, such as `retry.cap`. `old`, `new`: None for the default. `secret`: the values must not be shown,
    and are both None."""

    field: str
    old: object
    new: object
    secret: bool = False


def field_changes(old: Raw, new: Raw) -> list[FieldChange]:
    """The changes, sorted by field name."""
    return sorted(_changes(old, new, ()), key=lambda change: change.field)


def _changes(old: object, new: object, place: Place) -> Iterator[FieldChange]:
    if old == new:
        return
    # each field of a mapping that was added or removed, because one may be secret
    before, after = ({} if each is _ABSENT else each for each in (old, new))
    if isinstance(before, Mapping) and isinstance(after, Mapping) and (before or after):
        for key in {**before, **after}:
            yield from _changes(before.get(key, _ABSENT), after.get(key, _ABSENT), (*place, str(key)))
        return
    shown = _shown(old), _shown(new)
    if SECRET_FIELDS.intersection(place) or shown[0] == shown[1]:
        yield FieldChange(dotted(place), None, None, secret=True)
    else:
        yield FieldChange(dotted(place), *shown)


def _shown(value: object) -> object:
    if value is _ABSENT:
        return None
    if isinstance(value, Mapping):
        return {key: MASK if key in SECRET_FIELDS else _shown(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_shown(inner) for inner in value]
    if isinstance(value, str):
        text = with_references_replaced(value, _shown_reference)
        return masked_url(text) if "://" in text else text
    return value


def _shown_reference(name: str) -> str:
    """The reference, masked if it stands for a secret."""
    return MASK if ENCRYPTED in name or SEALED_PREFIX in name else f"${{{name}}}"
