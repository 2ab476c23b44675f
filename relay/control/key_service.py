"""Makes, changes and revokes keys of the API, and ends their sessions: by records of `receiver_config`, which every
process follows."""

import asyncio
import secrets
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from typing import Final, NamedTuple

from relay.control.keys import ApiKeys
from relay.domain.api_key import (
    CLOSED_KEY,
    Key,
    Secret,
    encode_key,
    encode_secret,
    fresh_key,
    key_record_key,
    secret_record_key,
)
from relay.domain.errors import LogUnavailable, RelayError
from relay.domain.scope import Scope
from relay.domain.session import Session, SessionEnd, encode_end, ended_record_key
from relay.log.port import Log, NewRecord

MOST_KEYS: Final = 10_000
"""Each process has all of them in memory."""
MOST_ENDED: Final = 10_000
"""Sessions that were ended before their time: each process has these in memory, too."""
MOST_ENDED_OF_ONE: Final = 400
"""Of these, sessions of one key, so that nobody takes all of them from the others."""
MOST_SECRETS: Final = 10
"""Of a key at a time: who proves it is compared with each."""
REACH_S: Final = 2.0
"""What is on the log is in force there; that it is so here, too, is waited for no longer than this."""

Random = Callable[[int], bytes]


class TooManyKeys(RelayError):
    """There are as many keys, or secrets of one, as there may be."""


class TooManyEnded(RelayError):
    """As many sessions were ended before their time as can be remembered."""


class TooManyEndedOfOne(RelayError):
    """As many sessions of one key were ended before their time as may be. `wait_s`: until there is room for one."""

    def __init__(self, wait_s: float) -> None:
        super().__init__(
            f"{MOST_ENDED_OF_ONE} sessions of this key were ended before their time; wait, or revoke the key"
        )
        self.wait_s = wait_s


class CreatedKey(NamedTuple):
    """A key with its text, which nobody is told again."""

    key: Key
    text: str


class KeyService:
    """`topic`: `receiver_config`. `reach`: waits until what that has before an offset is known here. `random`: so many
    random bytes.

    Its methods raise what the log does. One that was repeated after that may have made a key too many, whose secret
    nobody knows.
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
        """A new key, in force at the return. Times are Unix seconds. Raises TooManyKeys."""
        if len(self.keys) >= MOST_KEYS:
            raise TooManyKeys(f"there are {MOST_KEYS} keys, and there may be no more; revoke some")
        id, text, digest = fresh_key(self._random)
        key = Key(id, name, scopes, round(now, 3), by, expires_at, (Secret(digest, round(now, 3)),))
        await self._append(self._record(CLOSED_KEY, b"{}"), self._record(key_record_key(id), encode_key(key)))
        return CreatedKey(key, text)

    async def rotate(self, key: Key, overlap_s: float, now: float) -> CreatedKey:
        """A new secret for `key`; those that it has stay good for `overlap_s` seconds. Raises TooManyKeys."""
        if sum(1 for each in key.secrets if (end := key.until(each)) is None or end > now) >= MOST_SECRETS:
            raise TooManyKeys(f"{MOST_SECRETS} secrets of this key are good now; revoke it, or wait for one to end")
        _, text, digest = fresh_key(self._random, key.id)
        made_at = max(now, key.secrets[-1].made_at + 0.001)  # behind all that it ends, whoever's clock said when
        secret = Secret(digest, round(made_at, 3), round(now + overlap_s, 3))
        added = self._record(secret_record_key(key.id, digest), encode_secret(secret))
        await self._append(added, *self._outlived(key, now))
        return CreatedKey(replace(key, secrets=(*key.secrets, secret)), text)

    async def revoke(self, key: Key) -> None:
        """For good: at the return it is refused here, and in the other processes as soon as they read it."""
        added = [secret_record_key(key.id, each.digest) for each in key.secrets[1:]]
        await self._append(*(self._record(each, None) for each in (key_record_key(key.id), *added)))

    async def end(self, session: Session, now: float) -> None:
        """Before its time, as `revoke`. Raises TooManyEnded, TooManyEndedOfOne."""
        over = [id for id, end in self.keys.ended.items() if end.expires <= now]
        of_one = [end.expires for end in self.keys.ended.values() if end.key == session.maker.key and end.expires > now]
        if len(of_one) >= MOST_ENDED_OF_ONE:
            raise TooManyEndedOfOne(min(of_one) - now)
        if len(self.keys.ended) - len(over) >= MOST_ENDED:
            raise TooManyEnded(f"{MOST_ENDED} sessions were ended before their time; to end more, revoke their key")
        ended = self._record(ended_record_key(session.id), encode_end(SessionEnd(session.expires, session.maker.key)))
        await self._append(ended, *(self._record(ended_record_key(id), None) for id in over))

    def _outlived(self, key: Key, now: float) -> list[NewRecord]:
        """Tombstones of the secrets of former rotations that are good no more.

        What ended them ended all before them as well, and is not over itself, or was ended in its turn: so without them
        those that have no record of their own to take away, as the first one, are not good again.
        """
        over = [each for each in key.secrets[1:] if (end := key.until(each)) is not None and end <= now]
        return [self._record(secret_record_key(key.id, each.digest), None) for each in over]

    def _record(self, key: bytes, value: bytes | None) -> NewRecord:
        return NewRecord(self._topic, key, value)

    async def _append(self, *records: NewRecord) -> None:
        last = (await self._log.append(records))[-1]
        with suppress(TimeoutError, LogUnavailable):
            async with asyncio.timeout(REACH_S):
                await self._reach(last.offset + 1)
