"""The values of expressions: copies of what an expression names, and its result in the types of JSON."""

from collections.abc import Sequence
from operator import itemgetter
from typing import Any, Final, Literal

from relay.domain.errors import ExpressionError
from relay.domain.expression_library import MOST_CHARACTERS, MOST_RESULT, in_plain_words

Path = tuple[str | int, ...]
Parts = dict[str | int, "Parts"] | None
"""The parts of a value that an expression needs, by key or index; None for the whole."""

JSON_TYPES: Final = frozenset({"BOOL", "INT", "UINT", "DOUBLE", "STRING", "NULL", "DYN", "TIMESTAMP"})
_MOST_INT: Final = 2**63


def needed(paths: Sequence[Path], variable: str) -> Parts | Literal[False]:
    """The parts of `variable` that are named by `paths`; False if they do not name it."""
    named = [path[1:] for path in paths if path[0] == variable]
    return _tree(named) if named else False


def part_of(value: object, parts: Parts) -> Any:
    """A copy of `value` with only these parts. Raises ExpressionError if it is nested too deeply."""
    return Copier().of(value, parts)


class Copier:
    """Copies values, and measures them. `items`: all of its values; `passed`: items of lists of which only some are
    copied; `longest`: bytes of the longest text or list; `most`: items of the longest list."""

    __slots__ = ("items", "longest", "most", "passed")

    def __init__(self) -> None:
        self.items = self.passed = 0
        self.longest = MOST_CHARACTERS
        self.most = 256  # as many fit into an expression itself

    def of(self, value: object, parts: Parts) -> object:
        """Raises ExpressionError if it is nested too deeply."""
        if parts is not None and isinstance(value, dict):
            return {key: self.of(value[key], inner) for key, inner in parts.items() if key in value}
        if parts is not None and isinstance(value, list):
            self.passed += len(value)
            return [self.of(each, parts[at]) if at in parts else None for at, each in enumerate(value)]
        try:
            return self._whole(value)
        except RecursionError:
            raise ExpressionError("a value is nested too deeply") from None

    def _whole(self, value: object) -> object:
        self.items += 1
        if isinstance(value, str):
            self.items += len(value) // 256
            self.longest = max(self.longest, 4 * len(value))
            return _whole_text(value)
        if isinstance(value, dict):
            self._count(len(value))
            return {_whole_text(str(key)): self._whole(inner) for key, inner in value.items()}
        if isinstance(value, list | tuple):
            self._count(len(value))
            return [self._whole(inner) for inner in value]
        if isinstance(value, int) and not -_MOST_INT <= value < _MOST_INT:
            return float(value) if abs(value) < 10**300 else str(value)
        return value

    def _count(self, items: int) -> None:
        self.most = max(self.most, items)
        self.longest = max(self.longest, 8 * items)


def _whole_text(text: str) -> str:
    """The library would cut it at a NUL."""
    if "\0" in text:
        raise ExpressionError("a text has a NUL character, which expressions cannot read")
    return text


def _tree(paths: Sequence[Path]) -> Parts:
    if not all(paths):
        return None
    found: dict[str | int, list[Path]] = {}
    for path in paths:
        found.setdefault(path[0], []).append(path[1:])
    return {key: _tree(inner) for key, inner in found.items()}


def json_of(value: Any, room: list[int]) -> Any:
    """A result in the types of JSON. The type is looked at first: the library's own conversion of null to None
    releases a reference that it does not hold, which ends the process on Python 3.11."""
    name = value.type().name()
    if name == "NULL":
        return None
    if name == "ERROR":
        raise ExpressionError(_fault_in(value))
    if name.startswith("LIST"):
        return [json_of(each, room) for each in _taken(value.value(), room)]
    if name.startswith("MAP"):
        items = ((str(key), each) for key, each in _taken(value.value(), room).items())
        # the library has them in another order in each process, and a request that is repeated has the same body
        return {key: json_of(each, room) for key, each in sorted(items, key=itemgetter(0))}
    if name == "TIMESTAMP":
        return value.value().isoformat().replace("+00:00", "Z")
    if name not in JSON_TYPES:
        raise ExpressionError(f"the result is {name.lower()}, which JSON does not have")
    return _taken(value.value(), room)


def _fault_in(value: Any) -> str:
    """Optional values have the library's type of errors, too, but it cannot convert them."""
    try:
        return in_plain_words(str(value.value()))
    except TypeError:
        return "the result is an optional value; add orValue()"


def _taken(value: Any, room: list[int]) -> Any:
    room[0] -= len(value) if isinstance(value, str | list | dict) else 1
    if room[0] < 0:
        raise ExpressionError(f"the result has more than {MOST_RESULT} characters")
    return value
