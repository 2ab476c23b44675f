"""Sources declared, shown, listed, changed and removed over HTTP."""

from typing import Annotated, Final, Literal

from aiohttp import web

from relay.api.access import ADMIN
from relay.api.audit import changed_nothing, record_audit
from relay.api.context import ApiContext
from relay.api.paging import cursor_behind
from relay.api.parameter import ETag, PageCursor, PageLimit, Parameter
from relay.api.problems import CREDENTIALS_NEEDED, INVALID_SOURCE, NO_SECRETS_KEY, NOT_FOUND, SOURCE_EXISTS, Problem
from relay.api.reading import source_location
from relay.api.registrar import EntryTarget, Written
from relay.api.registration import (
    CHANGE,
    MOST_BODY,
    MOST_ROTATION_BYTES,
    PATCH,
    SecretTurn,
    answer_of,
    entry_of,
    tag_in,
)
from relay.api.responses import Reply
from relay.api.route import Example, json_of, route
from relay.config.receivers_file import Raw
from relay.config.redacted_entry import effective_source, shown_url
from relay.config.source_entry import CallbackEntry, SourceEntry
from relay.control.patch import SOURCE, NewSource, without_expired
from relay.schema.receivers import (
    NewSourceView,
    ResultsView,
    RotatedSourceView,
    SecretRotation,
    SourceItem,
    SourcePage,
    SourceRemovalView,
    SourceView,
)
from relay.state.replies import answered

_LOOKED_AT: Final = 2_000
"""Sources that a request looks at, at most: a page may have fewer than it could, and say where to go on."""
_THEN: Final = (
    "Results that wait for its callback, and later ones, are not POSTed any more: GET of a message returns them, and "
    "to_sender has them. Webhooks of others are not accepted for it any more. The entry of all other sources (*), if "
    "there is one, applies to it as well."
)


_IF_MATCH: Final = Parameter("If-Match", ETag, "The `ETag` that the source must still have; otherwise 412.", "header")
_ETAG: Final = {"ETag": "Changes with every change of the source."}
_AT: Final = {"source_id": "shop"}


