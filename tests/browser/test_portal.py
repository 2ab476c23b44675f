"""Browser tests of the portal: opened by a link, and in a frame of a page on another site."""

import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web
from playwright.async_api import expect

from tests.browser.conftest import Visiting
from tests.browser.dev_relay import DevRelay
from tests.browser.test_receivers import KEY, heading, log_in, press, relay_with_receivers
from tests.browser.test_receivers import dev as dev  # with receivers
from tests.pseudo import left_of, strings


async def test_a_link_shows_what_is_the_owners_and_leaves_the_address(dev: DevRelay, visiting: Visiting) -> None:
    async with visiting(dev.url) as visitor:
        visitor.allow("status of 403")
        link = await dev.call("POST", "/v1/portal-links", {"owner": "acme", "hours": 1})
        await visitor.page.goto(link["url"])
        await expect(visitor.page).to_have_url(f"{dev.url}/ui/receivers")
        rows = visitor.page.locator("tbody tr")
        await expect(rows).to_have_count(2)
        await expect(visitor.page.locator("nav a", has_text="System")).to_have_count(0)
        await visitor.assert_accessible()
        await visitor.page.get_by_role("link", name="ci", exact=True).click()
        await press(visitor, "Send a test")
        await heading(visitor, "Test of ci")
        assert (await visitor.open("/ui/receivers/other")).status == 403
        await heading(visitor, "Not in this portal")
        await expect(visitor.page).to_have_title(re.compile("^Not in this portal"))
        await visitor.assert_accessible()
        await visitor.page.locator("main").get_by_role("link", name="Receivers").click()
        await expect(visitor.page).to_have_url(f"{dev.url}/ui/receivers")
        await visitor.open("/ui/receivers/other")
        await expect(visitor.page.locator("main")).not_to_contain_text("globex")
        for elsewhere in ("/ui/", "/ui/system", "/ui/sources/shop"):
            await visitor.open(elsewhere)
            await expect(visitor.page).to_have_url(f"{dev.url}/ui/receivers")
        await press(visitor, "Leave")
        await heading(visitor, "You have left the portal")
        await visitor.open("/ui/receivers")
        await heading(visitor, "Log in")


async def test_a_link_on_another_site_takes_nobodys_session_away(dev: DevRelay, visiting: Visiting) -> None:
    """The browser keeps the session's cookie back at first: it would seem that there is none."""
    async with running_site() as site, visiting(dev.url) as visitor:
        for text in (f"request: GET {site.url}", "favicon", "status of 403"):
            visitor.allow(text)
        page = visitor.page
        site.framed = (await dev.call("POST", "/v1/portal-links", {"owner": "acme"}))["url"]
        await log_in(visitor, "/ui/")
        await page.goto(f"{site.url}/link")
        await page.get_by_role("link", name="A link").click()
        await heading(visitor, "Open the portal of acme instead?")
        await visitor.assert_accessible()
        await page.get_by_role("link", name="Stay").click()
        await heading(visitor, "Overview")
        await page.goto(f"{site.url}/link")
        await page.get_by_role("link", name="A link").click()
        await press(visitor, "Open the portal")
        await expect(page).to_have_url(f"{dev.url}/ui/receivers")
        await expect(page.locator("nav a", has_text="System")).to_have_count(0)
        await page.context.clear_cookies()
        await page.goto(f"{site.url}/link")
        await page.get_by_role("link", name="A link").click()
        await expect(page).to_have_url(f"{dev.url}/ui/receivers")


async def test_a_link_that_is_over_says_so(dev: DevRelay, visiting: Visiting) -> None:
    async with visiting(dev.url) as visitor:
        visitor.allow("status of 40")
        for token in ("", "rs_x", "rp_rubbish"):
            await visitor.open(f"/ui/portal?token={token}")
            await heading(visitor, "This link has expired")
        await visitor.assert_accessible()
        assert await visitor.page.context.cookies() == [] or not [
            each for each in await visitor.page.context.cookies() if each["name"] == "relay_session"
        ]


