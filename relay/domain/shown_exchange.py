"""Requests and responses as they are recorded and shown: secrets masked, sizes bounded, a failure in one line.

Runs for each request, so it searches all headers together for rare matches, and caches results that repeat.
"""

import re
from collections.abc import Collection, Iterable, Mapping
from functools import lru_cache
from typing import Final

from relay.domain.exchange import REDIRECTS, Exchange, NoResponse, Response
from relay.domain.headers import is_ours
from relay.domain.receiver import Endpoint
from relay.domain.requests import ANSWER_URL_HEADER, PAYLOAD_URL_HEADER
from relay.domain.secrecy import MASK, is_secret_name, masked_url, redacted

MOST_HEADERS: Final = 64
MOST_VALUE: Final = 1_024
"""Characters of a header's value."""

_KEPT_URL: Final = 1_024
"""Characters of the longest URL whose masked form is cached; URLs come from outside."""
_known_url: Final = lru_cache(maxsize=2_048)(masked_url)
_KEPT_NAMES: Final = 1_024
"""Characters of the longest names for which the secret ones are cached; senders and receivers choose some names."""

_TOKEN: Final = re.compile(r"((?:/|%2F)v1(?:\\?/|%2F)(?:answers|payloads)(?:\\?/|%2F))[\w-]+", re.ASCII | re.IGNORECASE)
"""The token of an answer URL or a payload URL, also as forms and PHP's JSON have it."""

_Settings = tuple[tuple[str, str], ...]


def shown_url(url: str, endpoint: Endpoint, ids: Collection[str | None] = ()) -> str:
    """`url` with secrets masked; the endpoint's URL, or another one of the same receiver. `ids`: see `masked_url`."""
    return redacted(_masked(url) if url == endpoint.url else masked_url(url, ids), endpoint.secrets)


def shown_request_headers(headers: Iterable[tuple[str, str]], endpoint: Endpoint) -> dict[str, str]:
    """Headers in the order they were sent. Values from the endpoint's settings are masked, and so are the tokens in an
    answer URL and a payload URL, which would allow any reader to answer, and to read."""
    shown = dict(headers)
    _mask(shown, endpoint.headers)
    urls = 0
    for name in (ANSWER_URL_HEADER, PAYLOAD_URL_HEADER):
        if name in shown:
            shown[name] = _masked(f"{shown[name].rpartition('/')[0]}/{MASK}")
            urls += "://" in shown[name]
    return _without_secrets(shown, endpoint.secrets, masked_urls=urls)


def shown_response_headers(headers: Mapping[str, str], endpoint: Endpoint) -> dict[str, str]:
    shown = dict(headers)
    _mask(shown, None)
    if "location" in shown:  # it may have no origin, unlike other URLs
        shown["location"] = _masked(shown["location"])
    return _without_secrets(shown, endpoint.secrets)


def shown_body(response: Response, endpoint: Endpoint, most: int) -> tuple[str, bool]:
    """The first `most` bytes of the body as text, and whether there is more."""
    looked_at = 2 * most  # so that a secret that begins in the shown part is masked whole
    text = redacted(response.body[:looked_at].decode(errors="replace"), endpoint.secrets)
    if "v1" in text:
        text = _without_tokens(text)
    known = text.encode()
    if len(known) <= most:
        return text, response.truncated or len(response.body) > looked_at
    return known[:most].decode(errors="ignore"), True


def _without_tokens(text: str) -> str:
    """A response's body without the tokens of URLs that its request had."""
    return _TOKEN.sub(rf"\1{MASK}", text)


def _mask(headers: dict[str, str], settings: _Settings | None) -> None:
    """Replace the values of secret headers. `settings`: see `_secrets`."""
    names = "\n".join(headers)
    for name in (_known_secrets if len(names) <= _KEPT_NAMES else _secrets)(names, settings):
        headers[name] = MASK


