"""Tests of the data directory of `relay dev`: a new folder starts empty, and leftovers of earlier runs are reported."""

import signal
from pathlib import Path

import aiohttp

from tests.servers.process import RelayProcess, relay_dev

GONE = {"post_endpoint": "http://127.0.0.1:9/hooks", "retry": {"base": 600, "max_attempts": 2}}


async def left_over(dev: RelayProcess) -> list[str]:
    """The lines about leftovers, which are printed before it is ready."""
    await dev.line_with("Ready")
    return [line for line in dev.lines if line.startswith("Left over")]


async def test_what_is_left_over_is_named_until_a_fresh_start(tmp_path: Path) -> None:
    environ = {"XDG_DATA_HOME": str(tmp_path / "home"), "RELAY_API_PORT": "0"}
    folders = [tmp_path / name for name in ("first", "second")]
    for folder in folders:
        folder.mkdir()
    async with RelayProcess("dev", cwd=folders[0], environ=environ) as dev, aiohttp.ClientSession() as session:
        assert await left_over(dev) == []
        api = dev.value_of("API")
        async with session.post(f"{api}/v1/receivers", json={"name": "gone"} | GONE) as made:
            assert made.status == 201, await made.text()
        async with session.post(f"{api}/v1/sources/shop/messages?receiver=gone", data=b"{}") as sent:
            assert sent.status == 202

    async with RelayProcess("dev", cwd=folders[0], environ=environ) as dev:
        left = "; ".join(await left_over(dev))
        assert "up to" in left  # a parked one counts twice until its record is committed
        assert "unfinished message" in left
        assert "1 receiver registered over the API" in left
        assert "; --fresh starts empty" in left, "the command would delete another --data-dir"

    async with RelayProcess("dev", cwd=folders[1], environ=environ) as dev:
        assert await left_over(dev) == []

    async with RelayProcess("dev", "--fresh", cwd=folders[0], environ=environ) as dev:
        assert await left_over(dev) == []


async def test_a_missing_receivers_file_is_read_once_it_exists(tmp_path: Path) -> None:
    async with relay_dev(tmp_path, "--no-demo") as dev:
        assert "receivers.yaml does not exist; it is read as soon as it does" in "\n".join(dev.lines)
        (tmp_path / "receivers.yaml").write_text("receivers: {late: {post_endpoint: 'http://127.0.0.1:9/hooks'}}")
        await dev.line_with("receivers_applied")


async def test_ctrl_c_before_it_is_ready_is_no_error(tmp_path: Path) -> None:
    async with RelayProcess("dev", "--port", "0", "--ephemeral", cwd=tmp_path) as dev:
        await dev.line_with("API")
        dev.signal(signal.SIGINT)
        output = await dev.finish()
    assert "error:" not in output
    assert dev.returncode == 0


async def test_a_directory_that_is_moved_away_ends_it_in_a_line_and_has_every_message(tmp_path: Path) -> None:
    """It would accept messages that the next start does not find, and share the path with a second relay."""
    data, moved = tmp_path / "data", tmp_path / "moved"
    (tmp_path / "receivers.yaml").write_text("receivers: {gone: {post_endpoint: 'http://127.0.0.1:9/hooks'}}")
    options = ("dev", "--port", "0", "--no-demo", "--data-dir")
    async with RelayProcess(*options, str(data), cwd=tmp_path) as dev, aiohttp.ClientSession() as session:
        assert await left_over(dev) == []
        async with session.post(f"{dev.value_of('API')}/v1/sources/shop/messages?receiver=gone", data=b"{}") as sent:
            assert sent.status == 202
        data.rename(moved)
        output = await dev.finish()
    assert (dev.returncode, "Traceback" in output) == (1, False), output
    assert f"error: the data directory {data} was moved or removed while the relay ran" in output

    async with RelayProcess(*options, str(moved), cwd=tmp_path) as dev:
        assert "unfinished message" in "; ".join(await left_over(dev))
