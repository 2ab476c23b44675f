"""HTTP/1.1 without I/O: serializes request heads, and parses responses."""

import re
import zlib
from typing import Final

import httptools

from relay.domain.exchange import WITH_BODY, Exchange, NoResponse, Request, Response
from relay.domain.headers import MOST_HEADER
from relay.domain.urls import UrlParts, authority_of

BODY_CAP: Final = 64 * 1024
"""Default number of bytes of a response's body that are read."""

HEAD_CAP: Final = 64 * 1024
"""Bytes of status lines and headers, including those of 1xx responses; and of framing between two bytes of a body."""

_TLS_ALERT: Final = b"\x15\x03"
"""First bytes of a TLS server's response to plain HTTP."""

_EXPECTED: Final = "HTTP/, RTSP/ or ICE/"
"""What the parser can read."""

_TOKEN: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_OURS: Final = frozenset({"host", "content-length", "transfer-encoding"})
"""Framing and addressing headers, which callers may not set."""

_CONTROLS: Final = bytes({*range(32), 127} - {ord("\t")})
_FRAMING: Final = frozenset({b"content-length", b"transfer-encoding"})
_HEAD_END: Final = re.compile(rb"\r?\n\r?\n")
_LENGTH: Final = re.compile(rb"\r?\ncontent-length:([^\r\n]*+)(?!\r?\n[ \t])", re.IGNORECASE)
MOST_HEADERS: Final = 100
"""Maximum number of headers of a response; further ones are dropped, except those that frame the body."""
_MOST_NAME: Final = 256
_WITHOUT_BODY: Final = frozenset({204, 304})
_ZLIB: Final = frozenset({"gzip", "x-gzip", "deflate"})
_ZLIB_OR_GZIP: Final = 47
_NAMES_KEPT: Final = 1024
_LONGEST_KEPT: Final = 64


class _Labels(dict[str, str]):
    """Header name -> line break and `name: `, validated once per name. Names are few, because they are configured."""

    def __missing__(self, name: str) -> str:
        if not _TOKEN.fullmatch(name) or name.lower() in _OURS:
            raise ValueError(f"{name!r} is not a header that can be sent")
        if len(self) >= _NAMES_KEPT:
            self.clear()
        label = self[name] = f"\r\n{name}: "
        return label


class _LowerNames(dict[bytes, str]):
    """Received header name -> name in lower case. The cache is bounded, because receivers choose the names."""

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
    """The head after the method up to the Host line, without its line end. `absolute`: with the URL, for a proxy."""
    named = authority_of(url.scheme, url.host, url.port)
    target = f"{url.scheme}://{named}{url.target}" if absolute else url.target
    return f" {target} HTTP/1.1\r\nHost: {named}"


def head_of(request: Request, start: str) -> bytes:
    """The head of `request`; `start`: `start_of_head` of its URL. Raises ValueError if a header could inject a line."""
    labels, fields = _labels, request.headers
    lines = "".join([labels[name] + value for name, value in fields])
    if request.method in WITH_BODY:
        head = f"{request.method}{start}{lines}\r\nContent-Length: {len(request.body)}\r\n\r\n".encode()
        breaks = len(fields) + 4
    else:  # has no content, hence no length of it (RFC 9110, section 8.6)
        head = f"{request.method}{start}{lines}\r\n\r\n".encode()
        breaks = len(fields) + 3
    if len(head) - len(head.translate(None, _CONTROLS)) != 2 * breaks:
        raise ValueError("a header's value has a control character")
    return head


