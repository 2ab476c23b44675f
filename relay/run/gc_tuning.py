"""How Python's garbage collector is set for a process that runs for months."""

import gc
from typing import Final

YOUNG: Final = 300_000
"""Python's own threshold is 700 objects. More than are in flight at once: a pass through 50,000 of those stops a busy
process for 0.1 s and finds nothing."""
MIDDLE: Final = 20
OLD: Final = 100


def keep_startup_heap() -> None:
    """Call once, when the process is up: what is there by now (modules, classes, connections) stays until its end.

    Frozen, it is never looked at again. Beyond it, nearly everything is freed by its reference count; but at thousands
    of messages a second objects in flight come and go so fast that the young generation would be looked through
    hundreds of times a second, for next to no garbage.
    """
    gc.collect()  # else what is garbage now is kept for good, too
    gc.freeze()
    gc.set_threshold(YOUNG, MIDDLE, OLD)
