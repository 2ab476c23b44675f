"""Browser tests of an open page whose relay is killed or replaced, or whose session ends: it says so and recovers."""

import json
import signal
from pathlib import Path

from playwright.async_api import Locator, Route, ViewportSize, expect
from yarl import URL

from tests.browser.conftest import Visiting
from tests.browser.dev_relay import DevRelay
from tests.browser.test_receivers import KEY, log_in, press
from tests.browser.visitor import SIZES, Visitor

SOON_MS = 3_000
"""The time within which a page shows that it is not live."""


def sign(visitor: Visitor) -> Locator:
    return visitor.page.locator("[data-watch]")


@SIZES
async def test_a_page_of_a_killed_relay_does_not_claim_to_follow_it(
    tmp_path: Path, visiting: Visiting, viewport: ViewportSize
) -> None:
    async with DevRelay(tmp_path) as first:
        port = URL(first.url).port
        assert port is not None
        async with visiting(first.url, viewport=viewport) as visitor:
            # the second relay may still be starting
            for text in ("net::ERR", "[object Event]", "htmx:", "status of 503"):
                visitor.allow(text)
            await visitor.open("/ui/messages?live=1")
            following = visitor.page.get_by_text("Following", exact=True)
            await expect(following).to_be_visible()
            first.process.signal(signal.SIGKILL)
            await expect(sign(visitor)).to_contain_text("Connection lost", timeout=SOON_MS)
            await expect(sign(visitor)).to_be_visible(timeout=SOON_MS)
            await expect(following).to_be_hidden()
            await visitor.assert_fits()
            await visitor.assert_accessible()
            async with DevRelay(tmp_path, port=port) as second:
                await expect(sign(visitor)).to_be_hidden()
                await expect(following).to_be_visible()
                await second.receiver("ci", "https://127.0.0.1:9/")
                await second.send("shop", "m-1", to="ci")
                await expect(visitor.page.get_by_role("link", name="m-1")).to_be_visible()


async def test_an_ended_session_says_so_and_leads_back_to_the_page(tmp_path: Path, visiting: Visiting) -> None:
    async with DevRelay(tmp_path, key=KEY) as dev, visiting(dev.url) as visitor:
        page, at = visitor.page, "/ui/workers?role=to-sender"
        # If the page's stream asks once more before the page knows, the browser reports the refusal.
        for text in ("status of 401", "[object Event]"):
            visitor.allow(text)
        await log_in(visitor, at)
        await expect(sign(visitor)).to_be_hidden()
        await end_session(dev, visitor)
        await expect(sign(visitor)).to_contain_text("Your session has ended", timeout=SOON_MS)
        await page.get_by_role("link", name="Log in").click()
        await page.get_by_label("Key").fill(KEY)
        await press(visitor, "Log in")
        await expect(page).to_have_url(f"{dev.url}{at}")


async def test_what_is_sent_in_an_ended_session_is_done_after_the_log_in(tmp_path: Path, visiting: Visiting) -> None:
    async with DevRelay(tmp_path, key=KEY) as dev, visiting(dev.url) as visitor:
        visitor.allow("status of 401")
        page = visitor.page
        await dev.receiver("ci", "https://127.0.0.1:9/")
        await log_in(visitor, "/ui/receivers/ci")
        await page.locator("summary", has_text="Pause").click()
        await page.get_by_label("Reason").fill("a broken disk")
        await end_session(dev, visitor)
        await press(visitor, "Pause")
        await expect(page.get_by_role("status")).to_contain_text("Nothing was changed")
        await page.get_by_label("Key").fill(KEY)
        await press(visitor, "Log in")
        await visitor.assert_accessible()
        await press(visitor, "Send it")
        await expect(page).to_have_url(f"{dev.url}/ui/receivers/ci")
        assert (await dev.call("GET", "/v1/receivers/ci"))["hold"]["detail"] == "a broken disk"


async def test_a_form_in_another_tab_outlives_a_log_in(tmp_path: Path, visiting: Visiting) -> None:
    async with DevRelay(tmp_path, key=KEY) as dev, visiting(dev.url) as visitor:
        for text in ("status of 40", "[object Event]"):
            visitor.allow(text)
        page = visitor.page
        await dev.receiver("ci", "https://127.0.0.1:9/")
        await log_in(visitor, "/ui/receivers/ci")
        await page.locator("summary", has_text="Pause").click()
        await page.get_by_label("Reason").fill("a broken disk")
        await end_session(dev, visitor)
        await expect(sign(visitor)).to_contain_text("Your session has ended", timeout=SOON_MS)
        other = Visitor(await page.context.new_page(), dev.url)
        await log_in(other, "/ui/receivers")
        await page.bring_to_front()
        await press(visitor, "Pause")
        await visitor.assert_accessible()
        await press(visitor, "Send it")
        await expect(page).to_have_url(f"{dev.url}/ui/receivers/ci")
        assert (await dev.call("GET", "/v1/receivers/ci"))["hold"]["detail"] == "a broken disk"


async def end_session(dev: DevRelay, visitor: Visitor) -> None:
    """End the session as if it had expired."""
    [cookie] = [each for each in await visitor.page.context.cookies() if each["name"] == "relay_session"]
    await dev.call("DELETE", "/v1/session", Authorization=f"Bearer {cookie['value']}")


async def test_a_page_of_another_build_says_so(visitor: Visitor) -> None:
    async def another(route: Route) -> None:
        await route.fulfill(body=json.dumps({"state": "ok", "build": "another"}), content_type="application/json")

    await visitor.open("/ui/system")
    await visitor.page.route("**/ui/pulse", another)
    await expect(sign(visitor)).to_contain_text("out of date", timeout=SOON_MS)
    await visitor.assert_accessible()
