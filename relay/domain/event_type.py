"""Event types of the catalogue: their description, and the JSON Schema and examples of each version."""

from typing import Annotated, Any, Final

from msgspec import Meta, Struct

from relay.domain.message import MAX_TEXT_BYTES

MOST_TYPES: Final = 1_000
"""Maximum number of types in the catalogue, which each process keeps in memory."""
TypeName = Annotated[str, Meta(min_length=1, max_length=MAX_TEXT_BYTES)]


class EventVersion(Struct, frozen=True, forbid_unknown_fields=True):
    """`schema`: JSON Schema (2020-12) of the payload. `examples`: payloads, each valid by it."""

    version: Annotated[int, Meta(ge=1, le=9_999)]
    schema: dict[str, Any] = {}
    examples: Annotated[tuple[Any, ...], Meta(max_length=20)] = ()


class EventTypeEntry(Struct, frozen=True, forbid_unknown_fields=True):
    """An event type as it is declared. `deprecated`: still sent, but no longer to be subscribed to. `versions`: in
    ascending order; a payload is valid if it is valid by any of them."""

    description: Annotated[str, Meta(max_length=4_000)] = ""
    deprecated: bool = False
    versions: Annotated[tuple[EventVersion, ...], Meta(max_length=20)] = ()
