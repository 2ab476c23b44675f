"""What of the history a caller may see: all, what is about sources that they may read, or about their receivers."""

from typing import Final, NamedTuple

from aiohttp import web

from relay.api.access import OWNERS, READ, access_of, check_own, forbidden, may_read, may_see
from relay.api.context import ApiContext
from relay.api.message import unseen
from relay.api.problems import invalid
from relay.api.status import KnownMessage, StatusReader
from relay.domain.identity import MessageId
from relay.history.port import HistoryReader, MessageFound, Visible

MOST_OWNED: Final = 10_000
"""Receivers that one look may be about."""


class Seen(NamedTuple):
    """A message that the caller may see something of, as state and log know it, and as the history does. `receivers`
    None: all of it; else its deliveries to these."""

    known: KnownMessage | None
    found: MessageFound | None
    receivers: list[str] | None


class Sight:
    """Judges what may be seen. `history` None: there is none to look at."""

    def __init__(self, context: ApiContext, reader: StatusReader, history: HistoryReader | None) -> None:
        self._registrar = context.registrar
        self._reader = reader
        self._history = history

    def visible(self, request: web.Request, receiver: str | None = None, owner: str | None = None) -> Visible:
        """Of a list that may be narrowed to a receiver, or to those of an owner. Raises a Problem where what it is
        narrowed to is none of the caller's business."""
        access = access_of(request)
        if owner is not None:
            if not access.may("owner", owner):
                raise forbidden(OWNERS)
            names = self._owned([owner], access.only)
            return Visible((), names if receiver is None else names & {receiver})
        if access.may("admin"):
            return Visible()
        sources = access.named("read")
        if receiver is None:
            return Visible(sources, access.named("receiver") | self._owned(sorted(access.owners), access.only))
        if not sources:
            check_own(request, [receiver])
        return Visible(sources, {receiver} if may_see(request, [receiver]) else ())

    def of_senders(self, request: web.Request, visible: Visible) -> Visible:
        """The part of it that is judged by headers of the sender's, which receivers may not get. Raises a Problem."""
        access = access_of(request)
        if access.may("admin"):
            return visible
        if not access.has_some("read"):
            raise forbidden(READ)
        return Visible(visible.sources, ())

    async def of_message(self, request: web.Request, identity: MessageId) -> Seen:
        """Raises a Problem: the same whether or not there is what the caller may not see."""
        known = await self._reader.find(identity)
        found = None if self._history is None else await self._history.message(identity)
        whole = may_read(request, identity.source_id)
        own = [] if whole else [name for name in self._names(known, found) if may_see(request, [name])]
        if (known or found) is not None and (whole or own):
            return Seen(known, found, None if whole else own)
        raise await unseen(self._reader, identity, whole=whole)

    def _names(self, known: KnownMessage | None, found: MessageFound | None) -> list[str]:
        routed = [] if known is None else [delivery.receiver for delivery in self._reader.deliveries(known)]
        ended = [] if found is None else [delivery.receiver for delivery in found.deliveries]
        return sorted({*routed, *ended})

    def _owned(self, owners: list[str], only: frozenset[str] | None) -> frozenset[str]:
        """Receivers of these owners, and of them `only` those."""
        if self._registrar is None:
            return frozenset()
        registry, found = self._registrar.registry, set[str]()
        for owner in owners:
            found.update(registry.names("", MOST_OWNED + 1, owner))
        if len(found) > MOST_OWNED:
            detail = f"this is about more than {MOST_OWNED} receivers: name one with receiver"
            raise invalid(detail, parameter="receiver")
        return frozenset(found if only is None else found & only)
