"""Event types of the catalogue as the API shows them."""

from typing import Any, TypedDict


class EventVersionView(TypedDict):
    """A version of an event type. `schema`: JSON Schema (2020-12) of the payload. `examples`: payloads that match
    it."""

    version: int
    schema: dict[str, Any]
    examples: list[Any]


class EventTypeView(TypedDict):
    """An event type. `deprecated`: still sent, but not to be subscribed to any more. `versions`: in ascending order; a
    payload is valid if it is valid by any of them."""

    type: str
    description: str
    deprecated: bool
    versions: list[EventVersionView]


class EventTypePage(TypedDict):
    """In the order of their names. `cursor`: of the next page; null on the last one."""

    items: list[EventTypeView]
    cursor: str | None
