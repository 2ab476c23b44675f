"""Records of the sink: received POSTs and status GETs, and sent callbacks."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple
from urllib.parse import unquote

from aiohttp import web

from relay.sink.behaviour import Mode


@dataclass(frozen=True, slots=True)
class ReceivedPost:
    """A received POST. Ids are decoded; they are empty for a POST without `ce-` headers.

    `verified`: whether the signature was valid; None without a secret. `met`: the reaction to it. `status`: of the
    response; None for `hang` and `reset`. `headers` have lower-case names. `payload`: the body decrypted, or fetched
    from `relay-payload-url`; None if the sink did neither. `batch`: the id of the batch that it arrived in, of which
    `headers` are.
    """

    webhook_id: str
    source_id: str
    message_id: str
    event_type: str
    attempt: int
    generation: int
    sequence: int | None
    body: bytes = field(repr=False)
    headers: Mapping[str, str] = field(repr=False)
    verified: bool | None
    met: Mode
    status: int | None
    t_monotonic: float
    payload: bytes | None = field(default=None, repr=False)
    batch: str | None = None


class Poll(NamedTuple):
    """A status GET."""

    message_id: str
    status: int
    t_monotonic: float


class CallbackSent(NamedTuple):
    """A POST to a `relay-answer-url`. `status`: of the response; None if there was none."""

    message_id: str
    status: int | None


def arrival_of(request: web.Request, body: bytes, met: Mode, status: int | None, verified: bool | None) -> ReceivedPost:
    headers = {name.lower(): value for name, value in request.headers.items()}
    return ReceivedPost(
        webhook_id=headers.get("webhook-id", ""),
        source_id=unquote(headers.get("ce-source", "")),
        message_id=unquote(headers.get("ce-id", "")),
        event_type=unquote(headers.get("ce-type", "")),
        attempt=_number(headers.get("relay-attempt")) or 1,
        generation=_number(headers.get("relay-generation")) or 0,
        sequence=_number(headers.get("relay-sequence")),
        body=body,
        headers=headers,
        verified=verified,
        met=met,
        status=status,
        t_monotonic=time.monotonic(),
    )


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isascii() and text.isdigit() else None
