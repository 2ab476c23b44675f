"""HTTP/1.1 without I/O: the bytes of a request's head, and a reader of responses."""

import re
from typing import Final

import httptools

from relay.delivery.guard import UrlParts
from relay.domain.exchange import Exchange, NoResponse, Request, Response
from relay.domain.headers import MOST_HEADER

BODY_CAP: Final = 64 * 1024
"""How many bytes of a response's body are read unless the caller says otherwise."""

HEAD_CAP: Final = 64 * 1024
"""Bytes of status lines and headers, those of 1xx responses included; and of framing between two bytes of a body."""

_TLS_ALERT: Final = b"\x15\x03"
"""How a TLS server responds to what is no TLS."""

_TOKEN: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_OURS: Final = frozenset({"host", "content-length", "transfer-encoding"})
"""What frames and addresses a message is not for the caller to say."""

_CONTROLS: Final = bytes({*range(32), 127} - {ord("\t")})
_DEFAULT_PORTS: Final = {"http": 80, "https": 443}
_FRAMING: Final = frozenset({b"content-length", b"transfer-encoding"})
MOST_HEADERS: Final = 100
"""Of a response; those that follow are dropped, but for what frames the body."""
_MOST_NAME: Final = 256
_NAMES_KEPT: Final = 1024
_LONGEST_KEPT: Final = 64


class _Labels(dict[str, str]):
    """A header's name -> the end of the line before it and `name: `, examined once. The names are few: they come from
    configuration."""

    def __missing__(self, name: str) -> str:
        if not _TOKEN.fullmatch(name) or name.lower() in _OURS:
            raise ValueError(f"{name!r} is no header that can be sent")
        if len(self) >= _NAMES_KEPT:
            self.clear()
        label = self[name] = f"\r\n{name}: "
        return label


class _LowerNames(dict[bytes, str]):
    """A header's name as it came -> in lower case. Receivers choose them: what is kept is bounded."""

    def __missing__(self, raw: bytes) -> str:
        name = raw.decode("latin-1").lower()
        if len(raw) <= _LONGEST_KEPT:
            if len(self) >= _NAMES_KEPT:
                self.clear()
            self[raw] = name
        return name


_labels: Final = _Labels()
_lower_names: Final = _LowerNames()


def start_of_head(url: UrlParts, *, absolute: bool = False) -> str:
    """What follows the method, down to the Host line, whose end is not included. `absolute`: as a proxy wants it."""
    host = url.host.rstrip(".")
    named = host if url.port == _DEFAULT_PORTS[url.scheme] else f"{host}:{url.port}"
    target = f"{url.scheme}://{named}{url.target}" if absolute else url.target
    return f" {target} HTTP/1.1\r\nHost: {named}"


def head_of(request: Request, start: str) -> bytes:
    """The head of `request` whose URL begins it with `start`. Raises ValueError if a header could end its line."""
    labels, fields = _labels, request.headers
    lines = "".join([labels[name] + value for name, value in fields])
    if request.method == "POST":
        head = f"POST{start}{lines}\r\nContent-Length: {len(request.body)}\r\n\r\n".encode()
        breaks = len(fields) + 4
    else:  # has no content, hence no length of it (RFC 9110, section 8.6)
        head = f"{request.method}{start}{lines}\r\n\r\n".encode()
        breaks = len(fields) + 3
    if len(head) - len(head.translate(None, _CONTROLS)) != 2 * breaks:
        raise ValueError("a header's value has a control character")
    return head


