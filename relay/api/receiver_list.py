"""Receivers listed in the order of their names: page by page, of an owner, with a label, in a condition."""

import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Annotated, Final, Literal, NamedTuple

from aiohttp import web

from relay.api.access import OWN, OWNERS, access_of, forbidden
from relay.api.context import ApiContext
from relay.api.paging import cursor_behind
from relay.api.parameter import PageCursor, PageLimit, Parameter
from relay.api.problems import invalid
from relay.api.receivers import condition_of, health_view, waited_s
from relay.api.registrar import Written
from relay.api.registration import entry_of
from relay.api.route import Example, route
from relay.api.stats import traffic_of
from relay.config.redacted_entry import shown_url
from relay.control.patch import RECEIVER
from relay.schema.receivers import Condition, ReceiverItem, ReceiverPage
from relay.schema.statistics import HealthView
from relay.state.port import EndpointHealth

_LOOKED_AT: Final = 2_000
"""Receivers that a request looks at, at most: it costs 0.2 ms of CPU each. A page may have fewer than it could, or
none, and say where to go on."""
_STEP: Final = 200
_PREFIX: Final = re.compile("[a-z0-9-]{0,63}")
_UNKNOWN: Final[HealthView] = {
    "state": "unknown",
    "success_rate": None,
    "attempts": 0,
    "last_error": None,
    "oldest_waiting_s": None,
}
_Found = tuple[ReceiverItem, EndpointHealth]
_Names = Callable[[str, int], Sequence[str]]
"""Names after one, in their order, and at most so many."""


def _label(text: str) -> tuple[str, str | None]:
    name, mark, value = text.partition("=")
    return name, value if mark else None


def _prefix(text: str) -> str:
    if not _PREFIX.fullmatch(text):
        raise invalid(f"prefix is {text[:80]!r}; names consist of a-z, 0-9 and -", parameter="prefix")
    return text


_LABEL: Final = Parameter(
    "label",
    list[str],
    "Only receivers with this label: `name`, or `name=value`. Several must all match.",
    parse=_label,
)


class _Filter(NamedTuple):
    owner: Annotated[str | None, "Only receivers of this owner."]
    label: Annotated[Sequence[tuple[str, str | None]], _LABEL]
    """Name and value; a value of None: any."""
    state: Annotated[
        list[Condition | Literal["refused"]], "Only receivers in this condition. One of several must match."
    ]
    declared_by: Annotated[Literal["file", "api"] | None, "Only those declared there."]
    prefix: Annotated[str, Parameter("prefix", str, "Only names with this prefix.", parse=_prefix, default="")]
    lane: Annotated[Literal["dedicated", "shared"] | None, "Only receivers in such a lane."]

    def takes(self, item: ReceiverItem) -> bool:
        """Judged by all but its condition."""
        labels = item["labels"]
        return (
            item["name"].startswith(self.prefix)
            and self.owner in (None, item["owner"])
            and self.lane in (None, item["lane"])
            and self.declared_by in (None, item["declared_by"])
            and all(name in labels and value in (None, labels[name]) for name, value in self.label)
        )


