"""`python -m relay.cli.reference DIRECTORY`: writes the reference there."""

import sys
from pathlib import Path

from relay.cli.reference import PAGES


def write(directory: Path) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    for name, page in PAGES.items():
        (directory / name).write_text(page())


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python -m relay.cli.reference DIRECTORY")
    write(Path(sys.argv[1]))
