"""A browser page for tests that records errors, dialogs and requests to other hosts."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final
from urllib.parse import urlsplit

import pytest
from axe_playwright_python.async_playwright import Axe
from playwright.async_api import Browser, ConsoleMessage, Page, Request, Response, ViewportSize, expect

WIDE: Final = ViewportSize(width=1280, height=900)
NARROW: Final = ViewportSize(width=360, height=740)
SIZES: Final = pytest.mark.parametrize(
    "viewport", [pytest.param(WIDE, id="desktop", marks=pytest.mark.slow), pytest.param(NARROW, id="phone")]
)
"""A page that fits a phone fits a desktop, and all tests without a size are on one."""
_LOCAL: Final = frozenset({"data", "blob", "about"})
"""Schemes of URLs that send no request."""

OVER: Final = """() => {
    const over = (each) => each.getBoundingClientRect().right > innerWidth && !each.closest('.wide');
    const all = [...document.querySelectorAll('main *')];
    const last = all.filter((each) => over(each) && ![...each.children].some(over)).slice(0, 5);
    const names = last.map((each) => `${each.tagName}.${each.className} in .${each.parentElement.className}`);
    return [document.documentElement.scrollWidth, innerWidth, names.join(', ')];
}"""
"""Widths of the page and the window, and the innermost elements that stick out."""
_WAIT_MS: Final = 60_000
expect.set_options(timeout=_WAIT_MS)


class Visitor:
    """A browser page on a site at `url`. `problems`: texts, which fail the test at its end.

    Problems are errors on the console (including violations of the content security policy), script errors,
    unexpected dialogs, and requests to any other host.
    """

    def __init__(self, page: Page, url: str) -> None:
        self.page = page
        self.url = url
        self.problems: list[str] = []
        self._allowed: list[str] = []
        page.on("console", self._console)
        page.on("pageerror", lambda error: self._note(f"script: {error}"))
        page.on("request", self._request)

    async def open(self, path: str) -> Response:
        """Open `path`, and return its response once the page is loaded."""
        response = await self.page.goto(self.url + path)
        assert response is not None, f"{path} is where it was already"
        return response

    def allow(self, text: str) -> None:
        """Ignore problems that contain `text` from now on."""
        self._allowed.append(text)

    async def assert_accessible(self, *, besides: Sequence[str] = ()) -> None:
        """The page has no violations of axe-core's rules at present. `besides`: ids of rules to ignore."""
        found: list[dict[str, Any]] = (await Axe().run(self.page)).response["violations"]
        told = [_violation(each) for each in found if each["id"] not in besides]
        assert told == [], "\n".join(told)

    async def assert_fits(self) -> None:
        """Nothing of the page sticks out at its side."""
        wide, has, over = await self.page.evaluate(OVER)
        assert wide <= has, f"the page is {wide} pixels wide, the window {has}: {over}"

    def _console(self, message: ConsoleMessage) -> None:
        if message.type == "error":
            self._note(f"console: {message.text} ({message.location.get('url', '')})")

    def _request(self, request: Request) -> None:
        parts = urlsplit(request.url)
        if parts.scheme not in _LOCAL and parts.netloc != urlsplit(self.url).netloc:
            self._note(f"request: {request.method} {request.url}")

    def _note(self, problem: str) -> None:
        if not any(text in problem for text in self._allowed):
            self.problems.append(problem)


def _violation(found: dict[str, Any]) -> str:
    where = "; ".join(node["html"][:160] for node in found["nodes"][:5])
    return f"{found['id']} ({found['impact']}): {found['help']}: {where}"


@asynccontextmanager
async def visitor_at(browser: Browser, url: str, **options: Any) -> AsyncIterator[Visitor]:
    """`options`: of the browser's context, as `color_scheme="dark"` or `viewport=NARROW`."""
    context = await browser.new_context(**({"viewport": WIDE, "reduced_motion": "reduce"} | options))
    try:
        context.set_default_timeout(_WAIT_MS)
        visitor = Visitor(await context.new_page(), url)
        yield visitor
    finally:
        await context.close()
    assert visitor.problems == [], "\n".join(visitor.problems)