def _secrets(names: str, settings: _Settings | None) -> frozenset[str]:
    """Those of `names`, one a line, whose values are masked: headers of the endpoint's `settings`, and others that may
    be secret. Our signatures are not: they prove one body, for minutes. `settings` None: names of a response, in which
    nothing is ours."""
    if settings is None:
        return frozenset(filter(is_secret_name, names.split("\n")))
    own = {name.lower() for name, _ in settings}
    return frozenset(
        name for name in names.split("\n") if name.lower() in own or (not is_ours(name) and is_secret_name(name))
    )


_known_secrets: Final = lru_cache(maxsize=1_024)(_secrets)


def _masked(url: str) -> str:
    """`masked_url` with a cache for short URLs."""
    return _known_url(url) if len(url) <= _KEPT_URL else masked_url(url)


def _without_secrets(headers: dict[str, str], secrets: tuple[str, ...], *, masked_urls: int = 0) -> dict[str, str]:
    """`headers`, bounded, without secrets in their values; usually unchanged. `masked_urls`: their number so far."""
    together = "\n".join(headers.values())
    if together.count("://") > masked_urls:
        headers = {name: _masked(value) if "://" in value else value for name, value in headers.items()}
        together = "\n".join(headers.values())
    if redacted(together, secrets) != together:
        headers = {name: redacted(value, secrets) for name, value in headers.items()}
        together = "\n".join(headers.values())
    return headers if len(together) <= MOST_VALUE and len(headers) <= MOST_HEADERS else _bounded(headers)


def _bounded(headers: dict[str, str]) -> dict[str, str]:
    if len(headers) <= MOST_HEADERS and max(map(len, headers.values())) <= MOST_VALUE:
        return headers
    return {name[:MOST_VALUE]: value[:MOST_VALUE] for name, value in list(headers.items())[:MOST_HEADERS]}


# --- failures -----------------------------------------------------------------------------------------------------

SHOWN_BYTES: Final = 256
"""Maximum bytes of a response's body that are shown."""
_LOOKED_AT: Final = 4096
"""More than is shown, so that a secret that begins in the shown part is masked whole."""


_NO_TLS: Final = ("wrong version number", "http request", "record layer failure", "packet length too long")
"""OpenSSL's errors for a server whose first bytes are not TLS."""


def tls_failure(reason: str) -> str:
    """Why a TLS handshake failed. `reason`: the TLS library's message."""
    plain = any(words in reason.lower().replace("_", " ") for words in _NO_TLS)
    return "the server does not speak TLS there; is it an http:// URL?" if plain else reason


def failure_detail(
    exchange: Exchange,
    endpoint: Endpoint,
    *,
    url: str | None = None,
    method: str = "POST",
    ids: Collection[str | None] = (),
) -> str:
    """One line. `url`: the requested URL, if it was not the endpoint's own. `ids`: see `masked_url`."""
    where = f"{method} {masked_url(url or endpoint.url, ids)}"
    match exchange:
        case NoResponse(kind, detail):
            named = kind.replace("_", " ")
            words = f"{where}: {detail}" if named in detail else f"{where}: {named}" + (f": {detail}" if detail else "")
        case Response():
            words = f"{where}: {exchange.status}{_redirect(exchange)}"
    return _one_line(redacted(words, endpoint.secrets)) + _body(exchange, endpoint)


def _redirect(response: Response) -> str:
    """Where it leads. It is not followed: that could be anywhere, with the receiver's credentials."""
    if response.status not in REDIRECTS:
        return ""
    location = response.headers.get("location")
    target = f", Location: {masked_url(location)}" if location else ""
    return f"{target} (redirects are not followed; give the final URL)"


def _body(exchange: Exchange, endpoint: Endpoint) -> str:
    if isinstance(exchange, NoResponse) or not exchange.body:
        return ""
    text = _without_tokens(redacted(exchange.body[:_LOOKED_AT].decode(errors="replace"), endpoint.secrets))
    shown = _one_line(text).encode()
    cut = shown[:SHOWN_BYTES].decode(errors="ignore")
    return f": {cut}{'...' if len(shown) > SHOWN_BYTES or exchange.truncated else ''}"


def _one_line(text: str) -> str:
    """`text` without control characters, which a terminal would interpret."""
    return " ".join("".join(char if char.isprintable() else " " for char in text).split())
