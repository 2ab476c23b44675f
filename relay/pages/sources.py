"""Sources: the list, and the page of one with the way back of its results: health, attempts, dead letters, settings."""

import asyncio
from collections.abc import Mapping
from functools import partial
from typing import Any, Final, cast

from aiohttp import web

from relay.client import ApiError
from relay.client.http import path
from relay.domain.identity import PROBE
from relay.domain.reasons import REASONS, reason_class
from relay.pages.incidents import unresolved_of
from relay.pages.page import get, post
from relay.pages.receiver_form import (
    Field,
    credentials_of,
    mistakes_of,
    renewed_credentials,
    settings_text,
    shown,
    wanted_of,
)
from relay.pages.visit import Visit
from relay.schema.receivers import SourceView

HERE: Final = "/ui/sources"
_PAGE: Final = 50
_SHOWN: Final = 20
"""Attempts and dead letters on the page of a source."""
_OF_RESULTS: Final = tuple(reason for reason in REASONS if reason_class(reason) != "receiver")
"""A dead letter has its reason in the index, and its stage only on the log: others are not read."""
_URL: Final = "callback.url"
FIELDS: Final = (
    Field(_URL, "Callback URL", hint="Results are POSTed to it. Empty: none; the sender queries the API."),
    Field("callback.timeout", "Timeout", "duration", hint="Of one request, for example 15s."),
    Field("callback.rate_limit", "Rate limit (requests per window; empty = unlimited)", "number"),
    Field("callback.max_in_flight", "Concurrent requests", "number", hint="At most. Empty: 32."),
    Field(
        "callback.progress", "Progress", "list", hint="Reported before the result: accepted, running. Empty: neither."
    ),
    Field("keep", "Kept values", "expressions", hint="For the callback: sha=payload.after; url=payload.statuses_url"),
    Field("quota", "Quota", hint="Messages over HTTP, as 6000/1m. Empty: RELAY_SOURCE_QUOTA."),
)
ANSWERS: Final = (("all", "All"), ("non_empty", "Those with a body"), ("none", "None"))
FAILURES: Final = (("true", "Reported to the sender"), ("false", "Not reported"))
SECRETS: Final = (
    Field("callback.secret", "Signing secret", hint="Of the callback. Empty: unchanged."),
    Field("inbound.secret", "Webhook secret", hint="Authenticates incoming webhooks. Empty: unchanged."),
)


@get("/sources")
async def sources(visit: Visit) -> web.StreamResponse:
    page = await visit.load_list(visit.api.sources.page(limit=_PAGE, cursor=visit.cursor))
    return visit.show("sources.html", found=page.without(lambda item: item["source_id"] == PROBE))


@get("/sources/{source_id}")
async def source_page(visit: Visit) -> web.StreamResponse:
    """Readers of a source see the health of its callback, and not its settings."""
    source_id = visit.part("source_id")
    callback, source, letters, incidents = await asyncio.gather(
        visit.load(visit.api.sources.callback(source_id)),
        visit.load(visit.api.sources.get(source_id)),
        visit.load_list(visit.api.failed.page(source=[source_id], stage="to_sender", reason=_OF_RESULTS, limit=_SHOWN)),
        unresolved_of(visit, "source", source_id),
    )
    if callback.problem is not None and callback.problem.status == 403:
        raise callback.problem
    known = (source.value["settings"] if source.value else None) or {}
    rows = [(name, settings_text(name, value)) for name, value in known.items()]
    has_secret = isinstance(known.get("callback"), dict) and known["callback"].get("signature") != "none"
    return visit.show(
        "source.html",
        source_id=source_id,
        callback=callback,
        source=source,
        letters=letters,
        incidents=incidents,
        rows=rows,
        has_secret=has_secret,
    )


@get("/sources/{source_id}/attempts")
async def attempts(visit: Visit) -> web.StreamResponse:
    """The part of the page with the attempts at its callback; a whole page for browsers without scripts."""
    source_id = visit.part("source_id")
    failed = "failed" in visit.filters("failed")
    page = visit.api.sources.attempts_page(source_id, failed=failed, limit=_SHOWN, cursor=visit.cursor)
    found = await visit.load_list(page)
    template = "source_attempts_part.html" if visit.is_partial else "source_attempts.html"
    return visit.show(template, source_id=source_id, attempts=found, failed=failed)


