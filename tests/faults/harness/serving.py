"""A minimal HTTP/1.1 server for receivers and callbacks: little CPU, and full control of each connection."""

import asyncio
from asyncio import Transport
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Final, NamedTuple, cast

import httptools

_PHRASES: Final = {int(status): status.phrase.encode() for status in HTTPStatus}


class Incoming(NamedTuple):
    """A request. `path`: as it came, percent-encoded, without the query. Names of headers are in lower case; the last
    one of a name counts."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes


Handler = Callable[[Incoming, "Connection"], None]
"""Called for each request. It may respond through the connection now, later or never, once for each request; clients
have to wait for the response before they send the next request."""


class Connection(asyncio.Protocol):
    """One connection of a client."""

    def __init__(self, handler: Handler) -> None:
        self._handler = handler
        self._parser = httptools.HttpRequestParser(self)
        self._transport: Transport | None = None
        self._start()

    ended: Callable[[], None] | None = None
    """Called when the last request has ended: after its response, or when the connection is closed."""

    @property
    def is_open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    def answer(self, status: int, body: bytes = b"", *, retry_after_s: int | None = None) -> None:
        """Respond to the last request. The body is JSON. No effect if the connection is closed."""
        if self._transport is None or self._transport.is_closing():
            return
        self._end()
        head = b"HTTP/1.1 %d %s\r\ncontent-length: %d\r\n" % (status, _PHRASES.get(status, b"-"), len(body))
        if body:
            head += b"content-type: application/json\r\n"
        if retry_after_s is not None:
            head += b"retry-after: %d\r\n" % retry_after_s
        if self._keeps_alive:
            self._transport.write(head + b"\r\n" + body)
        else:
            self._transport.write(head + b"connection: close\r\n\r\n" + body)
            self._transport.close()

    def close(self) -> None:
        """Close it without a response."""
        if self._transport is not None:
            self._transport.close()

    def _end(self) -> None:
        ended, self.ended = self.ended, None
        if ended is not None:
            ended()

    # asyncio calls these

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._end()

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserCallbackError:
            self.close()  # no response: an unrecorded request must count as not arrived
            raise
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self._keeps_alive = False
            self.answer(400)

    # the parser calls these

    def on_message_begin(self) -> None:
        self._start()

    def on_url(self, part: bytes) -> None:
        self._url += part

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_body(self, part: bytes) -> None:
        self._body += part

    def on_message_complete(self) -> None:
        self._keeps_alive = self._parser.should_keep_alive()
        path = self._url.decode("latin-1").partition("?")[0]
        self._handler(Incoming(self._parser.get_method().decode(), path, self._headers, self._body), self)

    def _start(self) -> None:
        self._url = b""
        self._headers: dict[str, str] = {}
        self._body = b""
        self._keeps_alive = True


async def listen(handler: Handler) -> asyncio.Server:
    """A server on a free port of the loopback."""
    loop = asyncio.get_running_loop()
    return await loop.create_server(lambda: Connection(handler), "127.0.0.1", 0, backlog=1024)
