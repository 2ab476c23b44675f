"""Reads YAML files, and rejects duplicate keys."""

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import yaml

from relay.config.problems import Place, dotted, raise_all
from relay.domain.errors import UserError
from relay.domain.secrecy import MASK

_QUOTED: Final = re.compile(r"'([^']*)'")
"""A word of the file in a syntax error, which may be a secret that begins with * or !; or a token of YAML."""
_TOKEN: Final = re.compile(r".{0,2}|<[a-z ]+>", re.DOTALL)
_MEANT: Final = (
    ("constructor for the tag", "begins with !, which is a tag of YAML; put it in quotes"),
    ("\\t", "a tab; YAML is indented with spaces"),
    (
        "mapping values are not allowed",
        "a colon too many, or one is missing at the end of the line before; a text with ': ' needs quotes",
    ),
    ("found '<block mapping start>'", "indented like no line above it"),
    ("another document", "a second document begins; a file has one"),
)
"""(part of a problem in PyYAML's words, the problem in plain words)."""
_NOT_YAML: Final = (yaml.YAMLError, ValueError, AttributeError, RecursionError)
"""What reading YAML may raise: also for the date 2024-99-99, `!!timestamp x`, or a thousand nested lists."""
_OTHER_BASES: Final = (
    (re.compile(r"[-+]?0[0-9_]+"), "that begins with 0, which YAML takes for an octal one; write it without the 0"),
    (re.compile(r"[^:]+:.+"), "with a colon, which YAML takes for one to the base of 60; write it in seconds"),
)
"""(whole numbers of YAML 1.1 that are hardly ever meant, the problem)."""
_BOOL: Final = "tag:yaml.org,2002:bool"


class _Loader(yaml.SafeLoader):
    """Reads booleans as in YAML 1.2: `on`, `off`, `yes` and `no` are plain text."""

    yaml_implicit_resolvers = {  # noqa: RUF012 - the name and form are PyYAML's
        first: [(tag, pattern) for tag, pattern in resolvers if tag != _BOOL]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }


def _text(loader: yaml.SafeLoader, node: yaml.ScalarNode) -> str:
    r"""JSON writes an emoji as two escapes (`\ud83d\ude80`), of which YAML makes two characters that are no text."""
    text = str(loader.construct_scalar(node))
    try:
        return text.encode("utf-16", "surrogatepass").decode("utf-16")
    except UnicodeDecodeError:
        why = "a \\u escape is half of a character"
        raise yaml.constructor.ConstructorError(None, None, why, node.start_mark) from None


def _whole_number(loader: yaml.SafeLoader, node: yaml.ScalarNode) -> int:
    for pattern, problem in _OTHER_BASES:
        if pattern.fullmatch(node.value):
            why = f"a number {problem}, or in quotes if it is a text"
            raise yaml.constructor.ConstructorError(None, None, why, node.start_mark)
    return int(loader.construct_yaml_int(node))


_Loader.add_constructor("tag:yaml.org,2002:str", _text)
_Loader.add_implicit_resolver(_BOOL, re.compile("(?:true|True|TRUE|false|False|FALSE)$"), list("tTfF"))


if yaml.__with_libyaml__:

    class _FastLoader(yaml.CSafeLoader):
        """The same with the C parser: ten times as fast, but with less precise errors."""

        yaml_implicit_resolvers = _Loader.yaml_implicit_resolvers

else:
    _FastLoader = _Loader  # type: ignore[misc, assignment]

for _kind in {_Loader, _FastLoader}:
    _kind.add_constructor("tag:yaml.org,2002:int", _whole_number)


def read_mapping(path: Path) -> dict[object, object]:
    """The file's mapping; empty for an empty file. Raises UserError that names the file and the place in it."""
    try:
        with open(path, encoding="utf-8", opener=_opened) as file:
            text = file.read()
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: is not UTF-8 text") from error
    return parse_mapping(text, str(path))


def _opened(path: str, flags: int) -> int:
    """Opens the file without waiting, as long as it is a FIFO, until a process writes to it."""
    descriptor = os.open(path, flags | os.O_NONBLOCK)
    os.set_blocking(descriptor, True)
    return descriptor


def parse_mapping(text: str, origin: str) -> dict[object, object]:
    """As `read_mapping`, for a text. `origin`: its name, for messages."""
    try:
        loader, root = _composed(text)
        if root is None:
            return {}
        raise_all(
            f"{origin}: {dotted(place)}: written twice, again in line {line}" for place, line in _twice(root, (), set())
        )
        value = loader.construct_document(root)
    except yaml.YAMLError as error:
        raise UserError(f"{origin}: {_syntax(error)}") from error
    except _NOT_YAML as error:
        problem = "a !!timestamp that is none" if isinstance(error, AttributeError) else _masked(str(error))
        raise UserError(f"{origin}: is not YAML that can be read: {problem}") from error
    if not isinstance(value, dict):
        raise UserError(f"{origin}: has to be a mapping of names to values")
    return value


def parse_value(text: str) -> object:
    """A value as it could stand in a receivers file. Raises UserError."""
    try:
        return yaml.load(text, _FastLoader)  # noqa: S506 - it is a safe one
    except _NOT_YAML as error:
        raise UserError("the value is not YAML; put it in quotes") from error


def _composed(text: str) -> tuple[_Loader | _FastLoader, yaml.Node | None]:
    """(loader, root) of the parsed document. Raises yaml.YAMLError."""
    try:
        fast = _FastLoader(text)
        return fast, fast.get_single_node()
    except yaml.YAMLError:
        loader = _Loader(text)
        return loader, loader.get_single_node()


def _twice(node: yaml.Node, place: Place, visited: set[yaml.Node]) -> Iterator[tuple[Place, int]]:
    """(place, 1-based line) of each repeated key."""
    if node in visited:  # an alias, perhaps of an enclosing node
        return
    visited.add(node)
    if isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            yield from _twice(item, (*place, index), visited)
    elif isinstance(node, yaml.MappingNode):
        seen: set[object] = set()
        for key, value in node.value:
            here = (*place, str(key.value))
            if isinstance(key, yaml.ScalarNode):  # other keys are reported later
                if key.value in seen:
                    yield here, key.start_mark.line + 1
                seen.add(key.value)
            yield from _twice(value, here, visited)


def _syntax(error: yaml.YAMLError) -> str:
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        mark, problem = error.problem_mark, _masked(str(error.problem))
        problem = next((meant for part, meant in _MEANT if part in problem), problem)
        if error.context_mark is not None and ("end of stream" in problem or "got '<stream end>'" in problem):
            opened = "{" if "or '}'" in problem else "[" if "or ']'" in problem else "quote"
            problem += f": the {opened} in line {error.context_mark.line + 1} is not closed"
        elif "got '{'" in problem:
            problem += ": a text with braces, such as ${{ message.id }}, needs quotes"
        return f"line {mark.line + 1}, column {mark.column + 1}: {problem}"
    return _masked(str(error).partition("\n")[0])


def _masked(problem: str) -> str:
    return _QUOTED.sub(lambda found: found[0] if _TOKEN.fullmatch(found[1]) else MASK, problem)
