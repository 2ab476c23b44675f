"""What may be written in receivers.yaml for `ordering`: a word, or a mapping for orders finer than a source."""

from typing import Annotated, Final, Literal

from pydantic import Discriminator, PlainValidator, Tag, ValidationInfo, WithJsonSchema, field_validator

from relay.config.durations import PositiveDuration
from relay.config.entry import Entry
from relay.config.filter_entry import check_filter_header
from relay.domain.json_pointer import check_pointer
from relay.domain.ordering import HEADER, KINDS

_MOST_CHARACTERS: Final = 256
_EXPECTED: Final = "expected source, receiver, none, a JSON pointer such as /repository/full_name, or header:NAME"


def _order_by(value: object) -> str:
    if not isinstance(value, str) or len(value) > _MOST_CHARACTERS:
        raise ValueError(_EXPECTED)
    if value.startswith("/"):
        return check_pointer(value)
    if value.startswith(HEADER):
        return HEADER + check_filter_header(value.removeprefix(HEADER))
    if value not in KINDS:
        raise ValueError(_EXPECTED)
    return value


class OrderingEntry(Entry):
    """Which messages are delivered one after the other."""

    by: Annotated[str, PlainValidator(_order_by), WithJsonSchema({"type": "string", "maxLength": _MOST_CHARACTERS})] = (
        "source"
    )
    """`source`, `receiver`, `none`; or a JSON pointer into the payload, or `header:NAME`: messages of a source are then
    in order with those that have the same value there."""
    patience: PositiveDuration | None = None
    """How long a message that fails may hold up those behind it. After that it is retried beside them, and marked
    `relay-out-of-order: true`. Default: until it is delivered or given up."""

    @field_validator("patience")
    @classmethod
    def _holds_up_others(cls, patience: float | None, info: ValidationInfo) -> float | None:
        if patience is not None and info.data.get("by") == "none":
            raise ValueError("nothing waits for another with 'by: none'; leave one of the two out")
        return patience


OrderingValue = Annotated[
    Annotated[Literal["source", "receiver", "none"], Tag("(word)")] | Annotated[OrderingEntry, Tag("(mapping)")],
    Discriminator(lambda value: "(mapping)" if isinstance(value, dict | OrderingEntry) else "(word)"),
]


def order_by(ordering: "str | OrderingEntry") -> str:
    """What the messages are in order by, in whichever form it was written."""
    return ordering if isinstance(ordering, str) else ordering.by


def patience_of(ordering: "str | OrderingEntry") -> float | None:
    return None if isinstance(ordering, str) else ordering.patience
