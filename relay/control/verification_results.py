"""Verification results read from `receiver_config`, and the receivers that still have to be verified.

Results may be millions, so they are in a temporary file of this process, like the receivers in the shared lane. Only
the receivers that still have to be verified are in memory.
"""

import logging
from collections.abc import Iterable
from itertools import islice
from typing import Final, NamedTuple

from relay.config.references import has_reference
from relay.control.shared_index import RecordHeader, TemporaryDatabase
from relay.domain.control_key import decode_value
from relay.domain.errors import InvalidRecord
from relay.domain.receiver import Receiver, Verification
from relay.domain.verification import HandshakeResult, handshake_of, next_try, with_proof
from relay.log.port import Record

_SCHEMA: Final = """
PRAGMA journal_mode = OFF;
PRAGMA synchronous = OFF;
CREATE TABLE results (name TEXT PRIMARY KEY, value BLOB, reading INTEGER) WITHOUT ROWID;
"""

_log = logging.getLogger(__name__)


class _Open(NamedTuple):
    """A receiver to be verified. `of`: digest of the handshake; None if its URL has references, so that the receiver
    has to be resolved first. `due`: Unix seconds."""

    of: str | None
    due: float


class VerificationResults:
    """Results by receiver name. Its methods may raise IndexBroken."""

    def __init__(self) -> None:
        self._db = TemporaryDatabase(_SCHEMA)
        self._open: dict[str, _Open] = {}
        self._reading = 0

    # updates

    def begin(self) -> None:
        """Begin a read of the whole topic. Known results stay in effect until it is complete."""
        self._reading += 1

    def finish(self) -> None:
        """Complete a read of the whole topic: drop results that it no longer has."""
        self._db.run("DELETE FROM results WHERE reading < ?", (self._reading,))

    def take(self, name: str, record: Record) -> bool:
        """Take the verification of receiver `name`; returns whether it is a proof of any handshake."""
        result = None
        try:
            result = None if record.value is None else decode_value(HandshakeResult, record.value)
        except InvalidRecord as error:
            _log.warning("verification_unreadable", extra={"at": str(record.coordinate), "problem": error.detail})
        if result is None:
            self._db.run("DELETE FROM results WHERE name = ?", (name,))
        else:
            self._db.run("INSERT OR REPLACE INTO results VALUES (?, ?, ?)", (name, record.value, self._reading))
        if (known := self._open.get(name)) is not None:
            self._put(name, known.of, result)
        return result is not None and result.verified_at is not None

    def declared(self, name: str, seen: RecordHeader | None) -> None:
        """Take the header of a receiver's newest record; None if it is unreadable or the receiver was removed."""
        kind: Verification | None = _KINDS.get(seen.entry.verification) if seen is not None else None
        if seen is None or kind is None:
            self._open.pop(name, None)
        else:
            self._put(name, _asked(kind, seen.entry.post_endpoint), self.newest(name))

    def postpone(self, name: str, due: float) -> None:
        """Postpone a receiver's verification until `due` (Unix seconds)."""
        if (known := self._open.get(name)) is not None:
            self._open[name] = known._replace(due=due)

    def settle(self, names: Iterable[str]) -> None:
        """Drop receivers that are verified, or no longer exist."""
        for name in names:
            self._open.pop(name, None)

    def _put(self, name: str, of: str | None, result: HandshakeResult | None) -> None:
        if result is None or of is None or result.of != of:
            self._open[name] = _Open(of, 0.0)
        elif result.verified_at is None:
            self._open[name] = _Open(of, next_try(result))
        else:
            self._open.pop(name, None)

    # queries

    def newest(self, name: str) -> HandshakeResult | None:
        """The result of a receiver's newest handshake, which may not be the one that it needs now."""
        found = self._db.run("SELECT value FROM results WHERE name = ?", (name,))
        return decode_value(HandshakeResult, found[0][0]) if found else None

    def applied_to(self, receiver: Receiver) -> Receiver:
        """The receiver with its verification result applied."""
        return receiver if receiver.verification == "none" else with_proof(receiver, self.newest(receiver.name))

    def due(self, now: float, most: int) -> list[str]:
        """Receivers whose verification is due, at most `most`; some may already be verified."""
        return list(islice((name for name, known in self._open.items() if known.due <= now), most))


def _asked(kind: Verification, url: str) -> str | None:
    """The digest of the handshake; None if the entry alone does not determine it."""
    if has_reference(url):
        return None
    try:
        return handshake_of(kind, url)
    except ValueError:  # an invalid URL, which is rejected when the receiver is resolved
        return None


_KINDS: Final[dict[str, Verification]] = {"challenge": "challenge", "hmac": "hmac", "cloudevents": "cloudevents"}
"""Kinds of handshakes."""
