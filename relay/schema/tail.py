"""Events of the live stream."""

from typing import Literal, TypedDict


class AnswerItem(TypedDict):
    """An answer on its way to the sender, which was published `at`. `body`: its beginning, as text."""

    at: str | None
    source_id: str
    message_id: str
    receiver: str
    status: int | None
    content_type: str | None
    body: str


class TailEvent(TypedDict):
    """A server-sent event. `data`: JSON."""

    event: Literal["message", "attempt", "answer", "failed", "listening", "away", "skipped", "ended"]
    data: str
