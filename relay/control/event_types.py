"""The catalogue of event types that this process has read from `receiver_config`."""

import logging
from collections.abc import Collection, Mapping
from typing import Final

from relay.control.records import ControlWriter
from relay.domain.control_key import ControlKey, decode_value, encode_value
from relay.domain.errors import InvalidRecord, RelayError
from relay.domain.event_type import MOST_TYPES, EventTypeEntry, PayloadFault, payload_fault
from relay.log.port import Record

_log: Final = logging.getLogger(__name__)


class TooManyTypes(RelayError):
    """The catalogue has as many types as it may have."""


class EventTypeIndex:
    """Event types by name."""

    def __init__(self) -> None:
        self._known: dict[str, EventTypeEntry] = {}

    def take(self, key: ControlKey, record: Record) -> None:
        """Take a record of the kind `event-type`."""
        self._known.pop(key.id, None)
        if record.value is None:
            return
        try:
            self._known[key.id] = decode_value(EventTypeEntry, record.value)
        except InvalidRecord as error:
            _log.warning("event_type_unreadable", extra={"at": str(record.coordinate), "problem": error.detail})

    def keep_only(self, names: Collection[str]) -> None:
        """The topic has only these: tombstones of the others may be compacted away."""
        for name in self._known.keys() - names:
            del self._known[name]

    def get(self, name: str) -> EventTypeEntry | None:
        return self._known.get(name)

    def all(self) -> Mapping[str, EventTypeEntry]:
        """All types by name; live."""
        return self._known

    def names(self) -> list[str]:
        """All names, in order."""
        return sorted(self._known)

    def fault(self, event_type: str | None, payload: bytes) -> PayloadFault | None:
        """Why the payload is not valid by its type's schemas; None if it is, or the type is not in the catalogue."""
        entry = None if event_type is None else self._known.get(event_type)
        return None if entry is None else payload_fault(entry, payload)


class Catalogue:
    """Changes the event types. Its methods raise the log's errors."""

    def __init__(self, writer: ControlWriter, types: EventTypeIndex) -> None:
        self.types = types
        self._writer = writer

    async def put(self, name: str, entry: EventTypeEntry) -> None:
        """Declare a type, or replace its entry. Raises TooManyTypes."""
        if self.types.get(name) is None and len(self.types.all()) >= MOST_TYPES:
            raise TooManyTypes(f"the catalogue has {MOST_TYPES} event types; remove some")
        await self._writer.write((ControlKey("event-type", name), encode_value(entry)))

    async def remove(self, name: str) -> None:
        await self._writer.write((ControlKey("event-type", name), None))
