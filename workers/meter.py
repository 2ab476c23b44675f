"""The workers' meter of messages, for metrics."""

from typing import Literal, Protocol

from relay.domain.exchange import Exchange
from relay.domain.identity import DeliveryId
from relay.domain.outcome import Outcome

Via = Literal["response", "poll", "callback"]
"""How an answer arrived: in the POST's response, by a status GET, or by the receiver's own callback."""


class Meter(Protocol):
    """Counts messages; must not raise, and must not block. `age_s`: seconds since the message was accepted (None:
    not known)."""

    def received(self, *, foreign_key: bool) -> None:
        """A message was read from `from_sender`. `foreign_key`: the record's key is not its source_id."""
        ...

    def filtered(self) -> None:
        """A message went to no receiver: the filters of all subscribers excluded it."""
        ...

    def unrouted(self, delivery: DeliveryId, why: str) -> None:
        """A message names a receiver that does not exist, and gets a dead letter."""
        ...

    def posted(self, receiver: str, exchange: Exchange, outcome: Outcome, seconds: float) -> None:
        """One POST to a receiver ended, successfully or not; `outcome`: its meaning."""
        ...

    def delivered(self, receiver: str, age_s: float) -> None:
        """The receiver has the message."""
        ...

    def answered(self, receiver: str, via: Via, age_s: float | None) -> None:
        """The receiver's answer has arrived."""
        ...

    def returned(self, receiver: str, age_s: float) -> None:
        """The sender's callback took the result."""
        ...

    def refused(self, kind: str, why: str) -> None:
        """A webhook from a sender of that kind failed authentication. `why`: missing, wrong or old."""
        ...

    def over_quota(self, of: str, messages: int) -> None:
        """So many messages were rejected because of the quota of a `key` or a `source`."""
        ...

    def queued(self, what: str, seconds: float) -> None:
        """A request to the API waited so long for its caller's turn. `what`: search, test or dry_run."""
        ...

    def over_share(self, what: str) -> None:
        """A request to the API was refused: its caller has its share of it. `what`: as above, tail, page or replay."""
        ...


class SilentMeter:
    """Meter that counts nothing."""

    def received(self, *, foreign_key: bool) -> None: ...

    def filtered(self) -> None: ...

    def unrouted(self, delivery: DeliveryId, why: str) -> None: ...

    def posted(self, receiver: str, exchange: Exchange, outcome: Outcome, seconds: float) -> None: ...

    def delivered(self, receiver: str, age_s: float) -> None: ...

    def answered(self, receiver: str, via: Via, age_s: float | None) -> None: ...

    def returned(self, receiver: str, age_s: float) -> None: ...

    def refused(self, kind: str, why: str) -> None: ...

    def over_quota(self, of: str, messages: int) -> None: ...

    def queued(self, what: str, seconds: float) -> None: ...

    def over_share(self, what: str) -> None: ...
