"""Try it: send a sample, and watch it go round. Try a receiver: what the relay would send for a payload, and what the
receiver's responses would mean."""

import json
import secrets
from collections.abc import Mapping
from typing import Any, Final

from aiohttp import web

from relay.client import ApiError
from relay.client.http import path
from relay.domain.identity import PROBE
from relay.pages.page import get, post
from relay.pages.render import pretty
from relay.pages.visit import Visit
from relay.schema.attempts import TrialView, TryView
from relay.schema.receivers import ReceiverHealthView
from relay.sink import samples

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
        "payload": pretty(json.loads(sample.payload)),
    }
    return await _show_form(visit, values)


@post("/try")
async def send_sample(visit: Visit) -> web.StreamResponse:
    """A form without a payload sends the sample that it names. `next`: the page that follows."""
    form = dict(await visit.form())
    if "payload" not in form:
        sample = _sample(form)
        form |= {"payload": pretty(json.loads(sample.payload)), "type": sample.event_type}
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


RESPONSE: Final = "HTTP/1.1 202 Accepted\nlocation: /jobs/7\n\n"
"""Shown in the empty field."""


@get("/receivers/{name}/try")
async def try_form(visit: Visit) -> web.StreamResponse:
    it = await visit.api.receivers.get(visit.part("name"))
    return _show(visit, it, {"payload": samples.load(_USUAL).payload.decode()})


@post("/receivers/{name}/try")
async def try_receiver(visit: Visit) -> web.StreamResponse:
    """`Show` sends nothing; `Send it once` does."""
    it, form = await visit.api.receivers.get(visit.part("name")), await visit.form()
    if form.get("send"):
        sent = await visit.result(visit.api.receivers.test(it["name"], **_message(form)))
        if isinstance(sent, ApiError):
            return _show(visit, it, form, problem=sent)
        return _show(visit, it, form, trial=sent.get("trial"), sent=sent)
    trial = await visit.result(visit.api.receivers.dry_run(it["name"], **_message(form), **_responses(it, form)))
    if isinstance(trial, ApiError):
        return _show(visit, it, form, problem=trial)
    return _show(visit, it, form, trial=trial)


def _message(form: Mapping[str, str]) -> dict[str, Any]:
    fields = {name: form.get(name, "").strip() or None for name in ("type", "source")}
    return {"text": form.get("payload", "").replace("\r\n", "\n"), **fields}


def _responses(it: ReceiverHealthView, form: Mapping[str, str]) -> dict[str, Any]:
    statuses = [text for text in _texts(form, _steps(it)) if text.strip()]
    posted = form.get("response", "")
    return {"response": posted, "status_responses": statuses} if posted.strip() or statuses else {}


def _steps(it: ReceiverHealthView) -> int:
    """The number of status GETs that may follow a POST, as fields of the form."""
    return len((it["settings"] or {}).get("status_steps") or ()) or 1


def _texts(form: Mapping[str, str], steps: int) -> list[str]:
    return [form.get(f"status-{number}", "") for number in range(1, steps + 1)]


def _show(
    visit: Visit,
    it: ReceiverHealthView,
    values: Mapping[str, str],
    *,
    problem: ApiError | None = None,
    trial: TryView | None = None,
    sent: TrialView | None = None,
) -> web.Response:
    return visit.show(
        "receiver_try.html",
        it=it,
        values={name: values.get(name, "") for name in ("source", "type", "payload", "response")},
        statuses=_texts(values, _steps(it)),
        example=RESPONSE,
        problem=problem,
        trial=trial,
        sent=sent,
    )
