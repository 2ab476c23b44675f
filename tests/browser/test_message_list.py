"""Browser tests of the list of messages: rows, chips, drawer, search box, keys, times, chart and export, on two screen
sizes."""

import asyncio
import csv
import gzip
import io
import json
import re
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

import pytest
from aiohttp import ClientError, ClientSession
from playwright.async_api import Page, Route, ViewportSize, expect

from relay.api.history.shapes import PREVIEW
from tests.browser.conftest import Visiting
from tests.browser.scripted_api import ScriptedApi, problem, scripted_pages
from tests.browser.told import AT, BEGUN, at, delivery, job, listed, message, round_trip
from tests.browser.visitor import NARROW, SIZES

NAME: Final = "r" * 63
HARD: Final = (NAME, "رسالة " * 20, "🏴👩‍👩‍👧‍👦" * 20, "a\x1b[2J\u202eb\r\nc", "W" * 256)
FORMULA: Final = "=cmd|' /C calc'!A0"
SOURCE: Final = {"source_id": "git hub", "declared_by": "api", "etag": "x", "refused": None, "settings": None}
_MOST_BYTES: Final = 30_000


class Held:
    """A request that waits until `goes_on`; then it is made, or fails if it is `lost`."""

    def __init__(self, *, lost: bool = False) -> None:
        self.asked_for, self.goes_on = asyncio.Event(), asyncio.Event()
        self._lost = lost

    async def answer(self, route: Route) -> None:
        self.asked_for.set()
        await self.goes_on.wait()
        await (route.abort() if self._lost else route.continue_())


def items(count: int = 3, **values: Any) -> list[dict[str, Any]]:
    return [listed(message(delivery(), message_id=f"m-{n}"), **values) for n in range(count)]


def page_of(*rows: dict[str, Any], cursor: str | None = None) -> dict[str, Any]:
    return {"items": list(rows), "cursor": cursor, "behind_s": 0.0}


def stats() -> dict[str, Any]:
    """A day in which the hour of BEGUN had all classes."""
    numbers = {"attempts": 4, "delivered": 1, "failed": 3, "success_rate": 0.25, "p50_ms": 25.0, "p99_ms": 25.0}
    begin = BEGUN // 3_600 * 3_600 - BEGUN
    span = {"at": at(begin), "outcomes": {"delivered": 1, "not_now": 2, "rejected": 1}, **numbers}
    return {"by": "hour", "since": at(begin), "until": at(86_400), "totals": numbers, "spans": [span], "series": []}


def listing(*rows: dict[str, Any], **more: Any) -> ScriptedApi:
    told = round_trip()
    return ScriptedApi(told | {"/v1/messages": page_of(*(rows or items())), "/v1/stats": stats(), **more})


def asked(api: ScriptedApi, path: str = "/v1/messages") -> dict[str, str]:
    """The query of the last request to `path`."""
    return [query for each, query in api.queries if each == path][-1]


async def menu(page: Page, name: str) -> None:
    await page.locator("summary", has_text=name).first.click()


# --- rows -----------------------------------------------------------------------------------------------------------


@SIZES
@pytest.mark.parametrize("text", HARD, ids=["63 letters", "RTL", "emoji", "control characters", "256 letters"])
async def test_a_row_never_overflows(visiting: Visiting, viewport: ViewportSize, text: str) -> None:
    failed = delivery(NAME, "failed", reason="rejected", last_status=422)
    one = message(failed, delivery(), delivery(), delivery(), delivery(), source_id=text, message_id=text, type=text)
    async with (
        scripted_pages(listing(listed(one, preview=text), *items())) as api,
        visiting(api.url, viewport=viewport) as visitor,
    ):
        await visitor.open(f"/ui/messages?source={'x' * 200}&receiver={NAME}&id=m")
        await expect(visitor.page.locator(".classes")).to_be_visible()
        await visitor.assert_fits()
        rows = visitor.page.locator(".rows > li")
        wide, has = await rows.first.evaluate("row => [row.scrollWidth, row.clientWidth]")
        assert wide <= has
        most = 2.5 * (await rows.nth(1).locator(".first").bounding_box())["height"]  # type: ignore[index]
        assert (await rows.first.locator(".second").bounding_box())["height"] <= most  # type: ignore[index]
        await expect(rows.first).to_contain_text("Failed: rejected")
        await expect(rows.first).to_contain_text("and 2 more")
        await visitor.assert_accessible()


