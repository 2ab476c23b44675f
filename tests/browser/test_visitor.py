"""Tests of the browser tests' own checks: a visitor reports errors, violations and foreign requests of a page."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from aiohttp import web

from tests.browser.conftest import Visiting
from tests.browser.visitor import NARROW

HEAD = "<!doctype html><html lang=en><head><title>t</title></head><body><main><h1>h</h1>"
STRICT = "default-src 'self'; connect-src *"
BAD = {
    "inline script": ("<script>document.title = 'x'</script>", "console: "),
    "inline handler": ("<img src=/none.svg alt=x onerror='document.title = 1'>", "console: "),
    "another host": ("<a href=/ping>p</a><script src=/fetch.js></script>", "request: GET http://127.0.0.2:9/"),
    "an error": ("<script src=/throw.js></script>", "script: thrown"),
    "on the console": ("<script src=/tell.js></script>", "console: told"),
}
SCRIPTS = {
    "fetch": "fetch('http://127.0.0.2:9/').catch(() => 0)",
    "throw": "throw Error('thrown')",
    "tell": "console.error('told')",
}


@asynccontextmanager
async def serving(body: str) -> AsyncIterator[str]:
    """A page of it, and the scripts."""

    async def page(_request: web.Request) -> web.Response:
        return web.Response(text=HEAD + body, content_type="text/html", headers={"Content-Security-Policy": STRICT})

    async def script(request: web.Request) -> web.Response:
        return web.Response(text=SCRIPTS[request.match_info["name"]], content_type="text/javascript")

    app = web.Application()
    app.router.add_get("/", page)
    app.router.add_get("/{name}.js", script)
    app.router.add_get("/favicon.ico", _nothing)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


async def _nothing(_request: web.Request) -> web.Response:
    return web.Response(status=204)


async def look(visiting: Visiting, url: str) -> None:
    async with visiting(url) as visitor:
        await visitor.open("/")
        await visitor.page.wait_for_load_state("networkidle")


@pytest.mark.parametrize("what", BAD)
async def test_what_must_not_happen_is_a_problem(visiting: Visiting, what: str) -> None:
    body, told = BAD[what]
    async with serving(body) as url:
        with pytest.raises(AssertionError, match=f"^{told}"):
            await look(visiting, url)


async def test_a_quiet_page_is_none_and_what_was_allowed_is_none(visiting: Visiting) -> None:
    async with serving("<p>nothing</p>") as url, visiting(url) as visitor:
        assert (await visitor.open("/")).status == 200
        await visitor.assert_accessible()
        await visitor.assert_fits()
        visitor.allow("status of 404")
        await visitor.open("/none")


async def test_what_somebody_cannot_use_is_a_violation(visiting: Visiting) -> None:
    async with serving("<button></button>") as url, visiting(url) as visitor:
        await visitor.open("/")
        with pytest.raises(AssertionError, match="button-name"):
            await visitor.assert_accessible()
        await visitor.assert_accessible(besides=["button-name"])


async def test_what_sticks_out_does_not_fit(visiting: Visiting) -> None:
    async with serving("<pre>" + "x" * 500 + "</pre>") as url, visiting(url, viewport=NARROW) as visitor:
        await visitor.open("/")
        with pytest.raises(AssertionError, match="wide"):
            await visitor.assert_fits()