class Site:
    """A page at `localhost` that shows `framed`, and `/link` to it: another site than `127.0.0.1`, so cookies in there
    are third-party."""

    def __init__(self) -> None:
        self.framed = "about:blank"
        self.url = ""

    async def link(self, _request: web.Request) -> web.Response:
        text = f"<!doctype html><html lang=en><title>app</title><a href='{self.framed}' rel=noreferrer>A link</a>"
        return web.Response(text=text, content_type="text/html")

    async def page(self, _request: web.Request) -> web.Response:
        text = f"<!doctype html><html lang=en><title>app</title><iframe src='{self.framed}' width=900 height=700>"
        return web.Response(text=text, content_type="text/html")


@asynccontextmanager
async def running_site() -> AsyncIterator[Site]:
    site, app = Site(), web.Application()
    app.router.add_get("/", site.page)
    app.router.add_get("/link", site.link)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    site.url = f"http://localhost:{runner.addresses[0][1]}"
    try:
        yield site
    finally:
        await runner.cleanup()


async def test_an_allowed_page_of_another_site_shows_it_in_a_frame(tmp_path: Path, visiting: Visiting) -> None:
    async with (
        running_site() as site,
        DevRelay(tmp_path, {"RELAY_PORTAL_ORIGINS": site.url}, key=KEY) as dev,
        visiting(site.url) as visitor,
    ):
        await dev.receiver("ci", "http://127.0.0.1:9/", owner="acme")
        site.framed = (await dev.call("POST", "/v1/portal-links", {"owner": "acme"}))["url"]
        for text in (f"request: GET {dev.url}", f"request: POST {dev.url}", "favicon", "Blocked autofocusing"):
            visitor.allow(text)
        await visitor.open("/")
        frame = visitor.page.frame_locator("iframe")
        await frame.get_by_role("link", name="ci", exact=True).click()
        await expect(frame.locator("main input[name=next]").first).to_have_value("/ui/receivers/ci")
        await frame.locator("summary", has_text="Pause").click()
        await frame.get_by_role("button", name="Pause").click()
        await expect(frame.get_by_role("status")).to_contain_text("ci is paused.")
        assert (await dev.call("GET", "/v1/receivers/ci"))["paused"] is True
        [cookie] = [each for each in await visitor.page.context.cookies() if each["name"] == "relay_portal"]
        assert (cookie["sameSite"], cookie["secure"], cookie["httpOnly"]) == ("None", True, True)


@pytest.mark.parametrize("scheme", ["light", pytest.param("dark", marks=pytest.mark.slow)])
async def test_the_portal_has_the_look_of_a_product(tmp_path: Path, visiting: Visiting, scheme: str) -> None:
    """A yellow that is unreadable on white is adapted. Only operators see the version of the relay."""
    logo = tmp_path / "logo.svg"
    logo.write_text('<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 8 8"><rect width="8" height="8"/></svg>')
    look = {"RELAY_PORTAL_NAME": "Acme <Cloud>", "RELAY_PORTAL_COLOUR": "#ffee00", "RELAY_PORTAL_LOGO": str(logo)}
    async with DevRelay(tmp_path, look, key=KEY) as dev, visiting(dev.url, color_scheme=scheme) as visitor:
        page = visitor.page
        await dev.receiver("ci", "http://127.0.0.1:9/", owner="acme")
        version = (await dev.call("GET", "/version"))["version"]
        link = await dev.call("POST", "/v1/portal-links", {"owner": "acme"})
        await page.goto(link["url"])
        await expect(page).to_have_title("Receivers · Acme <Cloud>")
        await expect(page.locator(".brand")).to_have_text("Acme <Cloud>")
        assert await page.locator(".brand img").evaluate("image => image.naturalWidth > 0")
        assert version not in await page.locator("body").inner_text()
        for path in ("/ui/receivers", "/ui/receivers/ci", "/ui/messages", "/ui/failed", "/ui/replays"):
            await visitor.open(path)
            await visitor.assert_accessible()
            await expect(page.locator("a[href='/ui/try']"), "which the portal does not have").to_have_count(0)
        visitor.allow("status of 404")
        await visitor.open("/ui/no/such/page")
        await page.get_by_role("main").get_by_role("link", name="Receivers").click()
        await heading(visitor, "Receivers")
        await press(visitor, "Leave")
        await visitor.open("/ui/login")
        await expect(page).to_have_title("Log in · Relay")


