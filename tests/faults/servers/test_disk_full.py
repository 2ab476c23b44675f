"""A full disk: `relay dev` says so, waits for room, and goes on with everything that it had."""

import asyncio
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import aiohttp
import pytest

from tests.integration.planted_defects import plant
from tests.servers.process import RelayProcess

SIZE_MB = 64
TIMEOUT_S = 40.0


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of SIZE_MB."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={SIZE_MB}m", "tmpfs", str(place)]
    if subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("a small file system may not be mounted here")
    yield place
    subprocess.run(["umount", "--lazy", str(place)], check=True)


def fill(disk: Path) -> Path:
    ballast = disk / "ballast"
    with suppress(OSError), ballast.open("ab", buffering=0) as file:
        while file.write(bytes(65_536)) == 65_536:
            pass
    return ballast


async def _until_ready(session: aiohttp.ClientSession, api: str, status: int) -> str:
    async with asyncio.timeout(TIMEOUT_S):
        while True:
            async with session.get(f"{api}/readyz?verbose") as response:
                said = await response.text()
                if response.status == status:
                    return said
            await asyncio.sleep(0.1)  # it has no event to wait for


async def test_dev_waits_for_room_and_goes_on(small_disk: Path, tmp_path: Path) -> None:
    data = small_disk / "data"
    command = ("dev", "--port", "0", "--data-dir", str(data))
    async with RelayProcess(*command, cwd=tmp_path) as dev, aiohttp.ClientSession() as session:
        await dev.line_with("Ready")
        api = dev.value_of("API")
        sending = f"{api}/v1/sources/github/messages?receiver=demo&wait=20"
        headers = {"content-type": "application/json", "ce-id": "before"}
        async with session.post(sending, data=b"{}", headers=headers) as sent:
            assert sent.status == 200, await sent.text()

        ballast = fill(small_disk)
        headers["ce-id"] = "refused"
        async with session.post(sending, data=b"x" * 500_000, headers=headers) as sent:
            assert sent.status == 503, await sent.text()
        await dev.line_with('"disk_full"')
        assert f"the disk of {data} is full" in await _until_ready(session, api, 503)
        assert dev.returncode is None

        ballast.unlink()
        await dev.line_with('"disk_has_room"')
        await _until_ready(session, api, 200)
        headers["ce-id"] = "after"
        async with session.post(sending, data=b"{}", headers=headers) as sent:
            assert sent.status == 200, await sent.text()
        async with session.get(f"{api}/v1/sources/github/messages/before") as kept:
            assert (await kept.json())["status"] == "response_delivered_to_sender"


async def test_a_relay_that_ends_instead_is_found(
    small_disk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch, "a full disk is an end")
    with pytest.raises((AssertionError, aiohttp.ClientError)):  # it ends while it is asked, or before
        await test_dev_waits_for_room_and_goes_on(small_disk, tmp_path)


async def test_a_start_on_a_full_disk_is_an_error_in_a_line(small_disk: Path, tmp_path: Path) -> None:
    fill(small_disk)
    async with RelayProcess("dev", "--port", "0", "--data-dir", str(small_disk / "data"), cwd=tmp_path) as dev:
        output = await dev.finish()
    assert dev.returncode in (1, 2)
    assert "Traceback" not in output
    assert "disk is full" in output or "No space left" in output


async def test_an_export_and_an_import_on_a_full_disk_are_an_error_in_a_line(small_disk: Path, tmp_path: Path) -> None:
    data, moved = small_disk / "data", tmp_path / "moved.jsonl"
    async with RelayProcess("dev", "--port", "0", "--data-dir", str(data), cwd=tmp_path) as dev:
        await dev.line_with("Ready")
    async with RelayProcess("export", "--data-dir", str(data), str(moved), cwd=tmp_path) as export:
        assert "exported: " in await export.finish()
    fill(small_disk)
    for command in ("export", "import"):
        async with RelayProcess(command, "--data-dir", str(data), str(moved), cwd=tmp_path) as ended:
            output = await ended.finish()
        assert (ended.returncode, output) == (1, f"error: the disk of {data} is full: free some of it, and try again")
