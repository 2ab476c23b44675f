"""Selects the receivers of a message: those that it names, or its subscribers."""

from collections.abc import Collection

from relay.domain.directory import Directory
from relay.domain.errors import InvalidRecord
from relay.domain.filters import FilterInput
from relay.domain.identity import OWN_SOURCE
from relay.domain.message import Message
from relay.domain.origin_receiver import may_reach
from relay.domain.own_events import hearers_of
from relay.domain.receiver import Receiver
from relay.domain.text import matches


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
