"""Notices that a file was changed: by looking at it each second, and at once when asked to (SIGHUP)."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import NamedTuple

from relay.domain.errors import Unavailable, UserError


class Stamp(NamedTuple):
    """What changes when a file is edited, or replaced by another (an editor's rename, a mounted secret)."""

    inode: int
    modified_ns: int
    size: int


def file_stamp(path: Path) -> Stamp | None:
    """None while there is no such file."""
    try:
        found = path.stat()
    except OSError:
        return None
    return Stamp(found.st_ino, found.st_mtime_ns, found.st_size)


async def watch_file(
    path: Path,
    on_change: Callable[[], Awaitable[None]],
    on_problem: Callable[[UserError | Unavailable], None],
    hangup: asyncio.Event,
    *,
    on_gone: Callable[[], None] = lambda: None,
    since: Stamp | None,
    poll_s: float = 1.0,
) -> None:
    """Await `on_change` whenever the file differs from `since` (what it was when last read), for ever; and whenever
    `hangup` is set, which is cleared.

    A UserError that `on_change` raises goes to `on_problem`, once per version of the file; after Unavailable, the
    change is tried again at the next look. A file that is gone is told to `on_gone`, and left alone until it is there
    again.
    """
    applied = now = since
    while True:
        asked = await _wait(hangup, poll_s)
        before, now = now, file_stamp(path)
        if now is None:
            if before is not None:
                on_gone()
            continue
        if now == applied and not asked:
            continue
        try:
            await on_change()
        except UserError as error:
            on_problem(error)
        except Unavailable as error:
            on_problem(error)
            continue
        applied = now


async def _wait(hangup: asyncio.Event, poll_s: float) -> bool:
    try:
        async with asyncio.timeout(poll_s):
            await hangup.wait()
    except TimeoutError:
        return False
    hangup.clear()
    return True
