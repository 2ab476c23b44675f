"""The URL of a request as it was signed. Frameworks decode its path; what `%2F` was is lost then."""

from collections.abc import Mapping
from typing import Any


def wsgi_url(origin: str, environ: Mapping[str, Any]) -> str | None:
    """None if the server does not pass the request line on. `origin`: scheme and host."""
    # RAW_URI: gunicorn, Werkzeug; REQUEST_URI: uWSGI, mod_wsgi, waitress
    target: str | None = environ.get("RAW_URI") or environ.get("REQUEST_URI")
    return origin + target if target is not None and target.startswith("/") else target


def asgi_url(origin: str, scope: Mapping[str, Any]) -> str | None:
    """As `wsgi_url`."""
    path, query = scope.get("raw_path"), scope.get("query_string")
    if path is None:
        return None
    target: bytes = path + b"?" + query if query else path
    return origin + target.decode("latin-1")
