"""A history in which nothing is, for tests that are about something else."""

from typing import Any

from relay.domain.identity import MessageId
from relay.history.port import (
    AttemptFound,
    AttemptQuery,
    By,
    MessageFound,
    MessageQuery,
    Page,
    SpanCount,
    Visible,
)
from relay.log.port import TopicPartition


class EmptyHistory:
    async def messages(self, query: MessageQuery, *, limit: int, cursor: str | None = None) -> Page[MessageFound]:
        return _page(cursor)

    async def message(self, message: MessageId) -> MessageFound | None:
        return None

    async def attempts(self, query: AttemptQuery, *, limit: int, cursor: str | None = None) -> Page[AttemptFound]:
        return _page(cursor)

    async def counted(
        self,
        by: By,
        *,
        since: float,
        until: float,
        visible: Visible,
        receiver: str | None = None,
        source_id: str | None = None,
        most: int,
    ) -> list[SpanCount]:
        return []

    async def next_offsets(self) -> dict[TopicPartition, int]:
        return {}


def _page(cursor: str | None) -> Page[Any]:
    if cursor is not None:
        raise ValueError("none of ours")
    return Page([], None)
