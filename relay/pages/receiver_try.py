"""Try a receiver: what the relay would send for a payload, and what the receiver's responses would mean."""

from collections.abc import Mapping
from typing import Any, Final

from aiohttp import web

from relay import samples
from relay.client import ApiError
from relay.pages.page import get, post
from relay.pages.visit import Visit
from relay.schema.receivers import ReceiverHealthView
from relay.schema.trials import TrialView, TryView

SAMPLE: Final = "github.push"
RESPONSE: Final = "HTTP/1.1 202 Accepted\nlocation: /jobs/7\n\n"
"""Shown in the empty field."""


@get("/receivers/{name}/try")
async def try_form(visit: Visit) -> web.StreamResponse:
    it = await visit.api.receivers.get(visit.part("name"))
    return _show(visit, it, {"payload": samples.load(SAMPLE).payload.decode()})


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
