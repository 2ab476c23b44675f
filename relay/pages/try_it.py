"""Try it: send a sample, and watch it go round."""

import json
import secrets
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import quote

from aiohttp import web

from relay import samples
from relay.pages.api_client import ApiProblem, path
from relay.pages.page import Nav, Page, PageRoutes
from relay.pages.visit import Visit

SOURCE: Final = "try-it"
_USUAL: Final = "github.push"
_NAMED: Final = "100"


class Trying(Page):
    """A form with a sample message; sending it leads to the page of that message."""

    nav = Nav("Try it", "/ui/try")

    def add_routes(self, routes: PageRoutes) -> None:
        routes.get("/try", self.form)
        routes.post("/try", self.send)

    async def form(self, visit: Visit) -> web.StreamResponse:
        name = visit.filters("sample").get("sample", _USUAL)
        sample = samples.load(name if name in samples.names() else _USUAL)
        values = {
            "sample": sample.name,
            "type": sample.event_type,
            "source": SOURCE,
            "receiver": visit.filters("receiver").get("receiver", ""),
            "payload": _readable(sample.payload),
        }
        return await self._show(visit, values)

    async def send(self, visit: Visit) -> web.StreamResponse:
        form = await visit.form()
        source, message_id = form.get("source", "") or SOURCE, f"try-{secrets.token_hex(6)}"
        sent = await visit.result(
            visit.api.call(
                "POST",
                path("/v1/sources/{}/messages", source),
                query={"receiver": form["receiver"]} if form.get("receiver") else None,
                content=form.get("payload", "").encode(),
                headers=_headers(message_id, form.get("type", "")),
            )
        )
        if isinstance(sent, ApiProblem):
            return await self._show(visit, {"sample": _USUAL, "type": "", "source": source, **form}, sent)
        return visit.back(path("/ui/messages/{}/{}", source, message_id), "Sent. Watch it go round.")

    async def _show(
        self, visit: Visit, values: Mapping[str, Any], problem: ApiProblem | None = None
    ) -> web.StreamResponse:
        receivers = await visit.load(visit.api.get("/v1/receivers", {"limit": _NAMED}))
        return visit.show(
            "trying.html",
            status=200 if problem is None else problem.status,
            problem=problem,
            values=values,
            names=samples.names(),
            receivers=[item["name"] for item in receivers.items],
        )


def _headers(message_id: str, event_type: str) -> dict[str, str]:
    """Values may have any characters: they go percent-encoded, as the API reads them."""
    headers = {"ce-id": message_id, "Content-Type": "application/json"}
    return headers | ({"ce-type": quote(event_type, safe="")} if event_type else {})


def _readable(payload: bytes) -> str:
    return json.dumps(json.loads(payload), indent=2, ensure_ascii=False)