async def test_the_portal_has_the_texts_of_a_product(tmp_path: Path, visiting: Visiting) -> None:
    file = tmp_path / "strings.json"
    file.write_text(json.dumps({"en": "de", "Receivers": "Empfänger", "Register a receiver": "<b>Neuer</b>"}))
    async with DevRelay(tmp_path, {"RELAY_PORTAL_STRINGS": str(file)}, key=KEY) as dev, visiting(dev.url) as visitor:
        page = visitor.page
        await page.goto((await dev.call("POST", "/v1/portal-links", {"owner": "acme"}))["url"])
        await heading(visitor, "Empfänger")
        await expect(page).to_have_title("Empfänger · Relay")
        await expect(page.locator("html")).to_have_attribute("lang", "de")
        await expect(page.locator("nav a", has_text="Empfänger")).to_have_count(1)
        await page.get_by_role("link", name="<b>Neuer</b>").click()
        await heading(visitor, "<b>Neuer</b>")
        await visitor.assert_accessible()
        await page.context.clear_cookies()
        await log_in(visitor, "/ui/receivers")
        await heading(visitor, "Receivers")


TEXTS = """() => {
    const kept = 'code, pre, bdi, script, style, textarea, .mono, [translate=no], option[value=""] ~ option';
    const found = [];
    const walk = document.createTreeWalker(document.documentElement, NodeFilter.SHOW_TEXT);
    while (walk.nextNode()) if (!walk.currentNode.parentElement.closest(kept)) found.push(walk.currentNode.data);
    document.querySelectorAll('[aria-label], [title], [alt]').forEach((each) => {
        if (each.closest(kept)) return;
        found.push(...['aria-label', 'title', 'alt'].map((name) => each.getAttribute(name) ?? ''));
    });
    return found.map((text) => text.replace(/\\s+/g, ' ').trim()).filter((text) => text);
}"""
"""Text and labels of a page that are not data."""
TIMES = re.compile(r"\d{4}-\d\d-\d\d[T ][\d:.+]+Z?")
DATA = ("127.0.0.1", "relay", "acme", "shop", "push", "ci", "gone", "application/json")


async def test_everything_in_the_portal_can_be_translated(tmp_path: Path, visiting: Visiting) -> None:
    file = tmp_path / "strings.json"
    file.write_text(json.dumps(strings()))
    async with relay_with_receivers(tmp_path, {"RELAY_PORTAL_STRINGS": str(file)}) as dev, visiting(dev.url) as visitor:
        once = {"max_attempts": 1}
        await dev.receiver("none", "http://127.0.0.1:9/", owner="acme", retry=once)
        await dev.send("shop", "m-2", to="none")
        await dev.until_status("shop", "m-2", "failed")
        [incident] = (await dev.call("GET", "/v1/incidents?party=none"))["items"] or [{"id": ""}]
        await visitor.page.goto((await dev.call("POST", "/v1/portal-links", {"owner": "acme"}))["url"])
        paths = [
            *("/ui/receivers", "/ui/receivers/ci", "/ui/receivers/gone", "/ui/receivers/new", "/ui/receivers/ci/edit"),
            *("/ui/receivers/ci/remove", "/ui/messages", "/ui/messages/shop/m-1", "/ui/messages/shop/m-2"),
            *("/ui/failed", "/ui/failed?receiver=none&reason=exhausted", "/ui/incidents", "/ui/replays"),
            *("/ui/event-types", f"/ui/incidents/{incident['id']}".rstrip("/")),
        ]
        english = list[tuple[str, str]]()
        for path in paths:
            await visitor.open(path)
            await expect(visitor.page.locator(".loading")).to_have_count(0)
            for text in await visitor.page.evaluate(TEXTS):
                if left_of(TIMES.sub("", text), *DATA, "none"):
                    english.append((path, text))
        assert english == []


