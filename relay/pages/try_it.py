"""Try it: send a sample, and watch it go round."""

import json
import secrets
from collections.abc import Mapping
from typing import Final

from aiohttp import web

from relay import samples
from relay.client import ApiError
from relay.client.http import path
from relay.domain.identity import PROBE
from relay.pages.page import get, post
from relay.pages.visit import Visit

SOURCE: Final = "try-it"
_USUAL: Final = "github.push"
_NAMED: Final = 100


@get("/try")
async def try_it(visit: Visit) -> web.StreamResponse:
    sample = _sample(visit.filters("sample"))
    values = {
        "sample": sample.name,
        "type": sample.event_type,
        "source": SOURCE,
        "receiver": visit.filters("receiver").get("receiver", ""),
        "payload": _readable(sample.payload),
    }
    return await _show_form(visit, values)


@post("/try")
async def send_sample(visit: Visit) -> web.StreamResponse:
    """A form without a payload sends the sample that it names. `next`: the page that follows."""
    form = dict(await visit.form())
    if "payload" not in form:
        sample = _sample(form)
        form |= {"payload": _readable(sample.payload), "type": sample.event_type}
    source, message_id = form.get("source", "") or SOURCE, f"try-{secrets.token_hex(6)}"
    sent = await visit.result(
        visit.api.send(
            source,
            form.get("payload", "").encode(),
            receivers=[form["receiver"]] if form.get("receiver") else (),
            type=form.get("type") or None,
            id=message_id,
        )
    )
    if isinstance(sent, ApiError):
        values = {"sample": _USUAL, "type": "", "receiver": "", **form, "source": source}
        return await _show_form(visit, values, sent)
    if form.get("next"):
        return visit.back(form["next"], "Sent.")
    return visit.back(path("/ui/messages/{}/{}", source, message_id), "Sent.")


async def _show_form(visit: Visit, values: Mapping[str, str], problem: ApiError | None = None) -> web.StreamResponse:
    listed = await visit.load_list(visit.api.receivers.page(limit=_NAMED))
    names = [item["name"] for item in listed.items]
    if names == [PROBE] and problem is None:
        values = {**values, "receiver": values["receiver"] or PROBE}
    return visit.show(
        "trying.html",
        problem=problem,
        values=values,
        names=samples.names(),
        receivers=[name for name in names if name != PROBE],
        has_any=bool(names) or listed.problem is not None,
        probe=PROBE,
    )


def _sample(given: Mapping[str, str]) -> samples.Sample:
    """The one that is named, or the usual one."""
    name = given.get("sample", _USUAL)
    return samples.load(name if name in samples.names() else _USUAL)


def _readable(payload: bytes) -> str:
    return json.dumps(json.loads(payload), indent=2, ensure_ascii=False)
