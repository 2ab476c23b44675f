"""`python -m release.reference DOCS`: writes the pages there that are made of the code."""

import sys
from pathlib import Path

from release.reference.pages import PAGES, made_anew


def write(directory: Path) -> None:
    for name in PAGES:
        (directory / name).write_text(made_anew(directory, name), encoding="utf-8")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python -m release.reference DOCS")
    write(Path(sys.argv[1]))
