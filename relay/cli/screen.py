"""Lines that come one by one: in a terminal cut at its width, in colour and with links; in a pipe whole and plain."""

import click
from rich.console import Console
from rich.text import Text


class Screen:
    """Writes to stdout. `most_columns`: of a line, also where there is no terminal."""

    def __init__(self, most_columns: int | None = None) -> None:
        self._console = Console(markup=False, highlight=False, emoji=False)
        self._most_columns = most_columns

    @property
    def is_terminal(self) -> bool:
        return self._console.is_terminal

    def show(self, line: Text) -> None:
        if self._most_columns is not None:
            line = line.copy()
            line.truncate(self._most_columns, overflow="ellipsis")
        if self._console.is_terminal:
            self._console.print(line, no_wrap=True, overflow="ellipsis", crop=True)
        else:
            click.echo(line.plain)
