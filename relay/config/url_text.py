"""URLs in receivers.yaml and in settings."""

from typing import Annotated
from urllib.parse import urlsplit

from pydantic import AfterValidator

from relay.config.entry import Text
from relay.config.references import has_reference
from relay.domain.headers import MOST_URL


def check_url(url: str) -> str:
    """`url` if it may be POSTed to: http(s), with a host, without user name and fragment. Raises ValueError."""
    if len(url) > MOST_URL:
        raise ValueError(f"a URL has at most {MOST_URL} characters; this one has {len(url)}")
    if not url.isascii() or not url.isprintable() or " " in url:
        raise ValueError("a URL is ASCII without spaces; percent-encode everything else")
    try:
        parts = urlsplit(url)
        valid = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        valid = False
    if not valid:
        raise ValueError("not a URL; write it as https://host/path")
    if "@" in parts.netloc:
        raise ValueError("a URL must not hold a user name or password; use bearer_token or headers")
    if "#" in url:
        raise ValueError("a URL must not have a fragment (#...)")
    return url


def _url(value: str) -> str:
    return value if has_reference(value) else check_url(value)


Url = Annotated[Text, AfterValidator(_url)]
