"""Responses to webhooks of other systems, and the bodies of events that the relay itself sends."""

from typing import Literal, NotRequired, TypedDict

import msgspec


class DeliveryState(msgspec.Struct, frozen=True):
    """How a delivery is. `reason`: of its failure."""

    receiver: str
    status: str
    generation: int
    reason: str | None


class WebhookView(msgspec.Struct, frozen=True):
    """What became of a webhook, for its sender. `deliveries`: of the first, where this is its `duplicate`. `detail`:
    what else there is to say of that."""

    source_id: str
    message_id: str
    status: str
    duplicate: bool
    detail: str | None
    deliveries: list[DeliveryState]


class BatchTaken(msgspec.Struct, frozen=True):
    """All events of a batch were taken; `duplicates` of them had come before."""

    accepted: int
    duplicates: int


class Probed(msgspec.Struct, frozen=True):
    """The sender only tried whether anybody is here."""

    status: str


class Nonce(TypedDict):
    """The whole body of a verification. `nonce`: made for this one."""

    type: Literal["relay.verification"]
    nonce: str


class Ping(TypedDict):
    """The whole body of a ping. `test`: an operator asked for it; `receiver`: then, its name."""

    type: Literal["relay.ping"]
    test: NotRequired[Literal[True]]
    receiver: NotRequired[str]
