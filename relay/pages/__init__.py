"""The pages for people, under `/ui/`: HTML and nothing else. They are a client of our own HTTP API.

Pages call the API over a unix socket of this process, with the visitor's own token: so rights, audit and error texts
are the API's, and every action has a call of the API.

**To add a page**: a module with functions like these, its name in `MODULES` of `web.py`, its entry in `NAVIGATION` of
`page.py` if it has one; templates in `templates/`.

    @get("/messages")                                  # under /ui
    async def messages(visit: Visit) -> web.StreamResponse:
        page = visit.api.messages.page(source=visit.filters("source").get("source"), cursor=visit.cursor)
        found = await visit.load_list(page)            # `.items`, or `.problem` to show
        return visit.show("messages.html", found=found)

    @live("/live/messages")                            # server-sent events: HTML, again each second if it changed
    async def live_rows(visit: Visit) -> str: ...

- `visit.api` is the client of `relay.client`, with the rights of the visitor. `visit.load` returns a `Loaded` for a
  part of a page that shows its own errors, `visit.result` the same for the code of a page; with `visit.or_back` an
  error leads back to a page, as its note. Other ApiErrors become a page of their own (401: the log-in).
- Actions: `{{ ui.action(...) }}` in a template is a button that makes one call of the API (`/ui/act`), asks first with
  `confirm`, and comes back with a note. A POST of your own: `@post`; its form has `{{ ui.csrf() }}`, which is
  checked before your handler runs. Then `return visit.back(url, "Done.")`.
- Templates begin with `{% extends "base.html" %}` and `{% import "ui.html" as ui with context %}`; all macros
  are listed at the top of `templates/ui.html`, filters are in `render.py` (`FILTERS`, and `ago`, `coming`, `ms` in
  `Renderer`). For a fragment: `visit.fragment("part.html", ...)`.
- There is no inline script or style, also no `style=`: the browser would refuse it. Never `|safe`.
- A chart: `{{ ui.chart(...) }}`. Scripts go to `static/relay.js`, and find their elements by `data-` attributes.
"""
