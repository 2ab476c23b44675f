"""A batch's items by the hash tag that each belongs to: parted for the scripts, joined again from what they say."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Generic, TypeVar

T = TypeVar("T")
R = TypeVar("R")
W = TypeVar("W")


class Batch(Generic[W]):
    """`items`, and the tag of each. Where all have the same tag, as in a lane of its own, nothing is copied."""

    def __init__(self, items: Sequence[W], tags: list[int]) -> None:
        self._items = items
        self._tags = tags
        self._positions: dict[int, list[int]] | None = None
        if tags and tags.count(tags[0]) < len(tags):
            self._positions = {}
            for position, tag in enumerate(tags):
                self._positions.setdefault(tag, []).append(position)

    def parts(self) -> Iterator[tuple[int, Sequence[W]]]:
        """Each tag with its items, in the order of the batch."""
        if self._positions is not None:
            for tag, positions in self._positions.items():
                yield tag, [self._items[position] for position in positions]
        elif self._tags:
            yield self._tags[0], self._items

    def join(self, said: Mapping[int, Sequence[T]], translate: Callable[[T], R]) -> list[R]:
        """What the scripts say of each item, translated, in the order of the batch."""
        if self._positions is None:
            return [translate(one) for tag in self._tags[:1] for one in said[tag]]
        joined: dict[int, R] = {}
        for tag, positions in self._positions.items():
            joined.update(zip(positions, map(translate, said[tag]), strict=True))
        return [joined[position] for position in range(len(joined))]