async def test_the_relays_own_message_is_listed_only_if_it_is_searched_for(visiting: Visiting) -> None:
    probe = listed(message(delivery("relay-probe"), source_id="relay-probe", message_id="probe-1"))
    async with scripted_pages(listing(probe, *items(1))) as api, visiting(api.url) as visitor:
        await visitor.open("/ui/messages")
        await expect(visitor.page.get_by_role("link", name="m-0")).to_be_visible()
        await expect(visitor.page.get_by_text("probe-1")).to_have_count(0)
        await visitor.open("/ui/messages?source=relay-probe")
        await expect(visitor.page.get_by_role("link", name="probe-1")).to_be_visible()


async def test_the_state_comes_first_and_the_payload_last(visiting: Visiting) -> None:
    one = listed(message(delivery("ci", "failed", reason="rejected", last_status=422)), preview='{"ref": "main"}')
    async with scripted_pages(listing(one)) as api, visiting(api.url) as visitor:
        await visitor.open("/ui/messages")
        text = await visitor.page.locator(".rows > li").inner_text()
        order = ["Failed: rejected", "build-4711", "push", "github", "ci", "1 attempt, HTTP 422", '{"ref": "main"}']
        places = [text.index(each) for each in order]
        assert places == sorted(places), text


async def test_a_row_has_the_next_attempt_and_the_cause_of_a_wait(visiting: Visiting) -> None:
    wait = {"kind": "rate", "since": at(1), "until": None, "detail": "10 a second"}
    later, due = "2999-01-31T12:00:30Z", at(5)
    rows = [
        listed(message(delivery("ci", "arrived", next_attempt_at=later, last_status=503), message_id="m-later")),
        listed(message(delivery("ci", "arrived", next_attempt_at=due), message_id="m-due")),
        listed(message(delivery("ci", "arrived", waiting_for=wait), message_id="m-held")),
    ]
    async with scripted_pages(listing(*rows)) as api, visiting(api.url, timezone_id="UTC") as visitor:
        await visitor.open("/ui/messages")
        for place, texts in enumerate(
            (("Retrying", "next at 12:00:30"), ("next attempt due",), ("Blocked: rate limit",))
        ):
            for text in texts:
                await expect(visitor.page.locator(".rows > li").nth(place)).to_contain_text(text)
        await visitor.assert_accessible()


# --- chips ----------------------------------------------------------------------------------------------------------


@SIZES
async def test_filters_are_chips_in_one_line_and_in_the_url(visiting: Visiting, viewport: ViewportSize) -> None:
    async with scripted_pages(listing()) as api, visiting(api.url, viewport=viewport) as visitor:
        page = visitor.page
        await visitor.open("/ui/messages")
        await menu(page, "Filter")
        await page.get_by_label("Message id begins with").fill("build-")
        await page.get_by_label("Receiver", exact=True).fill("ci")
        await visitor.assert_accessible()
        await page.get_by_label("State").select_option("failed")
        await page.get_by_role("button", name="Search").click()
        await menu(page, "All")
        await page.get_by_role("link", name="24 hours").click()
        await page.wait_for_url("**since=24h**")
        await expect(page.get_by_role("link", name="Remove the filter receiver ci")).to_be_visible()
        assert asked(api) == {"id": "build-", "receiver": "ci", "since": "24h", "state": "failed", "limit": "50"}
        await page.get_by_role("link", name="Remove the filter state failed").click()
        await expect(page.get_by_role("link", name="Remove the filter state failed")).to_have_count(0)
        assert asked(api) == {"id": "build-", "receiver": "ci", "since": "24h", "limit": "50"}
        [top, *others] = [await each.bounding_box() for each in await page.locator(".chips .chip:visible").all()]
        assert {round(each["y"]) for each in others if each} == {round(top["y"])}  # type: ignore[index]
        await page.get_by_role("link", name="Clear filters").click()
        await page.wait_for_url("**/ui/messages")


