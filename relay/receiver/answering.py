"""Answers that come later: POSTed to the answer URL of the delivery."""

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

import msgspec

from relay.client.errors import ClientError
from relay.client.http import JSON, Http, checked_url, decoded
from relay.schema.messages import Recorded

_TRIES = 8


async def answer_async(
    url: str,
    body: bytes | str | Mapping[str, Any] | list[Any] = b"",
    *,
    status: int = 200,
    content_type: str | None = None,
    timeout_s: float = 30.0,
) -> None:
    """Answer a delivery; return once the relay has stored the answer.

    `url`: the delivery's `relay-answer-url`. `body`: bytes and text as they are, everything else as JSON. `status`: of
    the answer, for its sender. The first answer of a delivery counts; another one changes nothing. Repeats the request
    while the relay is away. Raises InvalidArgument for an invalid URL, RelayUnreachable, and ApiError: with status 410
    if the time to answer is over, or the delivery was given up or replayed.
    """
    encoded = body if isinstance(body, bytes) else body.encode() if isinstance(body, str) else msgspec.json.encode(body)
    usual = "text/plain; charset=utf-8" if isinstance(body, str) else JSON
    parts = urlsplit(checked_url(url, "answer URL"))
    http = Http(f"{parts.scheme}://{parts.netloc}", "", tries=_TRIES, timeout_s=timeout_s, session=None)
    try:
        response = await http.request(
            "POST",
            parts.path,
            body=encoded,
            content_type=content_type or usual,
            headers=[("relay-answer-status", str(status))],
            safe=True,
        )
        decoded(Recorded, response)
    finally:
        await http.close()


def answer(
    url: str,
    body: bytes | str | Mapping[str, Any] | list[Any] = b"",
    *,
    status: int = 200,
    content_type: str | None = None,
    timeout_s: float = 30.0,
) -> None:
    """As `answer_async`, for code without asyncio; blocks until it is done. Raises ClientError in a coroutine."""
    with suppress(RuntimeError):
        asyncio.get_running_loop()
        raise ClientError("answer() would block the event loop: use `await answer_async(...)` in a coroutine")
    asyncio.run(answer_async(url, body, status=status, content_type=content_type, timeout_s=timeout_s))
