"""What a simulation has sent, and what it has done to the relay: all that the checks have to know."""

import json
from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple

from relay.domain.identity import DeliveryId
from relay.domain.message import Message

Delivery = tuple[str, str]
"""Message id and receiver."""


class Sending(NamedTuple):
    """One record on `from_sender`. `again`: its id was sent before, `other`: and with another payload."""

    message: Message
    again: bool = False
    other: bool = False


class Given(NamedTuple):
    """An answer that a receiver brought, and the relay took. `first`: there was none before it."""

    delivery: DeliveryId
    body: bytes
    first: bool


@dataclass
class Story:
    """`faults`: those that may leave an attempt in doubt. `losses`: of the state's memory. `is_bounded`: messages may
    fail for lack of parking room. `brokers_turned`: their clocks were wrong at times. `interrupted`: nothing proceeded
    for a while. `together`: ids of messages of one key that were sent at once, to wait together."""

    sendings: list[Sending] = field(default_factory=list)
    faults: int = 0
    losses: int = 0
    is_bounded: bool = False
    brokers_turned: bool = False
    interrupted: bool = False
    together: list[list[str]] = field(default_factory=list)
    resent: Counter[str] = field(default_factory=Counter)
    """By message id, how often it was sent again after a loss, with the same payload or another."""
    unheard: Counter[str] = field(default_factory=Counter)
    """By message id, how many responses to its POSTs were withheld."""
    hurried: set[str] = field(default_factory=set)
    """Ids of messages that had not ended when the state's clock was turned forward."""
    generations: Counter[Delivery] = field(default_factory=Counter)
    given: list[Given] = field(default_factory=list)

    @property
    def brought(self) -> set[Delivery]:
        """Deliveries whose receiver has brought an answer."""
        return {(one.delivery.message_id, one.delivery.receiver) for one in self.given}

    def add(self, sending: Sending) -> None:
        self.sendings.append(sending)
        if sending.again and self.losses:
            self.resent[sending.message.message_id] += 1

    @property
    def firsts(self) -> dict[str, Message]:
        """By message id, what was sent under it first."""
        return {each.message.message_id: each.message for each in self.sendings if not each.again}

    def payloads(self, message_id: str) -> set[bytes]:
        """What may arrive under that id: what was sent first, and once the state has forgotten that, any other."""
        return {
            each.message.payload
            for each in self.sendings
            if each.message.message_id == message_id and (self.losses or not each.other)
        }

    def all_payloads(self, message_id: str) -> set[bytes]:
        return {each.message.payload for each in self.sendings if each.message.message_id == message_id}

    def holds(self, message_id: str, letter: bytes | None) -> bool:
        """Whether a dead letter of that id may have this value."""
        return letter in self.all_payloads(message_id)

    def allows(self, reason: str, message_id: str, receiver: str) -> bool:
        """Whether a delivery may fail with a reason that needs a cause in the story."""
        return False

    def has_order(self, message_id: str, receiver: str) -> bool:
        """Whether the next message in order waits for its end, and no attempt of it may arrive after that."""
        return True

    def copies(self, message_id: str) -> int:
        """The maximum number of arrivals of a delivery at a receiver without a status endpoint."""
        return 1 + self.faults + self.unheard[message_id] + self.resent[message_id]


def value_at(payload: bytes, pointer: str) -> str | None:
    """The text of a field of the payload; None if it has none."""
    found = json.loads(payload).get(pointer.removeprefix("/"))
    return None if found is None else str(found)
