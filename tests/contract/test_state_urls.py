"""Tests of the state's URLs: error messages for wrong ones, and TLS to every server where a URL asks for it."""

import asyncio
from pathlib import Path

import pytest

from relay.domain.errors import StateUnavailable, UserError
from relay.state.redis.state import RedisState
from tests.contract.raw_server import Server, server_context

URLS = {
    "redis+sentinel://h1,h2": "name the master",
    "redis+sentinel://h1:1/name/x": "name the master",
    "redis+sentinel://h1:x/name": "the port is no number",
    "redis+sentinel://h1,,h2/name": "a host is missing",
    "redis+cluster://": "a host is missing",
    "redis+cluster://h1:6379/1": "one database",
    "unix+cluster:///path": "Redis URL",
    "redis+other://h": "Redis URL",
    "redis://h/main": "no number of a database",
    "redis://h:6379/0?ssl_ca_certs=/dev/null/ca.pem": "there is no such file",
    "http://localhost": "Redis URL",
    "redis://localhost:x": "Redis URL",
    "": "Redis URL",
    f"redis://h:6379/0?ssl_ca_certs={__file__}": "'ssl_ca_certs'; write rediss://",
    "redis://h:6379/0?unheard=of": "'unheard'",
    "redis+sentinel://h/main?unheard=of": "'unheard'",
    "redis+cluster://h?unheard=of": "'unheard'",
    "rediss://h:6379/0?ssl_cert_reqs=maybe": "maybe",
}


async def refuses_to_start(url: str, kind: type[Exception], why: str | None = None) -> None:
    state = RedisState(url)
    with pytest.raises(kind, match=why):
        await state.start()
    await state.close()


@pytest.mark.parametrize("url", URLS)
async def test_a_url_that_is_wrong_is_the_users_mistake(url: str) -> None:
    with pytest.raises(UserError, match=URLS[url]):
        RedisState(url)


@pytest.mark.parametrize(
    "url",
    [
        *(f"redis://:correct{mark}horse@h:6379/0" for mark in "#/?"),
        *(f"redis+{kind}://:correct{mark}horse@h:6379/main" for kind in ("cluster", "sentinel") for mark in "#/?"),
        *(f"redis://:12{mark}horse@h:6379/0" for mark in "#/"),  # 12 is a port, then
    ],
)
def test_a_password_that_is_not_encoded_is_not_printed(url: str) -> None:
    with pytest.raises(UserError) as refused:
        RedisState(url)
    assert "correct" not in str(refused.value)
    assert "horse" not in str(refused.value)


@pytest.mark.parametrize(
    ("reply", "advice"),
    [
        ("SELECT is not allowed in cluster mode", "write redis[+]cluster://"),
        ("unknown command 'SELECT', with args beginning with: '1'", "write redis[+]sentinel://"),
    ],
)
async def test_a_server_that_has_no_numbers_of_databases_is_of_another_kind(reply: str, advice: str) -> None:
    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readline():
            if line.startswith(b"*"):  # a command
                writer.write(f"-ERR {reply}\r\n".encode())

    async with Server(refuse).running() as server:
        await refuses_to_start(f"redis://127.0.0.1:{server.port}/1", UserError, advice)


async def test_a_certificate_that_is_not_trusted_is_why_it_does_not_connect(certificate: Path) -> None:
    async def hang_up(_reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
        """Not called: the handshake fails."""

    async with Server(hang_up).running(context=server_context(certificate)) as server:
        why = f"TLS with 127.0.0.1:{server.port} fails: certificate verify failed"
        await refuses_to_start(f"rediss://127.0.0.1:{server.port}/0", StateUnavailable, why)


@pytest.mark.parametrize("form", ["rediss://{}/0", "rediss+sentinel://{}/name", "rediss+cluster://127.0.0.1:9,{}"])
async def test_tls(form: str, certificate: Path) -> None:
    async def hang_up(_reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
        """Called once the handshake is over."""

    async with Server(hang_up).running(context=server_context(certificate)) as server:
        url = f"{form.format(f'127.0.0.1:{server.port}')}?ssl_ca_certs={certificate}"
        await refuses_to_start(url, StateUnavailable)
        assert server.accepted > 0
