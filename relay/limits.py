"""How many descriptors a process may have, and how many requests it may have under way with them."""

import resource
from typing import Final

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
