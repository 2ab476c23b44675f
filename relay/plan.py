"""What one process is to do."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from relay.config.receivers_file import ReceiversFile

API: Final = "api"
ROLES: Final = (API, "from-sender", "to-receiver", "from-receiver-async", "to-sender", "failed-messages")


@dataclass(frozen=True, slots=True)
class Plan:
    """What a process is to do. `receivers`: serve only these; None: all. `apply_file`: bring the receivers file into
    force at start and on change. `answer_secret`: signs answer tokens; None: answer URLs are off."""

    roles: frozenset[str] = frozenset(ROLES)
    receivers: frozenset[str] | None = None
    apply_file: bool = True
    answer_secret: bytes | None = None
    with_entries: Callable[[ReceiversFile | None], ReceiversFile | None] = field(default=lambda file: file)
    """Adds entries that no file on disk has (the demo's)."""
