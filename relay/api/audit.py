"""The audit, read back from its topic, newest first."""

from typing import Annotated, Final

from aiohttp import web
from msgspec import Meta

from relay.api.access import ADMIN
from relay.api.context import ApiContext
from relay.api.json_body import json_response
from relay.api.paging import limit_in
from relay.api.problems import UNAVAILABLE, Problem, invalid
from relay.api.reading import query_of
from relay.api.route import LIMIT, DocumentedResponse, Example, Parameter, json_of, route
from relay.domain.audit import AuditLine, decode_line
from relay.domain.errors import InvalidRecord
from relay.log.port import Record
from relay.schema.operation import AuditPage

CURSOR: Final = "[0-9]{1,18}"
_GROUP: Final = "audit"
"""Only used to ask for offsets: no consumer group reads the topic."""


_Cursor = Annotated[str, Meta(pattern=f"^{CURSOR}$")]


class AuditResource:
    """`GET /v1/audit`, for administrators."""

    def __init__(self, context: ApiContext) -> None:
        self._log = context.log
        self._topics = context.topics

    @route(
        "GET",
        "/v1/audit",
        scope=ADMIN,
        id="listAudit",
        noun="audit",
        parameters=(
            LIMIT,
            Parameter("cursor", "query", _Cursor, "Of the page before: what follows it."),
        ),
        answers=(DocumentedResponse(200, "The newest first.", json_of(AuditPage)),),
        example=Example(200, query={"limit": "10"}),
    )
    async def page(self, request: web.Request) -> web.Response:
        """Who changed what.

        A line for each request that changed something, was refused for its rights, or failed in between. Lines are kept
        on the topic `audit`, usually for 90 days.
        """
        query = query_of(request, "limit", "cursor")
        limit, before = limit_in(query), _before(query)
        found = await self._newest(limit + 1, before)
        items = [line for _, line in found[:limit]]
        page: AuditPage = {"items": items, "cursor": str(found[limit - 1][0]) if len(found) > limit else None}
        return json_response(200, page)

    async def _newest(self, most: int, before: int | None) -> list[tuple[int, AuditLine]]:
        """With their offsets."""
        topic = self._topics.audit
        spans = await self._log.backlogs({topic: self._topics.group(_GROUP)})
        if not spans:
            raise Problem(UNAVAILABLE, f"There is no topic {topic}: `relay topics apply` makes it.")
        first, end = spans[0].first, spans[0].end if before is None else min(before, spans[0].end)
        found: list[tuple[int, AuditLine]] = []
        while end > first and len(found) < most:
            start = max(first, end - most)
            read = [each async for batch in self._log.scan(topic, 0, start=start, end=end) for each in batch]
            found += _lines(read)
            end = start
        return found[:most]


def _lines(records: list[Record]) -> list[tuple[int, AuditLine]]:
    """Newest first; records that are not audit lines are left out."""
    found = []
    for record in reversed(records):
        try:
            found.append((record.offset, decode_line(record.value)))
        except InvalidRecord:
            continue
    return found


def _before(query: dict[str, list[str]]) -> int | None:
    text = query.get("cursor", [None])[-1]
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and len(text) <= 18):
        raise invalid(f"cursor is {text[:40]!r}, which is none of ours", parameter="cursor")
    return int(text)
