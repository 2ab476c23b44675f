"""Who has proved what, as far as `receiver_config` has told of it here, and whom that leaves to be verified.

What came of handshakes lies in a file of this process alone, as the receivers in the shared lane do: they may be
millions. In memory are only those who have yet to be verified.
"""

import logging
import sqlite3
from collections.abc import Iterable
from typing import Final, NamedTuple

from relay.config.references import has_reference
from relay.control.record_header import RecordHeader
from relay.control.shared_index import index_errors
from relay.domain.errors import InvalidRecord
from relay.domain.receiver import Receiver, Verification
from relay.domain.verification import (
    HandshakeResult,
    decode_result,
    handshake_of,
    next_try,
    verified_receiver,
    with_proof,
)
from relay.log.port import Record

_SCHEMA: Final = """
PRAGMA journal_mode = OFF;
PRAGMA synchronous = OFF;
CREATE TABLE results (name TEXT PRIMARY KEY, value BLOB, reading INTEGER) WITHOUT ROWID;
"""

_log = logging.getLogger(__name__)


class _Open(NamedTuple):
    """Somebody to be verified. `of`: by which handshake; None: only who makes the receiver ready can tell, as its URL
    refers to something. `due`: Unix seconds."""

    of: str | None
    due: float


class VerificationResults:
    """By receivers' names. Its methods may raise IndexBroken."""

    def __init__(self) -> None:
        with index_errors():
            self._db = sqlite3.connect("", isolation_level=None, check_same_thread=False)
            self._db.executescript(_SCHEMA)
            self._db.execute("BEGIN")  # and never committed: nobody else reads it
        self._open: dict[str, _Open] = {}
        self._reading = 0

    # told

    def begin(self) -> None:
        """The topic is read anew. What is known counts until it is read."""
        self._reading += 1

    def finish(self) -> None:
        """All that there was has been read: what has not come again is gone."""
        with index_errors():
            self._db.execute("DELETE FROM results WHERE reading < ?", (self._reading,))

    def take(self, record: Record) -> bool:
        """A record of the topic whose key is a verification's: whether it is a proof, of whatever."""
        name, result = verified_receiver(record.key or b"") or "", None
        try:
            result = None if record.value is None else decode_result(record.value)
        except InvalidRecord as error:
            _log.warning("verification_unreadable", extra={"at": str(record.coordinate), "problem": error.detail})
        with index_errors():
            if result is None:
                self._db.execute("DELETE FROM results WHERE name = ?", (name,))
            else:
                row = (name, record.value, self._reading)
                self._db.execute("INSERT OR REPLACE INTO results VALUES (?, ?, ?)", row)
        if (known := self._open.get(name)) is not None:
            self._put(name, known.of, result)
        return result is not None and result.verified_at is not None

    def declared(self, name: str, seen: RecordHeader | None) -> None:
        """What a receiver's newest record says of it. None: nothing, or there is none any more."""
        kind: Verification | None = _KINDS.get(seen.entry.verification) if seen is not None else None
        if seen is None or kind is None:
            self._open.pop(name, None)
        else:
            self._put(name, _asked(kind, seen.entry.post_endpoint), self.newest(name))

    def put_off(self, name: str, due: float) -> None:
        """It is not to be looked at before `due` (Unix seconds)."""
        if (known := self._open.get(name)) is not None:
            self._open[name] = known._replace(due=due)

    def settle(self, names: Iterable[str]) -> None:
        """They are found to be verified, or not there any more."""
        for name in names:
            self._open.pop(name, None)

    def _put(self, name: str, of: str | None, result: HandshakeResult | None) -> None:
        if result is None or (of is not None and result.of != of):
            self._open[name] = _Open(of, 0.0)
        elif result.verified_at is None:
            self._open[name] = _Open(of, next_try(result) if of is not None else 0.0)
        elif of is None:
            self._open[name] = _Open(of, 0.0)
        else:
            self._open.pop(name, None)

    # asked

    def newest(self, name: str) -> HandshakeResult | None:
        """What came of the newest handshake with a receiver, which may not be the one that is asked of it now."""
        with index_errors():
            found = self._db.execute("SELECT value FROM results WHERE name = ?", (name,)).fetchone()
        return None if found is None else decode_result(found[0])

    def applied_to(self, receiver: Receiver) -> Receiver:
        """The receiver as it may be sent to."""
        return receiver if receiver.verification == "none" else with_proof(receiver, self.newest(receiver.name))

    def due(self, now: float, most: int) -> list[str]:
        """Some of those whom somebody has to look at by now: they may be verified all the same."""
        found: list[str] = []
        for name, known in self._open.items():
            if known.due <= now:
                found.append(name)
                if len(found) == most:
                    break
        return found


def _asked(kind: Verification, url: str) -> str | None:
    """The handshake, where the entry alone tells which."""
    if has_reference(url):
        return None
    try:
        return handshake_of(kind, url)
    except ValueError:  # no URL: whoever makes the receiver ready refuses it
        return None


_KINDS: Final[dict[str, Verification]] = {"challenge": "challenge", "hmac": "hmac", "cloudevents": "cloudevents"}
"""Those that have to be proved."""