def _first(raw: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """The headers that are kept if there are too many."""
    framing = [field for field in raw[MOST_HEADERS:] if field[0].lower() in _FRAMING][:MOST_HEADERS]
    return [*raw[: MOST_HEADERS - len(framing)], *framing]


def _decompressed(body: bytes, cap: int) -> tuple[bytes, bool]:
    """At most `cap` bytes of what `body` is decompressed, and whether there are more; `body` itself if it cannot be.
    Requests ask for no compression, but a server may compress all the same (RFC 9110, section 12.5.3)."""
    stream = zlib.decompressobj(_ZLIB_OR_GZIP)
    try:
        plain = stream.decompress(body, cap + 1)
    except zlib.error:
        return body, False
    return (body, False) if stream.unused_data else (plain[:cap], len(plain) > cap or not stream.eof)


def _with_one_length(received: bytes) -> bytes | None:
    """A response that begins with a head, with one Content-Length instead of several that are the same, as RFC 9112,
    section 6.3, allows; None for any other. The parser rejects several."""
    end = _HEAD_END.search(received)
    if end is None:
        return None
    head, rest = received[: end.start()], received[end.end() :]
    lengths = [length.strip() for field in _LENGTH.findall(head) for length in field.split(b",")]
    if len(lengths) < 2 or len(set(lengths)) > 1:
        return None
    return b"%b\r\nContent-Length: %b\r\n\r\n%b" % (_LENGTH.sub(b"", head), lengths[0], rest)


class _Enough(Exception):
    """Stops the parser, because the rest is not needed."""


class ResponseReader:
    """Parses the responses of one connection, one after the other: call `begin`, then `feed` with received data.

    `body_cap`: maximum bytes of a body. `reusable`: whether the connection can carry another request; valid once `feed`
    has returned a result.
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
        self._body: list[bytes] = []
        self._headers: dict[str, str] = {}
        self._start_parser()
        self.begin()

    def _start_parser(self) -> None:
        self._raw: list[tuple[bytes, bytes]] = []
        self._parser = httptools.HttpResponseParser(self)
        # Deviations that other clients accept: folded headers, lines that end in LF only, blanks after a chunk size, a
        # length beside a transfer coding, which overrides it, and a 1xx that says "close". The last one does not affect
        # `should_keep_alive`.
        self._parser.set_dangerous_leniencies(
            lenient_headers=True,
            lenient_optional_cr_before_lf=True,
            lenient_spaces_after_chunk_size=True,
            lenient_chunked_length=True,
            lenient_keep_alive=True,
        )

    def begin(self) -> None:
        """Prepare for the next response."""
        self._status: int | None = None
        self._complete = False
        self._fault: str | None = None
        self._framing = 0
        self._size = 0
        self.reusable = False

    def feed(self, received: bytes) -> Exchange | None:
        """The result, or None if more data is needed. After a result, call `begin` before the next `feed`."""
        self._framing += len(received)
        try:
            self._parser.feed_data(received)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self.reusable = False
            if not self._complete:
                is_first = self._status is None and self._framing == len(received)
                if is_first and (once := _with_one_length(received)) is not None:
                    self._start_parser()
                    self._framing = 0
                    return self.feed(once)
                why = (
                    "the server speaks TLS there; is it an https:// URL?"
                    if received.startswith(_TLS_ALERT)
                    else str(error).replace(_EXPECTED, "HTTP/1.1")
                )
                return self.cut("protocol", self._fault or why or "not HTTP")
            # else the response is complete, and unexpected data follows
        if self._status is not None and self._complete:
            return self._response(self._status, truncated=False)
        if self._framing > HEAD_CAP:
            return self.cut("protocol", f"more than {HEAD_CAP} bytes without a response")
        return None

    def end(self) -> Exchange:
        """The result after the server has closed the connection, which may also end a body."""
        if self._status is not None and self._is_until_close():
            return self._response(self._status, truncated=False)
        return self.cut("disconnected", "the server closed the connection")

    def cut(self, kind: str, detail: str) -> Exchange:
        """The result if reading stops now: a NoResponse unless a status line was received."""
        self.reusable = False
        if self._status is not None:
            return self._response(self._status, truncated=True, broken=self._size <= self._body_cap)
        return NoResponse(kind, detail, sent=True)

    def _response(self, status: int, *, truncated: bool, broken: bool = False) -> Response:
        body = b"".join(self._body)
        self._body.clear()
        if body and self._headers.get("content-encoding", "").lower() in _ZLIB:
            body, is_cut = _decompressed(body, self._body_cap)
            truncated = truncated or is_cut
        return Response(status, self._headers, body, truncated, broken)

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
        if status < 100 or status == 101:  # we never request a protocol upgrade
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
            self.reusable = self._parser.should_keep_alive() and self._is_framed_once()

    def _is_framed_once(self) -> bool:
        """Whether its server can have seen its end nowhere else: what follows would be taken for the next response."""
        length, coding = self._headers.get("content-length"), self._headers.get("transfer-encoding")
        if self._status in _WITHOUT_BODY:
            return coding is None and length in (None, "0")
        return coding is None or length is None

    def _decoded(self, raw: list[tuple[bytes, bytes]]) -> dict[str, str]:
        """The headers as text that can be encoded again, whatever the bytes; bounded in size and number."""
        lower, fields = _lower_names, raw if len(raw) <= MOST_HEADERS else _first(raw)
        headers = {
            lower[name[:_MOST_NAME]]: value[:MOST_HEADER].rstrip().decode("utf-8", "replace") for name, value in fields
        }
        values = "".join(headers.values())
        if "\0" in values:  # the parser rejects all other control characters that matter
            raise self._failure("a header's value has a control character")
        return headers

    def _failure(self, detail: str) -> _Enough:
        self._fault = detail
        return _Enough(detail)
