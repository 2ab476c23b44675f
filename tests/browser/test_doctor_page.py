"""Browser tests of the doctor page: problems come first, with the fix; checks can be repeated, or run for one
receiver."""

from playwright.async_api import expect

from tests.browser.conftest import Visiting
from tests.browser.dev_relay import DevRelay
from tests.browser.visitor import NARROW, Visitor
from tests.servers.asking import until

HOSTILE = "<script>alert(1)</script>"


async def test_what_is_wrong_is_named_with_what_to_do(dev: DevRelay, visitor: Visitor) -> None:
    await dev.receiver("blocked", "https://10.1.2.3/hooks")
    await dev.receiver("closed", "http://127.0.0.1:9/hooks")
    assert (await visitor.open("/ui/doctor")).status == 200
    page = visitor.page
    wrong = page.get_by_role("row").filter(has_text="address")
    await expect(wrong).to_contain_text("RELAY_ALLOW_PRIVATE_NETWORKS=10.1.2.3/32")
    await expect(wrong).to_contain_text("blocked")
    await expect(page.get_by_role("row").filter(has_text="connection")).to_contain_text("closed")
    await expect(page.get_by_role("row").filter(has_text="lanes")).to_contain_text("are served")
    await visitor.assert_accessible()
    await page.get_by_role("link", name="Check again").click()
    await expect(page.locator("[data-found] time")).to_be_visible()


async def test_the_results_keep_a_distance_from_the_causes(dev: DevRelay, visitor: Visitor) -> None:
    await dev.receiver("ci", "http://127.0.0.1:9/hooks")
    await dev.call("POST", "/v1/receivers/ci/pause")

    async def has_cause() -> bool:
        return bool((await dev.call("GET", "/v1/incidents"))["items"])

    await until(has_cause)
    await visitor.open("/ui/doctor")
    results = visitor.page.locator("[data-found]")
    await expect(results).to_be_visible()
    causes = await visitor.page.locator(".needs").bounding_box()
    found = await results.bounding_box()
    assert causes is not None
    assert found is not None
    assert found["y"] - causes["y"] - causes["height"] >= 12


async def test_one_receiver_is_looked_at_on_a_narrow_screen(dev: DevRelay, visiting: Visiting) -> None:
    await dev.receiver("closed", "http://127.0.0.1:9/hooks")
    async with visiting(dev.url, viewport=NARROW, color_scheme="dark") as visitor:
        await visitor.open("/ui/doctor?receiver=closed")
        await expect(visitor.page.locator("[data-found] time")).to_be_visible()
        await expect(visitor.page.get_by_role("row").filter(has_text="software")).to_have_count(0)
        await visitor.assert_fits()
        await visitor.assert_accessible()


async def test_a_name_of_a_receiver_is_text_whatever_is_in_it(dev: DevRelay, visitor: Visitor) -> None:
    await visitor.open(f"/ui/doctor?receiver={HOSTILE}")
    await expect(
        visitor.page.get_by_text(f"receiver is '{HOSTILE}', which is not a receiver name").first
    ).to_be_visible()


async def test_without_scripts_the_page_is_read_behind_a_link(dev: DevRelay, visiting: Visiting) -> None:
    async with visiting(dev.url, java_script_enabled=False) as visitor:
        await visitor.open("/ui/doctor")
        await visitor.page.get_by_role("link", name="Open the results").click()
        await expect(visitor.page.get_by_role("heading", name="Passed")).to_be_visible()
