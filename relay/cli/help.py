"""`relay help`: the pages of docs/, in the terminal."""

import io
import re
import shutil
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import click
from rich.console import Console
from rich.markdown import Markdown

import relay
from relay.cli.options import output_option
from relay.cli.table import print_table, show_as
from relay.config.problems import nearest
from relay.domain.errors import RelayError, UserError

_WIDEST: Final = 110
"""Columns: longer lines are hard to read, even in a wider terminal."""
_LINK: Final = re.compile(r"(?<!!)\[([^\]]+)\]\(([^)\s]+)\)")
_PICTURE: Final = re.compile(r"!\[([^\]]*)\]\([^)]*\)")
_COMMENT: Final = re.compile(r"<!--.*?-->\n?", re.S)


@click.command(name="help")
@click.argument("topic", required=False)
@output_option
def help(topic: str | None, output: str) -> None:
    """Show a page of the documentation, or list them all.

    `relay help start` is where to begin; `relay COMMAND --help` is about one command.
    """
    pages = pages_in(documentation())
    if topic is None:
        return _list(pages, output)
    name = topic_of(topic, pages)
    if name is None:
        meant = nearest(topic, pages)
        raise UserError(
            f"TOPIC: no page {topic!r}; {f'did you mean {meant!r}? ' if meant else ''}`relay help` lists all"
        )
    text = pages[name].read_text(encoding="utf-8")
    found = {"topic": name, "title": title_of(text), "text": text}
    return show_as(found, output, lambda _: click.echo_via_pager(rendered(text, pages)))


def documentation() -> Path:
    """The directory of the pages: in the installed package, or beside it in a source tree.

    Raises RelayError if it is in neither place.
    """
    package = Path(relay.__file__).parent
    for directory in (package / "docs", package.parent / "docs"):
        if (directory / "index.md").is_file():
            return directory
    raise RelayError(f"the documentation is missing from {package / 'docs'}: install again")


def pages_in(directory: Path) -> dict[str, Path]:
    """Pages by name, as `start` or `reference/settings`; those of folders come last."""
    paths = sorted(directory.rglob("*.md"), key=lambda path: (len(path.parts), path))
    return {path.relative_to(directory).with_suffix("").as_posix(): path for path in paths}


def topic_of(asked: str, pages: Iterable[str]) -> str | None:
    """The page for a name: a file name works too, and a folder's name may be omitted."""
    wanted = asked.lower().removesuffix(".md").removeprefix("docs/")
    return next((name for name in pages if name == wanted or name.endswith(f"/{wanted}")), None)


def title_of(text: str) -> str:
    return next((line.removeprefix("# ") for line in text.splitlines() if line.startswith("# ")), "")


def _list(pages: dict[str, Path], output: str) -> None:
    rows = [(name, title_of(path.read_text(encoding="utf-8"))) for name, path in pages.items()]
    found = [{"topic": name, "title": title} for name, title in rows]
    show_as(found, output, lambda _: print_table(("TOPIC", "PAGE"), rows))


def rendered(text: str, topics: Iterable[str]) -> str:
    """The page formatted for this terminal, without colour if it has none."""
    is_terminal = sys.stdout.isatty()
    width = min(shutil.get_terminal_size().columns, _WIDEST)
    console = Console(file=io.StringIO(), width=width, force_terminal=is_terminal, color_system="auto", emoji=False)
    console.print(Markdown(plain(text, topics), hyperlinks=False))
    assert isinstance(console.file, io.StringIO)  # noqa: S101 - it was made above
    return console.file.getvalue()


def plain(text: str, topics: Iterable[str]) -> str:
    """The page without what a terminal cannot show: a link to another page becomes the command that shows it."""

    def command_of(link: re.Match[str]) -> str:
        path = link[2].partition("#")[0]
        name = topic_of(path.removeprefix("../"), topics) if path.endswith(".md") else None
        if name is None:
            return link[0]
        command = f"`relay help {name}`"
        return command if link[1].endswith(".md") else f"{link[1]} ({command})"

    return _LINK.sub(command_of, _PICTURE.sub(r"*(a picture: \1)*", _COMMENT.sub("", text)))