async def test_a_range_of_two_times_fits_a_phone(visiting: Visiting) -> None:
    async with scripted_pages(listing()) as api, visiting(api.url, viewport=NARROW) as visitor:
        await visitor.open("/ui/messages?since=2026-11-22T14:00:00Z&until=2026-11-22T15:00:00Z&receiver=ci")
        await visitor.assert_fits()
        await expect(visitor.page.locator("summary", has_text="2026-11-22T14")).to_be_visible()
        await expect(visitor.page.locator("summary", has_text="Saved")).to_be_in_viewport(ratio=1)


async def test_filters_work_without_a_script(visiting: Visiting) -> None:
    async with scripted_pages(listing()) as api, visiting(api.url, java_script_enabled=False) as visitor:
        page = visitor.page
        await visitor.open("/ui/messages?since=1h")
        await menu(page, "Filter")
        await page.get_by_label("Source").fill("github")
        await page.get_by_role("button", name="Search").click()
        assert asked(api) == {"source": "github", "since": "1h", "limit": "50"}
        await page.get_by_role("link", name="m-1").click()
        await page.wait_for_url("**/ui/messages/github/m-1")


async def test_filters_are_saved_in_this_browser(visiting: Visiting) -> None:
    async with scripted_pages(listing()) as api, visiting(api.url) as visitor:
        page = visitor.page
        await visitor.open("/ui/messages?status=failed&receiver=ci&cursor=x")
        await menu(page, "Saved")
        await page.get_by_label("Save these filters as").fill("<b>ci is down</b>")
        await page.get_by_role("button", name="Save").click()
        await visitor.open("/ui/messages")
        await menu(page, "Saved")
        await visitor.assert_accessible()
        await page.get_by_role("link", name="<b>ci is down</b>").click()
        await page.wait_for_url("**/ui/messages?status=failed&receiver=ci")
        await menu(page, "Saved")
        await page.get_by_role("button", name="Remove <b>ci is down</b>").click()
        await expect(page.locator("[data-saved-list] li")).to_have_count(0)


async def test_a_range_is_entered_in_the_time_that_is_shown(visiting: Visiting) -> None:
    async with scripted_pages(listing()) as api, visiting(api.url, timezone_id="America/New_York") as visitor:
        page = visitor.page
        await visitor.open("/ui/messages?source=github")
        await menu(page, "All")
        await page.get_by_label("From (America/New_York)").fill("2026-11-22T09:00:00")
        await page.get_by_role("button", name="Show").click()
        await page.wait_for_url("**since=**")
        assert asked(api) == {"source": "github", "since": "2026-11-22T14:00:00Z", "limit": "50"}


@pytest.mark.parametrize(
    ("path", "name", "chosen"),
    [("/ui/receivers", "state", "paused"), ("/ui/failed", "reason", "rejected"), ("/ui/try", "sample", "github.ping")],
)
async def test_a_choice_that_the_way_back_undoes_is_not_shown(
    visiting: Visiting, path: str, name: str, chosen: str
) -> None:
    async with scripted_pages(listing()) as api, visiting(api.url) as visitor:
        await visitor.open(path)
        field = visitor.page.locator(f"select[name={name}]")
        before = await field.input_value()
        await field.select_option(chosen)
        await visitor.page.wait_for_url(f"**={chosen}*")
        await visitor.page.go_back()
        await expect(field).to_have_value(before)


