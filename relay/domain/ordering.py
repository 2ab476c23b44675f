"""What keeps a receiver's deliveries in order: the setting `ordering`, and the value that it reads from a message."""

from collections.abc import Callable
from functools import lru_cache
from typing import Final

from relay.domain.filters import FilterInput, NotJson
from relay.domain.identity import digest12
from relay.domain.json_pointer import pointer_steps

KINDS: Final = ("source", "receiver", "none")
"""Orders that need nothing of the message but its ids. Any other is by a value: `/json/pointer` or `header:NAME`."""
HEADER: Final = "header:"


def is_by_value(by: str) -> bool:
    """Whether messages of a source are in order only with those that have the same value."""
    return by not in KINDS


def order_digest(by: str, event: FilterInput) -> str | None:
    """Digest of the value, in hex, as it travels with the delivery.

    None: the order needs no value, or the message has none there (no JSON, nothing at that place, null, a list or an
    object). Messages of a source without a value are in order with each other.
    """
    if not is_by_value(by):
        return None
    value = _reader(by)(event)
    if value is None or isinstance(value, dict | list):
        return None
    text = str(value).encode(errors="replace").decode()  # JSON may have halves of surrogate pairs
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
