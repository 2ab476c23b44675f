"""The erasures that this process has read from `receiver_config`, and the requests for new ones."""

import logging
from collections.abc import Collection
from typing import Final

from relay.control.records import ControlWriter
from relay.domain.control_key import ControlKey, decode_value, encode_value
from relay.domain.erasure import ERASURE_KEPT_S, MOST_ERASURES, Erasure, Erasures
from relay.domain.errors import HistoryUnavailable, InvalidRecord, RelayError
from relay.history.port import History
from relay.log.port import Record

_log: Final = logging.getLogger(__name__)


class TooManyErasures(RelayError):
    """The maximum number of erasures in force is reached."""


class ErasureIndex(Erasures):
    """Kept up to date from the topic."""

    def take(self, key: ControlKey, record: Record) -> None:
        """Take a record of the kind `erasure`."""
        self.drop(key.id)
        if record.value is None:
            return
        try:
            self.add(decode_value(Erasure, record.value))
        except InvalidRecord as error:
            _log.warning("erasure_unreadable", extra={"at": str(record.coordinate), "problem": error.detail})

    def keep_only(self, ids: Collection[str]) -> None:
        """The topic has only these: tombstones of the others may be compacted away."""
        for id in self.known.keys() - ids:
            self.drop(id)


class ErasureService:
    """Requests erasures. `history`: None if there is none."""

    def __init__(self, writer: ControlWriter, known: ErasureIndex, history: History | None) -> None:
        self.known = known
        self._writer = writer
        self._history = history

    async def erase_in_history(self, erasure: Erasure) -> int | None:
        """The number of messages whose payload was deleted there; None if the history does not answer, which then
        deletes them within two hours."""
        if self._history is None:
            return 0
        try:
            return await self._history.erase(erasure)
        except HistoryUnavailable as error:
            _log.warning("history_not_erased", extra={"problem": str(error)})
            return None

    async def erase(self, erasure: Erasure) -> None:
        """Store an erasure, and remove expired ones. Raises TooManyErasures, and the log's errors."""
        known = self.known.all()
        over = [each for each in known if each.made_at < erasure.made_at - ERASURE_KEPT_S]
        if len(known) - len(over) >= MOST_ERASURES:
            raise TooManyErasures(f"{MOST_ERASURES} erasures are in force: erase whole sources, or wait")
        tombstones = [(ControlKey("erasure", each.id), None) for each in over]
        await self._writer.write(*tombstones, (ControlKey("erasure", erasure.id), encode_value(erasure)))
