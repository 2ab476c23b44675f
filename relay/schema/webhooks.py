"""Responses to webhooks of other systems, and the bodies of events that the relay itself sends."""

from typing import Literal, NotRequired, TypedDict

import msgspec


class DeliveryState(msgspec.Struct, frozen=True):
    """The state of a delivery. `reason`: of its failure."""

    receiver: str
    status: str
    generation: int
    reason: str | None


class WebhookView(msgspec.Struct, frozen=True):
    """The result of a webhook, for its sender. `deliveries`: those of the first one, if this is a `duplicate`.
    `detail`: more about it."""

    source_id: str
    message_id: str
    status: str
    duplicate: bool
    detail: str | None
    deliveries: list[DeliveryState]


class BatchTaken(msgspec.Struct, frozen=True):
    """All events of a batch were accepted; `duplicates` of them had arrived before."""

    accepted: int
    duplicates: int


class Probed(msgspec.Struct, frozen=True):
    """The response to a sender's probe."""

    status: str


class Nonce(TypedDict):
    """The body of a verification. `nonce`: generated for this one."""

    type: Literal["relay.verification"]
    nonce: str


class Ping(TypedDict):
    """The body of a ping. `test`: an operator requested it; `receiver`: its name in that case."""

    type: Literal["relay.ping"]
    test: NotRequired[Literal[True]]
    receiver: NotRequired[str]
