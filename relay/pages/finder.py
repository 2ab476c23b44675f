"""The search box of all pages: finds a message, receiver, source or replay by an id or a name."""

import asyncio
from collections.abc import Sequence
from typing import Final, NamedTuple

from aiohttp import web

from relay.client import ApiError
from relay.client.http import path
from relay.pages.page import get
from relay.pages.visit import Visit, own_url, see
from relay.schema.messages import MessageItem

_MOST: Final = 10
"""Matches of each kind that are listed."""
_OUR_PAGE: Final = "/ui/"


class Match(NamedTuple):
    """Something that was found. `kind`: in words; `exact`: its whole id or name was given."""

    kind: str
    name: str
    detail: str
    href: str
    exact: bool = True


@get("/find")
async def find(visit: Visit) -> web.StreamResponse:
    text = visit.request.query.get("q", "").strip()
    if (own := own_url(text)) != _OUR_PAGE:
        return see(own)
    found = await _all(visit, text) if text else []
    exact = [each for each in found if each.exact]
    if len(exact) == 1 or len(found) == 1:
        return see((exact or found)[0].href)
    return visit.show("messages_found.html", text=text, found=exact or found, most=_MOST)


async def _all(visit: Visit, text: str) -> Sequence[Match]:
    found = await asyncio.gather(*(find(visit, text) for find in (_messages, _pair, _receivers, _source, _replay)))
    unique = {match.href: match for part in found for match in part}
    return list(unique.values())


async def _messages(visit: Visit, text: str) -> Sequence[Match]:
    """Messages whose id, or webhook id, has this prefix, from the history."""
    page = await visit.load_list(visit.api.messages.page(id=text, limit=_MOST))
    found = [_message(item, text) for item in page.items]
    if len(found) < _MOST or any(match.exact for match in found):
        return found
    # these are the newest: an older one of their sources may have the id itself
    sources = sorted({item["source_id"] for item in page.items})
    return [*found, *filter(None, await asyncio.gather(*(_one(visit, source, text) for source in sources)))]


async def _one(visit: Visit, source: str, id: str) -> Match | None:
    known = not isinstance(await visit.result(visit.api.messages.get(source, id)), ApiError)
    return Match("message", id, f"of {source}", path("/ui/messages/{}/{}", source, id)) if known else None


def _message(item: MessageItem, text: str) -> Match:
    detail = f"of {item['source_id']}" + (f", {item['type']}" if item["type"] else "")
    href = path("/ui/messages/{}/{}", item["source_id"], item["message_id"])
    return Match("message", item["message_id"], detail, href, text in (item["message_id"], item["webhook_id"]))


async def _pair(visit: Visit, text: str) -> Sequence[Match]:
    """A source and a message id with a space or a slash between them: found without a history."""
    for mark in (" ", "/"):
        source, _, id = (part.strip() for part in text.partition(mark))
        if source and id and (found := await _one(visit, source, id)):
            return [found]
    return []


async def _receivers(visit: Visit, text: str) -> Sequence[Match]:
    page = await visit.load_list(visit.api.receivers.page(prefix=text, limit=_MOST))
    urls = {each["name"]: each["post_endpoint"] or "" for each in page.items}
    return [Match("receiver", name, url, path("/ui/receivers/{}", name), name == text) for name, url in urls.items()]


async def _source(visit: Visit, text: str) -> Sequence[Match]:
    """A source with an entry, or else one with messages."""
    if not isinstance(await visit.result(visit.api.sources.get(text)), ApiError):
        return [Match("source", text, "", path("/ui/sources/{}", text))]
    page = await visit.load_list(visit.api.messages.page(source=text, limit=1))
    known = any(item["source_id"] == text for item in page.items)
    return [Match("source", text, "", path("/ui/messages?source={}", text))] if known else []


async def _replay(visit: Visit, text: str) -> Sequence[Match]:
    found = await visit.result(visit.api.replays.get(text))
    return [] if isinstance(found, ApiError) else [Match("replay", text, found["state"], path("/ui/replays/{}", text))]
