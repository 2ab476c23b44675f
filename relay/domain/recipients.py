"""Selects the receivers of a message: those that it names, or its subscribers.

A message may bring its own endpoint. An operator allows the origins of such endpoints. Each is a receiver in the shared
lane, whose limits count for the whole origin; only a message with an endpoint there may name it.
"""

import hashlib
import re
from collections.abc import Collection
from dataclasses import replace
from typing import Final

from relay.domain.directory import Directory
from relay.domain.errors import InvalidRecord
from relay.domain.filters import FilterInput
from relay.domain.identity import OWN_SOURCE
from relay.domain.message import Message
from relay.domain.one_off import OneOff
from relay.domain.own_events import hearers_of
from relay.domain.receiver import Endpoint, Receiver, SigningPolicy
from relay.domain.text import matches
from relay.domain.topics import SHARED
from relay.domain.urls import host_of, origin_of, same_origin


def recipients(directory: Directory, message: Message) -> tuple[str, ...]:
    """The receivers that the message names, or else the subscribers whose filters match.

    Raises InvalidRecord if too many subscribe, and for a forged event of the relay's own source.
    """
    if message.source_id == OWN_SOURCE:
        names = hearers_of(directory, message)
        filtered: Collection[str] = names
    elif message.receivers is not None:
        return message.receivers
    else:
        names = directory.subscribers(message.source_id, message.event_type)
        filtered = directory.filtered(message.source_id, message.event_type)
    if not filtered:
        return names
    event = FilterInput(message)
    return tuple(name for name in names if name not in filtered or _wants(directory, name, event))


def valid_recipients(directory: Directory, message: Message) -> tuple[str, ...]:
    """The recipients; none for a message that `recipients` rejects, which becomes a dead letter."""
    try:
        return recipients(directory, message)
    except InvalidRecord:
        return ()


def may_name(receiver: Receiver, message: Message) -> bool:
    """Whether the message may name the receiver; otherwise it is handled as if the receiver did not exist."""
    if receiver.is_origin or message.one_off is not None:
        return may_reach(receiver, message.one_off)
    if receiver.senders is None and (receiver.owner is None or not receiver.sources):
        return True
    patterns = receiver.sources if receiver.senders is None else receiver.senders
    return any(matches(pattern, message.source_id) for pattern in patterns)


def may_have_none(directory: Directory, message: Message) -> bool:
    """Whether a message may have no recipients without being a failure: each of its subscribers has a filter, or it is
    one of the relay's own events. Its payload does not matter."""
    if message.source_id == OWN_SOURCE:
        return True
    if message.receivers is not None:
        return False
    try:
        names = directory.subscribers(message.source_id, message.event_type)
        return bool(names) and len(directory.filtered(message.source_id, message.event_type)) == len(names)
    except InvalidRecord:
        return False  # too many subscribe


def _wants(directory: Directory, name: str, event: FilterInput) -> bool:
    receiver = directory.receiver(name)
    return receiver is None or receiver.filter is None or receiver.filter.takes(event)


# --- receivers of origins -------------------------------------------------------------------------------------------


_NOT_IN_A_NAME: Final = re.compile("[^a-z0-9]+")
_HOST_CHARS: Final = 40


def receiver_name(url: str) -> str:
    """The name of the receiver for the origin of this URL. Raises ValueError for an invalid URL."""
    host = _NOT_IN_A_NAME.sub("-", host_of(url).lower()).strip("-")[:_HOST_CHARS].strip("-")
    digest = hashlib.sha256(repr(origin_of(url)).encode()).hexdigest()[:8]
    return f"adhoc-{host}-{digest}"


def receiver_of(origin: str) -> Receiver:
    """The receiver for an origin. `senders` is empty: no message may name it without an endpoint."""
    post = Endpoint(origin, SigningPolicy(()))
    return Receiver(receiver_name(origin), post, ordering="none", lane=SHARED, senders=(), is_origin=True)


def may_reach(receiver: Receiver, one_off: OneOff | None) -> bool:
    """Whether a message with this endpoint is for this receiver, by their origins."""
    return receiver.is_origin and one_off is not None and same_origin(receiver.post.url, one_off.url)


def addressed(receiver: Receiver, one_off: OneOff, secret: str | None) -> Receiver:
    """The receiver for one message, with its endpoint and decrypted secret."""
    signing = receiver.post.signing if secret is None else SigningPolicy(secrets=(secret,))
    secrets = receiver.post.secrets if secret is None else (secret,)
    return replace(receiver, post=replace(receiver.post, url=one_off.url, signing=signing, secrets=secrets))
