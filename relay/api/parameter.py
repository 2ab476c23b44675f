"""Parameters of the API's routes: their types, how their values are read from a request, and those that many have."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin

from aiohttp import web
from msgspec import Meta

from relay.api.paging import MOST, USUAL, NewestFirstPages, key_behind, limit_in
from relay.api.problems import invalid
from relay.api.reading import source_in_path
from relay.domain.errors import InvalidRecord
from relay.domain.identity import MAX_ID_BYTES, check_id, is_receiver_name

Place = Literal["path", "query", "header"]
SourceId = Annotated[str, Meta(min_length=1, max_length=MAX_ID_BYTES, pattern=r"^[^\x00-\x1f\x7f-\x9f]+$")]
"""A source_id. Its length is limited in bytes of UTF-8, which JSON Schema cannot express."""
MessageIdText = SourceId
ReceiverName = Annotated[str, Meta(pattern="^[a-z0-9][a-z0-9-]{0,62}$")]
Limit = Annotated[int, Meta(ge=1, le=MOST)]
Partition = Annotated[int, Meta(ge=0, le=999_999_999)]
Offset = Annotated[int, Meta(ge=0, lt=10**18)]
ETag = Annotated[str, Meta(pattern=r'^(\*|"[^"]*")$')]
Query = Mapping[str, list[str]]


@dataclass(frozen=True, slots=True)
class Parameter:
    """`of`: the type of its value; if it is a list, the parameter may be repeated; of others the last counts. One in
    the path is required. `parse`: decodes a text of the query, by default as `of` says; raises ValueError with the
    mistake, as `which is no number`, or a Problem. `default`: the value if the query lacks it. `sample`: of one in the
    path, its value in examples."""

    name: str
    of: Any
    description: str
    place: Place = "query"
    parse: Callable[[str], Any] | None = field(default=None, compare=False)
    default: Any = None
    sample: str = ""

    def value(self, request: web.Request, query: Query) -> Any:
        """The value of the parameter. Raises a Problem."""
        if self.place == "path":
            return self._in_path(request)
        texts = query.get(self.name, [])
        if get_origin(self.of) is list:
            return [self._parsed(text, get_args(self.of)[0]) for text in texts]
        return self._parsed(texts[-1], self.of) if texts else self.default

    def _parsed(self, text: str, of: Any) -> Any:
        parse = self.parse or _PARSERS.get(of)
        if parse is not None:
            try:
                return parse(text)
            except ValueError as error:
                raise invalid(f"{self.name} is {text[:80]!r}, {error}", parameter=self.name) from None
        if of is bool:
            return self._flag(text)
        known = _words_of(of)
        if known and text not in known:
            raise invalid(f"{self.name} is {text[:40]!r}; known: {', '.join(known)}", parameter=self.name)
        return text

    def _flag(self, text: str) -> bool:
        if text not in ("true", "false"):
            raise invalid(f"{self.name} is {text[:20]!r}; true and false are allowed", parameter=self.name)
        return text == "true"

    def _in_path(self, request: web.Request) -> str | int:
        if self.name == "source_id":
            return source_in_path(request)
        text = request.match_info[self.name]
        return int(text) if self.of in (Partition, Offset) else text


def _words_of(kind: Any) -> Sequence[str]:
    """The words of a Literal, or of a union of some; none of another type."""
    if get_origin(kind) is Union:
        return [word for each in get_args(kind) for word in _words_of(each)]
    return get_args(kind) if get_origin(kind) is Literal else ()


IN_PATHS: Final = {
    each.name: each
    for each in (
        Parameter("source_id", SourceId, "Id of the source.", "path", sample="github"),
        Parameter("message_id", MessageIdText, "Id of the message, unique in its source.", "path", sample="sent-1"),
        Parameter("receiver", ReceiverName, "Name of the receiver.", "path", sample="ci"),
        Parameter("name", ReceiverName, "Name of the receiver.", "path", sample="ci"),
        Parameter(
            "type", Annotated[str, Meta(min_length=1)], "Name of the event type.", "path", sample="build.finished"
        ),
        Parameter("offset", Offset, "Offset in that partition.", "path", sample="0"),
        Parameter("token", str, "The token of the URL, unchanged.", "path"),
    )
}
"""The parameters of paths that mean the same in each."""


def id_of(what: str, pattern: str, sample: str) -> Parameter:
    """The id in the path of something."""
    return Parameter("id", Annotated[str, Meta(pattern=f"^{pattern}$")], f"Id of the {what}.", "path", sample=sample)


def cursor_of(pages: NewestFirstPages) -> Parameter:
    cursor = Annotated[str, Meta(pattern=f"^{pages.cursor.pattern}$")]
    return Parameter("cursor", cursor, "`cursor` of the previous page, to continue after it.", parse=pages.behind)


LIMIT: Final = Parameter("limit", Limit, "Maximum number of items. Default: 50.", parse=limit_in, default=USUAL)
CURSOR: Final = Parameter(
    "cursor", str, "`cursor` of the previous page, to continue after it.", parse=key_behind, default=""
)
"""The cursor of a sorted list: the key after which the page begins, empty for the first page."""
PageLimit = Annotated[int, LIMIT]
PageCursor = Annotated[str, CURSOR]


def id_in(text: str) -> str:
    """Raises ValueError."""
    try:
        return check_id(text, "it")
    except InvalidRecord as error:
        raise ValueError(f"which cannot be: {error.detail}") from None


def receiver_name_in(text: str) -> str:
    """Raises ValueError."""
    if not is_receiver_name(text):
        raise ValueError("which is not a receiver name")
    return text


_PARSERS: Final[Mapping[Any, Callable[[str], Any]]] = {SourceId: id_in, ReceiverName: receiver_name_in}
"""By the type of a parameter."""
