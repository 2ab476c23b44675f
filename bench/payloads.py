"""The payloads of a job: a prefix that tells which message it is, and filler that was made beforehand."""

import random
from typing import Final

from bench.wire import filler

_FILLERS: Final = 64


class Payloads:
    """Fillers of a job's payloads, made beforehand: only the prefix differs from message to message."""

    def __init__(self, size: int) -> None:
        random_ = random.Random(size)
        self._fillers = [filler(size, random_) for _ in range(_FILLERS)]

    def behind(self, serial: int) -> bytes:
        """What comes behind the prefix of this message."""
        return self._fillers[serial % _FILLERS]
