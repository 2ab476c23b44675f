"""Reads and validates receivers.yaml, and resolves its entries to the receivers and sources that workers use."""

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Annotated, Final, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, Field, ValidationError

from relay.config.encryption import NO_KEYS, KeyRing, map_texts, open_all, secrets_of, texts_in
from relay.config.entry_settings import receiver_settings, source_settings
from relay.config.entry_types import Entry, FieldData, ReceiverName, field_check
from relay.config.presets import FromPreset
from relay.config.problems import SECRET_FIELDS, Place, dotted, explain, raise_all
from relay.config.receiver_entry import ReceiverEntry
from relay.config.references import SEALED_PREFIX, is_public, references_in, substitute, unbraced_in, unmarked_in
from relay.config.source_entry import SourceEntry
from relay.config.strict_yaml import parse_mapping, read_mapping
from relay.domain.errors import InvalidRecord, UserError
from relay.domain.identity import OWN_SOURCE, check_id
from relay.domain.receiver import Endpoint, Receiver, Source
from relay.domain.secrecy import secret_spans
from relay.domain.signing import public_key
from relay.domain.template import has_expression
from relay.domain.text import with_replaced


def _source_id(value: str) -> str:
    if value == OWN_SOURCE:
        raise ValueError(f"{OWN_SOURCE!r} is the source of the relay's own events; no other can have this id")
    try:
        return check_id(value, "source_id")
    except InvalidRecord as error:
        raise ValueError(error.detail) from error


def _empty_if_none(value: object) -> object:
    return {} if value is None else value  # `receivers:` with only comments below it


SourceId = Annotated[str, AfterValidator(_source_id)]


class ReceiversModel(Entry):
    """The whole of receivers.yaml."""

    sources: Annotated[
        dict[SourceId, Annotated[SourceEntry, BeforeValidator(_empty_if_none)]], BeforeValidator(_empty_if_none)
    ] = Field(default_factory=dict)
    """Senders by their source id; `*` applies to all others."""
    receivers: Annotated[dict[ReceiverName, ReceiverEntry], BeforeValidator(_empty_if_none)] = Field(
        default_factory=dict
    )
    """Receivers by name."""

    @field_check("sources")
    def _inbound_of_one(cls, sources: dict[str, SourceEntry], _data: FieldData) -> None:
        if "*" in sources and sources["*"].inbound is not None:
            raise ValueError("'*' cannot have inbound: its secret would be valid for every source; name the source")


ANY_SOURCE: Final = "*"
"""The entry under `sources` for every source without one of its own."""

_EntryModel = TypeVar("_EntryModel", bound=BaseModel)
Raw = dict[str, object]
"""An entry as stored on the log: the fields that were set, in JSON's types, with references."""


@dataclass(frozen=True)
class ReceiversFile:
    """A valid file, with unresolved references to the environment. `origin`: its name, for messages.

    `is_empty`: the file itself has no receivers, even if some were added.
    """

    origin: str
    receivers: Mapping[str, ReceiverEntry]
    sources: Mapping[str, SourceEntry]
    is_empty: bool = False

    @cached_property
    def sealed(self) -> "SealedEntries":
        """The entries without literal secrets, as they may leave this machine, and these secrets."""
        literals: dict[str, str] = {}
        receivers = {name: _sealed(raw_entry(entry), name, literals) for name, entry in self.receivers.items()}
        sources = {name: _sealed(raw_entry(entry), name, literals) for name, entry in self.sources.items()}
        return SealedEntries(receivers, sources, literals)

    def notes(self) -> Iterator[str]:
        """Valid settings that are probably mistakes, one line each."""
        raw = {
            "receivers": {name: raw_entry(entry) for name, entry in self.receivers.items()},
            "sources": {name: raw_entry(entry) for name, entry in self.sources.items()},
        }
        for place in unbraced_in(raw):
            yield f"{dotted(place)}: $NAME without braces is sent or signs as it is; a variable is written ${{NAME}}"
        for place, text in unmarked_in(raw):
            yield f"{dotted(place)}: {text} is sent as it is; an expression is written ${{{{ ... }}}}"
        for source_id, source in self.sources.items():
            for name in () if source.inbound is None else source.inbound.receivers or ():
                if name not in self.receivers:
                    yield (
                        f"sources.{source_id}.inbound.receivers: {name} is not in this file; until it is registered, "
                        "webhooks of this source are rejected"
                    )

    def refusals(self, environ: Mapping[str, str]) -> dict[str, str]:
        """Why entries cannot be used with `environ`, by `receivers.<name>` or `sources.<id>`; one line each."""
        found = self._endpoints(environ)
        return {key: "; ".join(str(each).splitlines()) for key, each in found if isinstance(each, UserError)}

    def public_keys(self, environ: Mapping[str, str]) -> dict[str, list[str]]:
        """Public keys that verify `v1a` signatures, newest first, by `receivers.<name>` or `sources.<id>`; without
        entries that do not sign with Ed25519, or cannot be used with `environ`."""
        found = [(key, each) for key, each in self._endpoints(environ) if isinstance(each, Endpoint)]
        return {key: keys for key, each in found if (keys := list(map(public_key, each.signing.private_keys)))}

    def _endpoints(self, environ: Mapping[str, str]) -> Iterator[tuple[str, Endpoint | UserError | None]]:
        """The endpoint of each entry, or why the entry cannot be used."""
        for name, entry in self.receivers.items():
            try:
                yield f"receivers.{name}", resolve(name, entry, environ, self.origin).post
            except UserError as error:
                yield f"receivers.{name}", error
        for source_id, source in self.sources.items():
            try:
                yield f"sources.{source_id}", resolve_source(source_id, source, environ, self.origin).callback
            except UserError as error:
                yield f"sources.{source_id}", error

    def resolve(self, environ: Mapping[str, str]) -> tuple[dict[str, Receiver], dict[str, Source]]:
        """All receivers and sources, resolved. Raises UserError for the first entry that cannot be."""
        receivers = {name: resolve(name, entry, environ, self.origin) for name, entry in self.receivers.items()}
        sources = {name: resolve_source(name, entry, environ, self.origin) for name, entry in self.sources.items()}
        return receivers, sources


