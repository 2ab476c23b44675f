"""The pages of the reference, by their files."""

from collections.abc import Callable, Mapping
from typing import Final

from relay.cli.reference import commands, failures, log_events, metrics, receivers, routes, settings, topics

PAGES: Final[Mapping[str, Callable[[], str]]] = {
    "settings.md": settings.page,
    "receivers-yaml.md": receivers.page,
    "commands.md": commands.page,
    "routes.md": routes.page,
    "topics.md": topics.page,
    "reasons.md": failures.reasons,
    "problems.md": failures.kinds,
    "metrics.md": metrics.page,
    "log-events.md": log_events.page,
}
