"""Browser tests of all pages with the longest names: they fit a phone, axe-core finds no violation, and a desktop shows
whole tables."""

from pathlib import Path
from typing import Final

from playwright.async_api import ViewportSize

from relay.pages.page import NAVIGATION
from tests.browser.conftest import Visiting
from tests.browser.dev_relay import DevRelay
from tests.servers.asking import until

NAME: Final = "w" * 63
RECEIVER: Final = f"/ui/receivers/{NAME}"
PHONE: Final = ViewportSize(width=390, height=844)
PAGES: Final = (
    *(entry.href for entry in NAVIGATION),
    *("/ui/incidents?state=resolved", f"/ui/failed?receiver={NAME}&reason=exhausted", "/ui/workers?by=partition"),
    *(f"{RECEIVER}{page}" for page in ("", "/edit", "/remove", "/try")),
    *(f"/ui/sources/{NAME}{page}" for page in ("", "/edit")),
    "/ui/receivers/new",
    *(f"/ui/messages/{NAME}/{NAME}{page}" for page in ("", "/copy")),
)
CUT: Final = """() => [...document.querySelectorAll('.wide')].filter((each) => each.scrollWidth > each.clientWidth)
    .map((each) => each.getAttribute('aria-label'))"""
"""Tables of which a part is out of sight."""
OPEN: Final = "document.querySelectorAll('details').forEach((each) => { each.open = true; })"


async def test_all_pages_fit_and_are_accessible_with_the_longest_names(tmp_path: Path, visiting: Visiting) -> None:
    async with DevRelay(tmp_path) as dev, visiting(dev.url, viewport=PHONE) as visitor:
        await dev.receiver(NAME, "http://127.0.0.1:9/", retry={"max_attempts": 1})
        await dev.source(NAME, callback={"url": "http://127.0.0.1:9/"})
        await dev.call("PUT", f"/v1/event-types/{NAME}", {"description": NAME * 9})
        await dev.send(NAME, NAME, to=NAME)
        await dev.until_status(NAME, NAME, "failed")
        await dev.call("POST", f"/v1/receivers/{NAME}/pause", {"reason": NAME})
        job = await dev.call("POST", "/v1/replays", {"receiver": NAME})
        incidents: list[str] = []

        async def known() -> bool:
            items = (await dev.call("GET", "/v1/incidents"))["items"]
            incidents[:] = [one["id"] for one in items if one["kind"] == "paused"]
            return bool(incidents)

        await until(known)
        pages = (*PAGES, f"/ui/replays/{job['id']}", f"/ui/incidents/{incidents[0]}")
        flaws = []
        visitor.allow("status of 404")
        for path in pages:
            response = await visitor.open(path)
            try:
                assert response.status == 200, response.status
                await visitor.page.evaluate(OPEN)
                await visitor.assert_fits()
                await visitor.assert_accessible()
            except AssertionError as error:
                flaws.append(f"{path.replace(NAME, 'NAME')}: {error}")
        assert flaws == [], "\n".join(flaws)
        async with visiting(dev.url) as desktop:
            for path in ("/ui/", "/ui/receivers", "/ui/incidents", "/ui/sources"):
                await desktop.open(path)
                assert await desktop.page.evaluate(CUT) == [], path
