"""Gaps in the numbers of a receiver's deliveries: those that were given up, and their replay."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Final

from aiohttp import web
from msgspec import Meta

from relay.api.access import RECEIVER
from relay.api.context import ApiContext
from relay.api.failed import MOST_LOOKED_AT
from relay.api.paging import cursor_behind
from relay.api.problems import TOO_MANY_JOBS, invalid
from relay.api.replays import JOB_ANSWERS, REPEATABLE, ReplaysResource
from relay.api.route import Example, PageCursor, PageLimit, Parameter, route
from relay.api.view import rfc3339
from relay.domain.replay_job import Selection
from relay.schema.receivers import GapPage, GapView
from relay.schema.replays import GapReplays
from relay.state.port import FailedEntry


def _number_in(text: str) -> int:
    """Raises a Problem."""
    if not (text.isascii() and text.isdigit() and len(text) <= MOST_DIGITS):
        raise invalid(f"after is {text[:20]!r}, which is no number", parameter="after")
    return int(text)


def _after_in(query: Mapping[str, Sequence[str]]) -> int:
    return _number_in(query.get("after", ["0"])[-1])


MOST_DIGITS: Final = 18
AFTER: Final = Parameter("after", Annotated[int, Meta(ge=0)], "Only higher numbers.", read=_after_in)


class GapsResource:
    """`GET /v1/receivers/{name}/gaps`, and `POST .../gaps/replay`."""

    noun = "receivers"

    def __init__(self, context: ApiContext, replays: ReplaysResource) -> None:
        self._context = context
        self._replays = replays

    @route(
        "GET",
        "/v1/receivers/{name}/gaps",
        scope=RECEIVER,
        answer="A page, lowest numbers first.",
        example=Example(200),
    )
    async def list_gaps(self, name: str, after: Annotated[int, AFTER], limit: PageLimit, cursor: PageCursor) -> GapPage:
        """List the numbers that a receiver did not get, with the reasons.

        By the newest dead letters that are neither replayed nor discarded.
        """
        self._context.check_receiver(name)
        receiver = self._context.directory.receiver(name)
        numbered = receiver is not None and receiver.ordering == "receiver"
        entries = await self._context.state.failed(name, limit=MOST_LOOKED_AT) if numbered else []
        behind = max(after, _number_in(cursor or "0"))
        gaps = gaps_of(entry for entry in entries if (entry.number or 0) > behind)
        following = cursor_behind(str(gaps[limit - 1]["last"])) if len(gaps) > limit else None
        return GapPage(numbered=numbered, items=gaps[:limit], cursor=following)

    @route(
        "POST",
        "/v1/receivers/{name}/gaps/replay",
        scope=RECEIVER,
        audit="replay.started",
        parameters=(REPEATABLE,),
        answers=JOB_ANSWERS,
        problems=(TOO_MANY_JOBS,),
        example=Example(202, body={"first": 1, "last": 20}),
    )
    async def replay_gaps(self, request: web.Request, name: str, body: GapReplays) -> web.Response:
        """Replay the messages in a receiver's gaps.

        They keep their numbers. This starts a job, as `POST /v1/replays` does.
        """
        self._context.check_receiver(name)
        if body.first is not None and body.last is not None and body.last < body.first:
            raise invalid("last is below first", pointer="/last")
        selection = Selection(frozenset({name}), first_number=body.first or 1, last_number=body.last)
        return await self._replays.begin(request, "replay", selection, body)


def gaps_of(entries: Iterable[FailedEntry]) -> list[GapView]:
    """The numbers of `entries`, in ranges with the same reason."""
    newest: dict[int, FailedEntry] = {}
    for entry in entries:
        if entry.number is not None:
            known = newest.setdefault(entry.number, entry)
            newest[entry.number] = max(known, entry, key=lambda each: each.failed_at)
    found: list[GapView] = []
    failed_at = 0.0
    for number, entry in sorted(newest.items()):
        if found and (found[-1]["last"], found[-1]["reason"]) == (number - 1, entry.reason):
            failed_at = max(failed_at, entry.failed_at)
            found[-1] |= {"last": number, "failed_at": rfc3339(failed_at)}
        else:
            failed_at = entry.failed_at
            found.append(GapView(first=number, last=number, reason=entry.reason, failed_at=rfc3339(failed_at)))
    return found
