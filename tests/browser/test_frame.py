"""Browser tests of the frame of all pages, the overview, topics and workers, "Try it", and the system page."""

from pathlib import Path

from playwright.async_api import ViewportSize, expect

from relay.sink import Sink
from tests.browser.conftest import Visiting
from tests.browser.dev_relay import DevRelay
from tests.browser.visitor import NARROW, SIZES, Visitor
from tests.servers.asking import until

PAGES = (
    "/ui/",
    "/ui/incidents",
    "/ui/workers",
    "/ui/workers?by=partition&role=to-sender",
    "/ui/try",
    "/ui/system",
    "/ui/login",
)
KEY = "a key that nobody guesses"
OPEN_SOME = "[...document.querySelectorAll('details')].slice(0, 4).forEach((each) => { each.open = true; })"
BESIDE_VERSION = """(version) => {
    const shown = document.querySelector('.foot p');
    shown.textContent = version;
    const text = document.createRange();
    text.selectNodeContents(shown);
    const [inner, outer] = [text.getBoundingClientRect(), document.querySelector('header.bar').getBoundingClientRect()];
    return inner.width ? [inner.left - outer.left, outer.right - inner.right] : [0, 0];
}"""
"""Pixels between a version and both sides of the sidebar; on a phone it is not shown."""


async def test_everybody_can_use_each_page_in_the_dark_and_it_asks_nobody_else(
    dev: DevRelay, visiting: Visiting
) -> None:
    """That no request leaves the host is what a visitor watches over. test_long_names.py has them in light colours."""
    await dev.receiver("ci", "https://127.0.0.1:9/hooks")
    await dev.call("POST", "/v1/receivers/ci/pause")
    async with visiting(dev.url, color_scheme="dark") as visitor:
        for path in PAGES:
            assert (await visitor.open(path)).status == 200
            await visitor.assert_accessible()


async def test_pages_that_are_nobodys_fit_a_narrow_screen(dev: DevRelay, visiting: Visiting) -> None:
    async with visiting(dev.url, viewport=NARROW) as visitor:
        visitor.allow("status of 404")
        for path in ("/ui/login", "/ui/no/such/page", "/docs", "/problems", "/problems/unavailable"):
            await visitor.open(path)
            await visitor.page.evaluate(OPEN_SOME)
            await visitor.assert_fits()
            await visitor.assert_accessible()


@SIZES
async def test_the_version_of_a_development_build_stays_within_the_sidebar(
    dev: DevRelay, visiting: Visiting, viewport: ViewportSize
) -> None:
    async with visiting(dev.url, viewport=viewport) as visitor:
        await visitor.open("/ui/system")
        for version in ("0.1.0", "0.12.34.dev1234+gabcdef123"):
            left, right = await visitor.page.evaluate(BESIDE_VERSION, version)
            assert right >= left, f"{version}: {left} pixels at its left, {right} at its right"
        await visitor.assert_fits()


async def test_the_chosen_colours_stay(visitor: Visitor) -> None:
    await visitor.open("/ui/system")
    await visitor.page.get_by_role("button", name="Dark").click()
    await expect(visitor.page.locator("html")).to_have_attribute("data-theme", "dark")
    await visitor.open("/ui/")
    await expect(visitor.page.locator("html")).to_have_attribute("data-theme", "dark")


async def test_who_is_paused_is_told_at_once_and_resumed_with_a_button(dev: DevRelay, visitor: Visitor) -> None:
    """Another client pauses the receiver, and the open page shows it."""
    page = visitor.page
    await dev.receiver("ci", "https://127.0.0.1:9/hooks")
    await visitor.open("/ui/")
    await expect(page.get_by_text("Nothing needs attention.")).to_be_visible()
    await dev.call("POST", "/v1/receivers/ci/pause")
    needs = page.get_by_role("region", name="Needs attention")
    needed = needs.get_by_role("listitem").filter(has=page.get_by_role("link", name="ci", exact=True))
    await expect(needed).to_contain_text("has been paused since")
    headings = await page.locator("main h2").all_text_contents()
    assert headings.index("Needs attention") < headings.index("Message flow"), "what is on fire is seen first"
    await needed.get_by_role("button", name="Resume").click()
    await expect(page.get_by_role("status")).to_contain_text("Resume ci: done.")
    await expect(page.get_by_text("Nothing needs attention.")).to_be_visible()


