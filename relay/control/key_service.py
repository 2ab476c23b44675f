"""Creates, rotates and revokes API keys, and ends their sessions, by records on `receiver_config`, which every process
follows."""

import asyncio
import secrets
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from typing import Final, NamedTuple

from relay.control.keys import ApiKeys
from relay.domain.api_key import Key, Secret, encode_key, encode_secret, fresh_key, secret_key
from relay.domain.control_key import ControlKey
from relay.domain.errors import LogUnavailable, RelayError
from relay.domain.scope import Scope
from relay.domain.session import Session, SessionEnd, encode_end
from relay.log.port import Log, NewRecord

MOST_KEYS: Final = 10_000
"""Each process keeps all keys in memory."""
MOST_ENDED: Final = 10_000
"""Sessions that were ended early, which each process keeps in memory, too."""
MOST_ENDED_OF_ONE: Final = 400
"""Limit per key of these sessions, so that no client can use up the limit of all."""
MOST_SECRETS: Final = 10
"""Valid secrets of a key at a time, each of which is compared at authentication."""
REACH_S: Final = 2.0
"""Maximum wait until this process has read its own record, which is already in effect on the log."""

Random = Callable[[int], bytes]


class TooManyKeys(RelayError):
    """The limit of keys, or of a key's secrets, is reached."""


class TooManyEnded(RelayError):
    """The limit of sessions that were ended early is reached."""


class TooManyEndedOfOne(RelayError):
    """A key's limit of sessions that were ended early is reached. `wait_s`: seconds until another can be ended."""

    def __init__(self, wait_s: float) -> None:
        super().__init__(f"{MOST_ENDED_OF_ONE} sessions of this key were ended early; wait, or revoke the key")
        self.wait_s = wait_s


class CreatedKey(NamedTuple):
    """A key with its text, which is returned only once."""

    key: Key
    text: str


class KeyService:
    """`topic`: `receiver_config`. `reach`: waits until this process has read the topic up to an offset. `random`
    returns the given number of random bytes.

    Its methods raise the log's errors. Repeating one after an error may leave an additional key whose secret was never
    returned.
    """

    def __init__(
        self,
        log: Log,
        topic: str,
        keys: ApiKeys,
        reach: Callable[[int], Awaitable[None]],
        random: Random = secrets.token_bytes,
    ) -> None:
        self.keys = keys
        self._log = log
        self._topic = topic
        self._reach = reach
        self._random = random

    async def create(
        self, name: str, scopes: frozenset[Scope], expires_at: float | None, *, by: str, now: float
    ) -> CreatedKey:
        """A new key, in effect on return. Times are Unix seconds. Raises TooManyKeys."""
        if len(self.keys) >= MOST_KEYS:
            raise TooManyKeys(f"the limit of {MOST_KEYS} keys is reached; revoke some")
        id, text, digest = fresh_key(self._random)
        key = Key(id, name, scopes, round(now, 3), by, expires_at, (Secret(digest, round(now, 3)),))
        await self._append(
            self._record(ControlKey("keys-closed", ""), b"{}"), self._record(ControlKey("key", id), encode_key(key))
        )
        return CreatedKey(key, text)

    async def rotate(self, key: Key, overlap_s: float, now: float) -> CreatedKey:
        """A new secret for `key`; its other secrets stay valid for `overlap_s` seconds. Raises TooManyKeys."""
        if sum(1 for each in key.secrets if (end := key.until(each)) is None or end > now) >= MOST_SECRETS:
            raise TooManyKeys(f"this key has {MOST_SECRETS} valid secrets; revoke it, or wait until one expires")
        _, text, digest = fresh_key(self._random, key.id)
        made_at = max(
            now, key.secrets[-1].made_at + 0.001
        )  # after all secrets that it ends, even if another process's clock was ahead
        secret = Secret(digest, round(made_at, 3), round(now + overlap_s, 3))
        added = self._record(secret_key(key.id, digest), encode_secret(secret))
        await self._append(added, *self._outlived(key, now))
        return CreatedKey(replace(key, secrets=(*key.secrets, secret)), text)

    async def revoke(self, key: Key) -> None:
        """Revoke a key permanently: on return it is rejected here, and in other processes as soon as they read the
        record."""
        added = [secret_key(key.id, each.digest) for each in key.secrets[1:]]
        await self._append(*(self._record(each, None) for each in (ControlKey("key", key.id), *added)))

    async def end(self, session: Session, now: float) -> None:
        """End a session early, with the same effect as `revoke`. Raises TooManyEnded, TooManyEndedOfOne."""
        over = [id for id, end in self.keys.ended.items() if end.expires <= now]
        of_one = [end.expires for end in self.keys.ended.values() if end.key == session.maker.key and end.expires > now]
        if len(of_one) >= MOST_ENDED_OF_ONE:
            raise TooManyEndedOfOne(min(of_one) - now)
        if len(self.keys.ended) - len(over) >= MOST_ENDED:
            raise TooManyEnded(f"{MOST_ENDED} sessions were ended early; to end more, revoke their key")
        end = SessionEnd(session.expires, session.maker.key)
        ended = self._record(ControlKey("session-end", session.id), encode_end(end))
        await self._append(ended, *(self._record(ControlKey("session-end", id), None) for id in over))

    def _outlived(self, key: Key, now: float) -> list[NewRecord]:
        """Tombstones of expired secrets of former rotations.

        The secret that ended them also ended all earlier ones, and is still stored, or was ended by a later one. So
        their removal does not make earlier secrets valid again, such as the first one, which has no record of its own.
        """
        over = [each for each in key.secrets[1:] if (end := key.until(each)) is not None and end <= now]
        return [self._record(secret_key(key.id, each.digest), None) for each in over]

    def _record(self, key: ControlKey, value: bytes | None) -> NewRecord:
        return NewRecord(self._topic, key.encode(), value)

    async def _append(self, *records: NewRecord) -> None:
        last = (await self._log.append(records))[-1]
        with suppress(TimeoutError, LogUnavailable):
            async with asyncio.timeout(REACH_S):
                await self._reach(last.offset + 1)