async def test_no_page_of_the_portal_shows_versions_topics_or_offsets(dev: DevRelay, visiting: Visiting) -> None:
    """All pages that links lead to, from the first one on; of those that differ in their filters, two of each."""
    async with visiting(dev.url) as visitor:
        visitor.allow("status of 40")
        await dev.call("PUT", "/v1/event-types/push", {"description": "A push.", "versions": []})
        await dev.call("POST", "/v1/receivers/gone/pause")
        await dev.send("shop", "m-2", to="gone")
        await dev.call("POST", "/v1/sources/shop/messages/m-2/deliveries/gone/discard")
        lanes = (await dev.call("GET", "/v1/lanes?limit=1000"))["items"]
        version = (await dev.call("GET", "/version"))["version"]
        inner = {version, *(lane["topic"] for lane in lanes)}
        await visitor.page.goto((await dev.call("POST", "/v1/portal-links", {"owner": "acme"}))["url"])
        seen, ahead = set[str](), ["/ui/receivers"]
        while ahead:
            path = ahead.pop()
            seen.add(path)
            await visitor.open(path)
            text = await visitor.page.locator("body").inner_text()
            text += await visitor.page.locator("body").text_content() or ""
            text = text.replace(f"relay/{version}", "")  # in the requests that the receiver got, as User-Agent
            for word in (*inner, "RELAY_", "offset", "partition", "<macro"):
                assert word.lower() not in text.lower(), f"{word} on {path}"
            links = await visitor.page.locator("a[href^='/ui/']:not([download])").evaluate_all(
                "all => all.map(each => each.getAttribute('href').split('#')[0])"
            )
            for link in sorted({*links} - {*seen, *ahead, "/ui/"}):
                alike = [each for each in (*seen, *ahead) if each.split("?")[0] == link.split("?")[0]]
                ahead += [link] if len(alike) < 2 else []
        for expected in ("/ui/messages/shop/m-1", "/ui/receivers/ci/edit", "/ui/event-types/push", "/ui/replays"):
            assert expected in seen


async def test_a_frame_is_told_the_height_of_the_portal(tmp_path: Path, visiting: Visiting) -> None:
    async with (
        running_site() as site,
        DevRelay(tmp_path, {"RELAY_PORTAL_ORIGINS": site.url}, key=KEY) as dev,
        visiting(site.url) as visitor,
    ):
        site.framed = (await dev.call("POST", "/v1/portal-links", {"owner": "acme"}))["url"]
        for text in (f"request: GET {dev.url}", f"request: POST {dev.url}", "favicon", "Blocked autofocusing"):
            visitor.allow(text)
        await visitor.page.add_init_script(
            "window.heights = []; addEventListener('message', ({ origin, data }) => heights.push([origin, data]))"
        )
        await visitor.open("/")
        await visitor.page.wait_for_function("window.heights.length > 0")
        [origin, data] = (await visitor.page.evaluate("window.heights"))[0]
        assert (origin, data["type"]) == (dev.url, "relay:resize")
        assert data["height"] > 100


async def test_no_other_page_shows_it_and_nobody_shows_the_rest(dev: DevRelay, visiting: Visiting) -> None:
    async with (
        running_site() as site,
        visiting(site.url) as visitor,
    ):
        link = await dev.call("POST", "/v1/portal-links", {"owner": "acme"})
        for text in (f"request: GET {dev.url}", "frame-ancestors", "favicon", "refused to connect"):
            visitor.allow(text)
        for url in (link["url"], f"{dev.url}/ui/login"):
            site.framed = url
            await visitor.open(f"/?{len(url)}")
            await visitor.page.wait_for_load_state("networkidle")
            framed = visitor.page.frames[1].url
            assert framed.startswith("chrome-error:"), framed
