"""Entries of receivers and sources in responses: without secrets, with an `ETag`."""

import re
from typing import Any, Final

from aiohttp import web

from relay.api.problems import CHANGED_MEANWHILE, DECLARED_IN_FILE, invalid
from relay.api.reading import MERGE_PATCH
from relay.api.registrar import Written, readable
from relay.api.responses import JSON, Reply, V
from relay.api.route import Body, ETag, Parameter
from relay.config.receivers_file import check_entry
from relay.config.redacted_entry import effective
from relay.control.patch import RECEIVER, E, EntryKind
from relay.control.records import ORIGIN
from relay.domain.errors import UserError
from relay.schema.receivers import ReceiverView


def described(written: Written) -> ReceiverView:
    """A receiver's record for people."""
    declared_by, entry = entry_of(written, RECEIVER)
    return {
        "name": written.name,
        "declared_by": declared_by,
        "owner": None if entry is None else entry.owner,
        "labels": {} if entry is None else entry.labels,
        "etag": written.tag,
        "settings": None if entry is None else effective(entry),
        "given": None if entry is None else sorted(entry.model_fields_set),
        "from_preset": None if entry is None else entry.from_preset,
    }


def entry_of(written: Written, kind: EntryKind[E]) -> tuple[str | None, E | None]:
    """The origin of an entry, and its fields; None if it cannot be read."""
    declared = readable(written.value)
    if declared is None:
        return None, None
    try:
        return declared.by, check_entry(kind.model, declared.entry, ORIGIN, (kind.place, written.name))
    except UserError:
        return declared.by, None


PATCH: Final = Body({JSON: dict[str, Any], MERGE_PATCH: dict[str, Any]})
MOST_BODY: Final = 65_536
"""Bytes of a receiver."""
_TAG: Final = re.compile(r'\s*(?:"([^"]*)"|(\*))\s*')
IF_MATCH: Final = Parameter("If-Match", ETag, "The `ETag` that the receiver must still have; otherwise 412.", "header")
ETAG: Final = {"ETag": "Changes with every change of the receiver."}
CHANGE: Final = (DECLARED_IN_FILE, CHANGED_MEANWHILE)


def answer_of(written: Written, shown: V, **headers: str) -> Reply[V]:
    """The entry, with its tag as an ETag."""
    return Reply(shown, {"ETag": f'"{written.tag}"', **headers})


def tag_in(request: web.Request) -> str | None:
    """The tag of `If-Match`; None if it matches any entry. Raises Problem."""
    given = request.headers.getall("If-Match", [])
    if not given:
        return None
    found = _TAG.fullmatch(", ".join(given))
    if found is None:
        raise invalid('If-Match takes one ETag, as "0123456789abcdef", or *', header="If-Match")
    return found[1]
