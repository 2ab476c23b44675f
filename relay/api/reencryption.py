"""`POST /v1/secrets/reencrypt`: secrets that an older key of `RELAY_SECRETS_KEY` encrypted get the first key.

Page by page, in the order of the keys of `receiver_config`: a page writes the same records with new ciphertexts, under
the lease that every change takes. A client that was cut off starts again: finished records are skipped.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, NamedTuple

from aiohttp import web

from relay.api.access import ADMIN
from relay.api.audit import changed_nothing, record_audit
from relay.api.context import ApiContext
from relay.api.paging import cursor_behind
from relay.api.parameter import LIMIT, PageCursor
from relay.api.problems import NO_SECRETS_KEY, Problem
from relay.api.route import Example, route
from relay.control.records import is_outdated, renewed
from relay.domain.errors import UserError
from relay.log.port import NewRecord
from relay.schema.operation import ReencryptionPage


class _Found(NamedTuple):
    records: list[NewRecord]
    unreadable: list[str]


class ReencryptionResource:
    """The route; see the module's first lines."""

    noun = "secrets"

    def __init__(self, context: ApiContext) -> None:
        self._topic = context.topics.receiver_config
        self._registrar = context.registrar

    @route(
        "POST",
        "/v1/secrets/reencrypt",
        scope=ADMIN,
        audit="secrets.reencrypted",
        answer="The secrets of this page are re-encrypted.",
        problems=(NO_SECRETS_KEY,),
        example=Example(200, query={"dry_run": "true"}),
    )
    async def reencrypt_secrets(
        self,
        request: web.Request,
        limit: Annotated[int, replace(LIMIT, description="Maximum number of records. Default: 50.")],
        cursor: PageCursor,
        dry_run: Annotated[bool, "Only count the secrets, and change nothing."],
    ) -> ReencryptionPage:
        """Re-encrypt secrets with the newest key.

        One page of entries: each secret that was encrypted with another key than the first of `RELAY_SECRETS_KEY` is
        encrypted with that one. Continue with `cursor` until it is null. A repetition finds nothing to do.
        """
        newest = self._registrar.ring.newest
        if newest is None:
            raise Problem(NO_SECRETS_KEY, "The relay has no key to encrypt secrets with: RELAY_SECRETS_KEY is not set.")
        keys = self._keys(cursor, limit + 1)
        found = self._found(keys[:limit])
        outdated = len(found.records) + len(found.unreadable)
        rewritten = 0
        if found.records and not dry_run:
            rewritten = await self._registrar.rewrite(lambda: self._found(keys[:limit]).records)
        if rewritten:
            record_audit(request, rewritten=rewritten, key=newest)
        else:
            changed_nothing(request)
        return {
            "key": newest,
            "looked_at": len(keys[:limit]),
            "outdated": outdated,
            "rewritten": rewritten,
            "unreadable": found.unreadable,
            "leaving": 0 if cursor else self._leaving(),
            "cursor": cursor_behind(keys[limit - 1]) if len(keys) > limit else None,
        }

    def _keys(self, after: str, most: int) -> list[str]:
        """The keys of all entries, including sources, sorted."""
        registry = self._registrar.registry
        own = sorted(key for key in registry.topic().declared.own() if key > after)[:most]
        return sorted((*own, *registry.shared.index.names(after, most)))[:most]

    def _found(self, keys: Sequence[str]) -> _Found:
        """The re-encrypted records of the outdated ones."""
        ring, found = self._registrar.ring, _Found([], [])
        for key in keys:
            value = self._registrar.registry.record(key)
            if value is None or not is_outdated(value, ring):
                continue
            try:
                found.records.append(NewRecord(self._topic, key.encode(), renewed(key, value, ring)))
            except UserError:
                found.unreadable.append(key)
        return found

    def _leaving(self) -> int:
        registry, ring = self._registrar.registry, self._registrar.ring
        left = registry.topic().routes.removed
        return sum(is_outdated(value, ring) for value in left.values())
