"""Builders of history facts for tests: arrivals, attempts and ends of deliveries."""

from typing import Any

from relay.domain.attempt import Attempt, AttemptFailure, AttemptResponse
from relay.domain.coordinate import Coordinate
from relay.domain.identity import DeliveryId, MessageId
from relay.domain.outcome import CodeClass
from relay.domain.state import Status
from relay.history.port import ArrivalFact, EndingFact, FactBatch, History
from relay.log.port import TopicPartition

NOON = 1_790_000_000.0 // 86_400 * 86_400 + 43_200
"""A noon (UTC). The times of facts are seconds after it."""

FROM = TopicPartition("from_sender", 0)
BACK = TopicPartition("to_sender", 0)
DEAD = TopicPartition("failed_messages", 0)
TRIED = TopicPartition("delivery_attempts", 0)


Fact = ArrivalFact | EndingFact | tuple[Coordinate, Attempt]


def arrival(
    number: int, *, source: str = "shop", name: str | None = None, at: float | None = None, **more: Any
) -> ArrivalFact:
    """The arrival of message `m-<number>`, at this offset, so many seconds after noon."""
    return ArrivalFact(
        MessageId(source, name or f"m-{number}"),
        Coordinate(*FROM, number),
        NOON + (number if at is None else at),
        more.pop("event_type", "order.paid"),
        more.pop("content_type", "application/json"),
        more.pop("size", 100),
        **more,
    )


def attempt(
    message: str,
    *,
    offset: int,
    status: int | None = 200,
    code: CodeClass | None = None,
    receiver: str = "ci",
    source: str = "shop",
    at: float = 0.0,
    **more: Any,
) -> tuple[Coordinate, Attempt]:
    """An attempt; by default a POST that was answered."""
    if code is None:
        code = "delivered" if status in (200, 204) else "accepted" if status == 202 else "not_processed"
    kind = more.pop("kind", "post")
    told = Attempt(
        kind,
        NOON + at,
        more.pop("duration_ms", 20.0),
        "POST",
        "https://ci.example/hook",
        more.pop("headers", {"webhook-id": "msg_1"}),
        more.pop("outcome", "done" if code in ("delivered", "accepted") else "retry"),
        receiver=receiver,
        source_id=source,
        message_id=message,
        response=None if status is None else AttemptResponse(status, {"content-type": "text/plain"}, "ok"),
        error=AttemptFailure("timeout", "no answer in 15 s", True) if status is None else None,
        code_class=code if kind == "post" else None,
        **more,
    )
    return Coordinate(*TRIED, offset), told


def ending(
    message: str,
    *,
    offset: int,
    status: Status = "response_received_from_receiver",
    receiver: str = "ci",
    source: str = "shop",
    at: float = 1.0,
    **more: Any,
) -> EndingFact:
    partition = DEAD if status == "failed" else BACK
    return EndingFact(
        DeliveryId(receiver, source, message),
        more.pop("generation", 0),
        Coordinate(*partition, offset),
        NOON + at,
        status,
        more.pop("attempts", 1),
        more.pop("last_status", 200),
        **more,
    )


async def put(history: History, *facts: Fact) -> None:
    """Write these facts after those that the store has: each partition continues at its next offset."""
    batch = FactBatch(
        [one for one in facts if isinstance(one, ArrivalFact)],
        [one for one in facts if isinstance(one, tuple)],
        [one for one in facts if isinstance(one, EndingFact)],
    )
    places = [
        *(one.at for one in batch.arrivals),
        *(at for at, _ in batch.attempts),
        *(one.at for one in batch.endings),
    ]
    ends: dict[TopicPartition, int] = {}
    for at in places:
        partition = TopicPartition(at.topic, at.partition)
        ends[partition] = max(ends.get(partition, 0), at.offset + 1)
    await history.write(batch, ends, {})
