"""The two kinds of entries that are declared, by a receivers file or over the API: receivers and sources."""

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
    """`word`: of one, for people. `place`: where they stand in a receivers file, and what their secrets are encrypted
    for. `model`: what an entry is checked by. `id_field`, `id`: what says which one it is, and what that may be.
    `key`: of its record on `receiver_config`."""

    word: str
    place: str
    model: type[E]
    id_field: str
    id: TypeAdapter[str]
    key: Callable[[str], str]


def _named(source_id: str) -> str:
    if source_id == ANY_SOURCE:
        raise ValueError(f"{ANY_SOURCE!r} stands for all sources without an entry; only the receivers file says how")
    return source_id


OwnSourceId = Annotated[SourceId, AfterValidator(_named)]
"""Of a source that the API may declare."""
RECEIVER: Final = EntryKind("receiver", "receivers", ReceiverEntry, "name", TypeAdapter(ReceiverName), str)
SOURCE: Final = EntryKind("source", "sources", SourceEntry, "source_id", TypeAdapter(OwnSourceId), source_key)
