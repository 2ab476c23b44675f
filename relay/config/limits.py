"""How many descriptors a process may have, how many requests under way with them, and how many bytes of records."""

import os
import resource
from pathlib import Path, PurePosixPath
from typing import Final

from relay.config.settings import Settings

MOST_REQUESTS: Final = 10_000
"""Where descriptors are plenty, memory is what counts."""
_LEAST_REQUESTS: Final = 8
KEPT: Final = 128
"""For Kafka, Redis, names that are looked up, and files."""
_OF_THE_API: Final = 4
_MOST_OF_THE_API: Final = 1000
"""One in so many is for the API and monitoring, up to this number, which is also its own bound."""


def raise_descriptor_limit() -> int:
    """Raise the limit of open descriptors as far as the system lets us; the limit as it is then."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (OSError, ValueError):
        return soft  # some systems name a hard limit that they do not grant
    return hard


def descriptor_limit() -> int:
    """The limit that is in force."""
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def most_requests(descriptors: int) -> int:
    """Requests that may be under way at a time, where so many `descriptors` may be open."""
    if descriptors == resource.RLIM_INFINITY:
        return MOST_REQUESTS
    kept = KEPT + min(descriptors // _OF_THE_API, _MOST_OF_THE_API)
    return min(MOST_REQUESTS, max(_LEAST_REQUESTS, descriptors - kept))


MOST_MEMORY: Final = 512 * 1024**2
_OF_MEMORY: Final = 4
"""One byte in so many of what the process may have."""
_FETCHED: Final = 4
"""One byte in so many of the budget is for what is fetched and not taken up by a lane yet."""


def memory_budget(settings: Settings) -> int:
    """Bytes of records that a process may hold."""
    return settings.memory_budget or min(MOST_MEMORY, memory_limit() // _OF_MEMORY)


def lanes_budget(settings: Settings) -> int:
    """The part of it for what lanes have in hand."""
    return memory_budget(settings) - fetch_budget(settings)


def fetch_budget(settings: Settings) -> int:
    return memory_budget(settings) // _FETCHED


def memory_limit(own: Path = Path("/proc/self/cgroup"), mounted: Path = Path("/sys/fs/cgroup")) -> int:
    """Bytes that the process may have: what its cgroups allow, of version 1 or 2, or all that the machine has. `own`
    names them; a container may see its own limit at the root of what is `mounted` only."""
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
    """Empty where it cannot be read."""
    try:
        return path.read_text()
    except OSError:
        return ""