async def test_the_way_back_chooses_no_other_message(visiting: Visiting) -> None:
    async with scripted_pages(listing()) as api, visiting(api.url) as visitor:
        await visitor.open("/ui/messages")
        await visitor.page.get_by_label("Choose m-0").check()
        await visitor.page.get_by_role("button", name="Replay selected").click()
        await expect(visitor.page.get_by_role("table")).to_contain_text("m-0")
        newer = listed(message(delivery(), message_id="m-newer"))
        api.answers["/v1/messages"] = page_of(newer, *items())
        await visitor.page.go_back()
        await expect(visitor.page.get_by_role("link", name="m-newer")).to_be_visible()
        await expect(visitor.page.locator("input:checked")).to_have_count(0)


async def test_escape_closes_a_menu(visiting: Visiting) -> None:
    async with scripted_pages(listing()) as api, visiting(api.url) as visitor:
        await visitor.open("/ui/messages")
        await menu(visitor.page, "Filter")
        field = visitor.page.get_by_label("Owner")
        await field.focus()
        await visitor.page.keyboard.press("Escape")
        await expect(field).to_be_hidden()
        await expect(visitor.page.locator("summary", has_text="Filter")).to_be_focused()


# --- times ----------------------------------------------------------------------------------------------------------


async def test_times_are_local_until_they_are_switched_to_utc(visiting: Visiting) -> None:
    async with (
        scripted_pages(listing(listed(message(delivery())))) as api,
        visiting(api.url, timezone_id="Asia/Kolkata") as visitor,
    ):
        page = visitor.page
        await visitor.open("/ui/messages")
        shown = page.locator(".rows time")
        await expect(shown).to_have_text("2026-11-22 19:33:07")
        await (
            page.get_by_role("button", name="Times: Asia/Calcutta")
            .or_(page.get_by_role("button", name="Times: Asia/Kolkata"))
            .click()
        )
        await expect(shown).to_have_text("2026-11-22 14:03:07")
        await visitor.open("/ui/messages/github/build-4711")
        await expect(page.get_by_role("button", name="Times: UTC")).to_be_visible()
        await expect(page.locator(".steps time").first).to_have_text("14:03:07.120")
        await expect(page.locator(".ids")).to_contain_text("2026-11-22 14:03:07 UTC")
        await page.get_by_role("button", name="Times: UTC").click()
        await expect(page.locator(".ids")).to_contain_text(re.compile("2026-11-22 19:33:07 Asia/(Calcutta|Kolkata)"))
        again = page.get_by_text("The next attempt was set for").first
        await expect(again).to_have_text(re.compile(r"for 2026-11-22 19:33:12 Asia/(Calcutta|Kolkata)\."))


# --- the drawer -----------------------------------------------------------------------------------------------------


@SIZES
async def test_a_message_opens_in_a_drawer_and_the_list_keeps_its_place(
    visiting: Visiting, viewport: ViewportSize
) -> None:
    rows = [*items(40), listed(round_trip()[AT])]
    async with scripted_pages(listing(*rows)) as api, visiting(api.url, viewport=viewport) as visitor:
        page = visitor.page
        await visitor.open("/ui/messages?source=github")
        link = page.get_by_role("link", name="build-4711")
        await link.scroll_into_view_if_needed()
        before = await page.evaluate("scrollY")
        assert before > 0
        await link.click()
        drawer = page.get_by_role("dialog", name="Message")
        await expect(drawer.get_by_role("heading", name="build-4711")).to_be_visible()
        await expect(drawer).to_contain_text("Attempt 1: 503 Service Unavailable")
        await visitor.assert_accessible()
        await visitor.assert_fits()
        wide, has = await drawer.evaluate("part => [part.scrollWidth, part.clientWidth]")
        assert wide <= has
        assert page.url.endswith("/ui/messages?source=github&open=github%2Fbuild-4711")
        await page.keyboard.press("Escape")
        await expect(drawer).to_have_count(0)
        await expect(link).to_be_focused()
        assert await page.evaluate("scrollY") == before
        assert page.url.endswith("/ui/messages?source=github")
        await page.go_back()
        await expect(drawer.get_by_role("heading", name="build-4711")).to_be_visible()
        await page.reload()
        await expect(drawer.get_by_role("heading", name="build-4711")).to_be_visible()
        await drawer.get_by_role("link", name="Open as a page").click()
        await page.wait_for_url("**/ui/messages/github/build-4711")


