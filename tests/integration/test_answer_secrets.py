"""Tests of the secret of answer URLs: answer URLs work after a change of secrets, and do not derive from an API key."""

import asyncio
import base64
from pathlib import Path

import aiohttp
import pytest
import yaml
from yarl import URL

from relay.domain.errors import UserError
from relay.embedded.relay import SECRET_BYTES, stored_secret
from relay.sink import ReceivedPost, Sink
from tests.integration.production import Rig, messages
from tests.servers.http import started
from tests.servers.process import relay_dev

OLD, NEW = "8a1d6f0c2b7e4935" * 2, "51c09be7d2a84f63" * 2


async def test_the_key_of_the_api_makes_no_answer_urls_and_that_is_said(rig: Rig) -> None:
    rig.environ["RELAY_API_KEY"] = "a key that is long enough for it"
    async with rig.relay("run", "--processes", "1") as relay:
        said = await relay.line_with('"answer_urls"')
        assert "RELAY_ANSWER_SECRET is not set" in said
        assert "nostatus" in said
        await rig.produce(messages(12))
        await rig.until(lambda: sum(rig.arrivals().values()) >= 12)
    arrivals = [arrival for sink in rig.sinks.values() for arrival in sink.received]
    assert not any("relay-answer-url" in arrival.headers for arrival in arrivals)


async def answer(url: str, to: str) -> int:
    """POST an answer to the URL of a delivery, at the API's present address `to`. Returns the status."""
    at = URL(to).with_path(URL(url).raw_path, encoded=True)
    async with aiohttp.ClientSession() as session, session.post(at, data=b"done") as response:
        return response.status


async def test_a_url_that_only_this_machine_reaches_is_said_where_receivers_are_elsewhere(tmp_path: Path) -> None:
    receivers = {"ci": {"post_endpoint": "https://ci.example/hooks"}, "local": {"post_endpoint": "http://127.0.0.1:9/"}}
    (tmp_path / "receivers.yaml").write_text(yaml.safe_dump({"receivers": receivers}))
    async with relay_dev(tmp_path) as dev:
        said = await dev.line_with("answer_urls")
    assert "which only this machine can reach; set RELAY_PUBLIC_URL" in said
    assert ": ci" in said
    assert "local" not in said
    (tmp_path / "receivers.yaml").write_text(yaml.safe_dump({"receivers": {"local": receivers["local"]}}))
    async with relay_dev(tmp_path) as dev:
        assert not any("answer_urls" in line for line in dev.lines)


@pytest.mark.parametrize("broken", [b"", b"short"])
def test_a_kept_secret_is_whole(tmp_path: Path, broken: bytes) -> None:
    path = tmp_path / "answer_secret"
    path.write_bytes(broken)
    kept = stored_secret(path)
    assert len(kept) == SECRET_BYTES
    assert (stored_secret(path), path.read_bytes(), path.stat().st_mode & 0o777) == (kept, kept, 0o600)
    assert list(tmp_path.iterdir()) == [path]


def test_a_secret_that_a_user_has_put_there_as_text_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "secrets_key"
    text = base64.b64encode(stored_secret(path))
    path.write_bytes(text)
    with pytest.raises(UserError, match=r"secrets_key: it has 44 bytes instead of 32: decode it"):
        stored_secret(path)
    assert path.read_bytes() == text


@pytest.mark.parametrize(("second", "status"), [(f"{NEW},{OLD}", 200), (NEW, 404)])
async def test_a_url_lives_through_a_change_of_secrets(tmp_path: Path, second: str, status: int) -> None:
    arrived = asyncio.Queue[ReceivedPost]()
    sink = Sink("later", later_polls=1_000_000, on_arrival=arrived.put_nowait)
    async with started(sink):
        (tmp_path / "receivers.yaml").write_text(yaml.safe_dump({"receivers": {"ci": {"post_endpoint": sink.url}}}))
        kept = ("--no-demo", "--data-dir", str(tmp_path / "data"))
        async with relay_dev(tmp_path, *kept, environ={"RELAY_ANSWER_SECRET": OLD}) as dev:
            target = f"{dev.value_of('API')}/v1/sources/app/messages?receiver=ci"
            async with aiohttp.ClientSession() as session, session.post(target, data=b"{}") as response:
                assert response.status == 202
            url = (await asyncio.wait_for(arrived.get(), 40)).headers["relay-answer-url"]
        async with relay_dev(tmp_path, *kept, environ={"RELAY_ANSWER_SECRET": second}) as dev:
            assert await answer(url, dev.value_of("API")) == status
