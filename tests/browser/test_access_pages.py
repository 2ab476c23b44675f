"""Browser tests of sources, keys and the audit log: changes and replays, on a desktop and a phone."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from playwright.async_api import ViewportSize, expect

from relay.sink import Sink
from tests.browser.conftest import Visiting
from tests.browser.dev_relay import DevRelay
from tests.browser.test_receivers import KEY, heading, log_in, press
from tests.browser.visitor import SIZES, Visitor
from tests.servers.asking import until

LONG = "a-source-with-a-name-of-sixty-three-characters-which-is-long-45"


@asynccontextmanager
async def relay_with_a_refused_result(directory: Path) -> AsyncIterator[DevRelay]:
    """The callback of LONG has refused the result of `m-1`."""
    receiver, callback = Sink("answer"), Sink("reject")
    await receiver.start()
    await callback.start()
    try:
        async with DevRelay(directory, key=KEY) as dev:
            await dev.receiver("ci", receiver.url)
            await dev.source(LONG, callback={"url": callback.url})
            await dev.send(LONG, "m-1", to="ci")

            async def is_given_up() -> bool:
                return bool((await dev.call("GET", f"/v1/failed?source={LONG}&stage=to_sender"))["items"])

            async def is_in_the_history() -> bool:
                attempts = await dev.call("GET", f"/v1/sources/{LONG}/messages/m-1/attempts")
                return any(each["kind"] == "callback" for each in attempts["items"])

            await until(is_given_up)
            await until(is_in_the_history)
            yield dev
    finally:
        await receiver.stop()
        await callback.stop()


@SIZES
async def test_a_source_is_changed_rotated_and_its_results_replayed(
    tmp_path: Path, visiting: Visiting, viewport: ViewportSize
) -> None:
    good = Sink("answer")
    await good.start()
    try:
        async with (
            relay_with_a_refused_result(tmp_path) as dev,
            visiting(dev.url, viewport=viewport) as visitor,
        ):
            page, own = visitor.page, f"/ui/sources/{LONG}"
            await log_in(visitor, own)
            await expect(page.get_by_role("heading", name="Dead letters of results")).to_be_visible()
            attempts = page.get_by_role("region", name="Attempts at the callback")
            await expect(attempts).to_contain_text("422")
            await expect(attempts.locator(".pill").first).to_have_text("given up")
            await visitor.assert_accessible()
            await visitor.assert_fits()

            await page.get_by_role("link", name="Change", exact=True).click()
            await visitor.assert_accessible()
            await page.get_by_label("Callback URL").fill(good.url)
            await page.get_by_label("Signing secret").fill("a-secret-of-their-own")
            await press(visitor, "Save")
            await expect(page.get_by_role("status")).to_contain_text("Changed: callback")

            await page.get_by_label("Keep the old secret valid for").fill("1h")
            await press(visitor, "Rotate the secret")
            await expect(page.get_by_text("It is shown only once.")).to_be_visible()
            await visitor.assert_accessible()
            await page.get_by_role("link", name="I have it").click()

            await press(visitor, "Replay results")
            await heading(visitor, "Send 1 result to")
            await visitor.assert_accessible()
            await visitor.assert_fits()
            await press(visitor, "Replay 1")
            await heading(visitor, "Replay")
            await dev.until_status(LONG, "m-1", "response_delivered_to_sender")
            assert len(good.received) == 1
    finally:
        await good.stop()


@SIZES
async def test_a_key_is_made_shown_once_rotated_and_revoked_and_the_audit_says_so(
    tmp_path: Path, visiting: Visiting, viewport: ViewportSize
) -> None:
    async with DevRelay(tmp_path, key=KEY) as dev, visiting(dev.url, viewport=viewport) as visitor:
        page = visitor.page
        visitor.allow("status of 4")
        await log_in(visitor, "/ui/keys")
        await page.get_by_label("To recognize it").fill("ci server")
        await page.get_by_label("Scopes").fill("sing:loud")
        await press(visitor, "Create")
        await expect(page.get_by_role("alert")).to_contain_text("sing:loud")
        await page.get_by_label("Scopes").fill("ingest:github, read:github")
        await press(visitor, "Create")
        await heading(visitor, "The key ci server was created")
        shown = page.locator(".raw pre")
        text = (await shown.inner_text()).strip()
        assert await shown.evaluate("(each) => each.scrollWidth <= each.clientWidth"), "a part of it is out of sight"
        await visitor.assert_accessible()
        await page.get_by_role("link", name="I have it").click()
        await visitor.assert_accessible()
        await visitor.assert_fits()
        assert text not in await page.content()
        row = page.get_by_role("row").filter(has_text="ci server")
        await row.locator("summary", has_text="Rotate").click()
        await row.get_by_role("button", name="New secret").click()
        await heading(visitor, "The key ci server has a new secret")
        await page.get_by_role("link", name="I have it").click()
        await row.get_by_role("button", name="Revoke").click()
        await page.get_by_role("dialog").get_by_role("button", name="Revoke").click()
        await expect(page.get_by_role("status")).to_contain_text("The key is revoked.")

        await visitor.open("/ui/audit?what=key.")
        trail = page.get_by_role("region", name="Audit trail").locator("tbody tr")
        await expect(trail).to_have_count(3)
        await expect(trail.first).to_contain_text("key.revoked")
        await visitor.assert_accessible()
        await visitor.assert_fits()
        await page.get_by_role("link", name="key.rotated").click()
        await expect(trail).to_have_count(1)


async def test_an_erasure_is_asked_about_first(dev: DevRelay, visitor: Visitor) -> None:
    page = visitor.page
    visitor.allow("status of 4")
    await visitor.open("/ui/erasures")
    await press(visitor, "Erase")
    await expect(page.get_by_role("alert")).to_contain_text("source_id")
    await page.get_by_role("textbox", name="Source").first.fill("shop")
    await press(visitor, "Erase")
    dialog = page.get_by_role("dialog")
    await expect(dialog).to_contain_text("It cannot be undone.")
    await visitor.assert_accessible()
    await dialog.get_by_role("button", name="Cancel").click()
    assert (await dev.call("GET", "/v1/erasures"))["items"] == []
    await press(visitor, "Erase")
    await dialog.get_by_role("button", name="Erase").click()
    await expect(page.get_by_role("status")).to_contain_text("The payloads are erased")
