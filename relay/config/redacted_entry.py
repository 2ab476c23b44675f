"""Entries for display: every field in effect, with secrets masked."""

from dataclasses import asdict
from typing import Final

from relay.config.encryption import has_encrypted, map_texts, without_encrypted
from relay.config.endpoint_entry import EndpointEntry
from relay.config.problems import SECRET_FIELDS, Place
from relay.config.references import is_public
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