@pytest.mark.parametrize("lost", [False, True])
async def test_a_drawer_never_shows_another_message_than_the_chosen_one(visiting: Visiting, lost: bool) -> None:
    """A button there would act on the message before. The API answers `m-1` after it was asked for, or not at all."""
    held = Held(lost=lost)
    told = {f"/v1/sources/github/messages/m-{n}": message(delivery(), message_id=f"m-{n}") for n in range(3)}
    async with scripted_pages(listing(**told)) as api, visiting(api.url) as visitor:
        page = visitor.page
        for text in ("net::ERR", "htmx:"):
            visitor.allow(text)
        await visitor.open("/ui/messages")
        await page.route("**/ui/messages/github/m-1", held.answer)
        drawer = page.get_by_role("dialog", name="Message")
        await page.get_by_role("link", name="m-0").click()
        await expect(drawer.get_by_role("heading", name="m-0")).to_be_visible()
        await page.keyboard.press("j")
        await held.asked_for.wait()
        await expect(drawer.get_by_role("heading", name="m-0")).to_have_count(0)
        await expect(drawer.locator("[aria-busy=true]")).to_have_count(1)
        held.goes_on.set()
        failed = drawer.get_by_text("This message could not be loaded.")
        await expect(failed if lost else drawer.get_by_role("heading", name="m-1")).to_be_visible()
        await expect(drawer.locator("[aria-busy=true]")).to_have_count(0)
        await visitor.assert_accessible()
        await page.keyboard.press("j")
        await expect(drawer.get_by_role("heading", name="m-2")).to_be_visible()
        await expect(failed).to_be_hidden()


async def test_a_drawer_does_not_wait_for_a_message_that_is_no_longer_chosen(visiting: Visiting) -> None:
    held = Held()
    told = {f"/v1/sources/github/messages/m-{n}": message(delivery(), message_id=f"m-{n}") for n in range(3)}
    async with scripted_pages(listing(**told)) as api, visiting(api.url) as visitor:
        page = visitor.page
        visitor.allow("htmx:")
        await visitor.open("/ui/messages")
        await page.route("**/ui/messages/github/m-1", held.answer)
        drawer = page.get_by_role("dialog", name="Message")
        await page.get_by_role("link", name="m-0").click()
        await expect(drawer.get_by_role("heading", name="m-0")).to_be_visible()
        await page.keyboard.press("j")
        await held.asked_for.wait()
        await page.keyboard.press("j")
        await expect(drawer.get_by_role("heading", name="m-2")).to_be_visible()
        await expect(drawer.locator("[aria-busy=true]")).to_have_count(0)
        await expect(drawer.get_by_text("This message could not be loaded.")).to_be_hidden()
        held.goes_on.set()


async def test_an_action_in_the_drawer_leads_back_to_it(visiting: Visiting) -> None:
    one = message(delivery("ci", "failed", reason="rejected", last_status=422))
    async with scripted_pages(listing(listed(one), **{AT: one})) as api, visiting(api.url) as visitor:
        page = visitor.page
        await visitor.open("/ui/messages?status=failed")
        await page.get_by_role("link", name="build-4711").click()
        await page.get_by_role("dialog", name="Message").get_by_role("button", name="Replay").click()
        await expect(page.get_by_role("status")).to_contain_text("Replay started")
        await expect(
            page.get_by_role("dialog", name="Message").get_by_role("heading", name="build-4711")
        ).to_be_visible()
        assert unquote(page.url).endswith("?status=failed&open=github/build-4711")


