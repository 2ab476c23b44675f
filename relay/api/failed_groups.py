"""`GET /v1/failed/groups`: dead letters by receiver and reason.

They are counted in the state's index; the newest of each group is read from the log."""

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from aiohttp import web

from relay.api.access import LETTERS, access_of
from relay.api.context import ApiContext
from relay.api.failed import CHOSEN, DEAD_LETTERS, FailedResource, letter_view, sees_letter
from relay.api.responses import json_response
from relay.api.route import LIMIT, DocumentedResponse, Example, json_of, route
from relay.api.view import rfc3339
from relay.incidents.reader import IncidentReader
from relay.log.port import Coordinate, Record, read_each
from relay.replay.letter import read_dead_letter
from relay.schema.dead_letters import LetterGroupList, LetterGroupView, LetterView
from relay.state.port import FailedEntry

HOURS: Final = 24
"""Hours for which a group has counts."""
_HOUR_S: Final = 3_600.0
FRESH_S: Final = 1.0
COST: Final = 10.0
"""The index is read again after this many times as long as that took, and after FRESH_S at the earliest."""
_LETTERS: Final = 200
"""Letters that are read for a caller who does not see all: an entry of the index does not say whether it is theirs."""


@dataclass(slots=True)
class IndexGroup:
    """Dead letters of a receiver, reason and source. `first`: when the oldest failed. `hours`: how many in each of the
    last HOURS hours, the present one last."""

    newest: FailedEntry
    first: float
    count: int = 0
    hours: list[int] = field(default_factory=lambda: [0] * HOURS)

    def add(self, other: "IndexGroup") -> None:
        if other.newest.failed_at > self.newest.failed_at:
            self.newest = other.newest
        self.first = min(self.first, other.first)
        self.count += other.count
        self.hours = [one + more for one, more in zip(self.hours, other.hours, strict=True)]


def groups_of(entries: Iterable[FailedEntry], now: float) -> list[IndexGroup]:
    """By receiver, reason and source. `now`: Unix seconds."""
    found = dict[tuple[str, str, str], IndexGroup]()
    for entry in entries:
        key = entry.receiver, entry.reason, entry.source_id
        group = found.get(key)
        if group is None:
            group = found[key] = IndexGroup(entry, entry.failed_at)
        elif entry.failed_at > group.newest.failed_at:
            group.newest = entry
        elif entry.failed_at < group.first:
            group.first = entry.failed_at
        group.count += 1
        if (ago := max(0, int((now - entry.failed_at) // _HOUR_S))) < HOURS:
            group.hours[HOURS - 1 - ago] += 1
    return list(found.values())


def by_reason(groups: Iterable[IndexGroup]) -> list[IndexGroup]:
    """Those of a receiver and reason together, the largest first."""
    found = dict[tuple[str, str], IndexGroup]()
    for group in groups:
        key = group.newest.receiver, group.newest.reason
        found.setdefault(key, IndexGroup(group.newest, group.first)).add(group)
    return sorted(found.values(), key=lambda one: (-one.count, one.newest.receiver, one.newest.reason))


class FailedGroupsResource:
    """The route; see the module's first lines."""

    def __init__(self, context: ApiContext, reader: IncidentReader, letters: FailedResource) -> None:
        self._context = context
        self._reader = reader
        self._letters = letters
        self._turn = asyncio.Lock()
        self._known: Sequence[IndexGroup] = ()
        self._more = False
        self._good_until = 0.0

    @route(
        "GET",
        "/v1/failed/groups",
        scope=LETTERS,
        id="listFailedGroups",
        noun=DEAD_LETTERS,
        parameters=(*CHOSEN, LIMIT),
        answers=(DocumentedResponse(200, "The groups, largest first.", json_of(LetterGroupList)),),
        example=Example(200, query={"receiver": "ci"}),
    )
    async def groups(
        self,
        request: web.Request,
        receiver: Sequence[str],
        source: Sequence[str],
        reason: Sequence[str],
        limit: int,
    ) -> web.Response:
        """List dead letters by receiver and reason.

        The counts are those of the index, a few seconds late. With very many, or for a caller who sees only a part,
        only the newest are counted; `more` says so.
        """
        if access_of(request).may("admin"):
            known, more = await self._of_index()
        else:
            found, last = await self._letters.newest(request, receiver, source, reason, _LETTERS)
            known, more = groups_of(map(self._entry, found), self._context.clock.time()), last is not None
        chosen = by_reason(
            group
            for group in known
            if (not receiver or group.newest.receiver in receiver)
            and (not source or group.newest.source_id in source)
            and (not reason or group.newest.reason in reason)
        )
        some = chosen[:limit]

        def made(record: Record | None) -> LetterView | None:
            letter = None if record is None else read_dead_letter(record, self._context.topics)
            return letter_view(letter) if letter is not None and sees_letter(request, letter) else None

        newest = await read_each(self._context.log, [(group.newest.at, None) for group in some], made)
        items = [_view(group, letter) for group, letter in zip(some, newest, strict=True)]
        body: LetterGroupList = {"items": items, "left_out": len(chosen) - len(some), "more": more}
        return json_response(200, body)

    async def _of_index(self) -> tuple[Sequence[IndexGroup], bool]:
        """Raises StateUnavailable."""
        clock = self._context.clock
        async with self._turn:
            begun = clock.monotonic()
            if begun >= self._good_until:
                found = await self._reader.failed()
                self._known = groups_of(found.entries, clock.time())
                self._more = found.more or bool(found.truncated)
                self._good_until = begun + max(FRESH_S, COST * (clock.monotonic() - begun))
            return self._known, self._more

    def _entry(self, found: tuple[tuple[float, str], LetterView]) -> FailedEntry:
        (failed_at, _), letter = found
        at = Coordinate(self._context.topics.failed_messages, letter["partition"], letter["offset"])
        source_id, message_id = letter["source_id"] or "", letter["message_id"] or ""
        return FailedEntry(letter["receiver"], at, failed_at, letter["reason"], source_id, message_id)


def _view(group: IndexGroup, newest: LetterView | None) -> LetterGroupView:
    return {
        "receiver": group.newest.receiver,
        "reason": group.newest.reason,
        "count": group.count,
        "first_at": rfc3339(group.first),
        "newest_at": rfc3339(group.newest.failed_at),
        "hours": group.hours,
        "newest": newest,
    }
