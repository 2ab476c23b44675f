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
    "redis+sentinel://h1:x/name": "Port",
    "redis+sentinel://h1,,h2/name": "a host is missing",
    "redis+cluster://": "a host is missing",
    "redis+cluster://h1:6379/1": "one database",
    "unix+cluster:///path": "Redis URL",
    "redis+other://h": "Redis URL",
}


@pytest.mark.parametrize("url", URLS)
async def test_a_url_that_is_wrong_is_the_users_mistake(url: str) -> None:
    with pytest.raises(UserError, match=URLS[url]):
        RedisState(url)


@pytest.mark.parametrize("form", ["rediss://{}/0", "rediss+sentinel://{}/name", "rediss+cluster://127.0.0.1:9,{}"])
async def test_tls(form: str, certificate: Path) -> None:
    async def hang_up(_reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
        """Called once the handshake is over."""

    async with Server(hang_up).running(context=server_context(certificate)) as server:
        state = RedisState(f"{form.format(f'127.0.0.1:{server.port}')}?ssl_ca_certs={certificate}")
        with pytest.raises(StateUnavailable):
            await state.start()
        await state.close()
        assert server.accepted > 0
