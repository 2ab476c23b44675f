"""Receivers listed in the order of their names: page by page, of an owner, with a label, in a condition."""

from collections.abc import Sequence
from typing import Final, Literal, NamedTuple, TypedDict, get_args

from aiohttp import web

from relay.api.access import OWNERS, access_of, forbidden
from relay.api.context import ApiContext
from relay.api.json_body import json_response
from relay.api.paging import cursor_behind, key_behind, limit_in
from relay.api.problems import invalid
from relay.api.reading import query_of
from relay.api.receiver_shown import entry_of
from relay.api.receivers import Condition, condition
from relay.api.registrar import Registrar, Written
from relay.config.apply import API, FILE
from relay.config.shown import shown_url

_LOOKED_AT: Final = 2_000
"""Receivers that a request looks at, at most: it costs 0.2 ms of CPU each. A page may have fewer than it could, or
none, and say where to go on."""
_STEP: Final = 200
_STATES: Final = ("refused", *get_args(Condition))
_DECLARERS: Final = (FILE, API)


class ReceiverItem(TypedDict):
    """A receiver in a list. Null: a newer version wrote what this one cannot read."""

    name: str
    condition: Condition | Literal["refused"]
    declared_by: str | None
    owner: str | None
    labels: dict[str, str]
    post_endpoint: str | None
    lane: Literal["dedicated", "shared"] | None
    enabled: bool | None


class ReceiverPage(TypedDict):
    """`cursor`: of what follows; null: nothing does. A page may be short, or empty, and still have one."""

    items: list[ReceiverItem]
    cursor: str | None


class _Filter(NamedTuple):
    owner: str | None
    labels: Sequence[tuple[str, str | None]]
    """Name and value; a value of None: any."""
    declared_by: str | None
    states: frozenset[str]

    def takes(self, item: ReceiverItem) -> bool:
        """Judged by all but its condition."""
        labels = item["labels"]
        return (
            (self.owner is None or item["owner"] == self.owner)
            and (self.declared_by is None or item["declared_by"] == self.declared_by)
            and all(name in labels and value in (None, labels[name]) for name, value in self.labels)
        )


class ReceiverListResource:
    """`GET /v1/receivers`."""

    def __init__(self, context: ApiContext, registrar: Registrar) -> None:
        self._context = context
        self._registry = registrar.registry

    def add_routes(self, router: web.UrlDispatcher) -> None:
        router.add_get("/v1/receivers", self.page)

    async def page(self, request: web.Request) -> web.Response:
        """`{items, cursor}`: `cursor`, if any, is that of what follows. It is a place in the order of names, and
        good whatever comes and goes. Several `label` have to be met all, of several `state` one."""
        query = query_of(request, "owner", "label", "state", "declared_by", "limit", "cursor")
        wanted, limit = _filter(query), limit_in(query)
        owners, only = _owners(request, wanted.owner), access_of(request).only
        after, items, looked_at = key_behind(query), list[ReceiverItem](), 0
        while len(items) < limit and looked_at < _LOOKED_AT:
            names = self._names(after, _STEP, owners, only)
            for item in await self._items(names, wanted):
                items.append(item)
                if len(items) == limit:
                    after = item["name"]
                    break
            else:
                after = names[-1] if names else after
                looked_at += len(names)
                if len(names) < _STEP:
                    return _page(items, None)
        return _page(items, after if self._names(after, 1, owners, only) else None)

    def _names(self, after: str, most: int, owners: Sequence[str] | None, only: frozenset[str] | None) -> list[str]:
        """Only those of `owners`, and of these `only` those: a cursor tells a name."""
        if owners is None:
            return self._registry.names(after, most)
        if only is not None:
            return [each for each in sorted(only) if each > after and self._registry.owner_of(each) in owners][:most]
        return sorted({name for owner in owners for name in self._registry.names(after, most, owner)})[:most]

    async def _items(self, names: Sequence[str], wanted: _Filter) -> list[ReceiverItem]:
        items = [item for name in names if (item := self._item(name)) is not None and wanted.takes(item)]
        health = await self._context.state.endpoints([f"r:{item['name']}" for item in items]) if items else []
        for item, of in zip(items, health, strict=True):
            receiver = self._registry.receiver(item["name"])
            item["condition"] = "refused" if receiver is None else condition(of, receiver.post, receiver.verified)
        return [item for item in items if not wanted.states or item["condition"] in wanted.states]

    def _item(self, name: str) -> ReceiverItem | None:
        value = self._registry.record(name)
        if value is None:
            return None  # gone since its name was looked up
        declared_by, entry = entry_of(Written(name, value))
        return {
            "name": name,
            "condition": "refused",
            "declared_by": declared_by,
            "owner": None if entry is None else entry.owner,
            "labels": {} if entry is None else entry.labels,
            "post_endpoint": None if entry is None else shown_url(entry.post_endpoint),
            "lane": None if entry is None else entry.lane,
            "enabled": None if entry is None else entry.enabled,
        }


def _page(items: list[ReceiverItem], after: str | None) -> web.Response:
    cursor = None if after is None else cursor_behind(after)
    page: ReceiverPage = {"items": items, "cursor": cursor}
    return json_response(200, page)


def _filter(query: dict[str, list[str]]) -> _Filter:
    for state in query.get("state", []):
        if state not in _STATES:
            raise invalid(f"state is {state[:40]!r}; known: {', '.join(_STATES)}", parameter="state")
    for who in query.get("declared_by", []):
        if who not in _DECLARERS:
            raise invalid(f"declared_by is {who[:40]!r}; known: {', '.join(_DECLARERS)}", parameter="declared_by")
    labels = [text.partition("=") for text in query.get("label", [])]
    return _Filter(
        _one(query, "owner"),
        [(name, value if mark else None) for name, mark, value in labels],
        _one(query, "declared_by"),
        frozenset(query.get("state", [])),
    )


def _owners(request: web.Request, asked: str | None) -> Sequence[str] | None:
    """Whose receivers are listed; None: everybody's. Raises a Problem."""
    access = access_of(request)
    if asked is not None and not access.may("owner", asked):
        raise forbidden(OWNERS)
    if asked is not None:
        return [asked]
    return None if access.may("admin") else sorted(access.owners)


def _one(query: dict[str, list[str]], name: str) -> str | None:
    return query[name][-1] if name in query else None
