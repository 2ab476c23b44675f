"""What is said of a route: the words of the tables, one per noun, that the document is made of."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, Literal

from msgspec import Meta

from relay.api.paging import MOST, NewestFirstPages
from relay.api.problems import ProblemKind
from relay.domain.identity import MAX_ID_BYTES

JSON: Final = "application/json"
Place = Literal["path", "query", "header"]

SourceId = Annotated[str, Meta(min_length=1, max_length=MAX_ID_BYTES, pattern=r"^[^\x00-\x1f\x7f-\x9f]+$")]
"""Bytes of UTF-8 are counted, not characters: JSON Schema has no word for that."""
MessageIdText = SourceId
ReceiverName = Annotated[str, Meta(pattern="^[a-z0-9][a-z0-9-]{0,62}$")]
Limit = Annotated[int, Meta(ge=1, le=MOST)]


@dataclass(frozen=True, slots=True)
class Parameter:
    """`of`: the type of its value; a list: it may come several times. One in the path is always required."""

    name: str
    place: Place
    of: Any
    description: str
    required: bool = False


@dataclass(frozen=True, slots=True)
class Body:
    """What a request, or an answer, has in its body: the type of it by media type; one of several where it is a
    tuple. None: any bytes."""

    content: Mapping[str, Any]
    required: bool = True
    items: Mapping[str, Any] = field(default_factory=dict)
    """Of media types that are a list of documents: the type of one."""


@dataclass(frozen=True, slots=True)
class DocumentedResponse:
    """An answer that is no problem. `headers`: name to what it says."""

    status: int
    description: str
    body: Body | None = None
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Example:
    """A request that a test sends, in a relay that knows what it is about: see tests/integration/api_world.py. `body`:
    a JSON value, or text as it is sent with `content_type`. `status`: of its answer."""

    status: int
    path: Mapping[str, str] = field(default_factory=dict)
    query: Mapping[str, str] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    body: Any = None
    content_type: str = JSON


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """A route. `path`: its template, as the router has it. `id`: unique. `noun`: what it is listed under. `problems`:
    those that are its own; what any request may be answered with is added, and who may ask is in `access`."""

    method: str
    path: str
    id: str
    noun: str
    summary: str
    description: str = ""
    parameters: tuple[Parameter, ...] = ()
    body: Body | None = None
    answers: tuple[DocumentedResponse, ...]
    problems: tuple[ProblemKind, ...] = ()
    example: Example


def cursor_of(pages: NewestFirstPages) -> Parameter:
    cursor = Annotated[str, Meta(pattern=f"^{pages.cursor.pattern}$")]
    return Parameter("cursor", "query", cursor, "Of the page before: what follows it.")


def json_of(kind: Any, *, required: bool = True) -> Body:
    """A body of JSON that is of `kind`."""
    return Body({JSON: kind}, required)


SOURCE: Final = Parameter("source_id", "path", SourceId, "The application that messages come from.")
MESSAGE: Final = Parameter("message_id", "path", MessageIdText, "The message's id, unique in its source.")
RECEIVER: Final = Parameter("receiver", "path", ReceiverName, "The receiver's name.")
