"""The two kinds of entries, declared in a receivers file or over the API: receivers and sources."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Final, Generic, TypeVar

from pydantic import AfterValidator, TypeAdapter

from relay.config.entry_types import Entry, ReceiverName
from relay.config.receiver_entry import ReceiverEntry
from relay.config.receivers_file import ANY_SOURCE, SourceId
from relay.config.source_entry import SourceEntry
from relay.control.records import source_key

E = TypeVar("E", bound=Entry)


@dataclass(frozen=True, slots=True)
class EntryKind(Generic[E]):
    """`word`: its name in texts. `place`: its section in a receivers file, which is part of the authenticated data of
    its secrets. `model`: validates an entry. `id_field`, `id`: name and type of the identifier. `key`: of its record on
    `receiver_config`."""

    word: str
    place: str
    model: type[E]
    id_field: str
    id: TypeAdapter[str]
    key: Callable[[str], str]


def _named(source_id: str) -> str:
    if source_id == ANY_SOURCE:
        raise ValueError(f"{ANY_SOURCE!r} applies to all sources without an entry; only the receivers file may set it")
    return source_id


OwnSourceId = Annotated[SourceId, AfterValidator(_named)]
"""Id of a source that the API may declare."""
RECEIVER: Final = EntryKind("receiver", "receivers", ReceiverEntry, "name", TypeAdapter(ReceiverName), str)
SOURCE: Final = EntryKind("source", "sources", SourceEntry, "source_id", TypeAdapter(OwnSourceId), source_key)
