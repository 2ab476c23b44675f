"""Paths on the command line: an empty one, as `"$UNSET"` gives, is a mistake, and not the current directory."""

import os
from pathlib import Path

import click


class _NamedPath(click.Path):
    def convert(
        self, value: str | os.PathLike[str], param: click.Parameter | None, ctx: click.Context | None
    ) -> str | bytes | os.PathLike[str]:
        if value == "":
            self.fail("the path is empty; name one, or leave this out", param, ctx)
        return super().convert(value, param, ctx)


DIRECTORY = _NamedPath(file_okay=False, path_type=Path)
FILE = _NamedPath(dir_okay=False, path_type=Path)
FILE_OR_STDIN = _NamedPath(dir_okay=False, allow_dash=True)
