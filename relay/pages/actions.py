"""`/ui/act`: one call of the API, as the button of a page names it; asked about first where that is due."""

import json
from typing import ClassVar, Final

from aiohttp import web

from relay.pages.api_client import ApiProblem
from relay.pages.page import Nav, PageRoutes
from relay.pages.visit import HOME, Visit, own_url

_METHODS: Final = frozenset({"POST", "PUT", "PATCH", "DELETE"})


class Actions:
    """Fields of the form: `method`, `path`, `body` (JSON, or empty), `label`, `done` (the note), `next` (the page that
    follows), and `confirm`: the question to be asked first, until `confirmed` is set.

    The visitor's token limits what may be done; a form without the browser's own token is refused before.
    """

    nav: ClassVar[Nav | None] = None

    def add_routes(self, routes: PageRoutes) -> None:
        routes.post("/act", self.act)

    async def act(self, visit: Visit) -> web.StreamResponse:
        form = await visit.form()
        method, target, following = form.get("method", ""), form.get("path", ""), own_url(form.get("next", HOME))
        if method not in _METHODS or not target.startswith("/v1/") or "/.." in target:
            raise ApiProblem(400, "invalid-request", "The action is not valid", "Load the page again.")
        if form.get("confirm") and not form.get("confirmed"):
            return visit.show("confirm.html", form=form, next=following)
        try:
            body = json.loads(form["body"]) if form.get("body") else None
        except ValueError as error:
            raise ApiProblem(400, "invalid-request", "The action is not valid", "Its body is no JSON.") from error
        try:
            await visit.api.call(method, target, body=body)
        except ApiProblem as problem:
            if problem.status == 401:
                raise
            return visit.back(following, f"{problem.title}. {problem.detail}", "bad")
        return visit.back(following, form.get("done") or f"{form.get('label', 'It')}: done.")
