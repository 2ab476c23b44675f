"""What one process is to do."""

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


@dataclass(frozen=True, slots=True)
class ProcessPlan:
    """What a process is to do. `receivers`: serve only these; None: all. `apply_file`: bring the receivers file into
    force at start and on change. `tells_attempts`: whether each attempt at this endpoint
    (`r:<receiver>`, `s:<source_id>`) gets a log line.
    `answer_secrets`: the first one signs answer tokens, any proves them; none: they are off. `secrets_keys`: encrypt
    and open secrets at rest, behind those of the settings. `index`, 0-based, of `count`: which of the processes that
    share the work on this machine."""

    roles: frozenset[str] = frozenset(ROLES)
    receivers: frozenset[str] | None = None
    apply_file: bool = True
    tells_attempts: Callable[[str], bool] = lambda _gate: False
    answer_secrets: tuple[bytes, ...] = field(default=(), repr=False)
    own_key: str | None = field(default=None, repr=False)
    """With which this process may call its own API; nobody is told."""
    secrets_keys: tuple[bytes, ...] = field(default=(), repr=False)
    index: int = 0
    count: int = 1
    with_entries: Callable[[ReceiversFile | None], ReceiversFile | None] = field(default=lambda file: file)
    """Adds entries that no file on disk has (the demo's)."""

    ping_every: float = inf
    """Seconds between two pings of an offline endpoint, at most, whatever its own settings say."""
    data_dir: Path | None = None
    """Of an embedded relay."""

    @property
    def is_history_alone(self) -> bool:
        """Nobody waits for this process: it may go last."""
        return self.roles == {HISTORY}

    def without_history(self) -> "ProcessPlan":
        """Where none is set up, nobody needs the right to read for it."""
        return replace(self, roles=self.roles - {HISTORY})

    def rank(self, lane: int) -> int:
        """Where this process stands among all that want lane number `lane`: each is first for its share of them."""
        return (lane + self.index) % self.count
