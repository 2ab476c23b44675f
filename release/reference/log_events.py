"""Every line that the log may have: its level and its fields, as the code has them, and its meaning, as the page says.

The last column is written on the page, which is the only place of these texts. An event that is new in the code gets a
row with an empty one.
"""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Final

import relay
from release.reference.markdown import code, codes, table

PAGE: Final = Path(relay.__file__).parents[1] / "docs" / "reference" / "log-events.md"
_ROW: Final = re.compile(r"^\| `(\w+)` \|[^|]*\|[^|]*\|([^|]*)\|$", re.M)
LEVELS: Final = ("debug", "info", "warning", "error", "critical")
_NAMED: Final = {level: level for level in LEVELS} | {"exception": "error"}


@dataclass
class EventUse:
    """The levels and fields of an event, over all places that log it."""

    levels: set[str] = field(default_factory=set)
    fields: dict[str, None] = field(default_factory=dict)


def log_events_page() -> str:
    uses, known = found(), meanings()
    rows = [
        (code(name), _levels(uses[name]), codes(uses[name].fields), known.get(name, ""))
        for name in sorted(uses, key=[*known, *uses].index)
    ]
    return table(("event", "level", "fields", "what it means"), rows)


@cache
def meanings() -> dict[str, str]:
    """The meaning of each event, in the order of the page."""
    return {name: meaning.strip() for name, meaning in _ROW.findall(PAGE.read_text(encoding="utf-8"))}


def _levels(use: EventUse) -> str:
    return ", ".join(level for level in LEVELS if level in use.levels)


@cache
def found() -> dict[str, EventUse]:
    """The uses of all events that the package logs, by event."""
    package = Path(relay.__file__).parent
    events: dict[str, EventUse] = defaultdict(EventUse)
    for file in sorted(package.rglob("*.py")):
        if "log" in (text := file.read_text()):
            tree = ast.parse(text)
            functions = [one for one in ast.walk(tree) if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)]
            of_names = {function.name: _levels_in(function) for function in functions}
            for function in functions:
                _look_at(function, of_names, events)
    return events


def _look_at(
    function: ast.FunctionDef | ast.AsyncFunctionDef, of_names: dict[str, set[str]], events: dict[str, EventUse]
) -> None:
    """`of_names`: the levels at which functions of the same file log: they may be given an event."""
    around = _levels_in(function)
    names = _names_in(function)
    chosen = _chosen_in(function)
    for call in ast.walk(function):
        if not isinstance(call, ast.Call) or not call.args:
            continue
        own = {level} if (level := _level_of(call.func)) is not None else chosen.get(ast.unparse(call.func))
        called = call.func.attr if isinstance(call.func, ast.Attribute) else ""
        levels = own or of_names.get(called) or around
        for name in _texts(call.args[0], names):
            if own or (levels and name in meanings()):
                events[name].levels |= levels
                events[name].fields |= dict.fromkeys(_fields(call))


def _level_of(function: ast.expr) -> str | None:
    """The level of a call such as `log.info`; None for other calls."""
    if not isinstance(function, ast.Attribute):
        return None
    logger = ast.unparse(function.value)
    is_one = logger.rpartition(".")[2] in ("log", "_log", "events") or logger.startswith("get_logger(")
    return _NAMED.get(function.attr) if is_one else None


def _levels_in(function: ast.AST) -> set[str]:
    return {level for node in ast.walk(function) if isinstance(node, ast.expr) and (level := _level_of(node))}


def _chosen_in(function: ast.AST) -> dict[str, set[str]]:
    """Variables that are methods of a logger, as in `say = log.info if ... else log.warning`, with their levels."""
    return {
        target.id: levels
        for node in ast.walk(function)
        if isinstance(node, ast.Assign) and isinstance(target := node.targets[0], ast.Name)
        if not isinstance(node.value, ast.Call) and (levels := _levels_in(node.value))
    }


def _names_in(function: ast.AST) -> dict[str, list[str]]:
    """Variables that are texts, with all that they may be."""
    found: dict[str, list[str]] = defaultdict(list)
    for node in ast.walk(function):
        if isinstance(node, ast.Assign) and isinstance(target := node.targets[0], ast.Name):
            found[target.id] += _texts(node.value, {})
    return found


def _texts(value: ast.expr, names: dict[str, list[str]]) -> list[str]:
    match value:
        case ast.Constant(value=str(text)):
            return [text]
        case ast.IfExp():
            return _texts(value.body, names) + _texts(value.orelse, names)
        case ast.Name():
            return names.get(value.id, [])
    return []


def _fields(call: ast.Call) -> Iterator[str]:
    for keyword in call.keywords:
        if keyword.arg == "extra" and isinstance(keyword.value, ast.Dict):
            yield from (text for key in keyword.value.keys if key is not None for text in _texts(key, {}))
        elif keyword.arg not in (None, "exc_info"):
            yield keyword.arg
