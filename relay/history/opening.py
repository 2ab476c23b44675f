"""Creates the history store for a URL."""

from pathlib import Path
from urllib.parse import unquote, urlsplit

from relay.domain.errors import UserError
from relay.history.port import History
from relay.history.sqlite import SqliteHistory


def open_history(url: str) -> History:
    """The store, not started yet. `url`: checked by `check_history_url`. Raises UserError if it is PostgreSQL's and its
    driver is not installed."""
    if url.startswith("sqlite:"):
        return SqliteHistory(Path(unquote(urlsplit(url).path)))
    try:
        from relay.history.postgres import PostgresHistory
    except ModuleNotFoundError as error:
        if error.name != "asyncpg":
            raise
        raise UserError(
            "RELAY_HISTORY_URL: PostgreSQL needs asyncpg; install it with: pip install 'webhook-relay[postgres]'"
        ) from error
    return PostgresHistory(url)
