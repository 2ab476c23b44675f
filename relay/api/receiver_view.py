"""A receiver as the API shows it: its settings and where they were declared, without secrets."""

from relay.api.registrar import Written, readable
from relay.config.receiver_entry import ReceiverEntry
from relay.config.receivers_file import check_entry
from relay.config.redacted_entry import effective
from relay.control.records import ORIGIN
from relay.domain.errors import UserError
from relay.schema.receivers import ReceiverView


def described(written: Written) -> ReceiverView:
    """A receiver's record for people."""
    declared_by, entry = entry_of(written)
    return {
        "name": written.name,
        "declared_by": declared_by,
        "owner": None if entry is None else entry.owner,
        "labels": {} if entry is None else entry.labels,
        "etag": written.tag,
        "settings": None if entry is None else effective(entry),
        "given": None if entry is None else sorted(entry.model_fields_set),
    }


def entry_of(written: Written) -> tuple[str | None, ReceiverEntry | None]:
    """Where it was declared, and its entry; None for what cannot be read."""
    declared = readable(written.value)
    if declared is None:
        return None, None
    try:
        return declared.by, check_entry(ReceiverEntry, declared.entry, ORIGIN, ("receivers", written.name))
    except UserError:
        return declared.by, None
