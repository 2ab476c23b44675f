"""Requests as bytes, and bytes as responses."""

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from relay.delivery.http1 import HEAD_CAP, ResponseReader, head_of, start_of_head
from relay.domain.exchange import Exchange, NoResponse, Request, Response
from relay.domain.urls import malformed, url_parts

URL = "https://ci.example/hooks"
START = start_of_head(url_parts(URL))
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


def head(*headers: tuple[str, str], body: bytes = b"") -> bytes:
    return head_of(Request("POST", URL, headers, body), START)


# --- heads ------------------------------------------------------------------------------------------------------


def test_a_head() -> None:
    assert head(("x-a", "1"), ("X-B", "é\t2"), body=b"12345") == (
        "POST /hooks HTTP/1.1\r\nHost: ci.example\r\nx-a: 1\r\nX-B: é\t2\r\nContent-Length: 5\r\n\r\n".encode()
    )


def test_a_head_without_content() -> None:
    assert head_of(Request("GET", URL, (("a", "1"),)), START) == (
        b"GET /hooks HTTP/1.1\r\nHost: ci.example\r\na: 1\r\n\r\n"
    )
    assert head_of(Request("OPTIONS", URL, (("a", "1"),)), START) == (
        b"OPTIONS /hooks HTTP/1.1\r\nHost: ci.example\r\na: 1\r\n\r\n"
    )


@pytest.mark.parametrize(
    ("url", "start"),
    [
        ("https://CI.Example.", " / HTTP/1.1\r\nHost: ci.example"),
        ("https://ci.example:443/", " / HTTP/1.1\r\nHost: ci.example"),
        ("http://ci.example:443/a?b", " /a?b HTTP/1.1\r\nHost: ci.example:443"),
        ("http://[2606::1]:80?b", " /?b HTTP/1.1\r\nHost: [2606::1]"),
        ("http://[2606::1]:81/", " / HTTP/1.1\r\nHost: [2606::1]:81"),
    ],
)
def test_starts_of_heads(url: str, start: str) -> None:
    assert start_of_head(url_parts(url)) == start


@pytest.mark.parametrize(
    "header",
    [
        *[("Host", "x"), ("content-length", "1"), ("Transfer-Encoding", "chunked")],
        *[("", "1"), ("a b", "1"), ("a:", "1"), ("é", "1"), ("a\n", "1"), ("a\r\nb", "1")],
        *[("a", "\udc80"), ("a", "1\r\n"), ("a", "\r"), ("a", "\x1b[0m"), ("a", "\x7f")],
    ],
)
def test_what_is_no_header(header: tuple[str, str]) -> None:
    for _ in range(2):  # the cache of names does not make a bad one good
        with pytest.raises(ValueError):
            head(("x-good", "1"), header)


@given(st.lists(st.tuples(st.text(), st.text()), max_size=4), st.sampled_from(["GET", "POST"]))
@example([("a", "1\r\nb: 2")], "GET")
@example([("a", "1\r"), ("b", "\n2")], "POST")
def test_a_head_has_one_line_for_each_header(headers: list[tuple[str, str]], method: str) -> None:
    request = Request("GET" if method == "GET" else "POST", URL, tuple(headers))
    try:
        sent = head_of(request, START)
    except ValueError:
        return
    lines = re.split(rb"\r\n|\r|\n|\0", sent)
    ours = [] if method == "GET" else [b"Content-Length: 0"]
    assert lines == [
        f"{method} /hooks HTTP/1.1".encode(),
        b"Host: ci.example",
        *[f"{name}: {value}".encode() for name, value in headers],
        *ours,
        b"",
        b"",
    ]


@given(st.text(st.characters(max_codepoint=300) | st.sampled_from("/?#@:[]\\ \r\n"), max_size=20))
def test_nothing_from_a_url_gets_into_the_head(rest: str) -> None:
    url = f"https://ci.example{rest}"
    if malformed(url):
        return
    assert re.fullmatch(r" /[!-~]* HTTP/1\.1\r\nHost: [A-Za-z0-9._:-]+", start_of_head(url_parts(url)))


# --- responses --------------------------------------------------------------------------------------------------


def read(*parts: bytes, body_cap: int = 1000) -> tuple[Exchange | None, ResponseReader]:
    reader = ResponseReader(body_cap)
    for part in parts:
        result = reader.feed(part)
        if result is not None:
            return result, reader
    return None, reader


def test_one_reader_reads_one_response_after_the_other() -> None:
    reader = ResponseReader(1000)
    for number in range(3):
        reader.begin()
        assert reader.feed(OK.replace(b"ok", b"%02d" % number)) == Response(
            200, {"content-length": "2"}, b"%02d" % number
        )
        assert reader.reusable


