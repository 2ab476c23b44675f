"""Order keys: the setting `ordering` of a receiver, and the value that it reads from a message."""

from collections.abc import Callable
from functools import lru_cache
from typing import Final, Literal, get_args

from relay.domain.filters import FilterInput, NotJson
from relay.domain.identity import digest12
from relay.domain.json_pointer import pointer_steps

OrderKind = Literal["source", "receiver", "none"]
KINDS: Final[tuple[OrderKind, ...]] = get_args(OrderKind)
"""Orderings that need only the message's ids. Any other is by a value: `/json/pointer` or `header:NAME`."""
HEADER: Final = "header:"


def is_by_value(by: str) -> bool:
    """Whether only messages of a source with the same value are kept in order."""
    return by not in KINDS


def order_digest(by: str, event: FilterInput) -> str | None:
    """Digest of the value in hex, which the delivery's records carry.

    None if the ordering needs no value, or the message has none (not JSON, nothing at that place, null, a list or an
    object). Messages of a source without a value are in order with each other.
    """
    if not is_by_value(by):
        return None
    value = _reader(by)(event)
    if value is None or isinstance(value, dict | list):
        return None
    text = str(value).encode(errors="replace").decode()  # JSON may contain lone surrogates
    return digest12("order", text).hex()


@lru_cache(maxsize=1_024)
def _reader(by: str) -> Callable[[FilterInput], object]:
    if by.startswith(HEADER):
        name = by.removeprefix(HEADER)
        return lambda event: event.header(name)
    steps = pointer_steps(by)

    def read(event: FilterInput) -> object:
        try:
            return event.at(steps)
        except (LookupError, NotJson):
            return None

    return read
