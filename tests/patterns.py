"""Which regular expressions can take more than linear time, judged by their structure."""

import re
from collections.abc import Iterator, Sequence
from re import _constants as codes
from re import _parser as parser
from typing import Any, NamedTuple

_CHARACTERS = [chr(code) for code in (*range(0x180), 0x2028, 0x1F600)]
_ANY = frozenset(_CHARACTERS)
_REPEATS = (codes.MAX_REPEAT, codes.MIN_REPEAT)
_WIDTHLESS = (codes.AT, codes.ASSERT, codes.ASSERT_NOT)
_CATEGORIES = {
    codes.CATEGORY_SPACE: r"\s",
    codes.CATEGORY_DIGIT: r"\d",
    codes.CATEGORY_WORD: r"\w",
    codes.CATEGORY_NOT_SPACE: r"\S",
    codes.CATEGORY_NOT_DIGIT: r"\D",
    codes.CATEGORY_NOT_WORD: r"\W",
}
Item = tuple[Any, Any]


class First(NamedTuple):
    """What a sequence may begin with. `repeated`: without a bound."""

    characters: frozenset[str]
    repeated: bool


def retries(pattern: re.Pattern[Any], *, searched: bool) -> str | None:
    """How a text could be read again and again by `pattern`, if one could. `searched`: it is tried at each place."""
    text = pattern.pattern if isinstance(pattern.pattern, str) else pattern.pattern.decode("latin-1")
    flags = pattern.flags & ~re.UNICODE
    items = list(parser.parse(text, flags))
    if next(_overlaps(items, [], flags), None) is not None:
        return "one repeat ends where another may begin with the same"
    if searched and _starts_again(items, flags):
        return "what is searched for may begin within a repeat that fails"
    return None


def _overlaps(items: Sequence[Item], after: Sequence[Item], flags: int) -> Iterator[Item]:
    """Repeats without bound beside which another one can take what they leave."""
    for place, (code, value) in enumerate(items):
        rest = [*items[place + 1 :], *after]
        if code in _REPEATS:
            _low, high, body = value
            unbounded = high == codes.MAXREPEAT
            if unbounded and len(body) == 1 and _single(body[0], flags) is not None:
                own = _single(body[0], flags) or frozenset()
                if any(first.repeated and first.characters & own for first in _firsts(rest, flags)[0]):
                    yield (code, value)
            else:
                yield from _overlaps(list(body), [*body, *rest] if unbounded or high > 1 else rest, flags)
        else:
            for branch in _inner(code, value):
                yield from _overlaps(branch, rest, flags)


def _starts_again(items: Sequence[Item], flags: int) -> bool:
    return any(_again(before, value, after, flags) for before, value, after in _unbounded(items, [], []))


def _unbounded(
    items: Sequence[Item], before: Sequence[Item], after: Sequence[Item]
) -> Iterator[tuple[Sequence[Item], Any, Sequence[Item]]]:
    """Each repeat without bound, with what stands before and after it."""
    for place, (code, value) in enumerate(items):
        ahead, rest = [*before, *items[:place]], [*items[place + 1 :], *after]
        if code in _REPEATS and value[1] == codes.MAXREPEAT:
            yield ahead, value, rest
        for branch in [list(value[2])] if code in _REPEATS else _inner(code, value):
            yield from _unbounded(branch, ahead, rest)


def _again(before: Sequence[Item], repeat: Any, after: Sequence[Item], flags: int) -> bool:
    """Whether the beginning of a pattern fits into a run of `repeat`, which then fails."""
    runs = frozenset[str]().union(*(first.characters for first in _firsts(list(repeat[2]), flags)[0]))
    return all(runs & needed for needed in _needed(before, flags)) and _can_fail(after, flags)


def _needed(items: Sequence[Item], flags: int) -> Iterator[frozenset[str]]:
    """The characters of which one has to come, for each item that has to."""
    for code, value in items:
        if code is codes.ASSERT:
            yield from _needed(list(value[1]), flags)
        elif code in _REPEATS:
            yield from _needed(list(value[2]), flags) if value[0] else ()
        elif (single := _single((code, value), flags)) is not None:
            yield single
        elif code is codes.SUBPATTERN:
            yield from _needed(list(value[3]), flags)


def _can_fail(items: Sequence[Item], flags: int) -> bool:
    return any(code in _WIDTHLESS for code, _ in items) or not _firsts(items, flags)[1]


def _firsts(items: Sequence[Item], flags: int) -> tuple[list[First], bool]:
    """What a sequence may begin with, and whether it may be empty."""
    found: list[First] = []
    for code, value in items:
        if code in _WIDTHLESS:
            continue
        single = _single((code, value), flags)
        if single is not None:
            return [*found, First(single, repeated=False)], False
        if code in _REPEATS:
            low, high, body = value
            inner, empty = _firsts(list(body), flags)
            plain = high == codes.MAXREPEAT and len(body) == 1 and _single(body[0], flags) is not None
            found += [First(each.characters, each.repeated or plain) for each in inner]
            if low > 0 and not empty:
                return found, False
            continue
        branches = [_firsts(branch, flags) for branch in _inner(code, value)]
        found += [each for inner, _ in branches for each in inner]
        if not any(empty for _, empty in branches):
            return found, False
    return found, True


def _inner(code: Any, value: Any) -> list[list[Item]]:
    if code is codes.SUBPATTERN:
        return [list(value[3])]
    if code is codes.BRANCH:
        return [list(branch) for branch in value[1]]
    return []


def _single(item: Item, flags: int) -> frozenset[str] | None:
    """The characters that one item stands for; None: it is more than a character."""
    code, value = item
    if code is codes.ANY:
        return _ANY
    if code is codes.LITERAL:
        return _both_cases({chr(value)}, flags)
    if code is codes.NOT_LITERAL:
        return _ANY - {chr(value)}
    if code is not codes.IN:
        return None
    negated = value[0][0] is codes.NEGATE
    named = frozenset(each for each in _CHARACTERS if any(_has(one, each) for one in value))
    return _ANY - named if negated else _both_cases(named, flags)


def _both_cases(characters: set[str] | frozenset[str], flags: int) -> frozenset[str]:
    if not flags & re.IGNORECASE:
        return frozenset(characters)
    return frozenset(spelling for each in characters for spelling in (each, each.lower(), each.upper()))


def _has(one: Item, character: str) -> bool:
    code, value = one
    if code is codes.LITERAL:
        return chr(value) == character
    if code is codes.RANGE:
        return bool(value[0] <= ord(character) <= value[1])
    if code is codes.CATEGORY:
        short = _CATEGORIES[value]
        return re.fullmatch(short, character) is not None
    return False