@post("/sources/{source_id}/test")
async def test(visit: Visit) -> web.StreamResponse:
    """Send its callback a ping, and show the response on a page of its own."""
    source_id = visit.part("source_id")
    tried = await visit.api.sources.test(source_id)
    return visit.show(
        "receiver_test.html", name=source_id, tried=tried, parties="Sources", all=HERE, own=_page(source_id)
    )


@post("/sources/{source_id}/pause")
async def pause(visit: Visit) -> web.StreamResponse:
    source_id, why = visit.part("source_id"), (await visit.form()).get("reason", "").strip()
    return await visit.change(visit.api.sources.pause(source_id, why), _page(source_id), "Its callback is paused.")


@post("/sources/{source_id}/rotate")
async def rotate(visit: Visit) -> web.StreamResponse:
    """The new secret is shown in this response only."""
    source_id, grace = visit.part("source_id"), (await visit.form()).get("grace") or "1d"
    rotated = await visit.or_back(visit.api.sources.rotate(source_id, grace=grace), _page(source_id))
    return visit.show(
        "secret.html",
        title=f"The callback of {source_id} has a new secret",
        text="The sender verifies results with it.",
        secret=rotated["secret"] or rotated["public_key"],
        until=rotated["former_until"],
        back=_page(source_id),
    )


@post("/sources/{source_id}/replay")
async def replay(visit: Visit) -> web.StreamResponse:
    """Replays the results that were given up."""
    source_id = visit.part("source_id")
    wanted = {"source": source_id, "stage": "to_sender"}
    return await visit.replay(wanted, _page(source_id), "source_replay.html", source_id=source_id)


@get("/sources/{source_id}/edit")
async def edit(visit: Visit) -> web.StreamResponse:
    return _form(visit, await visit.api.sources.get(visit.part("source_id")), {}, None)


@post("/sources/{source_id}/edit")
async def change(visit: Visit) -> web.StreamResponse:
    source_id, form = visit.part("source_id"), await visit.form()
    it = await visit.api.sources.get(source_id)
    update, own = partial(visit.api.sources.update, source_id), _page(source_id)
    saved = await visit.save(it["etag"], lambda: patch_of(form, it), update, own)
    return _form(visit, it, form, saved) if isinstance(saved, ApiError) else saved


def _page(source_id: str) -> str:
    return path("/ui/sources/{}", source_id)


def _present(it: SourceView) -> dict[str, Any]:
    """The settings by the names of their form fields, such as `callback.url`."""
    settings = it["settings"] or {}
    callback = settings.get("callback")
    inner = callback if isinstance(callback, dict) else {}
    return {**settings, **{f"callback.{name}": value for name, value in inner.items()}}


def patch_of(form: Mapping[str, str], it: SourceView) -> dict[str, object]:
    """The merge patch: the fields whose text has changed, and secrets that were given. Raises ApiError."""
    present = _present(it)
    wanted = wanted_of(form, present, FIELDS)
    for name, before in (("answers", present.get("answers")), ("failures", str(present.get("failures")).lower())):
        if form.get(name) not in (None, before):
            wanted[name] = form[name] == "true" if name == "failures" else form[name]
    wanted |= {field.name: form[field.name] for field in SECRETS if form.get(field.name)}
    if _URL in wanted and wanted[_URL] is None:
        return {name: value for name, value in wanted.items() if not name.startswith("callback.")} | {"callback": None}
    patch = renewed_credentials(form)
    for name, value in wanted.items():
        outer, _, inner = name.rpartition(".")
        if outer:
            cast(dict[str, object], patch.setdefault(outer, {}))[inner] = value
        else:
            patch[name] = value
    return patch


def _form(visit: Visit, it: SourceView, form: Mapping[str, str], refused: ApiError | None) -> web.Response:
    present = _present(it)
    inbound = [SECRETS[1]] if present.get("inbound") else []
    return visit.show(
        "source_edit.html",
        it=it,
        fields=FIELDS,
        values={field.name: form.get(field.name, shown(present.get(field.name), field.kind)) for field in FIELDS},
        answers=form.get("answers", str(present.get("answers", "all"))),
        failures=form.get("failures", str(present.get("failures", True)).lower()),
        choices={"answers": ANSWERS, "failures": FAILURES},
        secrets=[SECRETS[0], *inbound],
        anew=[field for field in credentials_of(refused) if field.label not in {each.name for each in SECRETS}],
        problem=refused,
        mistakes=mistakes_of(refused, (*FIELDS, *SECRETS)),
    )
