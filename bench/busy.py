"""A foreign load, as a process: one core kept busy for so many seconds at the most (`python -m bench.busy SECONDS`)."""

import sys
import time


def busy(seconds: float) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        sum(range(10_000))


if __name__ == "__main__":
    busy(float(sys.argv[1]))
