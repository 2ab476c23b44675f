"""Entries for display: every field in effect, with secrets masked."""

from dataclasses import asdict
from typing import Final

from relay.config.encryption import has_encrypted, without_encrypted
from relay.config.endpoint_entry import EndpointEntry
from relay.config.problems import SECRET_FIELDS
from relay.config.references import is_public
from relay.config.source_entry import CallbackEntry, SourceEntry
from relay.domain.secrecy import MASK, masked_url

_NOT_SETTINGS: Final = frozenset({"retry", "retry_after"})


def effective(entry: EndpointEntry) -> dict[str, object]:
    """Every field of an entry, durations in seconds, with literal secrets masked.

    `retry` is the policy in effect, also if the entry has the short form `retry_after`, which is left out here.
    """
    known = entry.model_dump(mode="json", exclude=set(_NOT_SETTINGS))
    return {**{name: _masked(name, value) for name, value in known.items()}, "retry": asdict(entry.retry_policy())}


def effective_source(entry: SourceEntry) -> dict[str, object]:
    """Every field of a source's entry, likewise."""
    known = {name: _masked(name, value) for name, value in entry.model_dump(mode="json").items()}
    callback = entry.callback
    return known | ({"callback": effective(callback)} if isinstance(callback, CallbackEntry) else {})


def shown_url(url: str) -> str:
    """A URL without its secret parts, literal or encrypted."""
    return masked_url(without_encrypted(url, MASK))


def _masked(name: str, value: object) -> object:
    if name in SECRET_FIELDS:
        return _hidden(value)
    if isinstance(value, dict):
        return {inner: _masked(inner, each) for inner, each in value.items()}
    if isinstance(value, list):
        return [_masked(name, each) for each in value]
    return shown_url(value) if isinstance(value, str) and "://" in value else value


def _hidden(value: object) -> object:
    if isinstance(value, dict):
        return {name: _hidden(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_hidden(inner) for inner in value]
    return MASK if isinstance(value, str) and (has_encrypted(value) or not is_public(value)) else value
