"""Recognizes and masks secrets: by field name, in URLs, and known secrets in any text."""

import json
import re
from collections.abc import Collection, Iterable, Iterator
from functools import lru_cache
from html import escape
from typing import Final
from urllib.parse import quote, quote_plus, unquote

from relay.domain.text import with_replaced

MASK: Final = "********"

# Whole words only where the word is also part of harmless ones (author, key).
_SECRET_NAME: Final = re.compile(
    r"secret|passw(or)?d|passphrase|token|cookie|credential|authorization|signature|bearer|(api|private|signing)_?key"
    r"|(^|_)(auth|dsn)(_|$)"
)
_SECRET_PARAMETERS: Final = frozenset({"key", "sig", "pw", "pwd", "code"})
"""Query parameters that hold secrets; elsewhere these words have other meanings, too."""
_URL: Final = re.compile(r"(?P<scheme>[a-z][a-z0-9+.-]*://)?(?P<authority>[^/?#]*)(?P<path>[^?#]*)(?P<rest>.*)", re.S)
_SEGMENT: Final = re.compile(r"[^/]+")
_FIELD: Final = re.compile(r"[^&#]+")
_PLACEHOLDER: Final = re.compile(r"\$?\{[^{}]*\}|msg_[a-z2-7]{26}")
"""What stands for a value, and a `webhook_id`: a hash of ids, which are no secrets."""
_LETTER_NEXT_TO_DIGIT: Final = re.compile(r"(?<=[A-Za-z])(?=[0-9])|(?<=[0-9])(?=[A-Za-z])")
_RANDOM_LENGTH: Final = 16
_RANDOM_CHANGES: Final = 3
_LONGEST_KEPT: Final = 128
"""Longest name in the cache. Names come from outside, so this bounds the cache's bytes."""
_SHORTEST: Final = 4
"""A shorter known secret is not searched for: it would be found in any text."""


def is_secret_name(name: str) -> bool:
    """Whether a field, a header or a query parameter of this name may hold a secret. `-` and `_` are alike."""
    return _known_name(name) if len(name) <= _LONGEST_KEPT else _has_secret_word(name)


def _has_secret_word(name: str) -> bool:
    return _SECRET_NAME.search(name.lower().replace("-", "_")) is not None


_known_name: Final = lru_cache(maxsize=4_096)(_has_secret_word)


def looks_random(text: str) -> bool:
    """Whether `text` looks like a generated key rather than words: long, with letters and digits alternating.

    Placeholders and references in it do not count. Names such as `ci-hooks-2024-v2` do not look random.
    """
    rest = _PLACEHOLDER.sub("", unquote(text))
    return len(rest) >= _RANDOM_LENGTH and len(_LETTER_NEXT_TO_DIGIT.findall(rest)) >= _RANDOM_CHANGES


def secret_spans(url: str) -> Iterator[tuple[int, int]]:
    """Start and end of each part of `url` that may be secret, in order: user and password, path segments that look
    random, and query values that look random or have the name of a secret. `url` may be a template: a value that is
    only a placeholder or a `${NAME}` is not secret."""
    parts = _URL.fullmatch(url)
    if parts is None:
        raise AssertionError("matches any text")
    userinfo, at, _ = parts["authority"].rpartition("@")
    if at:
        yield parts.start("authority"), parts.start("authority") + len(userinfo)
    for segment in _SEGMENT.finditer(url, parts.start("path"), parts.end("path")):
        if looks_random(segment[0]):
            yield segment.span()
    for field in _FIELD.finditer(url, parts.start("rest")):
        before, equals, value = field[0].partition("=")
        name = unquote(before.rpartition("?")[2])
        is_secret = is_secret_name(name) or name.lower() in _SECRET_PARAMETERS
        if equals and _PLACEHOLDER.sub("", value) and (is_secret or looks_random(value)):
            yield field.end() - len(value), field.end()


def masked_url(url: str, ids: Collection[str | None] = ()) -> str:
    """`url` with its secret parts masked. `ids`: of the message, which may look random and are no secrets."""
    return with_replaced(url, secret_spans(url), lambda part: part if unquote(part) in ids else MASK)


def redacted(text: str, secrets: Iterable[str]) -> str:
    """`text` with each of `secrets` masked, also as URLs, forms, JSON and HTML have it."""
    for spelling in _spellings(tuple(secrets)):
        text = text.replace(spelling, MASK)
    return text


@lru_cache(maxsize=1024)
def _spellings(secrets: tuple[str, ...]) -> tuple[str, ...]:
    """The texts to search for, longest first, because one may be part of another."""
    found = {spelling for secret in secrets for spelling in _spellings_of(secret)}
    return tuple(sorted((each for each in found if len(each) >= _SHORTEST), key=len, reverse=True))


def _spellings_of(secret: str) -> Iterator[str]:
    as_json = json.dumps(secret)[1:-1]
    yield from (secret, unquote(secret), quote(secret, safe=""), quote_plus(secret), escape(secret))
    yield from (as_json, as_json.replace("/", r"\/"))  # the latter by PHP
