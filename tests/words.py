"""Checks the prose and the class names of the project, for `make lint`: `python -m tests.words`.

Pages, comments and docstrings in `CHECKED` must not use the words in `INSTEAD`. A public class name means one thing in
all of relay/ and workers/.
"""

import ast
import io
import re
import sys
import tokenize
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from tests.documents import GENERATED, PAGES, ROOT, prose

CHECKED: Final = (
    "bench",
    "CONTRIBUTING.md",
    "docker/README.md",
    "docs",
    "README.md",
    "relay",
    "release",
    "SECURITY.md",
    "tests",
    "workers",
)
"""Pages, and folders or modules whose comments and docstrings are checked, as paths from the root."""

INSTEAD: Final = {
    "tell(?:s|ing)?|told": "say, log, report, return",
    "nobody|somebody|whoever|whom": "the client, an operator, a process, no process",
    "what is|what comes": "the noun: the records, the outcome, the next call",
    "as far as|from which on": "up to, from",
    "stands? firm|gives? way|lets? in|seen off": "keep, yield, admit, reject",
    "of one's|by itself": "its own, alone, automatically",
    "at hand|under way|comes? to": "present, in flight, become",
}
"""Refused words, as regular expressions, and the plainer ones to write in their place."""
REFUSED: Final = re.compile(rf"\b(?:{'|'.join(f'({words})' for words in INSTEAD)})\b", re.IGNORECASE)
EXCEPTIONS: Final = {
    "docs/licences.md": "the texts of others",
    "Lane": "the engine's state of a lane, and the lane's key in Redis",
    "Replays": "of the SDK, and the API's list of them",
}
"""A page, as its path from the root, or a class name; and why it is not checked."""
CODE: Final = ("relay", "workers")


class Finding(NamedTuple):
    """A place, and the complaint about it. `path`: from the root."""

    path: str
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.text}"


def modules(*folders: str) -> Iterator[Path]:
    for folder in folders:
        place = ROOT / folder
        yield from sorted(place.rglob("*.py")) if place.is_dir() else [place] * (place.suffix == ".py")


def refused(path: Path, line: int, text: str) -> Iterator[Finding]:
    """In a text that begins at `line`, without its parts in backticks."""
    without_code = re.sub(r"`[^`]*`", lambda code: re.sub(r"[^\n]", "_", code[0]), text)
    for found in REFUSED.finditer(re.sub(r"\s", " ", without_code)):
        instead = [*INSTEAD.values()][(found.lastindex or 1) - 1]
        yield Finding(
            _named(path), line + text.count("\n", 0, found.start()), f"in place of {found[0]!r}, write: {instead}"
        )


def of_page(path: Path) -> Iterator[Finding]:
    """Of a page's text, without its fences."""
    yield from refused(path, 1, prose(path))


def of_module(path: Path) -> Iterator[Finding]:
    """Of comments and of docstrings, those below fields and constants included."""
    source = path.read_text()
    if not REFUSED.search(re.sub(r"\s", " ", source)):
        return  # as in most modules; to read their tokens takes longer than all else
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield from refused(path, token.start[0], token.string)
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield from refused(path, node.lineno, node.value.value)


def of_class_names() -> Iterator[Finding]:
    """Public classes at the top of a module that share their name with another module's."""
    places: dict[str, list[tuple[Path, int]]] = defaultdict(list)
    for path in modules(*CODE):
        for name, line in public_classes(path).items():
            places[name].append((path, line))
    for name in places.keys() - EXCEPTIONS.keys():
        (first, _), *others = places[name]
        for path, line in others:
            yield Finding(_named(path), line, f"class {name} is in {_named(first)}, too: give one another name")


def public_classes(path: Path) -> dict[str, int]:
    """Name and line of each one at the top of a module."""
    classes = [node for node in ast.parse(path.read_text()).body if isinstance(node, ast.ClassDef)]
    return {node.name: node.lineno for node in classes if not node.name.startswith("_")}


def _named(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def findings() -> list[Finding]:
    found = [finding for page in PAGES if _is_checked(page) for finding in of_page(page)]
    found += [finding for path in modules(*CHECKED) for finding in of_module(path)]
    return sorted(found + list(of_class_names()))


def _is_checked(page: Path) -> bool:
    checked = any(page == ROOT / each or ROOT / each in page.parents for each in CHECKED)
    return checked and GENERATED not in page.parents and _named(page) not in EXCEPTIONS


if __name__ == "__main__":
    wrong = findings()
    sys.exit("\n".join(map(str, wrong)) or None)
