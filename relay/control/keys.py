"""API keys: those that this process has read from `receiver_config`, and the service that creates, rotates and revokes
them, and ends their sessions, by records there."""

import logging
import secrets
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from relay.control.records import ControlWriter, LimitReached
from relay.domain import control_key
from relay.domain.api_key import Key, Secret, decode_key, encode_key, fresh_key, id_of, secret_key
from relay.domain.control_key import KEYS, ControlKey, decode_value, encode_value
from relay.domain.errors import InvalidRecord
from relay.domain.scope import Scope
from relay.domain.session import Session, SessionEnd
from relay.log.port import Log, Record

_log = logging.getLogger(__name__)
_CLOSED: Final = ControlKey("keys-closed", "")


class ApiKeys:
    """API keys by id. `closed`: a key exists, or once existed. `known`: the topic has been read."""

    def __init__(self) -> None:
        self._made: dict[str, Key] = {}
        self._added: dict[str, dict[str, Secret]] = {}
        self._keys: dict[str, Key] = {}
        self.ended: dict[str, SessionEnd] = {}
        """Sessions that were ended early, by id."""
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

    def __len__(self) -> int:
        return len(self._keys)

    # the topic

    def take(self, key: ControlKey, record: Record) -> None:
        """Take a record of a kind in KEYS."""
        if record.value is None:
            self._drop(key)
            return
        try:
            self._hold(key, record.value)
        except InvalidRecord as error:
            # the unreadable record may revoke the former one
            self._drop(key)
            _log.warning("key_unreadable", extra={"at": str(record.coordinate), "problem": error.detail})

    def _hold(self, key: ControlKey, value: bytes) -> None:
        if key.kind == "session-end":
            self.ended[key.id] = decode_value(SessionEnd, value)
            return
        self.closed = True  # also for an unreadable record: a key was created
        if key.kind == "key":
            self._made[key.id] = decode_key(key.id, value)
            self._put_together(key.id)
        elif key.kind == "key-secret":
            id, _, number = key.id.partition(":")
            self._added.setdefault(id, {})[number] = decode_value(Secret, value)
            self._put_together(id)

    def _drop(self, key: ControlKey) -> None:
        if key.kind == "session-end":
            self.ended.pop(key.id, None)
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
    keys.known = True
    return keys


def rank(key: Key) -> tuple[float, str]:
    """Sort key of a key."""
    return key.made_at, key.id


MOST_KEYS: Final = 10_000
"""Each process keeps all keys in memory."""
MOST_ENDED: Final = 10_000
"""Sessions that were ended early, which each process keeps in memory, too."""
MOST_ENDED_OF_ONE: Final = 400
"""Limit per key of these sessions, so that no client can use up the limit of all."""
MOST_SECRETS: Final = 10
"""Valid secrets of a key at a time, each of which is compared at authentication."""


class CreatedKey(NamedTuple):
    """A key with its text, which is returned only once."""

    key: Key
    text: str


@dataclass(eq=False)
class KeyService:
    """Creates, rotates and revokes keys, and ends sessions. `random` returns the given number of random bytes.

    Its methods raise the log's errors. Repeating one after an error may leave an additional key whose secret was never
    returned.
    """

    writer: ControlWriter
    keys: ApiKeys
    random: Callable[[int], bytes] = secrets.token_bytes

    async def create(
        self, name: str, scopes: frozenset[Scope], expires_at: float | None, *, by: str, now: float
    ) -> CreatedKey:
        """A new key, in effect on return. Times are Unix seconds. Raises LimitReached."""
        if len(self.keys) >= MOST_KEYS:
            raise LimitReached("key", f"the limit of {MOST_KEYS} keys is reached; revoke some")
        id, text, digest = fresh_key(self.random)
        key = Key(id, name, scopes, round(now, 3), by, expires_at, (Secret(digest, round(now, 3)),))
        await self.writer.write((_CLOSED, b"{}"), (ControlKey("key", id), encode_key(key)))
        return CreatedKey(key, text)

    async def rotate(self, key: Key, overlap_s: float, now: float) -> CreatedKey:
        """A new secret for `key`; its other secrets stay valid for `overlap_s` seconds. Raises LimitReached."""
        if sum(1 for each in key.secrets if (end := key.until(each)) is None or end > now) >= MOST_SECRETS:
            raise LimitReached(
                "key-secret", f"this key has {MOST_SECRETS} valid secrets; revoke it, or wait until one expires"
            )
        _, text, digest = fresh_key(self.random, key.id)
        made_at = max(
            now, key.secrets[-1].made_at + 0.001
        )  # after all secrets that it ends, even if another process's clock was ahead
        secret = Secret(digest, round(made_at, 3), round(now + overlap_s, 3))
        added = secret_key(key.id, digest), encode_value(secret)
        await self.writer.write(added, *((each, None) for each in self._outlived(key, now)))
        return CreatedKey(replace(key, secrets=(*key.secrets, secret)), text)

    async def revoke(self, key: Key) -> None:
        """Revoke a key permanently: on return it is rejected here, and in other processes as soon as they read the
        record."""
        added = [secret_key(key.id, each.digest) for each in key.secrets[1:]]
        await self.writer.write(*((each, None) for each in (ControlKey("key", key.id), *added)))

    async def end(self, session: Session, now: float) -> None:
        """End a session early, with the same effect as `revoke`. Raises LimitReached, with `wait_s` if it is
        that of the session's key."""
        over = [id for id, end in self.keys.ended.items() if end.expires <= now]
        of_one = [end.expires for end in self.keys.ended.values() if end.key == session.maker.key and end.expires > now]
        if len(of_one) >= MOST_ENDED_OF_ONE:
            why = f"{MOST_ENDED_OF_ONE} sessions of this key were ended early; wait, or revoke the key"
            raise LimitReached("session-end", why, min(of_one) - now)
        if len(self.keys.ended) - len(over) >= MOST_ENDED:
            raise LimitReached("session-end", f"{MOST_ENDED} sessions were ended early; to end more, revoke their key")
        end = SessionEnd(session.expires, session.maker.key)
        ended = ControlKey("session-end", session.id), encode_value(end)
        await self.writer.write(ended, *((ControlKey("session-end", id), None) for id in over))

    def _outlived(self, key: Key, now: float) -> list[ControlKey]:
        """Records of expired secrets of former rotations.

        The secret that ended them also ended all earlier ones, and is still stored, or was ended by a later one. So
        their removal does not make earlier secrets valid again, such as the first one, which has no record of its own.
        """
        over = [each for each in key.secrets[1:] if (end := key.until(each)) is not None and end <= now]
        return [secret_key(key.id, each.digest) for each in over]