def _first(raw: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """The headers that are kept of too many."""
    framing = [field for field in raw[MOST_HEADERS:] if field[0].lower() in _FRAMING][:MOST_HEADERS]
    return [*raw[: MOST_HEADERS - len(framing)], *framing]


class _Enough(Exception):
    """Stops the parser: nothing that follows is of interest."""


class ResponseReader:
    """Reads the responses of one connection, one after the other. After a call of `begin`, `feed` it what arrives.

    `body_cap`: how many bytes of a body are kept. `reusable`: whether another request may follow on the connection;
    it counts once `feed` has given a result.
    """

    __slots__ = (
        "_body",
        "_body_cap",
        "_complete",
        "_fault",
        "_framing",
        "_headers",
        "_parser",
        "_raw",
        "_size",
        "_status",
        "reusable",
    )

    def __init__(self, body_cap: int) -> None:
        self._body_cap = body_cap
        self._parser = httptools.HttpResponseParser(self)
        # Receivers that other clients put up with: folded headers, lines that end in LF alone, blanks after a size.
        self._parser.set_dangerous_leniencies(
            lenient_headers=True, lenient_optional_cr_before_lf=True, lenient_spaces_after_chunk_size=True
        )
        self._raw: list[tuple[bytes, bytes]] = []
        self._body: list[bytes] = []
        self._headers: dict[str, str] = {}
        self.begin()

    def begin(self) -> None:
        """The next response is to come."""
        self._status: int | None = None
        self._complete = False
        self._fault: str | None = None
        self._framing = 0
        self._size = 0
        self.reusable = False

    def feed(self, received: bytes) -> Exchange | None:
        """The result, if it is clear now. Nothing may be fed after that until the next `begin`."""
        self._framing += len(received)
        try:
            self._parser.feed_data(received)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self.reusable = False
            if not self._complete:
                why = (
                    "the server speaks TLS there; is it an https:// URL?"
                    if received.startswith(_TLS_ALERT)
                    else str(error)
                )
                return self.cut("protocol", self._fault or why or "not HTTP")
            # else the response is whole, and something follows that nobody asked for
        if self._status is not None and self._complete:
            return self._response(self._status, truncated=False)
        if self._framing > HEAD_CAP:
            return self.cut("protocol", f"more than {HEAD_CAP} bytes without a response")
        return None

    def end(self) -> Exchange:
        """The result when the server has closed the connection: that may be what ends a body."""
        if self._status is not None and self._is_until_close():
            return self._response(self._status, truncated=False)
        return self.cut("disconnected", "the server closed the connection")

    def cut(self, kind: str, detail: str) -> Exchange:
        """The result when nothing more is read: NoResponse unless a status is known already."""
        self.reusable = False
        if self._status is not None:
            return self._response(self._status, truncated=True)
        return NoResponse(kind, detail, sent=True)

    def _response(self, status: int, *, truncated: bool) -> Response:
        body = b"".join(self._body)
        self._body.clear()
        return Response(status, self._headers, body, truncated)

    def _is_until_close(self) -> bool:
        coding = self._headers.get("transfer-encoding")
        if coding is not None:
            return not coding.lower().endswith("chunked")
        return "content-length" not in self._headers

    # --- called by the parser -----------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        if self._complete:
            raise _Enough

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._status is None:  # else it is a trailer
            self._raw.append((name, value))

    def on_headers_complete(self) -> None:
        raw, self._raw = self._raw, []
        status = self._parser.get_status_code()
        if self._framing > HEAD_CAP and sum(len(name) + len(value) + 4 for name, value in raw) > HEAD_CAP:
            raise self._failure(f"more than {HEAD_CAP} bytes of headers")
        if status < 100 or status == 101:  # we never ask for another protocol
            raise self._failure(f"unexpected status {status}")
        if status >= 200:
            self._headers = self._decoded(raw)
            self._body.clear()
            self._status = status

    def on_body(self, body: bytes) -> None:
        self._framing = 0
        self._size += len(body)
        excess = self._size - self._body_cap
        self._body.append(body if excess <= 0 else body[:-excess])
        if excess > 0:
            raise _Enough

    def on_message_complete(self) -> None:
        if self._status is not None:
            self._complete = True
            self.reusable = self._parser.should_keep_alive()

    def _decoded(self, raw: list[tuple[bytes, bytes]]) -> dict[str, str]:
        """The values as text that can be encoded again, whatever the bytes. What is kept is bounded, each and in
        number."""
        lower, fields = _lower_names, raw if len(raw) <= MOST_HEADERS else _first(raw)
        headers = {
            lower[name[:_MOST_NAME]]: value[:MOST_HEADER].rstrip().decode("utf-8", "replace") for name, value in fields
        }
        values = "".join(headers.values())
        if "\0" in values:  # the parser sees to all else that matters
            raise self._failure("a header's value has a control character")
        return headers

    def _failure(self, detail: str) -> _Enough:
        self._fault = detail
        return _Enough(detail)
