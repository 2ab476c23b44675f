"""Tables of another version than this release makes. Pure."""

from relay.domain.errors import HistoryUnavailable


def check_not_newer(found: int, known: int, remedy: str) -> None:
    """Raises HistoryUnavailable where a newer release has made the tables: it may have kept there what the log has no
    more. `remedy`: how to begin anew all the same."""
    if found > known:
        raise HistoryUnavailable(
            f"a newer release has made the history (version {found}, this one reads {known}): use that release, or"
            f" {remedy}, and what the log still has is read again"
        )
