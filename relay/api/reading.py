"""Ids in the path, the query and headers of a request, read strictly: mistakes are Problems."""

from typing import Final
from urllib.parse import parse_qsl, quote, unquote_to_bytes

from aiohttp import web

from relay.api.problems import invalid
from relay.domain.errors import InvalidRecord
from relay.domain.identity import MessageId, check_id
from relay.domain.message import MAX_RECEIVERS

_SOURCE_AT, _MESSAGE_AT = 3, 5  # segments of /v1/sources/{source_id}/messages/{message_id}
_MOST_FIELDS: Final = MAX_RECEIVERS + 10


def message_location(identity: MessageId) -> str:
    """The path of a message, ids percent-encoded."""
    source_id, message_id = (quote(part, safe="") for part in identity)
    return f"/v1/sources/{source_id}/messages/{message_id}"


def source_location(source_id: str) -> str:
    """The path of a source, its id percent-encoded."""
    return f"/v1/sources/{quote(source_id, safe='')}"


def source_in_path(request: web.Request) -> str:
    return _id_in_path(request, _SOURCE_AT, "source_id")


def message_in_path(request: web.Request) -> MessageId:
    return MessageId(source_in_path(request), _id_in_path(request, _MESSAGE_AT, "message_id"))


def _id_in_path(request: web.Request, segment: int, name: str) -> str:
    """From the raw path: the router's own values hide which escapes were no UTF-8."""
    text = percent_decoded(request.rel_url.raw_path.split("/")[segment])
    try:
        return check_id("" if text is None else text, f"{name} in the path")
    except InvalidRecord as error:
        detail = error.detail if text is not None else f"{name} in the path is not valid UTF-8"
        raise invalid(detail, path=name) from None


def percent_decoded(text: str) -> str | None:
    """`text` decoded once; None if the result is not UTF-8. A stray percent sign is kept."""
    if text.isascii() and "%" not in text:
        return text
    try:
        return unquote_to_bytes(text.encode(errors="surrogateescape")).decode()
    except UnicodeDecodeError:
        return None


def query_of(request: web.Request, *known: str) -> dict[str, list[str]]:
    """Values by parameter. One that is not `known` is refused: with `?reciever=` a message would go to others."""
    text = request.rel_url.raw_query_string
    try:
        text.encode()  # raw bytes that were no UTF-8 are lone surrogates here
        pairs = parse_qsl(text, keep_blank_values=True, errors="strict", max_num_fields=_MOST_FIELDS)
    except UnicodeError:
        raise invalid("the query is not valid UTF-8") from None
    except ValueError:
        raise invalid(f"the query has more than {_MOST_FIELDS} parameters") from None
    values: dict[str, list[str]] = {}
    for name, value in pairs:
        if name not in known:
            names = ", ".join(known) or "none"
            raise invalid(f"unknown query parameter {name[:80]!r}; known: {names}", parameter=name[:80])
        values.setdefault(name, []).append(value)
    return values


def attributes(request: web.Request, name: str) -> list[str]:
    """The values of a header whose text is percent-encoded (CloudEvents HTTP binding, 3.1.3.2)."""
    given = request.headers.getall(name, ())
    if not given:
        return []
    values = [percent_decoded(value) for value in given]
    if None in values:
        raise invalid(f"header {name} is not valid UTF-8", header=name)
    return [value for value in values if value is not None]


def plain_header(request: web.Request, name: str) -> str | None:
    """The value of a header as it was sent."""
    value = request.headers.get(name)
    if value is not None and not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            raise invalid(f"header {name} is not valid UTF-8", header=name) from None
    return value
