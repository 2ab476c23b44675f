"""A receiver as the API tells of it: what is declared, and by whom; nothing that is secret."""

from typing import Any

from relay.api.registrar import Written, readable
from relay.config.entries import ReceiverEntry
from relay.config.receivers_file import check_entry
from relay.config.shown import effective
from relay.config.topic import ORIGIN
from relay.domain.errors import UserError


def described(written: Written) -> dict[str, Any]:
    """Name, who declared it (`file`, `api`), owner, labels, and `settings` in force; None where a newer version wrote
    what this one cannot read."""
    declared_by, entry = entry_of(written)
    return {
        "name": written.name,
        "declared_by": declared_by,
        "owner": None if entry is None else entry.owner,
        "labels": {} if entry is None else entry.labels,
        "etag": written.tag,
        "settings": None if entry is None else effective(entry),
    }


def entry_of(written: Written) -> tuple[str | None, ReceiverEntry | None]:
    """Who declared it, and its entry, as far as they can be read."""
    declared = readable(written.value)
    if declared is None:
        return None, None
    try:
        return declared.by, check_entry(ReceiverEntry, declared.entry, ORIGIN, ("receivers", written.name))
    except UserError:
        return declared.by, None
