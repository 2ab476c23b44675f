"""The roles and options of one process."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from math import inf
from pathlib import Path
from typing import Final

from relay.config.receivers_file import ReceiversFile

API: Final = "api"
HISTORY: Final = "history"
ROLES: Final = (
    API,
    "from-sender",
    "to-receiver",
    "from-receiver-async",
    "to-sender",
    "failed-messages",
    HISTORY,
)
_SENDING: Final = frozenset({API, "to-receiver", "from-receiver-async", "to-sender"})


@dataclass(frozen=True, slots=True)
class ProcessPlan:
    """The roles and receivers that a process serves. `receivers`: serve only these; None for all. `logs_attempts`:
    whether each attempt at an endpoint (`r:<receiver>`, `s:<source_id>`) gets a log line. `answer_secrets`: the first
    signs answer tokens, any verifies them; without any they are off. `secrets_keys`: encrypt and decrypt stored
    secrets, after those of the settings. `index` (0-based), `count`: this process among those that share the work on
    this machine."""

    roles: frozenset[str] = frozenset(ROLES)
    receivers: frozenset[str] | None = None
    logs_attempts: Callable[[str], bool] = lambda _endpoint_id: False
    answer_secrets: tuple[bytes, ...] = field(default=(), repr=False)
    own_key: str | None = field(default=None, repr=False)
    """A key with which this process calls its own API; never published."""
    secrets_keys: tuple[bytes, ...] = field(default=(), repr=False)
    index: int = 0
    count: int = 1
    with_entries: Callable[[ReceiversFile | None], ReceiversFile | None] = field(default=lambda file: file)
    """Adds entries to those of the file on disk (for the demo)."""

    ping_every: float = inf
    """Upper limit of the seconds between two pings of an offline endpoint, whatever its own settings."""
    data_dir: Path | None = None
    """The data directory of an embedded relay."""

    @property
    def is_history_alone(self) -> bool:
        """Whether the process only writes the history: no other process waits for it, so it may stop last."""
        return self.roles == {HISTORY}

    @property
    def sends(self) -> bool:
        """Whether the process sends to receivers or callbacks, for which it needs the secrets of their entries."""
        return not self.roles.isdisjoint(_SENDING)

    def without_history(self) -> "ProcessPlan":
        """The plan without the history role, if no history is configured: the process then needs no read permission."""
        return replace(self, roles=self.roles - {HISTORY})

    def rank(self, lane: int) -> int:
        """This process's rank among the candidates for lane number `lane`; each is first for its share of lanes."""
        return (lane + self.index) % self.count
