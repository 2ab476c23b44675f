"""Resource limits of a process: file descriptors, requests in flight, memory for records, and those of its API."""

import os
import resource
from dataclasses import dataclass
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
MOST_CONNECTIONS: Final = 1_000
"""Of clients to the API of a process."""
OF_DESCRIPTORS: Final = 4
"""The API and monitoring get at most this fraction (1/n) of the descriptors: the others are for deliveries."""


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
    kept = KEPT + _connections(descriptors)
    return min(MOST_REQUESTS, max(_LEAST_REQUESTS, descriptors - kept))


def _connections(descriptors: int) -> int:
    """Those of the API, with a limit of `descriptors`."""
    if descriptors == resource.RLIM_INFINITY:
        return MOST_CONNECTIONS
    return min(MOST_CONNECTIONS, descriptors // OF_DESCRIPTORS)


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


USUAL_BODY_MEMORY: Final = 64 * 1024**2


@dataclass(frozen=True, slots=True)
class ApiLimits:
    """Times in seconds, sizes in bytes. `connections`, of them `per_address`; `reserve`: those beyond, which are for
    monitoring only. `head_s`: for a request's head, from its first byte, and for the first one from the start.
    `idle_s`: between requests. `body_s`: for all of a body, `stall_s` without a byte of it, `room_s` until there is
    memory for it. `write_s`: without the client reading any of a response. `head_bytes`: of the headers of one request,
    `heads_bytes`: of unfinished heads over all connections. `body_bytes`: of bodies over all requests. `wait_s`: how
    long a request waits at most for an answer, `waiters`: those that may at a time, `look_s`: between two looks.
    `listeners`: of the live tail at a time, `listen_s`: after which each has to ask again."""

    connections: int = MOST_CONNECTIONS
    per_address: int = MOST_CONNECTIONS // 2
    reserve: int = 32
    head_s: float = 10.0
    idle_s: float = 650.0  # longer than proxies keep theirs: one that is closed under a request in flight is a 502
    body_s: float = 30.0
    stall_s: float = 10.0
    room_s: float = 10.0
    write_s: float = 30.0
    head_bytes: int = 64 * 1024
    heads_bytes: int = 16 * 1024**2
    body_bytes: int = USUAL_BODY_MEMORY
    wait_s: float = 30.0
    waiters: int = MOST_CONNECTIONS // 4
    look_s: float = 1.0
    listeners: int = 64
    listen_s: float = 900.0


def limits_of(settings: Settings, largest_body: int) -> ApiLimits:
    """The limits by the settings, or by the resources of the process. Raises UserError if the largest body would not
    fit."""
    connections = settings.api_connections or max(1, _connections(descriptor_limit()))
    memory, least = settings.api_body_memory, 2 * largest_body
    if memory is not None and memory < least:
        raise UserError(f"RELAY_API_BODY_MEMORY: {memory} is too small; at least {least}, twice the largest body")
    return ApiLimits(
        connections=connections,
        per_address=settings.api_connections_per_address or max(1, connections // 2),
        body_bytes=memory or max(USUAL_BODY_MEMORY, least),
        wait_s=settings.api_wait_max,
        waiters=settings.api_waiters or max(1, connections // 4),
    )
