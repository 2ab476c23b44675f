"""Watching a file: a change is noticed once, and what cannot be applied is reported."""

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from relay.domain.errors import RelayError, UserError
from relay.watch.registry import Stamp, file_stamp, watch_file


class _Hangup(asyncio.Event):
    """Signals when it was cleared, which is right before the look that it requested."""

    def __init__(self) -> None:
        super().__init__()
        self.cleared = asyncio.Event()

    def clear(self) -> None:
        super().clear()
        self.cleared.set()


class _Watched:
    """A watch over `path` whose `on_change` runs `act`; `turns` gets what happened: `ok`, or the problem's text."""

    def __init__(self, path: Path, act: Callable[[], None]) -> None:
        self.turns: asyncio.Queue[str] = asyncio.Queue()
        self.hangup = _Hangup()
        self._act = act
        stamp = file_stamp(path)
        watch = watch_file(
            path, self._on_change, self._on_problem, self.hangup, on_gone=self._on_gone, since=stamp, poll_s=0.001
        )
        self.task = asyncio.create_task(watch)

    async def look(self) -> None:
        """As SIGHUP asks for it."""
        self.hangup.cleared.clear()
        self.hangup.set()
        await self.hangup.cleared.wait()

    async def _on_change(self) -> None:
        self._act()
        self.turns.put_nowait("ok")

    def _on_problem(self, error: RelayError) -> None:
        self.turns.put_nowait(str(error))

    def _on_gone(self) -> None:
        self.turns.put_nowait("gone")

    async def close(self) -> None:
        self.task.cancel()
        await asyncio.wait([self.task])


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "receivers.yaml"
    path.write_text("1")
    return path


def _edit(path: Path, text: str) -> None:
    path.write_text(text)


def _remove(path: Path) -> None:
    path.unlink()


def _replace(path: Path, text: str) -> None:
    other = path.with_suffix(".new")
    other.write_text(text)
    os.replace(other, path)


async def test_an_edit_and_a_replacement_are_noticed(path: Path) -> None:
    watched = _Watched(path, lambda: None)
    _edit(path, "22")
    assert await watched.turns.get() == "ok"
    _replace(path, "33")
    assert await watched.turns.get() == "ok"
    await watched.close()
    assert watched.turns.empty()


async def test_a_file_that_is_being_written_is_not_read(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As while it is copied over a slow connection: its beginning has fewer receivers."""
    looks = [*(Stamp(1, written, written) for written in range(2, 6)), *[Stamp(1, 6, 6)] * 2]
    seen, watched = list[Stamp](), _Watched(path, lambda: seen.append(last[0]))
    last: list[Stamp] = []

    def look(_path: Path) -> Stamp:
        last[:] = [looks.pop(0) if looks else Stamp(1, 6, 6)]
        return last[0]

    monkeypatch.setattr("relay.watch.registry.file_stamp", look)
    assert await watched.turns.get() == "ok"
    await watched.close()
    assert seen == [Stamp(1, 6, 6)]


async def test_a_bad_file_is_reported_once_and_the_next_version_is_tried(path: Path) -> None:
    def act() -> None:
        if path.read_text() == "bad":
            raise UserError("receivers.yaml: bad")

    watched = _Watched(path, act)
    _replace(path, "bad")
    assert await watched.turns.get() == "receivers.yaml: bad"
    _replace(path, "good")
    assert await watched.turns.get() == "ok"
    await watched.close()
    assert watched.turns.empty()


async def test_a_hangup_applies_the_file_without_a_change(path: Path) -> None:
    watched = _Watched(path, lambda: None)
    watched.hangup.set()
    assert await watched.turns.get() == "ok"
    await watched.close()
    assert not watched.hangup.is_set()


async def test_a_file_that_is_gone_is_left_alone_until_it_is_back(path: Path) -> None:
    watched = _Watched(path, lambda: None)
    for _ in range(2):
        _remove(path)
        assert file_stamp(path) is None
        assert await watched.turns.get() == "gone"
        await watched.look()  # no entry can be read: none is to be removed by that
        _replace(path, "again")
        assert await watched.turns.get() == "ok"
    await watched.close()
    assert watched.turns.empty()


async def test_a_file_that_never_was_there_is_not_said_to_be_gone(tmp_path: Path) -> None:
    watched = _Watched(tmp_path / "later.yaml", lambda: None)
    await watched.look()
    _edit(tmp_path / "later.yaml", "1")
    assert await watched.turns.get() == "ok"
    await watched.close()
    assert watched.turns.empty()
