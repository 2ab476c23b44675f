"""The API keys that this process has read from `receiver_config`."""

import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from relay.domain import control_key
from relay.domain.api_key import Key, Secret, decode_key, decode_secret, id_of
from relay.domain.control_key import KEYS, ControlKey
from relay.domain.errors import InvalidRecord
from relay.domain.session import SessionEnd, decode_end
from relay.log.port import Log, Record

_log = logging.getLogger(__name__)
_CLOSED: Final = ControlKey("keys-closed", "")


class ApiKeys:
    """API keys by id. Pass each record about keys to `take`; call `begin` and `finish` around a read from the
    beginning.

    `closed`: a key exists, or once existed. `known`: the topic has been read.
    """

    def __init__(self) -> None:
        self._made: dict[str, Key] = {}
        self._added: dict[str, dict[str, Secret]] = {}
        self._keys: dict[str, Key] = {}
        self._ended: dict[str, SessionEnd] = {}
        self._unseen: set[ControlKey] = set()
        self._records: set[ControlKey] = set()
        self.closed = False
        self.known = False

    def find(self, text: str) -> Key | None:
        """The key with the id in `text`, whose secret is not checked."""
        id = id_of(text)
        return None if id is None else self._keys.get(id)

    def get(self, id: str) -> Key | None:
        return self._keys.get(id)

    def all(self) -> list[Key]:
        """All keys, newest first; those created at the same time by id."""
        return sorted(self._keys.values(), key=rank, reverse=True)

    def any_good(self, now: float) -> bool:
        """Whether any key is valid at `now` (Unix seconds)."""
        return any(not key.is_over(now) for key in self._keys.values())

    @property
    def ended(self) -> Mapping[str, SessionEnd]:
        """Sessions that were ended early, by id."""
        return self._ended

    def __len__(self) -> int:
        return len(self._keys)

    # the topic

    def begin(self) -> None:
        """Begin a read from the beginning, which may no longer have tombstones of revoked keys."""
        self._unseen = set(self._records)

    def finish(self) -> None:
        for key in self._unseen - {_CLOSED}:
            self._drop(key)
        self._unseen = set()
        self.known = True

    def take(self, key: ControlKey, record: Record) -> None:
        """Take a record of a kind in KEYS."""
        self._unseen.discard(key)
        if record.value is None:
            self._drop(key)
            return
        try:
            self._hold(key, record.value)
            self._records.add(key)
        except InvalidRecord as error:
            # the unreadable record may revoke the former one
            self._drop(key)
            _log.warning("key_unreadable", extra={"at": str(record.coordinate), "problem": error.detail})

    def _hold(self, key: ControlKey, value: bytes) -> None:
        if key.kind == "session-end":
            self._ended[key.id] = decode_end(value)
            return
        self.closed = True  # also for an unreadable record: a key was created
        if key.kind == "key":
            self._made[key.id] = decode_key(key.id, value)
            self._put_together(key.id)
        elif key.kind == "key-secret":
            id, _, number = key.id.partition(":")
            self._added.setdefault(id, {})[number] = decode_secret(value)
            self._put_together(id)

    def _drop(self, key: ControlKey) -> None:
        self._records.discard(key)
        if key.kind == "session-end":
            self._ended.pop(key.id, None)
        elif key.kind == "key":
            self._made.pop(key.id, None)
            self._put_together(key.id)
        elif key.kind == "key-secret":
            id, _, number = key.id.partition(":")
            secrets = self._added.get(id, {})
            secrets.pop(number, None)
            if not secrets:
                self._added.pop(id, None)
            self._put_together(id)

    def _put_together(self, id: str) -> None:
        made = self._made.get(id)
        if made is None:
            self._keys.pop(id, None)
            return
        added = sorted(self._added.get(id, {}).items(), key=lambda each: (each[1].made_at, each[0]))
        self._keys[id] = replace(made, secrets=(*made.secrets, *(secret for _, secret in added)))


async def read_keys(log: Log, topic: str) -> ApiKeys:
    """The current keys. `topic`: `receiver_config`, which may not exist."""
    keys = ApiKeys()
    if await log.describe([topic]):
        async for record in log.follow(topic):
            if record is None:
                break
            key = control_key.decode_key(record.key)
            if key is not None and key.kind in KEYS:
                keys.take(key, record)
    keys.finish()
    return keys


def rank(key: Key) -> tuple[float, str]:
    """Sort key of a key."""
    return key.made_at, key.id
