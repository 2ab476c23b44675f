"""Whom a message goes to: the same wherever that is asked."""

from collections.abc import Collection

from relay.domain.directory import Directory
from relay.domain.errors import InvalidRecord
from relay.domain.filters import FilterInput
from relay.domain.identity import OWN_SOURCE
from relay.domain.message import Message
from relay.domain.own_events import hearers_of
from relay.domain.receiver import Receiver


def recipients(directory: Directory, message: Message) -> tuple[str, ...]:
    """Names of the receivers that it names, or else of those that subscribe, and whose filters take it.

    Raises InvalidRecord where too many subscribe, and for what claims to be an event of our own and is none.
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


def may_name(receiver: Receiver, source_id: str) -> bool:
    """Whether messages of a source may name the receiver; else it is to them as if there were none."""
    if receiver.senders is None and (receiver.owner is None or not receiver.sources):
        return True
    patterns = receiver.sources if receiver.senders is None else receiver.senders
    return any(source_id.startswith(one[:-1]) if one.endswith("*") else source_id == one for one in patterns)


def may_have_none(directory: Directory, message: Message) -> bool:
    """Of a message without recipients: whether that is no failure. Some subscribe, and their filters leave it out; or
    it is an event of our own."""
    if message.source_id == OWN_SOURCE:
        return True
    try:
        return message.receivers is None and bool(directory.filtered(message.source_id, message.event_type))
    except InvalidRecord:
        return False  # too many subscribe


def _wants(directory: Directory, name: str, event: FilterInput) -> bool:
    receiver = directory.receiver(name)
    return receiver is None or receiver.filter is None or receiver.filter.takes(event)
