"""Keys of the API, the audit trail, and erasures: who may do what, who has changed what, and what was deleted."""

import re
from collections.abc import Mapping
from typing import Final

from aiohttp import web

from relay.client import ApiError
from relay.pages.page import get, post
from relay.pages.render import compact
from relay.pages.visit import Visit
from relay.schema.access import NewKey
from relay.schema.operation import NewErasureView

_PAGE: Final = 50
KEYS: Final = "/ui/keys"
ERASURES: Final = "/ui/erasures"
EXPIRIES: Final = (
    *(("", "Never"), ("1d", "In a day"), ("30d", "In 30 days")),
    *(("90d", "In 90 days"), ("365d", "In a year")),
)
OVERLAPS: Final = (("0s", "At once"), ("1h", "After an hour"), ("1d", "After a day"), ("7d", "After 7 days"))


@get("/keys")
async def keys(visit: Visit) -> web.StreamResponse:
    return await _show_keys(visit, {}, None)


@post("/keys")
async def create_key(visit: Visit) -> web.StreamResponse:
    """The text of the key is shown in this response only."""
    form = await visit.form()
    scopes = [scope for scope in re.split(r"[\s,]+", form.get("scopes", "")) if scope]
    made = await visit.result(
        visit.api.keys.create(scopes, name=form.get("name", "").strip(), expires_in=form.get("expires_in") or None)
    )
    if isinstance(made, ApiError):
        return await _show_keys(visit, form, made)
    return _show_secret(visit, made, "was created")


@post("/keys/{id}/rotate")
async def rotate_key(visit: Visit) -> web.StreamResponse:
    overlap = (await visit.form()).get("overlap") or "1d"
    made = await visit.or_back(visit.api.keys.rotate(visit.part("id"), overlap=overlap), KEYS)
    return _show_secret(visit, made, "has a new secret")


async def _show_keys(visit: Visit, form: object, refused: ApiError | None) -> web.StreamResponse:
    found = await visit.load_list(visit.api.keys.page(limit=_PAGE, cursor=visit.cursor))
    return visit.show("keys.html", found=found, given=form, problem=refused, expiries=EXPIRIES, overlaps=OVERLAPS)


def _show_secret(visit: Visit, made: NewKey, done: str) -> web.Response:
    return visit.show(
        "secret.html",
        title=f"The key {made['name'] or made['id']} {done}",
        text="Programs send it as Authorization: Bearer; commands take it from RELAY_API_KEY.",
        secret=made["key"],
        until=made["old_secret_until"],
        back=KEYS,
    )


@get("/audit")
async def audit_trail(visit: Visit) -> web.StreamResponse:
    query = visit.filters("who", "what", "whom")
    page = visit.api.audit(**query, limit=_PAGE, cursor=visit.cursor)
    return visit.show("audit.html", found=await visit.load_list(page), query=query)


@get("/erasures")
async def erasures(visit: Visit) -> web.StreamResponse:
    return await _show_erasures(visit, {})


@post("/erasures")
async def erase(visit: Visit) -> web.StreamResponse:
    form = await visit.form()
    given = {name: form.get(name, "").strip() for name in ("source_id", "message_id", "receiver")}
    is_filled = given["source_id"] or given["receiver"]  # otherwise the API names the missing field
    if is_filled and form.get("confirm") and not form.get("confirmed"):
        call = {"method": "POST", "path": "/v1/erasures", "body": compact({k: v for k, v in given.items() if v})}
        return visit.show("confirm.html", form={**form, **call}, next=ERASURES)
    made = await visit.result(visit.api.erase(**{name: text or None for name, text in given.items()}))
    if isinstance(made, ApiError):
        return await _show_erasures(visit, given, refused=made)
    return await _show_erasures(visit, {}, made=made)


async def _show_erasures(
    visit: Visit,
    given: Mapping[str, str],
    *,
    made: NewErasureView | None = None,
    refused: ApiError | None = None,
) -> web.StreamResponse:
    return visit.show(
        "erasures.html",
        found=await visit.load_list(visit.api.erasures_page(limit=_PAGE, cursor=visit.cursor)),
        given=given,
        made=made,
        problem=refused,
    )