# --- keys -----------------------------------------------------------------------------------------------------------


async def test_keys_move_open_choose_and_replay(visiting: Visiting) -> None:
    told = {f"/v1/sources/github/messages/m-{n}": message(delivery(), message_id=f"m-{n}") for n in range(3)}
    async with scripted_pages(listing(**told)) as api, visiting(api.url) as visitor:
        page = visitor.page
        await visitor.open("/ui/messages")
        drawer = page.get_by_role("dialog", name="Message")
        for key, name in (("j", "m-0"), ("j", "m-1"), ("j", "m-2"), ("j", "m-2"), ("k", "m-1")):
            await page.keyboard.press(key)
            await expect(page.get_by_role("link", name=name)).to_be_focused()
        await page.keyboard.press("Enter")
        await expect(drawer.get_by_role("heading", name="m-1")).to_be_visible()
        await page.keyboard.press("j")
        await expect(drawer.get_by_role("heading", name="m-2")).to_be_visible()
        await page.keyboard.press("Escape")
        await page.keyboard.press("?")
        await expect(page.get_by_role("dialog", name="Keys")).to_be_visible()
        await visitor.assert_accessible()
        await page.keyboard.press("Escape")
        await page.keyboard.press("k")
        await page.keyboard.press("x")
        await expect(page.get_by_text("1 chosen")).to_be_visible()
        await page.keyboard.press("j")
        await page.keyboard.press("r")
        await expect(page.get_by_role("heading", name="Replay 0 failed deliveries?")).to_be_visible()
        await expect(page.get_by_role("table")).to_contain_text("m-2")


# --- the search box -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("keys", ["Control+k", "/"])
async def test_the_search_box_finds_a_message_from_any_page(visiting: Visiting, keys: str) -> None:
    async with scripted_pages(listing(listed(message(delivery())))) as api, visiting(api.url) as visitor:
        page = visitor.page
        await visitor.open("/ui/replays")
        await page.keyboard.press(keys)
        await page.keyboard.insert_text("build-4711")
        await page.keyboard.press("Enter")
        await page.wait_for_url("**/ui/messages/github/build-4711")
        assert ("/v1/messages", {"id": "build-4711", "limit": "10"}) in api.queries


@pytest.mark.parametrize(
    ("text", "told", "page"),
    [
        (
            "msg_7b1hq2v3o5w6x7y8z9a0b1c2d3",
            {"/v1/messages": page_of(listed(message(delivery())))},
            "messages/github/build-4711",
        ),
        (
            "build-4711",  # older than ten others whose ids begin with it
            {"/v1/messages": page_of(*[listed(message(delivery(), message_id=f"build-4711{n}")) for n in range(10)])},
            "messages/github/build-4711",
        ),
        (job()["id"], {}, f"replays/{job()['id']}"),
        ("git hub", {"/v1/sources/git%20hub": SOURCE}, "sources/git%20hub"),
        ("github build-4711", {}, "messages/github/build-4711"),
        ("github/build-4711", {}, "messages/github/build-4711"),
        ("/ui/workers?served=false", {}, "workers?served=false"),
    ],
)
async def test_any_id_leads_to_its_page(text: str, told: dict[str, Any], page: str) -> None:
    known = round_trip() | {"/v1/messages": page_of(), f"/v1/replays/{job()['id']}": job()} | told
    async with scripted_pages(ScriptedApi(known)) as api, ClientSession() as session:
        response = await session.get(f"{api.url}/ui/find", params={"q": text}, allow_redirects=False)
        assert (response.status, response.headers.get("Location")) == (303, f"/ui/{page}")


