"""Tests of odd cookies and headers: malformed, huge, many or not text. They are refused or ignored, never a 500."""

import asyncio
from random import Random
from typing import Final

import pytest
from yarl import URL

from relay.api.routes import ROUTES
from tests.integration.api_rig import Rig, running_api
from tests.integration.test_api_keys import SETTING

PAGES: Final = (
    *("/ui/", "/ui/login", "/ui/system", "/ui/messages", "/ui/messages/a/b", "/ui/failed", "/ui/receivers/none"),
    *("/ui/portal/x", "/ui/attempts/0/0", "/ui/nothing"),
)
NAMES: Final = (
    *("relay_session", "relay_portal", "relay_visitor", "relay_note", "relay_theme", "", "$Version", "a b", "__Host-x"),
    *("é", "\xff"),
)
PIECES: Final = (
    *(b"\xff", b"\xed\xa0\x80", b"\xc3\xa9", b'"', b"\\", b"\\377", b"\\000", b"=", b";", b",", b"%", b"%00", b"\t"),
    *(b"rs_", b"rp_", b"rk_", b"AAAA", b"e30", b"WzFd", b"bnVsbA", b"W251bGxd", b"0", b"-1", b"9" * 30, b" "),
    *(b"{", b"[", b"null", b"a" * 3_000, b"\x01", b"://", b"[::1", b"*", b"W/", b"q=", b"wait=", b"bytes=", b"msg_"),
    b"\xe2\x80\xa8",
)
HEADERS: Final = (
    *("Cookie", "Cookie", "Cookie", "Authorization", "Accept", "Accept-Language", "Origin", "Referer", "Prefer"),
    *("If-Match", "If-None-Match", "X-Forwarded-For", "X-Forwarded-Proto", "X-CSRF-Token", "Content-Type", "Range"),
    *("Sec-Fetch-Site", "traceparent", "tracestate", "ce-id", "ce-type", "ce-source", "webhook-id", "Idempotency-Key"),
    *("HX-Request", "Last-Event-ID", "User-Agent", "Content-Encoding", "webhook-signature", "webhook-timestamp"),
)


def cookie(draw: Random) -> bytes:
    pairs = [
        draw.choice(NAMES).encode("latin-1") + draw.choice((b"=", b"=", b"=", b"", b"==")) + text(draw)
        for _ in range(draw.choice((1, 1, 2, 3, 400)))
    ]
    return draw.choice((b"; ", b";", b", ")).join(pairs)


def text(draw: Random) -> bytes:
    return b"".join(draw.choice(PIECES) for _ in range(draw.randint(0, 4)))


def head(draw: Random, method: str, path: str) -> bytes:
    for name in ("source_id", "message_id", "receiver", "name", "id", "token", "partition", "offset"):
        path = path.replace(f"{{{name}}}", "0" if name in ("partition", "offset") else "ci")
    lines = [f"{method} {path} HTTP/1.1".encode(), b"Host: localhost", b"Connection: close", b"Content-Length: 0"]
    lines += [
        name.encode() + b": " + (cookie(draw) if name == "Cookie" else text(draw))
        for name in draw.choices(HEADERS, k=draw.randint(1, 4))
    ]
    if draw.random() < 0.5:
        lines.append(f"Authorization: Bearer {SETTING}".encode())
    return b"\r\n".join((*lines, b"", b""))


async def status_of(rig: Rig, data: bytes) -> int:
    """The status; 0 if the connection was closed without a response, as for invalid HTTP."""
    reader, writer = await asyncio.open_connection("127.0.0.1", URL(rig.url).port)
    try:
        writer.write(data)
        async with asyncio.timeout(20):
            line = await reader.readline()
        return int(line.split()[1]) if line else 0
    finally:
        writer.close()


ASKED: Final = [
    *((each.method, each.path) for each in ROUTES.values()),
    *((method, path) for path in PAGES for method in ("GET", "POST")),
]


@pytest.mark.parametrize("api_key", [None, SETTING])
async def test_no_odd_header_is_a_500(api_key: str | None) -> None:
    async with running_api(pages=True, api_key=api_key) as rig:
        for seed in range(15):
            draw = Random(seed)
            for method, path in ASKED:
                data = head(draw, method, path)
                assert await status_of(rig, data) != 500, data[:2_000]


@pytest.mark.parametrize("value", [b"\xff", b'"\\377"', b"\xc3\xa9", b"x" * 4_000, b'"\\', b""])
@pytest.mark.parametrize("name", [b"relay_visitor", b"relay_session", b"relay_note", b"relay_theme"])
async def test_a_page_makes_do_with_any_cookie(name: bytes, value: bytes) -> None:
    async with running_api(pages=True) as rig:
        asked = b"GET /ui/system HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nCookie: " + name + b"=" + value
        assert await status_of(rig, asked + b"\r\n\r\n") == 200
