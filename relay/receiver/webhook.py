"""A delivery as its receiver sees it, with its signature checked (Standard Webhooks 1.0, or RFC 9421)."""

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import unquote

from relay.domain.http_message import verify_message
from relay.domain.requests import ANSWER_URL_HEADER
from relay.domain.signing import verify_standard
from relay.domain.text import whole_number

_SIGNED: Final = ("webhook-id", "webhook-timestamp", "webhook-signature")


class InvalidSignature(ValueError):
    """The request is not signed with the secret, or its timestamp is too old: respond with 401."""


@dataclass(frozen=True, slots=True)
class Webhook:
    """A verified delivery.

    `webhook_id`: the same for each attempt of a delivery; use it to process it once. `source`, `message_id`, `type`: of
    the message; None in a ping. `attempt`: from 1 on. `answer_url`: where to answer later; None if the relay has no
    answer secret, or no answer is possible.
    """

    webhook_id: str
    source: str | None
    message_id: str | None
    type: str | None
    attempt: int
    answer_url: str | None = field(repr=False)
    body: bytes = field(repr=False)

    def json(self) -> Any:
        """The payload, decoded. Raises ValueError if it is not JSON."""
        return json.loads(self.body)


def verify(
    secret: str | Sequence[str],
    headers: Mapping[str, str],
    body: bytes,
    *,
    url: str | None = None,
    method: str = "POST",
    tolerance_s: float = 300.0,
) -> Webhook:
    """The delivery, if one of the secrets signed it within `tolerance_s` of now. Raises InvalidSignature.

    `secret`: `whsec_...`, plain text, or the public key `whpk_...` of an Ed25519 key; several while one is rotated.
    `body`: the bytes as they were received, before anything parsed them. `url`: as the relay requested it; with it, a
    signature over the whole request (`signature: http-message`) counts as well.
    """
    secrets, now = [secret] if isinstance(secret, str) else list(secret), time.time()
    named = {name.lower(): value for name, value in headers.items()}
    if not verify_standard(secrets, headers, body, now, tolerance_s) and not (
        url is not None
        and verify_message(
            secrets, method=method, url=url, headers=headers, body=body, now=now, tolerance_s=tolerance_s
        )
    ):
        missing = [name for name in _SIGNED if name not in named]
        if missing and "signature" not in named:
            raise InvalidSignature(f"the request is not signed: it has no header {', '.join(missing)}")
        raise InvalidSignature("the signature does not match, or its timestamp is too old")
    attempt = whole_number(named.get("relay-attempt", ""))
    return Webhook(
        named["webhook-id"],
        _attribute(named, "ce-source"),
        _attribute(named, "ce-id"),
        _attribute(named, "ce-type"),
        1 if attempt is None else attempt,
        named.get(ANSWER_URL_HEADER),
        body,
    )


def _attribute(named: Mapping[str, str], name: str) -> str | None:
    """CloudEvents attributes are percent-encoded in headers."""
    return unquote(named[name]) if name in named else None


def wsgi_url(origin: str, environ: Mapping[str, Any]) -> str | None:
    """The URL of a request as it was signed: frameworks decode its path, and what `%2F` was is lost then. None if the
    server does not pass the request line on. `origin`: scheme and host."""
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