async def test_several_matches_are_listed_and_none_is_said(visiting: Visiting) -> None:
    async with scripted_pages(listing()) as api, visiting(api.url, viewport=NARROW) as visitor:
        page = visitor.page
        await visitor.open("/ui/find?q=m-")
        await expect(page.get_by_role("list", name="Matches").get_by_role("link")).to_have_count(3)
        await visitor.assert_accessible()
        api.answers["/v1/messages"] = page_of()
        await visitor.open(f"/ui/find?q={'W' * 250}")
        await expect(page.get_by_role("main")).to_contain_text("No match")
        await visitor.assert_fits()
        await visitor.assert_accessible()


# --- the chart ------------------------------------------------------------------------------------------------------


async def test_a_click_on_a_class_of_the_chart_filters_the_list(visiting: Visiting) -> None:
    async with scripted_pages(listing()) as api, visiting(api.url) as visitor:
        page = visitor.page
        await visitor.open("/ui/messages?since=24h&receiver=ci")
        await expect(page.get_by_role("figure")).to_contain_text("2 to be retried")
        assert asked(api, "/v1/stats") == {"by": "hour", "since": "24h", "receiver": "ci", "sums": "true"}
        await visitor.assert_accessible()
        await page.locator(".classes rect.bad").click()
        await page.wait_for_url("**state=failed**")
        assert asked(api) == {
            "receiver": "ci",
            "state": "failed",
            "since": "2026-11-22T14:00:00Z",
            "until": "2026-11-22T15:00:00Z",
            "limit": "50",
        }


async def test_a_press_beside_a_box_chooses_the_message_and_opens_nothing(visiting: Visiting) -> None:
    async with scripted_pages(listing()) as api, visiting(api.url) as visitor:
        page = visitor.page
        await visitor.open("/ui/messages")
        await page.locator(".rows > li").first.click(position={"x": 6, "y": 6})
        await expect(page.get_by_label("Choose m-0")).to_be_checked()
        await expect(page.get_by_role("dialog", name="Message")).to_have_count(0)
        await visitor.assert_accessible()


async def test_the_list_keeps_its_place_when_the_chart_comes(visiting: Visiting) -> None:
    held = Held()
    async with scripted_pages(listing()) as api, visiting(api.url) as visitor:
        page, rows = visitor.page, visitor.page.locator(".rows")
        await page.route("**/ui/messages/chart*", held.answer)
        await visitor.open("/ui/messages")
        await held.asked_for.wait()
        before = await rows.evaluate("(each) => each.getBoundingClientRect().top")
        held.goes_on.set()
        await expect(page.get_by_role("figure")).to_be_visible()
        assert await rows.evaluate("(each) => each.getBoundingClientRect().top") == pytest.approx(before, abs=2)


@pytest.mark.parametrize(
    ("query", "stated"),
    [
        ("", {"by": "hour", "since": "7d"}),
        ("since=1h", {"by": "minute", "since": "1h"}),
        (
            "since=2026-11-22T14:00Z&until=2026-11-22T15:00Z",
            {"by": "minute", "since": "2026-11-22T14:00Z", "until": "2026-11-22T15:00Z"},
        ),
    ],
)
async def test_the_chart_has_the_range_of_the_list(query: str, stated: dict[str, str]) -> None:
    async with scripted_pages(listing()) as api, ClientSession() as session:
        async with session.get(f"{api.url}/ui/messages/chart?{query}") as response:
            assert "1 refused" in await response.text()
        assert asked(api, "/v1/stats") == stated | {"sums": "true"}


@pytest.mark.parametrize(("query", "says"), [("since=1h&source=app&receiver=ci", False), ("state=failed", True)])
async def test_the_chart_says_which_filters_it_does_not_have(query: str, says: bool) -> None:
    async with (
        scripted_pages(listing()) as api,
        ClientSession() as session,
        session.get(f"{api.url}/ui/messages/chart?{query}") as response,
    ):
        assert ("Attempts, whatever the other filters" in await response.text()) == says


# --- exports --------------------------------------------------------------------------------------------------------


