"""The reference, made of the code: `make reference` writes docs/reference/, and a test compares.

Each module has `page() -> str`, a page in Markdown. A page more: a module, and its line in `PAGES`.
"""

from collections.abc import Callable, Mapping
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
