"""The parameters of queries of the history, as they are declared and parsed. A mistake is a Problem that names the
parameter and the allowed values."""

import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Annotated, Final, NamedTuple, TypeVar

import msgspec
from msgspec import Meta

from relay.api.parameter import Parameter, ReceiverName, SourceId
from relay.api.problems import invalid
from relay.domain.json_pointer import check_pointer
from relay.domain.message import MAX_TEXT_BYTES
from relay.domain.reasons import REASONS
from relay.domain.state import STORED, UNSTORED, Status, StoredState
from relay.domain.times import parse_past
from relay.history.port import By, CountQuery, HistoryPage, MessageQuery, Visible

_TIMES: Final = "RFC 3339 (2026-01-31T12:00:00Z), or how long ago (90m, 2h, 1d)"
_TOKEN: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,256}")
_PLACE: Final = re.compile("([0-9]{1,9})-([0-9]{1,18})")
MOST_CURSOR: Final = 2_000
"""Characters: that of a message has its source_id and its id, which in JSON and base64 have 1,400 together."""
_SPAN_S: Final[Mapping[By, int]] = {"minute": 60, "hour": 3_600}
_LONGEST_S: Final[Mapping[By, int]] = {"minute": 86_400, "hour": 31 * 86_400}
_USUAL_S: Final[Mapping[By, int]] = {"minute": 3_600, "hour": 86_400}

T = TypeVar("T")
Item = TypeVar("Item")


def _place(text: str) -> tuple[int, int]:
    found = _PLACE.fullmatch(text)
    if found is None:
        raise ValueError("which is no place of a record: give its partition and offset, as 3-42")
    return int(found[1]), int(found[2])


def _state(text: str) -> str:
    if text == "blocked":
        raise ValueError(UNSTORED)
    if text not in STORED:
        raise ValueError(f"which is none of {', '.join(STORED)}")
    return text


def _reason(text: str) -> str:
    if text not in REASONS:
        raise ValueError(f"which is none of {', '.join(REASONS)}")
    return text


def type_in(text: str) -> str:
    """An event type, or a prefix and `*`. Raises ValueError."""
    if "*" in text[:-1] or not 0 < len(text.encode()) <= MAX_TEXT_BYTES:
        raise ValueError(f"which is no type: it has 1 to {MAX_TEXT_BYTES} bytes, and a * only at its end, for any rest")
    return text


def _header(text: str) -> tuple[str, str]:
    name, colon, value = text.partition(":")
    if not colon or _TOKEN.fullmatch(name.strip()) is None:
        raise ValueError("which is no header: give its name and value, as x-github-event:push")
    return name.strip().lower(), value.strip()


def _payload(text: str) -> tuple[str, str]:
    pointer, mark, value = text.partition("=")
    if not mark:
        raise ValueError("which has no value: give a JSON pointer and what is there, as /repository/name=relay")
    try:
        return check_pointer(pointer), value
    except ValueError as error:
        raise ValueError(f"in which {error}") from None


def _cursor(text: str) -> str:
    if not 0 < len(text) <= MOST_CURSOR:
        raise ValueError("which was not issued by this API")
    return text


TypePattern = Annotated[
    str, Meta(extra_json_schema={"minLength": 1, "maxLength": MAX_TEXT_BYTES, "pattern": r"^[^*]*\*?$"})
]
"""Of what `type_in` takes. Not checked by msgspec, whose error would not say where a star may be."""
_Time = Annotated[str, Meta(examples=["1h", "2026-01-31T12:00:00Z"])]
_Header = Annotated[str, Meta(pattern="^[^:]+:")]
_Field = Annotated[str, Meta(pattern="^(/[^=]*)?=")]
_Place = Annotated[str, Meta(pattern="^[0-9]{1,9}-[0-9]{1,18}$")]
_CursorText = Annotated[str, Meta(min_length=1, max_length=MOST_CURSOR)]

_Source = Annotated[SourceId | None, "Only of this source."]
Since = Annotated[
    str | None, Parameter("since", _Time, "Only since this time: RFC 3339, or how long ago, such as `2h`.")
]
Until = Annotated[str | None, Parameter("until", _Time, "Only before this time: RFC 3339, or how long ago.")]
BehindAttempt = Annotated[
    tuple[int, int] | None,
    Parameter("behind", _Place, "PARTITION-OFFSET of an attempt: only attempts recorded after it.", parse=_place),
]
Cursor = Annotated[
    str | None,
    Parameter("cursor", _CursorText, "`cursor` of the previous page, to continue after it.", parse=_cursor),
]
After = Annotated[
    str | None, Parameter("after", _CursorText, "`cursor` of a line, to continue after it.", parse=_cursor)
]
Failed = Annotated[bool | None, "Only those that did not end well; `false`: only the others."]