class Pages(ScriptedApi):
    """Three pages of messages, or as many as come before a refusal."""

    def __init__(self, *pages: Any) -> None:
        super().__init__({"/v1/messages": None})
        self._left = iter(pages)

    async def handle(self, request: Any) -> Any:
        if request.path == "/v1/messages":
            self.answers["/v1/messages"] = next(self._left)
        return await super().handle(request)


async def test_an_export_has_all_pages_and_no_formula(visiting: Visiting, tmp_path: Path) -> None:
    several = message(delivery("ci"), delivery("cd", "failed", detail=FORMULA, reason="rejected"), message_id=FORMULA)
    rows = page_of(listed(several, preview="+1"), cursor="a"), page_of(*items(2), cursor="b"), page_of(*items(1))
    async with scripted_pages(Pages(page_of(*items()), *rows)) as api, visiting(api.url) as visitor:
        await visitor.open("/ui/messages?status=failed")
        await menu(visitor.page, "Export")
        async with visitor.page.expect_download() as saving:
            await visitor.page.get_by_role("link", name="CSV").click()
        saved = await saving.value
        assert saved.suggested_filename == "messages.csv"
        await saved.save_as(tmp_path / "m.csv")
        found = list(csv.DictReader(io.StringIO((tmp_path / "m.csv").read_bytes().decode())))
        assert [each["message_id"] for each in found] == ["'" + FORMULA] * 2 + ["m-0", "m-1", "m-0"]
        assert (found[1]["receiver"], found[1]["detail"], found[1]["preview"]) == ("cd", "'" + FORMULA, "'+1")
        asked_for = [query for path, query in api.queries if path == "/v1/messages"][1:]
        assert asked_for == [
            {"status": "failed", "limit": "500"},
            {"status": "failed", "limit": "500", "cursor": "a"},
            {"status": "failed", "limit": "500", "cursor": "b"},
        ]


async def test_an_export_of_lines_is_what_the_api_returns() -> None:
    async with (
        scripted_pages(Pages(page_of(*items(2), cursor="a"), page_of(*items(1)))) as api,
        ClientSession() as session,
        session.get(f"{api.url}/ui/messages/export?format=ndjson") as response,
    ):
        assert response.headers["Content-Type"] == "application/x-ndjson; charset=utf-8"
        assert [json.loads(line) for line in (await response.text()).splitlines()] == [*items(2), *items(1)]


async def test_an_export_that_is_cut_short_is_no_complete_file() -> None:
    away = (503, problem("unavailable", "History is away", "not now", 503))
    async with scripted_pages(Pages(page_of(*items(), cursor="a"), away, away)) as api, ClientSession() as session:
        with pytest.raises(ClientError):
            async with session.get(f"{api.url}/ui/messages/export?format=csv") as response:
                await response.read()
        async with session.get(f"{api.url}/ui/messages/export?format=csv") as response:
            assert response.status == 503
        async with session.get(f"{api.url}/ui/messages/export?format=xls") as response:
            assert response.status == 400


# --- its size -------------------------------------------------------------------------------------------------------


async def test_a_page_of_long_names_is_small() -> None:
    """Fifty rows of names that hardly compress: the list, with its chart, stays in its budget."""
    rows = [
        listed(
            message(
                *(delivery(f"{n * 7919:063x}", "failed", reason="rejected", last_status=422) for _ in range(40)),
                message_id=f"{n * 104_729:064x}",
            ),
            preview=f"{n * 1_299_709:0{PREVIEW}x}",
        )
        for n in range(50)
    ]
    async with scripted_pages(listing(*rows)) as api, ClientSession(auto_decompress=False) as session:
        size = 0
        for part in ("", "/chart"):
            async with session.get(f"{api.url}/ui/messages{part}", headers={"Accept-Encoding": "gzip"}) as response:
                body = await response.read()
                assert response.headers["Content-Encoding"] == "gzip"
                assert b"</" in gzip.decompress(body)
                size += len(body)
        assert size < _MOST_BYTES
