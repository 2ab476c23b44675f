"""API keys: created, listed, rotated and revoked; a key's text is only in the response that created it.

When a key was last used is noted by each request, and written to the state once a minute at most, for many keys in one
call; no request waits for that. The state may lose it; nothing depends on it."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Annotated, Final

from aiohttp import web
from msgspec import Meta

from relay.api.access import ADMIN, access_of
from relay.api.audit import record_audit
from relay.api.body import duration_in
from relay.api.context import ApiContext
from relay.api.paging import NewestFirstPages, Rank
from relay.api.parameter import PageLimit, Parameter, cursor_of
from relay.api.problems import KEY_EXPIRED, NOT_FOUND, TOO_MANY_KEYS, Problem, invalid, invalid_at
from relay.api.route import Example, route
from relay.clock import Clock
from relay.control.keys import MOST_KEYS, rank
from relay.domain.api_key import Key
from relay.domain.errors import Unavailable
from relay.domain.scope import Scope, in_text, parse_scope
from relay.domain.times import LONGEST_S, rfc3339
from relay.engine.supervision import end
from relay.schema.access import KeyPage, KeyView, NewKey, Rotation, WantedKey
from relay.state.port import State
from relay.telemetry.redaction import escape_control

EVERY_S: Final = 60.0
GATHER_S: Final = 1.0
"""From the first use to the write: later uses are in the same write."""
_CLOSING_S: Final = 1.0


class KeyUse:
    """One per process."""

    def __init__(self, state: State, clock: Clock, gather_s: float = GATHER_S) -> None:
        self._state = state
        self._clock = clock
        self._gather_s = gather_s
        self._noted: dict[str, float] = {}
        self._unwritten: dict[str, float] = {}
        self._wake = asyncio.Event()
        self._writing: asyncio.Task[None] | None = None

    def note(self, id: str) -> None:
        """The key with this id, which there is, has just been used."""
        now = self._clock.monotonic()
        if now - self._noted.get(id, -EVERY_S) < EVERY_S:
            return
        if len(self._noted) >= 2 * MOST_KEYS:  # most of them revoked; some are then written once more
            self._noted.clear()
        self._noted[id] = self._unwritten[id] = now
        self._wake.set()

    async def last(self, ids: Sequence[str]) -> list[float | None]:
        """The last use of each key, in Unix seconds; None: never, long ago, or unknown at present."""
        try:
            found = await self._state.keys_used(ids)
        except Unavailable:
            return [None] * len(ids)
        now = self._clock.time()
        return [None if ago_s is None else now - ago_s for ago_s in found]

    async def start(self, _app: web.Application | None = None) -> None:
        self._writing = asyncio.create_task(self._write())

    async def close(self, _app: web.Application | None = None) -> None:
        if self._writing is not None:
            await end([self._writing])
            with suppress(Unavailable, TimeoutError):
                async with asyncio.timeout(_CLOSING_S):
                    await self._flush()

    async def _write(self) -> None:
        while True:
            await self._wake.wait()
            await asyncio.sleep(self._gather_s)
            self._wake.clear()
            try:
                await self._flush()
            except Unavailable:
                await asyncio.sleep(EVERY_S)
                self._wake.set()

    async def _flush(self) -> None:
        now, some = self._clock.monotonic(), dict(self._unwritten)
        if not some:
            return
        await self._state.use_keys({id: now - at for id, at in some.items()})
        self._unwritten = {id: at for id, at in self._unwritten.items() if some.get(id) != at}


MOST_BYTES: Final = 64 * 1024
MOST_SCOPES: Final = 100
MOST_NAME: Final = 200
"""Characters."""
PAGES: Final = NewestFirstPages("[a-z0-9]{1,32}")
KeyId = Annotated[
    str, Parameter("id", Annotated[str, Meta(min_length=1)], "Id of the key.", "path", sample="k5examplekey")
]


class KeysResource:
    """`/v1/keys`, for administrators."""

    noun = "keys"

    def __init__(self, context: ApiContext, uses: KeyUse) -> None:
        self._context = context
        self._service = context.keys
        self._uses = uses

    @route(
        "POST",
        "/v1/keys",
        scope=ADMIN,
        audit="key.created",
        most_bytes=MOST_BYTES,
        answer="The key is in effect. `key` is returned only this once.",
        status=201,
        problems=(TOO_MANY_KEYS, NOT_FOUND),
        example=Example(
            201, body={"name": "ci server", "scopes": ["ingest:github", "read:github"], "expires_in": "90d"}
        ),
    )
    async def create_key(self, request: web.Request, body: WantedKey) -> NewKey:
        """Create a key.

        The first one needs the scope `admin`: from then on every request needs a key.
        """
        scopes, now, who = _scopes(body.scopes), self._context.clock.time(), access_of(request).who
        self._check_first(scopes)
        lives_s = None if body.expires_in is None else _seconds(body.expires_in, "/expires_in")
        if lives_s == 0:
            raise invalid("expires_in is 0: the key would never be valid", pointer="/expires_in")
        expires_at = None if lives_s is None else round(now + lives_s, 3)
        made = await self._service.create(_name(body.name), scopes, expires_at, by=who, now=now)
        record_audit(request, made.key.id, name=made.key.name, scopes=in_text(scopes))
        return NewKey(**self._view(made.key), key=made.text)

    @route("GET", "/v1/keys", scope=ADMIN, answer="A page, newest first.", problems=(NOT_FOUND,))
    async def list_keys(self, limit: PageLimit, cursor: Annotated[Rank | None, cursor_of(PAGES)]) -> KeyPage:
        """List the keys."""
        page, following = PAGES.page(limit, cursor, self._service.keys.all(), rank)
        used = await self._uses.last([key.id for key in page])
        views = [self._view(key, at) for key, at in zip(page, used, strict=True)]
        return KeyPage(items=views, cursor=following)

    @route("DELETE", "/v1/keys/{id}", scope=ADMIN, audit="key.revoked", answer="The key was revoked.")
    async def revoke_key(self, request: web.Request, id: KeyId) -> KeyView:
        """Revoke a key.

        In effect in this process with the response, and in all others within 2 s.
        """
        key = self._found(id)
        await self._service.revoke(key)
        record_audit(request, name=key.name)
        [used] = await self._uses.last([key.id])
        return {**self._view(key, used), "status": "revoked"}

    @route(
        "POST",
        "/v1/keys/{id}/rotate",
        scope=ADMIN,
        audit="key.rotated",
        most_bytes=MOST_BYTES,
        answer="The new secret is in effect. `key` is returned only this once.",
        problems=(KEY_EXPIRED, TOO_MANY_KEYS),
        example=Example(200, body={"overlap": "1d"}),
    )
    async def rotate_key(self, request: web.Request, id: KeyId, body: Rotation) -> NewKey:
        """Give a key a new secret."""
        key, now = self._found(id), self._context.clock.time()
        overlap_s = _seconds(body.overlap, "/overlap")
        if key.is_over(now):
            raise Problem(KEY_EXPIRED, "A new secret would be expired, too: create a new key.")
        made = await self._service.rotate(key, overlap_s, now)
        record_audit(request, name=key.name, overlap_s=overlap_s)
        [used] = await self._uses.last([key.id])
        return NewKey(**self._view(made.key, used), key=made.text)

    def _found(self, id: str) -> Key:
        key = self._service.keys.get(id)
        if key is None:
            raise Problem(NOT_FOUND, "There is no such key, or it was deleted.")
        return key

    def _check_first(self, scopes: frozenset[Scope]) -> None:
        """The first key closes the API, so it must be able to make the next one."""
        if self._context.api_key is None and not self._service.keys.closed and Scope("admin") not in scopes:
            detail = "The first key has to have the scope admin: from then on no other could be made without one."
            raise invalid(detail, pointer="/scopes")

    def _view(self, key: Key, used: float | None = None) -> KeyView:
        now = self._context.clock.time()
        old_until = key.old_until(now)
        return {
            "id": key.id,
            "name": key.name,
            "scopes": in_text(key.scopes),
            "status": "expired" if key.is_over(now) else "active",
            "created_at": rfc3339(key.made_at),
            "created_by": key.made_by,
            "expires_at": rfc3339(key.expires_at),
            "rotated_at": rfc3339(key.secrets[-1].made_at) if len(key.secrets) > 1 else None,
            "old_secret_until": rfc3339(old_until),
            "last_used_at": rfc3339(used),
        }


def _scopes(texts: list[str]) -> frozenset[Scope]:
    if not 0 < len(texts) <= MOST_SCOPES:
        raise invalid(f"{len(texts)} scopes are given; 1 to {MOST_SCOPES} are allowed", pointer="/scopes")
    found = set()
    for number, text in enumerate(texts):
        with invalid_at(pointer=f"/scopes/{number}"):
            found.add(parse_scope(text))
    return frozenset(found)


def _name(text: str) -> str:
    if len(text) > MOST_NAME:
        raise invalid(f"name has {len(text)} characters; {MOST_NAME} are allowed", pointer="/name")
    return escape_control(text)


def _seconds(value: float | str, pointer: str) -> float:
    return duration_in(value, pointer, LONGEST_S, "longer than 100 years is not allowed")
