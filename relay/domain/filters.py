"""What settings read from a message's headers and payload: subscription filters, compiled once from their declaration,
and order keys.

A test returns True, False, or None if it does not apply: the payload is not JSON, has no value at that place, or has
one that cannot be compared. Combined, None stays unknown, like NULL in SQL. A filter that evaluates to None does not
match.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from operator import ge, gt, le, lt
from typing import Final, Literal, get_args

import msgspec

from relay.domain.identity import digest12
from relay.domain.json_pointer import NOT_JSON, pointer_steps, value_at
from relay.domain.message import Message

Scalar = str | int | float | bool | None
Order = Literal["gt", "gte", "lt", "lte"]
Check = Callable[[object], bool | None]
"""A test of a single value."""

ATTRIBUTES: Final = frozenset({"ce-id", "ce-source", "ce-type", "ce-time", "content-type"})
"""Headers that a message may have besides its own (`headers.py`)."""
_ORDERS: Final[dict[str, Callable[[float, float], bool]]] = {"gt": gt, "gte": ge, "lt": lt, "lte": le}


class FilterInput:
    """A message as input of tests. The payload is decoded once, when a test first needs it."""

    __slots__ = ("_headers", "_payload", "message")

    def __init__(self, message: Message) -> None:
        self.message = message
        self._headers: dict[str, str] | None = None
        self._payload: list[object] | None = None

    def at(self, steps: Sequence[str]) -> object:
        """The value at a JSON pointer. Raises LookupError if there is none, and NotJson."""
        if self._payload is None:
            try:
                self._payload = [msgspec.json.decode(self.message.payload)]
            except NOT_JSON:
                self._payload = []
        if not self._payload:
            raise NotJson
        return value_at(self._payload[0], steps)

    def header(self, name: str) -> str | None:
        """`name`: in lower case."""
        if self._headers is None:
            self._headers = headers_of(self.message)
        return self._headers.get(name)


class NotJson(Exception):
    """The payload is not JSON, or is nested too deeply."""


Test = Callable[[FilterInput], bool | None]


@dataclass(frozen=True, slots=True)
class Filter:
    """`declared`: the declaration; filters with the same declaration are equal."""

    declared: str
    test: Test = field(repr=False, compare=False)

    def takes(self, event: FilterInput) -> bool:
        """Whether the event matches."""
        return self.test(event) is True


UNDECIDED: Final = Filter("undecided", lambda _event: True)
"""Stands for a filter that this process cannot read: whether it matches is not known yet."""


def headers_of(message: Message) -> dict[str, str]:
    """All headers of the message, as they are in its record."""
    optional = (("ce-type", message.event_type), ("ce-time", message.time), ("content-type", message.content_type))
    return {
        **dict(message.headers),
        "ce-id": message.message_id,
        "ce-source": message.source_id,
        **{name: text for name, text in optional if text is not None},
    }


# combined


def all_of(tests: Sequence[Test]) -> Test:
    """False if a test is False, else None if one is None."""
    return _combined(tests, decisive=False)


def any_of(tests: Sequence[Test]) -> Test:
    """True if a test is True, else None if one is None."""
    return _combined(tests, decisive=True)


def _combined(tests: Sequence[Test], decisive: bool) -> Test:
    def test(event: FilterInput) -> bool | None:
        found: bool | None = not decisive
        for one in tests:
            said = one(event)
            if said is decisive:
                return decisive
            if said is None:
                found = None
        return found

    return tests[0] if len(tests) == 1 else test


def negated(inner: Test) -> Test:
    """The negation of a test; None stays None."""

    def test(event: FilterInput) -> bool | None:
        said = inner(event)
        return None if said is None else not said

    return test


# about one value


def of_pointer(pointer: str, check: Check) -> Test:
    steps = pointer_steps(pointer)

    def test(event: FilterInput) -> bool | None:
        try:
            value = event.at(steps)
        except (LookupError, NotJson):
            return None
        return check(value)

    return test


def pointer_exists(pointer: str, wanted: bool) -> Test:
    """Whether the pointer leads to a value; None if the payload is not JSON."""
    steps = pointer_steps(pointer)

    def test(event: FilterInput) -> bool | None:
        try:
            event.at(steps)
        except LookupError:
            return not wanted
        except NotJson:
            return None
        return wanted

    return test


def of_header(name: str, check: Check) -> Test:
    name = name.lower()

    def test(event: FilterInput) -> bool | None:
        value = event.header(name)
        return None if value is None else check(value)

    return test


def header_exists(name: str, wanted: bool) -> Test:
    name = name.lower()
    return lambda event: (event.header(name) is not None) is wanted


def one_of(values: Iterable[Scalar]) -> Check:
    """Equality as in JSON: 1 equals 1.0, and true is not a number."""
    wanted = frozenset((isinstance(value, bool), value) for value in values)
    return lambda value: not isinstance(value, dict | list) and (isinstance(value, bool), value) in wanted


def prefix(text: str) -> Check:
    return lambda value: value.startswith(text) if isinstance(value, str) else None


def suffix(text: str) -> Check:
    return lambda value: value.endswith(text) if isinstance(value, str) else None


def compared(order: Order, bound: float) -> Check:
    """Exact beyond 2**53, too: integers are not converted to float."""
    holds = _ORDERS[order]
    return lambda value: holds(value, bound) if isinstance(value, int | float) and not isinstance(value, bool) else None


# order keys: the setting `ordering` of a receiver, and the value that it reads


OrderKind = Literal["source", "receiver", "none"]
ORDER_KINDS: Final[tuple[OrderKind, ...]] = get_args(OrderKind)
"""Orderings that need only the message's ids. Any other is by a value: `/json/pointer` or `header:NAME`."""
BY_HEADER: Final = "header:"


def is_by_value(by: str) -> bool:
    """Whether only messages of a source with the same value are kept in order."""
    return by not in ORDER_KINDS


def order_digest(by: str, event: FilterInput) -> str | None:
    """Digest of the value in hex, which the delivery's records carry.

    None if the ordering needs no value, or the message has none (not JSON, nothing at that place, null, a list or an
    object). Messages of a source without a value are in order with each other.
    """
    if not is_by_value(by):
        return None
    value = _order_reader(by)(event)
    if value is None or isinstance(value, dict | list):
        return None
    text = str(value).encode(errors="replace").decode()  # JSON may contain lone surrogates
    return digest12("order", text).hex()


@lru_cache(maxsize=1_024)
def _order_reader(by: str) -> Callable[[FilterInput], object]:
    if by.startswith(BY_HEADER):
        name = by.removeprefix(BY_HEADER)
        return lambda event: event.header(name)
    steps = pointer_steps(by)

    def read(event: FilterInput) -> object:
        try:
            return event.at(steps)
        except (LookupError, NotJson):
            return None

    return read
