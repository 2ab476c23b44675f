"""Descriptions of failed requests, for the operators of the receiver: the URL and the response or error.

Secrets of the endpoint are masked, also where the response repeats them.
"""

from typing import Final

from relay.domain.exchange import Exchange, NoResponse, Response
from relay.domain.receiver import Endpoint
from relay.domain.secrecy import masked_url, redacted

SHOWN_BYTES: Final = 256
"""Maximum bytes of a response's body that are shown."""
_LOOKED_AT: Final = 4096
"""More than is shown, so that a secret that begins in the shown part is masked whole."""


_NO_TLS: Final = ("wrong version number", "http request", "record layer failure", "packet length too long")
"""OpenSSL's errors for a server whose first bytes are not TLS."""


def tls_failure(reason: str) -> str:
    """Why a TLS handshake failed. `reason`: the TLS library's message."""
    plain = any(words in reason.lower().replace("_", " ") for words in _NO_TLS)
    return f"the server does not speak TLS there; is it an http:// URL? ({reason})" if plain else reason


def failure_detail(exchange: Exchange, endpoint: Endpoint, *, url: str | None = None, method: str = "POST") -> str:
    """One line. `url`: the requested URL, if it was not the endpoint's own."""
    where = f"{method} {masked_url(url or endpoint.url)}"
    match exchange:
        case NoResponse(kind, detail):
            named = kind.replace("_", " ")
            words = f"{where}: {detail}" if named in detail else f"{where}: {named}" + (f": {detail}" if detail else "")
        case Response():
            words = f"{where}: {exchange.status}{_location(exchange)}"
    return _one_line(redacted(words, endpoint.secrets)) + _body(exchange, endpoint)


def _location(response: Response) -> str:
    location = response.headers.get("location")
    return f", Location: {masked_url(location)}" if location and 300 <= response.status < 400 else ""


def _body(exchange: Exchange, endpoint: Endpoint) -> str:
    if isinstance(exchange, NoResponse) or not exchange.body:
        return ""
    text = redacted(exchange.body[:_LOOKED_AT].decode(errors="replace"), endpoint.secrets)
    shown = _one_line(text).encode()
    cut = shown[:SHOWN_BYTES].decode(errors="ignore")
    return f": {cut}{'...' if len(shown) > SHOWN_BYTES or exchange.truncated else ''}"


def _one_line(text: str) -> str:
    """`text` without control characters, which a terminal would interpret."""
    return " ".join("".join(char if char.isprintable() else " " for char in text).split())
