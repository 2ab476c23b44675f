"""Tunes Python's garbage collector for a process that runs for months."""

import gc
from typing import Final

YOUNG: Final = 300_000
"""More than the objects in flight at once (Python's default is 700): a pass through 50,000 of those stops a busy
process for 0.1 s and finds nothing."""
MIDDLE: Final = 20
OLD: Final = 100


def keep_startup_heap() -> None:
    """Call once, after startup: the objects that exist now (modules, classes, connections) live until the process ends.

    Frozen, they are never scanned again. Nearly everything else is freed by its reference count; but at thousands of
    messages a second, objects in flight come and go so fast that the young generation would be scanned hundreds of
    times
    a second, for next to no garbage.
    """
    gc.collect()  # else current garbage is kept for good, too
    gc.freeze()
    gc.set_threshold(YOUNG, MIDDLE, OLD)
