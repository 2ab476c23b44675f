"""Watches a file for changes: polls it every second, and at once on request (SIGHUP)."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import NamedTuple

from relay.domain.errors import UserError


class Stamp(NamedTuple):
    """Identifies a version of a file: changes if it is edited or replaced (an editor's rename, a mounted secret)."""

    inode: int
    modified_ns: int
    size: int


def file_stamp(path: Path) -> Stamp | None:
    """The file's stamp; None if it does not exist."""
    try:
        found = path.stat()
    except OSError:
        return None
    return Stamp(found.st_ino, found.st_mtime_ns, found.st_size)


async def watch_file(
    path: Path,
    on_change: Callable[[], Awaitable[None]],
    on_problem: Callable[[UserError], None],
    hangup: asyncio.Event,
    *,
    on_gone: Callable[[], None] = lambda: None,
    since: Stamp | None,
    poll_s: float = 1.0,
) -> None:
    """Await `on_change` whenever the file differs from `since` (its version when last read), and whenever `hangup` is
    set, which is cleared. Never returns.

    A UserError of `on_change` is passed to `on_problem`, once per version of the file. If the file disappears,
    `on_gone` is called once, and the watch continues when it is back.
    """
    applied = now = since
    while True:
        requested = await _wait(hangup, poll_s)
        before, now = now, file_stamp(path)
        if now is None:
            if before is not None:
                on_gone()
            continue
        if now == applied and not requested:
            continue
        try:
            await on_change()
        except UserError as error:
            on_problem(error)
        applied = now


async def _wait(hangup: asyncio.Event, poll_s: float) -> bool:
    try:
        async with asyncio.timeout(poll_s):
            await hangup.wait()
    except TimeoutError:
        return False
    hangup.clear()
    return True
