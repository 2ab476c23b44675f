"""Who the receivers and sources are, as a process knows them now."""

from typing import Protocol

from relay.domain.receiver import Receiver, Source


class Directory(Protocol):
    """Looked up per message, in memory."""

    def receiver(self, name: str) -> Receiver | None: ...

    def refusal(self, name: str) -> str | None:
        """Why the receiver's entry is not in force in this process, although it is declared; None where it is not."""
        ...

    def source(self, source_id: str) -> Source:
        """Settings of a source; those of `*` where it has none of its own, else the defaults."""
        ...

    def subscribers(self, source_id: str, event_type: str | None) -> tuple[str, ...]:
        """Names of the receivers that subscribe to such messages. Raises InvalidRecord where there are too many."""
        ...


def why_unknown(directory: Directory, name: str) -> str:
    """What to tell somebody who named a receiver that this process cannot send to."""
    refusal = directory.refusal(name)
    return f"there is no receiver {name}" if refusal is None else f"the receiver {name} is refused: {refusal}"
