"""Browser tests of the first steps on the overview of an empty relay, on a desktop and on a phone."""

from pathlib import Path

from playwright.async_api import Locator, ViewportSize, expect

from relay.sink import Sink
from tests.browser.conftest import Visiting
from tests.browser.dev_relay import DevRelay
from tests.browser.test_receivers import KEY, heading, log_in
from tests.browser.visitor import SIZES, Visitor


def step(visitor: Visitor, number: int) -> Locator:
    """The step with this number, from 1 on."""
    return visitor.page.get_by_role("region", name="First steps").locator("li").nth(number - 1)


async def done(visitor: Visitor, *numbers: int) -> None:
    """The steps with these numbers get their ticks, and the others have none."""
    for number in (1, 2, 3):
        await expect(step(visitor, number).locator(".tick.done")).to_have_count(int(number in numbers))


@SIZES
async def test_an_empty_relay_leads_through_its_first_three_steps(
    dev: DevRelay, visiting: Visiting, viewport: ViewportSize
) -> None:
    sink = Sink("answer")
    await sink.start()
    try:
        async with visiting(dev.url, viewport=viewport) as visitor:
            page = visitor.page
            await visitor.open("/ui/")
            await done(visitor)
            await visitor.assert_accessible()
            await visitor.assert_fits()
            await step(visitor, 1).get_by_role("button", name="Send a sample").click()
            await done(visitor, 1)
            await expect(step(visitor, 1)).to_contain_text("Delivered")
            await visitor.assert_accessible()
            await step(visitor, 2).get_by_label("Name").fill("ci")
            await step(visitor, 2).get_by_label("URL").fill(sink.url)
            await step(visitor, 2).get_by_role("button", name="Add it").click()
            await heading(visitor, "ci is registered")
            await visitor.open("/ui/")
            await done(visitor, 1, 2)
            await visitor.assert_accessible()
            await visitor.assert_fits()
            await step(visitor, 3).get_by_role("button", name="Send it a sample").click()
            await heading(visitor, "try-")
            await expect(page.locator("main")).to_contain_text("Delivered")
            await visitor.open("/ui/")
            await expect(page.get_by_role("region", name="First steps")).to_have_count(0)
            await visitor.assert_accessible()
    finally:
        await sink.stop()


async def test_steps_are_ticked_and_go_while_the_page_is_open(dev: DevRelay, visitor: Visitor) -> None:
    sink = Sink("answer")
    await sink.start()
    try:
        await visitor.open("/ui/")
        await visitor.page.evaluate("window.loadedOnce = true")
        await step(visitor, 2).get_by_label("Name").fill("half a na")
        await dev.send("shop", "m-1", to="relay-probe")
        await done(visitor, 1)
        await expect(step(visitor, 2).get_by_label("Name")).to_have_value("half a na")
        await dev.receiver("ci", sink.url)
        await done(visitor, 1, 2)
        await dev.send("shop", "m-2", to="ci")
        await expect(visitor.page.get_by_role("region", name="First steps")).to_be_hidden()
        await visitor.assert_accessible()
        assert await visitor.page.evaluate("window.loadedOnce")
    finally:
        await sink.stop()


async def test_without_any_receiver_of_others_a_tried_message_is_answered(dev: DevRelay, visitor: Visitor) -> None:
    page = visitor.page
    await visitor.open("/ui/try")
    await page.get_by_role("button", name="Send it").click()
    await heading(visitor, "try-")
    await expect(page.locator("main")).to_contain_text("Delivered")
    for path in ("/ui/receivers", "/ui/sources"):
        await visitor.open(path)
        await expect(page.locator("main")).not_to_contain_text("relay-probe")


async def test_the_steps_are_for_operators(tmp_path: Path, visiting: Visiting) -> None:
    async with DevRelay(tmp_path, key=KEY) as dev, visiting(dev.url) as visitor:
        visitor.allow("status of 403")
        link = await dev.call("POST", "/v1/portal-links", {"owner": "acme"})
        key = await dev.call("POST", "/v1/keys", {"scopes": ["ingest:shop", "read:shop"]})
        await visitor.page.goto(link["url"])
        await heading(visitor, "Receivers")
        await visitor.open("/ui/")
        await expect(visitor.page.get_by_role("region", name="First steps")).to_have_count(0)
        await visitor.page.context.clear_cookies()
        await log_in(visitor, "/ui/", key["key"])
        await heading(visitor, "Messages")
        await visitor.page.context.clear_cookies()
        await log_in(visitor, "/ui/")
        await done(visitor)
