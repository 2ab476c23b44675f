"""The reference, made of the code: `make reference` writes docs/reference/, and a test compares.

Each module has `page() -> str`, the part of a page in Markdown that is made of the code. A page more: a module, its
line in `PAGES`, and a file in docs/reference/ with its title and introduction.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from relay.cli.reference import commands, log_events, metrics, receivers, routes, settings, topics

PAGES: Final[Mapping[str, Callable[[], str]]] = {
    "settings.md": settings.page,
    "receivers-yaml.md": receivers.page,
    "commands.md": commands.page,
    "routes.md": routes.page,
    "topics.md": topics.page,
    "reasons.md": routes.reasons,
    "problems.md": routes.problems_page,
    "metrics.md": metrics.page,
    "log-events.md": log_events.page,
}
"""Generators of the pages, by file name."""
NOTE: Final = "<!-- From here on made of the code by `make reference`: change it there. -->"


def made_anew(page: Path) -> str:
    """The page: its beginning as it is, and everything behind the note as the code is."""
    written = page.read_text(encoding="utf-8").partition(NOTE)[0]
    return f"{written}{NOTE}\n\n{PAGES[page.name]()}\n"
