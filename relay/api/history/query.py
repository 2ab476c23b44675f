"""Parses the query parameters of the history. A mistake is a Problem that names the parameter and the allowed
values."""

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final, TypeVar, cast, get_args

import msgspec

from relay.api.paging import limit_in
from relay.api.problems import invalid
from relay.domain.errors import InvalidRecord
from relay.domain.identity import check_id, is_receiver_name
from relay.domain.json_pointer import check_pointer
from relay.domain.message import MAX_TEXT_BYTES
from relay.domain.reasons import REASONS
from relay.domain.state import STORED, UNSTORED, Status, StoredState
from relay.domain.times import parse_past
from relay.history.port import By, CountQuery, HistoryPage, MessageQuery, Visible

TYPE_SCHEMA: Final = msgspec.Meta(
    extra_json_schema={"minLength": 1, "maxLength": MAX_TEXT_BYTES, "pattern": r"^[^*]*\*?$"}
)
"""Of what `type_in` takes. Not checked by msgspec, whose error would not say where a star may be."""

_TIMES: Final = "RFC 3339 (2026-01-31T12:00:00Z), or how long ago (90m, 2h, 1d)"
_TOKEN: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,256}")
_PLACE: Final = re.compile("([0-9]{1,9})-([0-9]{1,18})")
MOST_CURSOR: Final = 2_000
"""Characters: that of a message has its source_id and its id, which in JSON and base64 have 1,400 together."""
_SPAN_S: Final[Mapping[By, int]] = {"minute": 60, "hour": 3_600}
_LONGEST_S: Final[Mapping[By, int]] = {"minute": 86_400, "hour": 31 * 86_400}
_USUAL_S: Final[Mapping[By, int]] = {"minute": 3_600, "hour": 86_400}

Query = Mapping[str, Sequence[str]]
T = TypeVar("T")
W = TypeVar("W", bound=str)
Item = TypeVar("Item")


def message_query(query: Query, visible: Visible, now: float) -> MessageQuery:
    """Raises a Problem. `now`: Unix seconds."""
    since, until = _times(query, now)
    return MessageQuery(
        visible=visible,
        source_id=source_in(query),
        receiver=receiver_in(query),
        status=_of(query, "status", _one_of(get_args(Status))),
        state=_of(query, "state", _state),
        reason=_of(query, "reason", _one_of(tuple(REASONS))),
        event_type=type_in(query),
        since=since,
        until=until,
        id_prefix=_of(query, "id", _id),
        header=_of(query, "header", _header),
        payload=_of(query, "payload", _payload),
    )


def count_query(query: Query, visible: Visible, now: float) -> CountQuery:
    """Raises a Problem. `now`: Unix seconds. Begins with a whole minute or hour."""
    by: By = _of(query, "by", _one_of(get_args(By))) or "hour"
    since, until = _times(query, now)
    until = now if until is None else until
    since = max(0.0, until - _USUAL_S[by]) if since is None else since
    if since >= until:
        raise invalid("until is not after since", parameter="since" if "until" not in query else "until")
    if until - since > _LONGEST_S[by]:
        longest = f"{_LONGEST_S[by] // 86_400} d"
        raise invalid(f"since and until are more than {longest} apart, which is the most by {by}", parameter="since")
    return CountQuery(by, since - since % _SPAN_S[by], until, visible, receiver_in(query), source_in(query))


def source_in(query: Query) -> str | None:
    return _of(query, "source", _id)


def receiver_in(query: Query) -> str | None:
    return _of(query, "receiver", _receiver)


def type_in(query: Query) -> str | None:
    """An event type, or a prefix and `*`."""
    return _of(query, "type", _type)


def owner_in(query: Query) -> str | None:
    return _of(query, "owner", _id)


def cursor_in(query: Query, name: str = "cursor") -> str | None:
    text = _last(query, name)
    if text is not None and not 0 < len(text) <= MOST_CURSOR:
        raise no_cursor(name)
    return text


def place_in(query: Query, name: str) -> tuple[int, int] | None:
    """Partition and offset of a record."""
    return _of(query, name, _place)


def no_cursor(name: str = "cursor") -> Exception:
    """The Problem of a cursor that this API has not returned."""
    return invalid(f"{name} was not issued by this API", parameter=name)


def _times(query: Query, now: float) -> tuple[float | None, float | None]:
    since, until = (_of(query, name, lambda text: _moment(text, now)) for name in ("since", "until"))
    if since is not None and until is not None and until <= since:
        raise invalid("until is not after since", parameter="until")
    return since, until


def _of(query: Query, name: str, read: Callable[[str], T]) -> T | None:
    """The parsed parameter, of several the last. `read` raises ValueError, whose text has the allowed values."""
    text = _last(query, name)
    if text is None:
        return None
    try:
        return read(text)
    except ValueError as error:
        raise invalid(f"{name} is {text[:80]!r}, {error}", parameter=name) from None


def _last(query: Query, name: str) -> str | None:
    return query[name][-1] if name in query else None


def _moment(text: str, now: float) -> float:
    try:
        return parse_past(text, now)
    except (ValueError, OverflowError):
        raise ValueError(f"which is not a time: give {_TIMES}") from None


def _id(text: str) -> str:
    try:
        return check_id(text, "it")
    except InvalidRecord as error:
        raise ValueError(f"which cannot be: {error.detail}") from None


def _receiver(text: str) -> str:
    if not is_receiver_name(text):
        raise ValueError("which is not a receiver name")
    return text


def _place(text: str) -> tuple[int, int]:
    found = _PLACE.fullmatch(text)
    if found is None:
        raise ValueError("which is no place of a record: give its partition and offset, as 3-42")
    return int(found[1]), int(found[2])


def _state(text: str) -> StoredState:
    if text == "blocked":
        raise ValueError(UNSTORED)
    return _one_of(STORED)(text)


def _one_of(known: Sequence[W]) -> Callable[[str], W]:
    def read(text: str) -> W:
        if text not in known:
            raise ValueError(f"which is none of {', '.join(known)}")
        return cast(W, text)

    return read


def _type(text: str) -> str:
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


_KEPT: Final = {"header": "headers", "payload": "bodies"}
_KEPT_IF: Final = "(RELAY_HISTORY_BODIES is 0 for this process)."


def refuse_search_in_bodies(query: Query) -> None:
    """Raises a Problem for a search in bodies that are not kept: without one it would find nothing."""
    for name in ("header", "payload"):
        if name in query:
            raise invalid(f"{name} finds nothing: this history does not store {_KEPT[name]} {_KEPT_IF}", parameter=name)


AT_ONCE: Final = 50
"""Messages or attempts of the history in memory at a time, before they are converted."""
MOST_BYTES: Final = 4 * 1024 * 1024
"""Bytes of JSON in one page, which ends early then."""


async def page_of(
    query: Query,
    ask: Callable[..., Awaitable[HistoryPage[T]]],
    made: Callable[[list[T]], Awaitable[list[Item]]],
) -> tuple[list[Item], str | None]:
    """The items of a page of `ask`, which takes `limit` and `cursor`, converted by `made`; and the cursor of the next
    page. A few are read at a time, as they may be large before they are converted."""
    left, cursor = limit_in(query), cursor_in(query)
    items, size = list[Item](), 0
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
