"""Reads the form that a page posts, within the bounds of any other body: strangers can post one, too."""

from typing import Final
from urllib.parse import parse_qsl

from aiohttp import web

from relay.api.reading import read_body
from relay.pages.api_client import ApiProblem

MOST_BYTES: Final = 2 * 1024 * 1024
"""A message that is tried may be 1 MiB, and grows when a form has it."""
_MOST_FIELDS: Final = 2_000
_KIND: Final = "application/x-www-form-urlencoded"
_READ: Final[web.RequestKey[list[tuple[str, str]]]] = web.RequestKey("form", list[tuple[str, str]])


async def fields_of(request: web.Request) -> list[tuple[str, str]]:
    """Names and values, in their order. Raises ApiProblem for another kind of body, and the Problems of `read_body`."""
    known = request.get(_READ)
    if known is None:
        known = request[_READ] = _parsed(request.content_type, await read_body(request, MOST_BYTES))
    return known


def _parsed(kind: str, body: bytes) -> list[tuple[str, str]]:
    if not body:
        return []
    if kind != _KIND:
        raise ApiProblem(415, "form", "This is no form", f"A page posts {_KIND}.")
    try:
        return parse_qsl(body.decode(), keep_blank_values=True, errors="strict", max_num_fields=_MOST_FIELDS)
    except ValueError:
        raise ApiProblem(400, "form", "The form cannot be read", "Go back, load the page again, repeat it.") from None
