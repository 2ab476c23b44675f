"""The API's limits in this process: connections, time and memory. Each process has its own."""

import resource
from dataclasses import dataclass
from typing import Final

from relay.config.settings import Settings
from relay.domain.errors import UserError

MOST_CONNECTIONS: Final = 1_000
OF_DESCRIPTORS: Final = 4
"""The API gets at most this fraction (1/n) of the process's file descriptors: the others are for deliveries."""
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
    connections = settings.api_connections or min(MOST_CONNECTIONS, max(1, _descriptors() // OF_DESCRIPTORS))
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


def _descriptors() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MOST_CONNECTIONS * OF_DESCRIPTORS if soft == resource.RLIM_INFINITY else soft
