"""The number of calls of our own functions for a message in the `to_receiver` step, and how many of them lead to
another file. These are counts, the same on every machine: a limit is slightly above the number at the time. Lower it
when you make a message cheaper."""

import asyncio
import sys
from pathlib import Path
from types import FrameType

import pytest

from tests.speed.hot_path import HotPath, hop_records, messages, passed

ROOT = Path(__file__).parents[2]
OURS = tuple(f"{ROOT / folder}/" for folder in ("relay", "workers"))


class Way:
    """The files of our own functions, in the order in which these are called, also when one goes on after a wait."""

    def __init__(self) -> None:
        self.files: list[str] = []

    def note(self, frame: FrameType, event: str, _arg: object) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(OURS):
            self.files.append(frame.f_code.co_filename)

    @property
    def crossings(self) -> int:
        return 1 + sum(before != after for before, after in zip(self.files, self.files[1:], strict=False))


async def _way(batch: int) -> Way:
    """Of `batch` messages that arrive together, after as many others."""
    path, way = HotPath(), Way()
    pump = asyncio.ensure_future(path.pump.run())
    await passed(path.from_sender, messages(2 * batch), batch=48)
    [(topic, records)] = hop_records(path.log.appended).items()
    lane = path.to_receiver[topic.removeprefix("to_receiver_")]
    await passed(lane, records[:batch], batch=batch)
    sys.setprofile(way.note)
    await passed(lane, records[batch : 2 * batch], batch=batch)
    sys.setprofile(None)
    pump.cancel()
    await asyncio.gather(pump, return_exceptions=True)
    return way


@pytest.mark.parametrize(("batch", "calls", "crossings"), [(1, 267, 188), (16, 180, 125)])
async def test_a_message_takes_few_calls(batch: int, calls: int, crossings: int) -> None:
    """`calls`, `crossings`: for each message of the batch, at most."""
    way = await _way(batch)
    assert len(way.files) / batch <= calls
    assert way.crossings / batch <= crossings
