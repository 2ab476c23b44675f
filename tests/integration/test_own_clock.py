"""Tests of a whole relay on a machine whose clock is a day off: its waits are neither too short nor too long."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from relay.clock import SystemClock
from tests.integration.loss_rig import relay_on
from tests.servers.valkey import ValkeyServer

DAY_S = 86_400.0
MESSAGES = 12


class OffClock(SystemClock):
    def __init__(self, off_s: float) -> None:
        self._off_s = off_s

    def wall(self) -> float:
        return super().wall() + self._off_s


@pytest.fixture
def server() -> Iterator[ValkeyServer]:
    with ValkeyServer() as server:
        yield server


@pytest.mark.parametrize("off_s", [DAY_S, -DAY_S])
async def test_only_signatures_carry_the_wrong_time(server: ValkeyServer, tmp_path: Path, off_s: float) -> None:
    async with relay_on(server.url, tmp_path, OffClock(off_s)) as rig:
        await rig.send(MESSAGES)
        await rig.all_answered()
        assert rig.doubled() == set()
        for one in (*rig.receivers["later"].received, *rig.callback.received):
            assert abs(float(one.headers["webhook-timestamp"]) - time.time() - off_s) < DAY_S / 2
        for one in rig.receivers["later"].received:
            assert 0 < float(one.headers["relay-deadline"]) - time.time() < 3 * DAY_S
