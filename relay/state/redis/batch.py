"""Splits a batch's items by hash tag (and lane) for the scripts, and joins the replies in the batch's order."""

from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Generic, TypeVar

from relay.state.replies import REFUSALS, Refusal

T = TypeVar("T")
R = TypeVar("R")
W = TypeVar("W")
K = TypeVar("K", bound=Hashable)


def identity(item: T) -> T:
    """Identity decoder, for replies that are used as they are."""
    return item


class TagBatch(Generic[K, W]):
    """`items` with the key of each. If all have the same key, as for one lane and receiver, nothing is copied."""

    def __init__(self, items: Sequence[W], keys: list[K]) -> None:
        self._items = items
        self._keys = keys
        self._positions: dict[K, list[int]] | None = None
        if keys and keys.count(keys[0]) < len(keys):
            self._positions = {}
            for position, key in enumerate(keys):
                self._positions.setdefault(key, []).append(position)

    def parts(self) -> Iterator[tuple[K, Sequence[W]]]:
        """Each key with its items, in the order of the batch."""
        if self._positions is not None:
            for key, positions in self._positions.items():
                yield key, [self._items[position] for position in positions]
        elif self._keys:
            yield self._keys[0], self._items

    def join(self, replies: Sequence[Sequence[T]], translate: Callable[[T], R]) -> list[R]:
        """The replies to all parts, translated, in the order of the batch."""
        return self._spread([list(map(translate, part)) for part in replies])

    def join_or_refuse(
        self, replies: Sequence[Sequence[T] | Refusal], translate: Callable[[T], R]
    ) -> list[R | Refusal]:
        """As `join`; if a part was refused, each of its items gets the Refusal."""
        sizes = self._sizes()
        return self._spread(
            [
                [part] * size if isinstance(part, REFUSALS) else list(map(translate, part))
                for part, size in zip(replies, sizes, strict=True)
            ]
        )

    def done(self, replies: Sequence[object | Refusal]) -> list[Refusal | None]:
        """For each item None, unless its part was refused."""
        sizes = self._sizes()
        return self._spread(
            [[part if isinstance(part, REFUSALS) else None] * size for part, size in zip(replies, sizes, strict=True)]
        )

    def _sizes(self) -> list[int]:
        if self._positions is None:
            return [len(self._keys)] if self._keys else []
        return [len(positions) for positions in self._positions.values()]

    def _spread(self, parts: Sequence[Sequence[R]]) -> list[R]:
        """The items of all parts, in the order of the batch."""
        if self._positions is None:
            return [one for part in parts for one in part]
        spread: dict[int, R] = {}
        for positions, part in zip(self._positions.values(), parts, strict=True):
            spread.update(zip(positions, part, strict=True))
        return [spread[position] for position in range(len(spread))]