class ReceiverListResource:
    """`GET /v1/receivers`."""

    noun = "receivers"

    def __init__(self, context: ApiContext) -> None:
        self._context = context
        self._registry = context.registry

    @route(
        "GET",
        "/v1/receivers",
        scope=OWN,
        answer="A page, sorted by name.",
        example=Example(200, query={"declared_by": "api", "limit": "10"}),
    )
    async def list_receivers(
        self,
        request: web.Request,
        wanted: _Filter,
        traffic: Annotated[bool, "Include the attempts of a day, and the waiting messages."],
        limit: PageLimit,
        cursor: PageCursor,
    ) -> ReceiverPage:
        """List receivers.

        With the key of an owner or of receivers, only its own.
        """
        found, after = await self._found(wanted, limit, cursor, self._names_of(request, wanted.owner))
        items = [item for item, _ in found]
        owners_of = [f"r:{item['name']}" for item in items]
        statistics = await self._context.state.statistics(owners_of) if items else []
        waiting, now = await self._context.state.waiting() if items else {}, self._context.clock.time()
        for (item, endpoint), owner, counts in zip(found, owners_of, statistics, strict=True):
            item["health"] = health_view(counts, endpoint, item["condition"], waited_s(waiting, owner, now))
        if traffic:
            receivers = {each["name"]: self._registry.receiver(each["name"]) for each in items}
            traffic_by_name = await traffic_of(self._context, receivers, statistics)
            for item in items:
                item["traffic"] = traffic_by_name[item["name"]]
        return {"items": items, "cursor": None if after is None else cursor_behind(after)}

    async def _found(
        self, wanted: _Filter, limit: int, after: str, names_of: _Names
    ) -> tuple[list[_Found], str | None]:
        """The receivers after the name `after`, and the name after which others may follow; None if none do."""
        after, items, looked_at = max(after, _before(wanted.prefix)), list[_Found](), 0
        step = min(limit, _STEP)  # as many as are enough if no filter drops one
        while len(items) < limit and looked_at < _LOOKED_AT:
            names = names_of(after, step)
            for item in await self._items(names, wanted):
                items.append(item)
                if len(items) == limit:
                    after = item[0]["name"]
                    break
            else:
                after = names[-1] if names else after
                looked_at += len(names)
                if len(names) < step or not after.startswith(wanted.prefix):
                    return items, None
                step = _STEP
        return items, after if names_of(after, 1) else None

    def _names_of(self, request: web.Request, asked: str | None) -> _Names:
        """Of the receivers that the caller may see, because a cursor reveals a name. `asked`: of this owner alone.
        Raises a Problem."""
        access, registry = access_of(request), self._registry
        if asked is not None and not access.may("owner", asked):
            raise forbidden(OWNERS)
        if asked is None and access.may("admin"):
            return registry.names
        owners = access.owners if asked is None else frozenset({asked})
        named = access.named("receiver") if asked is None else frozenset[str]()

        def names(after: str, most: int) -> list[str]:
            known = {name for name in named if name > after and registry.record(name) is not None}
            if access.only is None:
                known |= {name for owner in owners for name in registry.names(after, most, owner)}
            else:
                known |= {name for name in access.only if name > after and registry.owner_of(name) in owners}
            return sorted(known)[:most]

        return names

    async def _items(self, names: Sequence[str], wanted: _Filter) -> list[_Found]:
        items = [item for name in names if (item := self._item(name)) is not None and wanted.takes(item)]
        health = await self._context.state.endpoints([f"r:{item['name']}" for item in items]) if items else []
        for item, of in zip(items, health, strict=True):
            item["condition"] = condition_of(self._registry.receiver(item["name"]), of)
            item["breaker"] = of.breaker
        found = zip(items, health, strict=True)
        return [(item, of) for item, of in found if not wanted.state or item["condition"] in wanted.state]

    def _item(self, name: str) -> ReceiverItem | None:
        value = self._registry.record(name)
        if value is None:
            return None  # gone since its name was looked up
        item = _item_of(name, value)
        return {**item, "lane": item["lane"] and (self._registry.route(name).lane or item["lane"])}


@lru_cache(maxsize=_LOOKED_AT)
def _item_of(name: str, value: bytes) -> ReceiverItem:
    """Without its condition: the validation of an entry takes most of the time of a list."""
    declared_by, entry = entry_of(Written(name, value), RECEIVER)
    return {
        "name": name,
        "condition": "refused",
        "health": _UNKNOWN,
        "declared_by": declared_by,
        "owner": None if entry is None else entry.owner,
        "labels": {} if entry is None else entry.labels,
        "post_endpoint": None if entry is None else shown_url(entry.post_endpoint),
        "lane": None if entry is None else entry.lane,
        "enabled": None if entry is None else entry.enabled,
        "breaker": None,
    }


def _before(prefix: str) -> str:
    """A text before all names that begin so, and behind most that do not: names have no control characters."""
    return prefix[:-1] + chr(ord(prefix[-1]) - 1) + "\x7f" if prefix else ""
