"""The part of the history that a caller may see: all of it, or that of its sources and receivers."""

from collections.abc import Collection
from dataclasses import replace
from typing import Final, Literal, NamedTuple

from aiohttp import web

from relay.api.access import OWNERS, READ, access_of, check_own, forbidden, life_of, may_read, may_see, may_see_of
from relay.api.context import ApiContext
from relay.api.history.shapes import ListedMessage, message_item, of_receiver
from relay.api.messages import unseen
from relay.api.problems import invalid
from relay.api.status import StatusReader
from relay.api.view import KnownMessage
from relay.domain.coordinate import Coordinate
from relay.domain.directory import Directory
from relay.domain.identity import MessageId
from relay.domain.receiver import Life
from relay.history.port import MessageFound, Visible
from relay.schema.messages import MessageItem

MOST_OWNED: Final = 10_000
"""Receivers of one query, at most."""


KeptFrom = Literal["encrypted", "withheld"]


class VisibleMessage(NamedTuple):
    """A message that the caller may see, from state and log, and from the history. `receivers`: None if the caller may
    see all of it; otherwise its deliveries to these, within the current lives of their names. `erased`: the payload,
    for what the caller may see."""

    known: KnownMessage | None
    found: MessageFound | None
    receivers: list[str] | None
    erased: bool = False


class Visibility:
    """Decides which data a caller may see."""

    def __init__(self, context: ApiContext, reader: StatusReader) -> None:
        self._registry = context.registry
        self._directory = context.directory
        self._is_erased = context.is_erased
        self._reader = reader
        self._history = context.history

    def visible(self, request: web.Request, receiver: str | None = None, owner: str | None = None) -> Visible:
        """The visible part of a list, which may be limited to a receiver, or to those of an owner. Raises a Problem if
        the caller may not see these at all."""
        access = access_of(request)
        if owner is not None:
            if not access.may("owner", owner):
                raise forbidden(OWNERS)
            names = self._owned([owner], access.only)
            return self.of_receivers(request, names if receiver is None else names & {receiver})
        if access.may("admin"):
            return Visible()
        sources = access.named("read")
        if receiver is None:
            names = access.named("receiver") | self._owned(sorted(access.owners), access.only)
            return self.of_receivers(request, names, sources)
        if not sources:
            check_own(request, [receiver])
        return self.of_receivers(request, {receiver} if may_see(request, [receiver]) else (), sources)

    def of_receivers(
        self, request: web.Request, names: Collection[str], sources: Collection[str] = frozenset()
    ) -> Visible:
        """Data about these sources, and about these receivers in the current lives of their names."""
        lives = {name: self._life(request, name) for name in names}
        return Visible(sources, names, {name: life for name, life in lives.items() if life.id})

    def _life(self, request: web.Request, name: str) -> Life:
        """The current life of a name. Declared receivers are not resolved for it: there may be thousands."""
        if self._registry.is_declared(name):
            return self._registry.life_of(name)
        return life_of(request, name)

    def of_senders(self, request: web.Request, visible: Visible) -> Visible:
        """The part of it that may be searched by the sender's headers, which receivers may not see. Raises a
        Problem."""
        access = access_of(request)
        if access.may("admin"):
            return visible
        if not access.has_some("read"):
            raise forbidden(READ)
        return Visible(visible.sources, ())

    def of_payloads(self, visible: Visible) -> Visible:
        """The part of it that may be searched by payloads: a search would reveal those that are kept from receivers."""
        if visible == Visible():
            return visible
        names = [name for name in visible.receivers or () if kept_from(self._directory, name) is None]
        return replace(visible, receivers=names)

    async def of_message(self, request: web.Request, identity: MessageId) -> VisibleMessage:
        """Raises a Problem, which is the same for a message that does not exist and one that the caller may not see."""
        known = await self._reader.find(identity)
        found = None if self._history is None else await self._history.message(identity)
        whole = may_read(request, identity.source_id)
        deliveries = self._deliveries(known, found)
        own = sorted({name for name, life, at in deliveries if may_see_of(request, name, life, at)})
        if (known or found) is not None and (whole or own):
            names = {name for name, *_ in deliveries} if whole else own
            erased = self._is_erased(identity, names, received_at(known, found))
            return VisibleMessage(known, found, None if whole else own, erased)
        raise await unseen(self._reader, identity, whole=whole)

    def _deliveries(
        self, known: KnownMessage | None, found: MessageFound | None
    ) -> list[tuple[str, str, Coordinate | None]]:
        """The message's receivers, with the life of each name and the message's place."""
        routed = [] if known is None else [(each.receiver, "", known.at) for each in self._reader.deliveries(known)]
        ended = [] if found is None else [(each.receiver, each.life, found.arrival.at) for each in found.deliveries]
        return [*routed, *ended]

    def _owned(self, owners: list[str], only: frozenset[str] | None) -> frozenset[str]:
        """Receivers of these owners; with `only`, those that are in it."""
        found = {name for owner in owners for name in self._registry.names("", MOST_OWNED + 1, owner)}
        if len(found) > MOST_OWNED:
            detail = f"this is about more than {MOST_OWNED} receivers: name one with receiver"
            raise invalid(detail, parameter="receiver")
        return frozenset(found if only is None else found & only)


def kept_from(directory: Directory, name: str | None) -> KeptFrom | None:
    """Why a caller with rights only on this receiver may not see plain payloads; None if it may."""
    receiver = directory.receiver(name or "")
    if receiver is not None and receiver.encrypt is not None:
        return "encrypted"
    return "withheld" if receiver is not None and receiver.payload == "metadata" else None


def received_at(known: KnownMessage | None, found: MessageFound | None) -> float:
    """When the message was received (Unix seconds)."""
    if known is not None and known.received_at is not None:
        return known.received_at
    return 0.0 if found is None else found.arrival.received_at


def seen_message(request: web.Request, found: ListedMessage, directory: Directory) -> MessageItem | None:
    """The message as the caller may see it; None if they may see nothing of it. Decided by the message itself, not by
    the query."""
    if may_read(request, found.arrival.message.source_id):
        return message_item(found.arrival, found.deliveries, found.without)
    at, deliveries = found.arrival.at, found.deliveries
    own = [of_receiver(each) for each in deliveries if may_see_of(request, each.found.receiver, each.found.life, at)]
    if not own:
        return None
    item = message_item(found.arrival, own)
    if all(kept_from(directory, each.found.receiver) for each in own):
        item["preview"] = None
    return item
