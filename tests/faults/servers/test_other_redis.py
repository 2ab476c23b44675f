"""A relay is started on older memory: of a Redis that it has used before another one, as with a mistaken address, or of
a snapshot. Every message comes back answered, and no receiver that can be asked is given one twice."""

import shutil
from pathlib import Path

import pytest

from relay.domain.receiver import Endpoint
from tests.integration.loss_rig import rig_in
from tests.servers.valkey import ValkeyServer

MESSAGES = 60


@pytest.fixture(autouse=True)
def quick_settling(monkeypatch: pytest.MonkeyPatch) -> None:
    """On loopback no POST is still in flight seconds after its timeout."""
    monkeypatch.setattr(Endpoint, "settle_s", property(lambda endpoint: endpoint.timeout + 0.5))


async def test_a_snapshot_is_put_back(tmp_path: Path) -> None:
    """Although the server syncs each write, so that a restart loses nothing."""
    with ValkeyServer(fsync="always") as server:
        files = server.directory / "appendonlydir"
        async with rig_in(tmp_path) as rig:
            async with rig.run(server.url):
                await rig.send(MESSAGES)
                await rig.answered(MESSAGES // 2)
            shutil.copytree(files, tmp_path / "snapshot")
            async with rig.run(server.url):
                await rig.send(MESSAGES)
                await rig.answered(len(rig.sent) - MESSAGES // 2)
            server.kill()
            shutil.rmtree(files)
            (tmp_path / "snapshot").rename(files)
            server.start()
            async with rig.run(server.url):
                await rig.send_again()
                await rig.send(MESSAGES)
                await rig.all_answered()
            assert (rig.doubled(), rig.failed()) == (set(), set())


async def test_there_and_back(tmp_path: Path) -> None:
    with ValkeyServer() as server, ValkeyServer() as other:
        async with rig_in(tmp_path) as rig:
            for url in (server.url, other.url):
                async with rig.run(url):
                    await rig.send(MESSAGES)
                    await rig.answered(len(rig.sent) - MESSAGES // 2)
            async with rig.run(server.url):
                await rig.send_again()
                await rig.send(MESSAGES)
                await rig.all_answered()
        assert (rig.doubled(), rig.failed()) == (set(), set())
