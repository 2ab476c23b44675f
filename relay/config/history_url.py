"""The URL of the history: which there are, and what is said where it is none."""

from urllib.parse import parse_qs, urlsplit

from pydantic import SecretStr


def none_if_said(value: object) -> object:
    """The word `none`: there is to be no history, not even by default."""
    said = value.get_secret_value() if isinstance(value, SecretStr) else value
    return None if said == "none" else value


def check_history_url(value: SecretStr) -> SecretStr:
    try:
        parts = urlsplit(value.get_secret_value())
        is_file = parts.scheme == "sqlite" and not parts.netloc and len(parts.path) > 1
        is_server = parts.scheme in ("postgresql", "postgres") and bool(
            parts.hostname or "host" in parse_qs(parts.query)
        )
    except ValueError:
        is_file = is_server = False
    if not is_file and not is_server:
        raise ValueError(
            "not the URL of a history; write sqlite:///absolute/path/history.db"
            " or postgresql://user:password@host:5432/database"
        )
    return value
