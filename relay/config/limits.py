"""Resource limits of a process: file descriptors, requests in flight, and memory for records."""

import os
import resource
from pathlib import Path, PurePosixPath
from typing import Final

from relay.config.settings import Settings
from relay.domain.errors import UserError

MOST_REQUESTS: Final = 10_000
"""With plenty of descriptors, memory is the limit."""
_LEAST_REQUESTS: Final = 8
_LEAST_DESCRIPTORS: Final = 64
"""With fewer, a process cannot even connect to Kafka and Redis and open its files."""
KEPT: Final = 128
"""Descriptors reserved for Kafka, Redis, DNS and files."""
_OF_THE_API: Final = 4
_MOST_OF_THE_API: Final = 1000
"""One in `_OF_THE_API` descriptors is for the API and monitoring, up to this number, which is also the API's limit."""


def raise_descriptor_limit() -> int:
    """Raise the limit of open descriptors to the system's maximum; returns the resulting limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (OSError, ValueError):
        return soft  # some systems report a hard limit that they do not grant
    return hard


def descriptor_limit() -> int:
    """The limit of open descriptors in effect."""
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def check_descriptors(limit: int) -> None:
    """Raises UserError if a process cannot run with this limit of open descriptors."""
    if limit != resource.RLIM_INFINITY and limit < _LEAST_DESCRIPTORS:
        raise UserError(
            f"this process may open {limit} descriptors and needs at least {_LEAST_DESCRIPTORS}; raise `ulimit -n`"
        )


def most_requests(descriptors: int) -> int:
    """Requests that may be in flight at a time with a limit of `descriptors`."""
    if descriptors == resource.RLIM_INFINITY:
        return MOST_REQUESTS
    kept = KEPT + min(descriptors // _OF_THE_API, _MOST_OF_THE_API)
    return min(MOST_REQUESTS, max(_LEAST_REQUESTS, descriptors - kept))


MOST_MEMORY: Final = 512 * 1024**2
_OF_MEMORY: Final = 4
"""Divisor: the budget is this fraction of the process's memory limit."""
_FETCHED: Final = 4
"""Divisor: this fraction of the budget is for fetched records that no lane has taken yet."""


def memory_budget(settings: Settings) -> int:
    """Bytes of records that a process may hold."""
    return settings.memory_budget or min(MOST_MEMORY, memory_limit() // _OF_MEMORY)


def lanes_budget(settings: Settings) -> int:
    """The part of the budget for records that lanes hold."""
    return memory_budget(settings) - fetch_budget(settings)


def fetch_budget(settings: Settings) -> int:
    return memory_budget(settings) // _FETCHED


def memory_limit(own: Path = Path("/proc/self/cgroup"), mounted: Path = Path("/sys/fs/cgroup")) -> int:
    """Bytes that the process may use: the limit of its cgroups (version 1 or 2), or the machine's memory. `own` lists
    the cgroups; a container may see its own limit only at the root of `mounted`."""
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for line in _text(own).splitlines():
        _, controllers, group = line.split(":", 2)
        if not controllers:
            root, name = mounted, "memory.max"
        elif "memory" in controllers.split(","):
            root, name = mounted / "memory", "memory.limit_in_bytes"
        else:
            continue
        path = PurePosixPath(group.lstrip("/"))
        texts = (_text(root / each / name).strip() for each in (path, *path.parents))
        limits += [int(text) for text in texts if text.isdigit()]  # else "max"
    return min(limits)


def _text(path: Path) -> str:
    """The file's text; empty if it cannot be read."""
    try:
        return path.read_text()
    except OSError:
        return ""