@pytest.mark.parametrize(
    ("raw", "text"),
    [(b"a", "a"), (b"", ""), (b" a \t", "a"), (b"\xc3\xa9", "é"), (b"\xff", "\ufffd"), (b"a\tb", "a\tb")],
)
def test_values_are_text(raw: bytes, text: str) -> None:
    result, _ = read(b"HTTP/1.1 204 X\r\nX-A: " + raw + b"\r\n\r\n")
    assert result == Response(204, {"x-a": text}, b"")


@pytest.mark.parametrize("status", [b"099", b"101", b"000"])
def test_a_status_that_nobody_can_mean(status: bytes) -> None:
    result, _ = read(b"HTTP/1.1 " + status + b" X\r\nContent-Length: 0\r\n\r\n")
    assert isinstance(result, NoResponse)
    assert (result.kind, result.sent) == ("protocol", True)


@pytest.mark.parametrize("received", [b"SSH-2.0-OpenSSH_9.2\r\n", b"\0\0\x12\4\0\0\0\0\0"])
def test_another_protocol_is_named_by_what_was_expected(received: bytes) -> None:
    assert read(received)[0] == NoResponse("protocol", "Expected HTTP/1.1", sent=True)


@pytest.mark.parametrize("together", [True, False])
def test_a_head_may_be_large_but_not_too_large(together: bool) -> None:
    def reply(size: int) -> list[bytes]:
        whole = b"HTTP/1.1 204 X\r\nx: " + b"y" * size + b"\r\n\r\n"
        return [whole] if together else [whole[:100], whole[100:]]

    assert isinstance(read(*reply(HEAD_CAP - 100))[0], Response)
    assert isinstance(read(*reply(HEAD_CAP + 1))[0], NoResponse)


def test_1xx_responses_count_as_part_of_the_head() -> None:
    result, _ = read(*[b"HTTP/1.1 103 Early Hints\r\n\r\n"] * 10_000)
    assert isinstance(result, NoResponse)
    assert result.kind == "protocol"


@pytest.mark.parametrize("interim", [b"HTTP/1.1 103 X\r\nConnection: close\r\n\r\n", b"HTTP/1.0 100 Continue\r\n\r\n"])
def test_the_response_follows_whatever_a_1xx_says_about_the_connection(interim: bytes) -> None:
    for parts in ([interim + OK], [interim, OK]):
        assert read(*parts)[0] == Response(200, {"content-length": "2"}, b"ok")


@pytest.mark.parametrize(
    "head",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 2\r\n 2\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 2\r\nno header\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: \r\nContent-Length: \r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nx-content-length: 2\r\nContent-Length: 3\r\n\r\n",
    ],
)
def test_the_same_length_twice_excuses_nothing_else(head: bytes) -> None:
    assert isinstance(read(head + b"ok")[0], NoResponse)


def test_what_looks_like_a_length_in_the_body_stays_there() -> None:
    body = b"\r\nContent-Length: 24\r\nok"
    result, reader = read(b"HTTP/1.1 200 OK\r\n" + b"Content-Length: 24\r\n" * 2 + b"\r\n" + body)
    assert result == Response(200, {"content-length": "24"}, body)
    assert reader.reusable


def test_small_chunks_do_not_count_as_framing() -> None:
    start = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    result, _ = read(start, *[b"1;" + b"x" * 50 + b"\r\na\r\n"] * 2000, b"0\r\n\r\n", body_cap=5000)
    assert isinstance(result, Response)
    assert (result.body, result.truncated) == (b"a" * 2000, False)


def test_a_body_above_the_cap_is_not_broken() -> None:
    result, _ = read(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabcd", body_cap=3)
    assert result == Response(200, {"content-length": "9"}, b"abc", truncated=True)


@pytest.mark.parametrize(
    ("received", "ended"),
    [
        (b"", NoResponse("disconnected", "the server closed the connection", sent=True)),
        (b"HTTP/1.1 200 OK\r\n", NoResponse("disconnected", "the server closed the connection", sent=True)),
        (b"HTTP/1.1 200 OK\r\n\r\nab", Response(200, {}, b"ab")),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\nab", Response(200, {"transfer-encoding": "gzip"}, b"ab")),
        (
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n",
            Response(200, {"transfer-encoding": "chunked"}, b"ab", truncated=True, broken=True),
        ),
        (
            b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nab",
            Response(200, {"content-length": "3"}, b"ab", truncated=True, broken=True),
        ),
    ],
)
def test_what_the_end_of_a_connection_means(received: bytes, ended: Exchange) -> None:
    result, reader = read(received)
    assert result is None
    assert reader.end() == ended
    assert not reader.reusable
