"""The handwritten pages: README and docs/, with their fences, and the comment above each fence.

Above a fence stands a comment: `<!-- run: WHERE -->`, or `<!-- skip: WHY -->` where it cannot be run. WHERE is

- `shell`: a shell, or Python, in an empty folder;
- `dev`: the same beside a `relay dev` at http://127.0.0.1:8080 and a `relay sink` at http://127.0.0.1:9000;
- `own`: the same, where the page itself starts both;
- `receivers`, `receiver`, `source`: a receivers file, or the fields of an entry;
- `tests/...`: another test runs it.

Its further lines: `first:` commands that readers do not see, `prints:` the required output, `exit:` an exit code other
than 0, `until:` output at which a command that runs on is stopped, `serve:` likewise, and it runs on to the end of the
page, `file:` the name under which the fence is saved.
"""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
PAGES: Final = sorted(
    [
        ROOT / "README.md",
        ROOT / "CONTRIBUTING.md",
        ROOT / "SECURITY.md",
        ROOT / "docker" / "README.md",
        *ROOT.glob("docs/**/*.md"),
    ]
)
GENERATED: Final = ROOT / "docs" / "reference"
SHELLS: Final = ("sh", "bash", "console")
UNMARKED: Final = ("text", "json")
"""Nothing to run: drawings and output; and JSON, which has to be well-formed."""
PLACES: Final = ("shell", "dev", "own", "receivers", "receiver", "source")
OPTIONS: Final = ("first", "prints", "exit", "until", "serve", "file")

_FENCE: Final = re.compile(
    r"^(?P<indent> *)(?P<ticks>`{3,})(?P<language>[^\n`]*)\n(?P<text>.*?)^ *(?P=ticks)$", re.M | re.S
)
_MARK: Final = re.compile(r"<!-- (run|skip): ((?:(?!-->).)*?)\s*-->\n\Z", re.S)


@dataclass(frozen=True, slots=True)
class Mark:
    """`what`: run or skip. `value`: where it is run, or why not. `options`: as (name, value), in their order."""

    what: str
    value: str
    options: tuple[tuple[str, str], ...] = ()

    def all(self, name: str) -> list[str]:
        return [value for option, value in self.options if option == name]


@dataclass(frozen=True, slots=True)
class Fence:
    """`line`: of its first line of text, 1-based."""

    page: Path
    line: int
    language: str
    text: str
    mark: Mark | None

    def __str__(self) -> str:
        return f"{named(self.page)}:{self.line}"


def named(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def fences(page: Path) -> list[Fence]:
    """All of a page, in order."""
    text = page.read_text()
    return [_fence(page, text, found) for found in _FENCE.finditer(text)]


def prose(page: Path) -> str:
    """The page without its fences and comments, line for line where it was."""
    text = _FENCE.sub(_emptied, page.read_text())
    return re.sub(r"<!--.*?-->", _emptied, text, flags=re.S)


def _emptied(found: re.Match[str]) -> str:
    return "\n" * found[0].count("\n")


def _fence(page: Path, text: str, found: re.Match[str]) -> Fence:
    indent = found["indent"]
    body = re.sub(f"^{indent}", "", found["text"], flags=re.M)
    before = re.sub(f"^{indent}(?=<!--)", "", text[: found.start()], flags=re.M)
    line = text.count("\n", 0, found.start("text")) + 1
    return Fence(page, line, found["language"].strip(), body, _mark(before))


def _mark(before: str) -> Mark | None:
    found = _MARK.search(before)
    if found is None:
        return None
    value, *lines = found[2].split("\n")
    options = (tuple(part.strip() for part in line.split(":", 1)) for line in lines)
    return Mark(found[1], value.strip(), tuple((name, value) for name, value in options))


def commands(fence: Fence) -> Iterator[list[str]]:
    """The words of each simple command of a shell, without looking into quotes."""
    for line in _logical_lines(fence):
        words: list[str] = []
        for word in _words(line):
            if set(word) <= set("|;&()") or word == "$":
                yield words
                words = []
            else:
                words.append(word)
        yield words


def _words(line: str) -> list[str]:
    lexer = shlex.shlex(line, posix=True, punctuation_chars="();<>|&")
    lexer.whitespace_split = True
    return list(lexer)


def _logical_lines(fence: Fence) -> Iterator[str]:
    """Logical lines, without text behind a backslash, in quotes over several lines, or in a here-document. Of a console
    its input."""
    text = fence.text
    if fence.language == "console":
        text = "\n".join(line.removeprefix("$ ") for line in text.splitlines() if line.startswith("$ "))
    lines = iter(re.sub(r"\\\n", " ", text).splitlines())
    for line in lines:
        whole = line
        while not _is_closed(whole) and (more := next(lines, None)) is not None:
            whole += "\n" + more
        yield whole
        if here := re.search(r"<<-?\s*['\"]?(\w+)", whole):
            while (inner := next(lines, None)) is not None and inner.strip() != here[1]:
                pass


def _is_closed(line: str) -> bool:
    try:
        _words(line)
    except ValueError:
        return False
    return True
