"""Erasures of payloads, as the API takes and shows them."""

from typing import TypedDict

import msgspec


class ErasureRequest(msgspec.Struct, forbid_unknown_fields=True):
    """The payloads of a source, of one of its messages (`source_id` and `message_id`), or of all deliveries to a
    receiver."""

    source_id: str | None = None
    message_id: str | None = None
    receiver: str | None = None


class RemainsView(TypedDict):
    """A topic that keeps erased payloads for a while, and until when at the latest, with the retention that the relay
    asks for (RFC 3339; null: until the topic is compacted). The relay does not show or send them any more."""

    topic: str
    until: str | None


class ErasureView(TypedDict):
    """Payloads of messages that were received until `made_at` (RFC 3339). `by`: the caller that requested it."""

    id: str
    made_at: str | None
    by: str
    source_id: str | None
    message_id: str | None
    receiver: str | None


class NewErasureView(ErasureView):
    """`in_history`: the messages whose payload was deleted from the history; null if it does not answer, which then
    deletes them within two hours. `cancels`: path of the job that cancels what was not sent to
    a receiver, or by a source; null for a message, or if there was no room for a job: then each ends when it is due.
    `remains`: where payloads remain on the log."""

    in_history: int | None
    cancels: str | None
    remains: list[RemainsView]


class ErasurePage(TypedDict):
    """The newest first. `cursor`: of the next page; null on the last one."""

    items: list[ErasureView]
    cursor: str | None