class MessageFilter(NamedTuple):
    """A None does not restrict."""

    source: _Source
    receiver: Annotated[ReceiverName | None, "Only with a delivery to this receiver."]
    owner: Annotated[SourceId | None, "Only with a delivery to a receiver of this owner."]
    status: Annotated[Status | None, "Only with a delivery in this status."]
    state: Annotated[
        StoredState | None,
        Parameter("state", StoredState, "Only with a delivery in this state.", parse=_state),
    ]
    reason: Annotated[
        str | None, Parameter("reason", str, "Only with a delivery that failed for this reason.", parse=_reason)
    ]
    type: Annotated[
        str | None,
        Parameter("type", TypePattern, "Only of this event type; a trailing `*` matches any ending.", parse=type_in),
    ]
    since: Since
    until: Until
    id: Annotated[SourceId | None, "Only messages whose id, or webhook id, has this prefix."]
    header: Annotated[
        tuple[str, str] | None,
        Parameter("header", _Header, "`name:value` of a header of the message, if bodies are stored.", parse=_header),
    ]
    payload: Annotated[
        tuple[str, str] | None,
        Parameter("payload", _Field, "`/pointer=value` in a JSON payload, if bodies are stored.", parse=_payload),
    ]

    def query(self, visible: Visible, now: float) -> MessageQuery:
        """`now`: Unix seconds. Raises a Problem."""
        since, until = times_in(self.since, self.until, now)
        return MessageQuery(
            visible=visible,
            source_id=self.source,
            receiver=self.receiver,
            status=self.status,
            state=self.state,
            reason=self.reason,
            event_type=self.type,
            since=since,
            until=until,
            id_prefix=self.id,
            header=self.header,
            payload=self.payload,
        )

    def check_bodies_are_kept(self) -> None:
        """Raises a Problem for a search in bodies that are not kept: without one it would find nothing."""
        for name, kept, value in (("header", "headers", self.header), ("payload", "bodies", self.payload)):
            if value is not None:
                why = f"this history does not store {kept} (RELAY_HISTORY_BODIES is 0 for this process)."
                raise invalid(f"{name} finds nothing: {why}", parameter=name)


class CountFilter(NamedTuple):
    """A None does not restrict."""

    by: Annotated[By | None, "Default: `hour`."]
    since: Since
    until: Until
    receiver: Annotated[ReceiverName | None, "Only at this receiver."]
    source: _Source

    def query(self, visible: Visible, now: float) -> CountQuery:
        """Begins with a whole minute or hour. `now`: Unix seconds. Raises a Problem."""
        by: By = self.by or "hour"
        since, until = times_in(self.since, self.until, now)
        until = now if until is None else until
        since = max(0.0, until - _USUAL_S[by]) if since is None else since
        if since >= until:
            raise invalid("until is not after since", parameter="since" if self.until is None else "until")
        if until - since > _LONGEST_S[by]:
            longest = f"{_LONGEST_S[by] // 86_400} d"
            detail = f"since and until are more than {longest} apart, which is the most by {by}"
            raise invalid(detail, parameter="since")
        return CountQuery(by, since - since % _SPAN_S[by], until, visible, self.receiver, self.source)


def times_in(since: str | None, until: str | None, now: float) -> tuple[float | None, float | None]:
    """Both as Unix seconds. Raises a Problem."""
    found = _moment("since", since, now), _moment("until", until, now)
    if found[0] is not None and found[1] is not None and found[1] <= found[0]:
        raise invalid("until is not after since", parameter="until")
    return found


def _moment(name: str, text: str | None, now: float) -> float | None:
    try:
        return None if text is None else parse_past(text, now)
    except (ValueError, OverflowError):
        raise invalid(f"{name} is {str(text)[:80]!r}, which is not a time: give {_TIMES}", parameter=name) from None


def no_cursor(name: str = "cursor") -> Exception:
    """The Problem of a cursor that this API has not returned."""
    return invalid(f"{name} was not issued by this API", parameter=name)


AT_ONCE: Final = 50
"""Messages or attempts of the history in memory at a time, before they are converted."""
MOST_BYTES: Final = 4 * 1024 * 1024
"""Bytes of JSON in one page, which ends early then."""


async def page_of(
    limit: int,
    cursor: str | None,
    ask: Callable[..., Awaitable[HistoryPage[T]]],
    made: Callable[[list[T]], Awaitable[list[Item]]],
) -> tuple[list[Item], str | None]:
    """The items of a page of `ask`, which takes `limit` and `cursor`, converted by `made`; and the cursor of the next
    page. A few are read at a time, as they may be large before they are converted."""
    left, items, size = limit, list[Item](), 0
    while True:
        wanted = min(AT_ONCE, left)
        try:
            page = await ask(limit=wanted, cursor=cursor)
        except ValueError:
            raise no_cursor() from None
        some, cursor = await made(page.items), page.cursor
        items += some
        size += len(msgspec.json.encode(some))
        left -= len(page.items)
        if cursor is None or left == 0 or len(page.items) < wanted or size >= MOST_BYTES:
            return items, cursor