@dataclass(frozen=True, slots=True)
class SealedEntries:
    """Entries in which every secret is a reference: to the environment, or to `literals` of the file.

    A literal secret of the file must not reach the log, so each process with the file takes it from there.
    """

    receivers: Mapping[str, Raw]
    sources: Mapping[str, Raw]
    literals: Mapping[str, str] = field(repr=False)


def load_receivers_file(path: Path) -> ReceiversFile:
    """Raises UserError with one line per mistake: file, entry, field, mistake, and allowed values."""
    return _checked(read_mapping(path), str(path))


def parse_receivers_file(text: str, origin: str = "receivers.yaml") -> ReceiversFile:
    """As `load_receivers_file`, for a text. `origin`: its name, for messages."""
    return _checked(parse_mapping(text, origin), origin)


def receivers_schema() -> dict[str, object]:
    """JSON Schema (2020-12) of the file."""
    schema = ReceiversModel.model_json_schema()
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema, "title": "receivers.yaml"}


def raw_entry(entry: BaseModel) -> Raw:
    """The fields that were set in an entry, with durations in seconds; without those of its preset."""
    raw: Raw = entry.model_dump(mode="json", exclude_unset=True)
    return entry.only_own(raw) if isinstance(entry, FromPreset) else raw


def resolve(
    name: str,
    entry: ReceiverEntry,
    environ: Mapping[str, str],
    origin: str = "receivers.yaml",
    ring: KeyRing = NO_KEYS,
) -> Receiver:
    """The receiver with its settings in effect. Raises UserError that names `origin`, entry, field and variable."""
    return receiver_settings(name, *_resolved(entry, environ, ring, origin, ("receivers", name)))


def resolve_source(
    source_id: str,
    entry: SourceEntry,
    environ: Mapping[str, str],
    origin: str = "receivers.yaml",
    ring: KeyRing = NO_KEYS,
) -> Source:
    """The source with its callback, if it has one. Raises UserError as `resolve` does."""
    return source_settings(source_id, *_resolved(entry, environ, ring, origin, ("sources", source_id)))


def check_entry(model: type[_EntryModel], raw: object, origin: str, place: Place) -> _EntryModel:
    """`raw`, validated as an entry. Raises UserError with a line per mistake."""
    try:
        return model.model_validate(raw)
    except ValidationError as error:
        found = explain(error, model)
    raise_all(f"{origin}: {dotted((*place, *inner))}: {text}" for inner, text in found)
    raise AssertionError("a validation error without errors")


def _checked(mapping: Mapping[object, object], origin: str) -> ReceiversFile:
    known = check_entry(ReceiversModel, mapping, origin, ())
    return ReceiversFile(origin, known.receivers, known.sources, not known.receivers)


def _resolved(
    entry: _EntryModel, environ: Mapping[str, str], ring: KeyRing, origin: str, place: Place
) -> tuple[_EntryModel, tuple[str, ...]]:
    """The entry with its references replaced, and all its secrets."""
    raw, known = raw_entry(entry), entry
    if next(references_in(raw), None) is not None:
        opened = open_all(raw, ring, origin=origin, place=place)
        # validated again, because the validation of the file accepts any reference
        known = check_entry(type(entry), substitute(opened, environ, origin=origin, place=place), origin, place)
    return known, _secrets(raw, known, environ, ring, place)


def _secrets(raw: Raw, known: BaseModel, environ: Mapping[str, str], ring: KeyRing, place: Place) -> tuple[str, ...]:
    """All secrets of an entry: the values of its references, its secret fields, and secret parts of its URLs."""
    found = {environ[name] for _, name in references_in(raw) if name in environ} | set(secrets_of(raw, ring, place))
    for place, text in texts_in(raw_entry(known)):
        if SECRET_FIELDS.intersection(place) and not has_expression(text):
            found |= {text, text.rpartition(" ")[2]}  # also without the name of the auth scheme before it
        elif "://" in text:
            found |= {text[start:end] for start, end in secret_spans(text)}
    return tuple(sorted(found))


def with_secrets_replaced(raw: Raw, replaced: Callable[[str, Place], str]) -> Raw:
    """A copy of `raw` with `replaced(text, place)` instead of each literal secret: the values of secret fields, and
    secret parts of URLs. `place` has no positions in lists."""

    def changed(text: str, place: Place) -> str:
        place = tuple(step for step in place if isinstance(step, str))
        if SECRET_FIELDS.intersection(place):
            return text if is_public(text) else replaced(text, place)
        return with_replaced(text, secret_spans(text), lambda part: replaced(part, place)) if "://" in text else text

    found: Raw = map_texts(raw, (), changed)
    return found


def _sealed(raw: Raw, name: str, literals: dict[str, str]) -> Raw:
    """A copy of `raw` in which each secret is a reference into `literals`."""

    def sealed(text: str, _place: Place) -> str:
        reference = SEALED_PREFIX + _fingerprint(name, text)
        literals[reference] = text
        return f"${{{reference}}}"

    return with_secrets_replaced(raw, sealed)


def _fingerprint(name: str, value: str) -> str:
    # so that a new secret changes the entry; 48 bits are enough for that, and do not help to guess the secret
    return hashlib.sha256(json.dumps([name, value]).encode()).hexdigest()[:12]