class SourcesResource:
    """`POST` and `GET` of `/v1/sources`; `GET`, `PATCH` and `DELETE` of `/v1/sources/{source_id}`; `POST` to
    `/callback/rotate` of it."""

    noun = "sources"

    def __init__(self, context: ApiContext) -> None:
        self._context = context
        self._registrar = context.registrar
        self._registry = context.registry

    @route(
        "POST",
        "/v1/sources",
        scope=ADMIN,
        audit="source.created",
        body=json_of(NewSource),
        most_bytes=MOST_BODY,
        answer="In effect in this process, and in all others within 2 s.",
        status=201,
        headers={"Location": "The path of the source.", **_ETAG},
        problems=(INVALID_SOURCE, SOURCE_EXISTS, NO_SECRETS_KEY),
        example=Example(
            201,
            body={
                "source_id": "billing",
                "callback": {"url": "https://sender.example/results", "secret": "${DEPLOY_SECRET}"},
                "answers": "non_empty",
            },
        ),
    )
    async def create_source(self, request: web.Request, body: Raw) -> Reply[NewSourceView]:
        """Declare a source.

        The fields are those of `receivers.yaml`, and `source_id`. For a `callback` without a `secret` one is generated,
        which only this response has.
        """
        record_audit(request, str(body.get("source_id", "")), fields=sorted(body))
        written = await self._registrar.create(body, kind=SOURCE)
        shown: NewSourceView = {**self._described(written), "secret": written.secret}
        return answer_of(written, shown, Location=source_location(written.name))

    @route(
        "GET",
        "/v1/sources/{source_id}",
        scope=ADMIN,
        answer="The entry in effect.",
        headers=_ETAG,
        example=Example(200, path=_AT),
    )
    async def get_source(self, source_id: str) -> Reply[SourceView]:
        """Get the entry of a source."""
        written = self._registrar.written(source_id, kind=SOURCE)
        return answer_of(written, self._described(written))

    @route(
        "PATCH",
        "/v1/sources/{source_id}",
        scope=ADMIN,
        audit="source.changed",
        parameters=(_IF_MATCH,),
        body=PATCH,
        most_bytes=MOST_BODY,
        answer="The entry in effect.",
        headers=_ETAG,
        problems=(INVALID_SOURCE, NO_SECRETS_KEY, CREDENTIALS_NEEDED, *CHANGE),
        example=Example(200, path=_AT, body={"failures": False}),
    )
    async def change_source(self, request: web.Request, source_id: str, body: Raw) -> Reply[SourceView]:
        """Change some settings of a source.

        The body is a JSON merge patch (RFC 7396): other fields stay unchanged, and `null` restores the default.
        """
        record_audit(request, fields=sorted(body))
        written = await self._registrar.change(_target(request, source_id), body)
        return answer_of(written, self._described(written))

    @route(
        "DELETE",
        "/v1/sources/{source_id}",
        scope=ADMIN,
        audit="source.removed",
        parameters=(_IF_MATCH,),
        answer="What happens to its results.",
        problems=CHANGE,
        example=Example(200, path=_AT, query={"dry_run": "true"}),
    )
    async def remove_source(
        self,
        request: web.Request,
        source_id: str,
        dry_run: Annotated[bool, "Only return what would happen to its results."],
    ) -> SourceRemovalView:
        """Remove the entry of a source.

        Its results are no longer POSTed; none of its messages is lost.
        """
        target = _target(request, source_id)
        self._registrar.own(target)
        [parked] = await answered(self._context.state.parked([f"s:{source_id}"]))
        if dry_run:
            changed_nothing(request)
        else:
            await self._registrar.remove(target)
        results: ResultsView = {"parked": {"retries": parked.retries, "polls": parked.polls}, "then": _THEN}
        return {"source_id": source_id, "removed": not dry_run, "results": results}

    @route(
        "POST",
        "/v1/sources/{source_id}/callback/rotate",
        scope=ADMIN,
        audit="callback.rotated",
        noun="callbacks",
        parameters=(_IF_MATCH,),
        most_bytes=MOST_ROTATION_BYTES,
        answer="The new secret signs in this process, and in all others within 2 s.",
        headers=_ETAG,
        problems=(INVALID_SOURCE, NO_SECRETS_KEY, *CHANGE),
        example=Example(200, path=_AT, body={"grace": "1d", "secret": "${DEPLOY_SECRET}"}),
    )
    async def rotate_callback_secret(
        self, request: web.Request, source_id: str, body: SecretRotation
    ) -> Reply[RotatedSourceView]:
        """Give the callback of a source a new signing secret.

        The former one also signs during the `grace` time.
        """
        turn = SecretTurn(body, self._registrar)

        def rotated(entry: Raw, now: float) -> Raw:
            callback = entry.get("callback")
            if not isinstance(callback, dict):
                raise Problem(NOT_FOUND, f"The source {source_id[:80]!r} has no callback.")
            return {**entry, "callback": turn.rotated(without_expired(callback, now), now)}

        written = await self._registrar.alter(_target(request, source_id), rotated)
        record_audit(request, grace_s=turn.grace_s)
        shown: RotatedSourceView = {**self._described(written), **turn.view()}
        return answer_of(written, shown)

    @route(
        "GET",
        "/v1/sources",
        scope=ADMIN,
        answer="A page, sorted by id.",
        example=Example(200, query={"declared_by": "api", "limit": "10"}),
    )
    async def list_sources(
        self,
        declared_by: Annotated[Literal["file", "api"] | None, "Only those declared there."],
        limit: PageLimit,
        cursor: PageCursor,
    ) -> SourcePage:
        """List the declared sources.

        Other sources may send messages as well: the entry `*` applies to them, or the defaults.
        """
        items, after = list[SourceItem](), cursor
        ids = self._registry.source_ids(after, _LOOKED_AT)
        for source_id in ids:
            item = self._item(source_id)
            if item is not None and declared_by in (None, item["declared_by"]):
                items.append(item)
            after = source_id
            if len(items) == limit:
                break
        more = bool(ids) and bool(self._registry.source_ids(after, 1))
        return {"items": items, "cursor": cursor_behind(after) if more else None}

    def _item(self, source_id: str) -> SourceItem | None:
        written = self._registrar.find(source_id, kind=SOURCE)
        if written is None:
            return None  # gone since its id was looked up
        declared_by, entry = entry_of(written, SOURCE)
        return {
            "source_id": source_id,
            "declared_by": declared_by,
            "refused": self._refused(source_id),
            "callback": None if entry is None else _callback(entry),
            "answers": None if entry is None else entry.answers,
            "inbound": None if entry is None or entry.inbound is None else entry.inbound.kind,
        }

    def _described(self, written: Written) -> SourceView:
        declared_by, entry = entry_of(written, SOURCE)
        return {
            "source_id": written.name,
            "declared_by": declared_by,
            "etag": written.tag,
            "refused": self._refused(written.name),
            "settings": None if entry is None else effective_source(entry),
        }

    def _refused(self, source_id: str) -> str | None:
        return self._registry.problems.get(SOURCE.key(source_id))


def _target(request: web.Request, source_id: str) -> EntryTarget:
    return EntryTarget(source_id, tag_in(request), kind=SOURCE)


def _callback(entry: SourceEntry) -> str | None:
    return shown_url(entry.callback.url) if isinstance(entry.callback, CallbackEntry) else entry.callback