async def test_a_message_that_is_tried_reaches_its_receiver(dev: DevRelay, visitor: Visitor) -> None:
    sink = Sink("answer")
    await sink.start()
    try:
        await dev.receiver("ci", sink.url)
        await visitor.open("/ui/try?sample=github.issues.edited")
        visitor.allow("status of 404")  # a relay without a page of messages
        await visitor.page.get_by_label("Receiver").fill("ci")
        await visitor.page.get_by_role("button", name="Send it").click()
        await visitor.page.wait_for_url("**/ui/messages/try-it/**")
        message_id = visitor.page.url.rpartition("/")[2]
        await dev.until_status("try-it", message_id, "response_received_from_receiver")
    finally:
        await sink.stop()
    assert b'"edited"' in sink.received[0].body


async def test_a_message_that_the_api_refuses_is_still_there_to_be_mended(visitor: Visitor) -> None:
    visitor.allow("status of 422")
    await visitor.open("/ui/try")
    await visitor.page.get_by_label("Receiver").fill("nobody")
    await visitor.page.get_by_label("Payload").fill('{"mine": 1}')
    await visitor.page.get_by_role("button", name="Send it").click()
    await expect(visitor.page.get_by_role("alert")).to_contain_text("There is no such receiver")
    await expect(visitor.page.get_by_role("alert")).to_be_focused()
    await expect(visitor.page.get_by_label("Payload")).to_have_value('{"mine": 1}')


async def test_who_has_a_key_logs_in_and_out(tmp_path: Path, visiting: Visiting) -> None:
    async with DevRelay(tmp_path, key=KEY) as relay, visiting(relay.url) as visitor:
        page = visitor.page
        visitor.allow("status of 401")
        await visitor.open("/ui/workers?role=to-sender")
        await page.get_by_label("Key").fill("a wrong one")
        await page.get_by_role("button", name="Log in").click()
        await expect(page.get_by_role("alert")).to_be_visible()
        await page.get_by_label("Key").fill(KEY)
        await page.get_by_role("button", name="Log in").click()
        await expect(page).to_have_url(f"{relay.url}/ui/workers?role=to-sender")
        cookies = {cookie["name"]: cookie for cookie in await page.context.cookies()}
        assert cookies["relay_session"]["httpOnly"]
        assert cookies["relay_session"]["sameSite"] == "Strict"
        assert cookies["relay_session"]["value"] != KEY
        await page.get_by_role("button", name="Log out").click()
        await visitor.open("/ui/")
        await expect(page.get_by_role("heading", name="Log in to Relay")).to_be_visible()


async def test_all_of_it_can_be_read_without_scripts(dev: DevRelay, visiting: Visiting) -> None:
    await dev.receiver("ci", "https://127.0.0.1:9/hooks")
    await dev.call("POST", "/v1/receivers/ci/pause")
    async with visiting(dev.url, java_script_enabled=False) as visitor:
        paused = visitor.page.get_by_text("ci has been paused since")

        async def is_shown() -> bool:  # the overview is made anew a second after the last at the earliest
            await visitor.open("/ui/")
            return await paused.is_visible()

        await until(is_shown)
        chart = visitor.page.get_by_role("heading", name="The last hour", exact=True)
        await expect(chart, "a script draws it").to_be_hidden()
        await visitor.page.get_by_role("button", name="Resume").click()
        await expect(visitor.page.get_by_role("status")).to_contain_text("Resume ci: done.")


async def test_a_page_is_printed_dark_on_light_without_what_paper_cannot_do(dev: DevRelay, visiting: Visiting) -> None:
    await dev.receiver("ci", "https://127.0.0.1:9/hooks")
    async with visiting(dev.url, color_scheme="dark") as visitor:
        await visitor.open("/ui/receivers/ci")
        await visitor.page.emulate_media(media="print", color_scheme="dark")
        for part in ("header.bar", "button, .button"):
            await expect(visitor.page.locator(part).first).to_be_hidden()
        await expect(visitor.page.locator("h1")).to_have_css("color", "rgb(24, 32, 36)")
