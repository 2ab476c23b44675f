"""Subscribers of a message, found by the `sources` and `event_types` patterns of the receivers."""

from collections.abc import Callable, Iterable, Iterator
from typing import Final, Generic, NamedTuple, TypeVar

from relay.domain.errors import InvalidRecord
from relay.domain.own_events import is_feed, subscribed
from relay.domain.receiver import Receiver
from relay.domain.text import matches

MAX_MATCHES: Final = 1_000
"""Maximum number of subscribers of one message; more is a mistake in a pattern. Source: design, section 3."""

_T = TypeVar("_T")


class Subscriptions:
    """The subscriptions of all receivers. A disabled receiver, or one with only `sources` or `event_types`, has
    none."""

    def __init__(self, receivers: Iterable[Receiver]) -> None:
        self._by_source: _Patterns[_Patterns[list[str]]] = _Patterns()
        for receiver in receivers:
            if receiver.enabled:
                self._add(receiver)

    def _add(self, receiver: Receiver) -> None:
        for source in subscribed(receiver.sources, receiver.owner):
            by_type = self._by_source.setdefault(source, _Patterns)
            for event_type in receiver.event_types:
                by_type.setdefault(event_type, list).append(receiver.name)

    def match(self, source_id: str, event_type: str | None) -> tuple[str, ...]:
        """Names of the subscribers, sorted. A message without a type only matches the type `*`; no source pattern
        matches a feed of our own.

        Raises InvalidRecord (reason `invalid`) if there are more than MAX_MATCHES.
        """
        names: set[str] = set()
        found = self._by_source.exactly(source_id) if is_feed(source_id) else self._by_source.matching(source_id)
        for by_type in found:
            for wanted in by_type.matching(event_type or ""):
                names.update(wanted)
        if len(names) > MAX_MATCHES:
            raise too_many(str(len(names)))
        return tuple(sorted(names))


class _Patterns(Generic[_T]):
    """Values by pattern: an exact text, or a prefix followed by `*`."""

    def __init__(self) -> None:
        self._exact: dict[str, _T] = {}
        self._prefixes: dict[str, _T] = {}
        self._lengths: list[int] = []

    def setdefault(self, pattern: str, make: Callable[[], _T]) -> _T:
        if not pattern.endswith("*"):
            return self._exact.setdefault(pattern, make())
        prefix = pattern[:-1]
        if prefix not in self._prefixes:
            self._prefixes[prefix] = make()
            self._lengths = sorted({*self._lengths, len(prefix)})
        return self._prefixes[prefix]

    def exactly(self, text: str) -> Iterator[_T]:
        """The value of the pattern that is `text`."""
        if text in self._exact:
            yield self._exact[text]

    def matching(self, text: str) -> Iterator[_T]:
        """The values of all patterns that match `text`. Costs one lookup per *length* of prefix in use."""
        yield from self.exactly(text)
        for length in self._lengths:
            if length > len(text):
                return
            if (found := self._prefixes.get(text[:length])) is not None:
                yield found


def too_many(how_many: str) -> InvalidRecord:
    """The error for a message with too many subscribers."""
    return InvalidRecord("invalid", f"{how_many} receivers subscribe to this; {MAX_MATCHES} are allowed")


def subscribes(receiver: Receiver, source_id: str, event_type: str) -> bool:
    """Whether a receiver subscribes to such messages; `event_type` is empty for messages without a type."""
    return (
        receiver.enabled
        and any(_of_source(pattern, source_id) for pattern in subscribed(receiver.sources, receiver.owner))
        and any(matches(pattern, event_type) for pattern in receiver.event_types)
    )


def _of_source(pattern: str, source_id: str) -> bool:
    return pattern == source_id if is_feed(source_id) else matches(pattern, source_id)


KEPT: Final = 16_384
"""Pairs of source and event type whose subscribers are cached."""


class Subscribed(NamedTuple):
    """Subscribers of a message. `names`: sorted. `filtered`: those that have a filter."""

    names: tuple[str, ...]
    filtered: frozenset[str]
