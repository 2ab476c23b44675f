"""A history from its URL."""

from pathlib import Path
from urllib.parse import unquote, urlsplit

from relay.domain.errors import UserError
from relay.history.port import History
from relay.history.sqlite import SqliteHistory


def open_history(url: str) -> History:
    """Not yet started. `url`: one that `relay.config.setting_values` has checked. Raises UserError where PostgreSQL is
    asked for and its driver is not installed."""
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
