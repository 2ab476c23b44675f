"""Browser tests of the message pages: search, live list, round trip, dead letters and replays."""

import base64
import re
from typing import Any, Final

import pytest
from playwright.async_api import Route, ViewportSize, expect

from relay.schema.replays import OneView
from tests.browser.conftest import Visiting
from tests.browser.scripted_api import Call, ScriptedApi, problem, scripted_pages
from tests.browser.told import (
    AT,
    api_of,
    at,
    attempt,
    delivery,
    job,
    letter,
    letter_groups,
    listed,
    message,
    preview,
    round_trip,
)
from tests.browser.visitor import NARROW, SIZES

PAGE = "/ui/messages/github/build-4711"
REJECTED: Final[dict[str, Any]] = {"status": "failed", "reason": "rejected", "last_status": 422}


def failing() -> dict[str, Any]:
    """One message that waits for `ci`, and failed at `audit`; a dead letter; and a job."""
    wait = {"kind": "paused", "since": at(1), "until": None, "detail": "paused by hand"}
    one = message(delivery("ci", "arrived", waiting_for=wait), delivery("audit", **REJECTED))
    told = api_of(one, attempt(0.1, 20, 422, receiver="audit", outcome="dead", reason="rejected"))
    letters = [letter(receiver="audit"), letter(receiver="audit", offset=18)]
    return told | {
        "/v1/failed": {"items": letters, "cursor": None},
        "/v1/failed/groups": letter_groups(*letters),
        "/v1/replays": {"items": [job()], "cursor": None},
        f"/v1/replays/{job()['id']}": job(),
    }


PAGES: Final = (
    *("/ui/messages", "/ui/messages?live=1", "/ui/messages?type=none&until=1h", PAGE),
    *("/ui/failed", "/ui/failed?receiver=audit&reason=rejected", "/ui/replays", f"/ui/replays/{job()['id']}"),
)


async def test_everybody_can_use_them_in_the_dark(visiting: Visiting) -> None:
    """Light colours are covered by test_long_names.py, and by the other tests of this module."""
    async with scripted_pages(ScriptedApi(failing())) as api, visiting(api.url, color_scheme="dark") as visitor:
        for page in PAGES:
            await visitor.open(page)
            await visitor.assert_accessible()
        await visitor.page.get_by_role("link", name="Replays").first.click()


async def test_they_fit_a_small_window(visiting: Visiting) -> None:
    async with scripted_pages(ScriptedApi(failing())) as api, visiting(api.url, viewport=NARROW) as visitor:
        for page in PAGES:
            await visitor.open(page)
            await visitor.assert_fits()
            entry = visitor.page.get_by_role("navigation", name="Pages").locator("[aria-current]")
            await expect(entry).to_be_in_viewport(ratio=1)


async def test_they_can_be_read_without_a_script(visiting: Visiting) -> None:
    async with (
        scripted_pages(ScriptedApi(round_trip())) as api,
        visiting(api.url, java_script_enabled=False) as visitor,
    ):
        await visitor.open(PAGE)
        await expect(visitor.page.get_by_text("Attempt 1: 503 Service Unavailable")).to_be_visible()
        await expect(visitor.page.get_by_text("Back at the sender")).to_be_visible()
        checks = visitor.page.get_by_role("listitem").filter(has_text="Status checks 1 to 2").locator("summary")
        for check in await checks.all():
            await expect(check, "its time").to_contain_text(re.compile(r"\d\d:\d\d:\d\d$"))
        await expect(visitor.page.get_by_role("group", name="Payload")).to_contain_text('"full_name": "acme/web"')
        await visitor.open("/ui/messages")
        await expect(visitor.page.get_by_role("link", name="Open the chart")).to_be_visible()
        await expect(visitor.page.get_by_text("Loading the chart")).to_be_hidden()
        await expect(visitor.page.get_by_text("Select all")).to_be_hidden()
        await expect(visitor.page.get_by_text("Times are UTC.")).to_be_visible()


@pytest.mark.parametrize("lost", [False, True])
async def test_a_part_that_does_not_come_leaves_a_link(visiting: Visiting, lost: bool) -> None:
    async def refuse(route: Route) -> None:
        await (route.abort() if lost else route.fulfill(status=500, body="no"))

    async with scripted_pages(ScriptedApi(round_trip())) as api, visiting(api.url) as visitor:
        for text in ("status of 500", "net::ERR", "htmx:", "Response Status Error"):
            visitor.allow(text)
        await visitor.page.route("**/ui/messages/chart*", refuse)
        await visitor.open("/ui/messages")
        await expect(visitor.page.get_by_role("link", name="Open the chart")).to_be_visible()
        await expect(visitor.page.get_by_text("Loading the chart")).to_have_count(0)
        await visitor.assert_accessible()


# --- the list -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "query", "text"),
    [
        ({"items": [], "cursor": None, "behind_s": 0.0}, "", "No message yet"),
        ({"items": [], "cursor": None, "behind_s": 0.0}, "?receiver=x", "Nothing matches these filters"),
        (
            (422, problem("invalid-request", "The request is not valid", "since is no time", 422)),
            "",
            "since is no time",
        ),
        ((503, problem("no-history", "No history", "none", 503)), "", "This relay keeps no history"),
        ((503, problem("unavailable", "History is away", "not now", 503)), "", "can still be opened"),
        ({"items": [listed(message(delivery()))], "cursor": "x", "behind_s": 90.0}, "", "is 90 s behind"),
    ],
)
async def test_a_list_says_what_it_is(visiting: Visiting, answer: Any, query: str, text: str) -> None:
    async with scripted_pages(ScriptedApi({"/v1/messages": answer})) as api, visiting(api.url) as visitor:
        await visitor.open(f"/ui/messages{query}")
        await expect(visitor.page.get_by_role("main")).to_contain_text(text)


async def test_a_message_is_opened_by_its_ids_without_a_history(visiting: Visiting) -> None:
    told = {name: value for name, value in round_trip().items() if name != "/v1/messages"}
    where = "/v1/sources/a%2Fb/messages/m%20%C3%BC%3F%23%25"
    told |= {where: message(delivery(), source_id="a/b", message_id="m ü?#%"), f"{where}/payload": b"x"}
    told["/v1/messages"] = (503, problem("no-history", "No history", "none", 503))
    told[f"{where}/attempts"] = told["/v1/messages"]
    async with scripted_pages(ScriptedApi(told)) as api, visiting(api.url) as visitor:
        await visitor.open("/ui/messages")
        await visitor.page.get_by_role("textbox", name="Source").fill("a/b")
        await visitor.page.get_by_label("Message id").fill("m ü?#%")
        await visitor.page.get_by_role("button", name="Open").click()
        await expect(visitor.page.get_by_role("heading", name="m ü?#%")).to_be_visible()
        await expect(visitor.page.get_by_text("Attempts are listed only with a history")).to_be_visible()


async def test_chosen_ones_are_counted_first_and_then_replayed(visiting: Visiting) -> None:
    refused = (409, problem("not-replayable", "It cannot be replayed", "It was replayed meanwhile.", 409))
    target = f"{AT}/deliveries/audit/replay"
    replayed: OneView = {
        "action": "replay",
        "receiver": "audit",
        "source_id": "github",
        "message_id": "build-4711",
        "generation": 1,
        "topic": None,
    }
    async with scripted_pages(ScriptedApi(failing())) as api, visiting(api.url) as visitor:
        page = visitor.page
        for answer, note in ((replayed, "1 delivery is on the way again."), (refused, "It was replayed meanwhile.")):
            api.posts[target] = answer
            await visitor.open("/ui/messages?source=github")
            await page.get_by_label("Choose build-4711").check()
            await expect(page.get_by_text("1 chosen")).to_be_visible()
            await page.get_by_role("button", name="Replay selected").click()
            await expect(page.get_by_role("heading", name="Replay 1 failed delivery?")).to_be_visible()
            assert (answer is replayed) is (api.calls == [])
            await page.get_by_role("button", name="Replay").click()
            await expect(page.get_by_role("status")).to_contain_text(note)
            assert api.calls[-1] == Call("POST", target, {"only_failed": True})


async def test_the_list_goes_on_and_holds_still_under_a_hand(visiting: Visiting) -> None:
    told = round_trip()
    async with scripted_pages(ScriptedApi(told)) as api, visiting(api.url) as visitor:
        page = visitor.page
        await visitor.open("/ui/messages")
        await page.get_by_role("link", name="Follow live").click()
        await expect(page.get_by_text("Following", exact=True)).to_be_visible()

        def arrive(number: int) -> None:
            items = [listed(message(delivery(), message_id=f"new-{n}")) for n in range(number, 0, -1)]
            api.answers["/v1/messages"] = {"items": items, "cursor": None, "behind_s": 0.0}

        await page.mouse.move(5, 5)
        arrive(1)
        await expect(page.get_by_role("link", name="new-1")).to_be_visible()
        await page.get_by_role("link", name="new-1").hover()
        arrive(3)
        await expect(page.get_by_role("button", name="2 new")).to_be_visible()
        await expect(page.get_by_role("link", name="new-3")).to_have_count(0)
        await page.get_by_role("button", name="2 new").click()
        await expect(page.get_by_role("link", name="new-3")).to_be_visible()


# --- one message ----------------------------------------------------------------------------------------------------


async def test_what_was_opened_stays_so_while_the_page_goes_on(visiting: Visiting) -> None:
    told = failing()
    async with scripted_pages(ScriptedApi(told)) as api, visiting(api.url) as visitor:
        page = visitor.page
        await visitor.open(PAGE)
        await page.get_by_text("https://ci.example/hooks").click()
        await expect(page.get_by_role("heading", name="Request")).to_be_visible()
        done = delivery("ci", "response_received_from_receiver", answer=None)
        api.answers[AT] = message(done, delivery("audit", **REJECTED))
        await expect(page.get_by_label("Delivery to ci").get_by_text("Done", exact=True)).to_be_visible()
        await expect(page.get_by_role("heading", name="Request")).to_be_visible()


async def test_a_button_keeps_the_focus_while_the_page_goes_on_and_does_not_become_another(visiting: Visiting) -> None:
    told = failing()
    async with scripted_pages(ScriptedApi(told)) as api, visiting(api.url) as visitor:
        page = visitor.page
        await visitor.open(PAGE)
        discard = page.get_by_label("Delivery to audit").get_by_role("button", name="Discard")
        await discard.focus()
        done = delivery("ci", "response_received_from_receiver", answer=None)
        api.answers[AT] = message(done, delivery("audit", **REJECTED))
        await expect(page.get_by_label("Delivery to ci").get_by_text("Done", exact=True)).to_be_visible()
        await expect(discard).to_be_focused()
        pressed = await discard.element_handle()
        assert pressed is not None
        api.answers[AT] = message(done, delivery("audit", "response_received_from_receiver", answer=None))
        await expect(page.get_by_label("Delivery to audit").get_by_text("Done", exact=True)).to_be_visible()
        assert not await pressed.evaluate("button => button.isConnected")


async def test_a_wait_has_its_reason_and_the_button_that_ends_it(visiting: Visiting) -> None:
    async with scripted_pages(ScriptedApi(failing())) as api, visiting(api.url) as visitor:
        page = visitor.page
        await visitor.open(PAGE)
        of_ci = page.get_by_label("Delivery to ci")
        await expect(of_ci).to_contain_text("The receiver is paused")
        await expect(of_ci).to_contain_text("paused by hand")
        await of_ci.get_by_role("button", name="Resume ci").click()
        await expect(page.get_by_role("status")).to_contain_text("Resume ci: done.")
        assert api.calls == [Call("POST", "/v1/receivers/ci/resume", None)]
        await page.get_by_label("Delivery to audit").get_by_role("button", name="Replay").click()
        await expect(page.get_by_role("status")).to_contain_text("Replay started")
        assert api.calls[-1].path == f"{AT}/deliveries/audit/replay"


async def test_a_discard_is_asked_about_first(visiting: Visiting) -> None:
    async with scripted_pages(ScriptedApi(failing())) as api, visiting(api.url) as visitor:
        page = visitor.page
        await visitor.open(PAGE)
        discard = page.get_by_label("Delivery to audit").get_by_role("button", name="Discard")
        await discard.click()
        await page.get_by_role("button", name="Cancel").click()
        assert api.calls == []
        await discard.click()
        await page.get_by_role("dialog").get_by_role("button", name="Discard").click()
        await expect(page.get_by_role("status")).to_contain_text("Discarded.")
        assert [call.path for call in api.calls] == [f"{AT}/deliveries/audit/discard"]


async def test_the_answer_counts_although_the_part_that_asked_was_made_anew_meanwhile(visiting: Visiting) -> None:
    async with scripted_pages(ScriptedApi(failing())) as api, visiting(api.url) as visitor:
        page = visitor.page
        await visitor.open(PAGE)
        await page.get_by_label("Delivery to audit").get_by_role("button", name="Discard").click()
        await page.evaluate("() => { const part = document.querySelector('main'); part.innerHTML = part.innerHTML; }")
        await page.get_by_role("dialog").get_by_role("button", name="Discard").click()
        await expect(page.get_by_role("status")).to_contain_text("Discarded.")
        assert [call.path for call in api.calls] == [f"{AT}/deliveries/audit/discard"]


async def test_a_payload_is_shown_in_three_ways(visiting: Visiting) -> None:
    async with scripted_pages(ScriptedApi(round_trip())) as api, visiting(api.url) as visitor:
        page = visitor.page
        await visitor.open(PAGE)
        shown = page.get_by_role("group", name="Payload")
        await expect(shown).to_contain_text('"ref": "refs/heads/main",\n')
        await page.get_by_role("link", name="Hex").click()
        await expect(shown).to_contain_text("000000  7b 22 72 65 66 22 3a 20")
        await expect(shown).to_have_css("white-space", "pre")
        await page.get_by_role("link", name="As sent").click()
        await expect(shown).to_contain_text('{"ref": "refs/heads/main", "before"')
        assert await shown.evaluate("(each) => each.scrollWidth <= each.clientWidth"), "one long line is out of sight"


async def test_one_that_nobody_knows_says_what_may_be(visiting: Visiting) -> None:
    async with scripted_pages(ScriptedApi({})) as api, visiting(api.url) as visitor:
        visitor.allow("status of 404")
        assert (await visitor.open(PAGE)).status == 404
        await expect(visitor.page.get_by_role("heading", name="No such message is known")).to_be_visible()
        await visitor.assert_accessible()


async def test_one_that_only_the_history_knows_is_shown(visiting: Visiting) -> None:
    told = {name: value for name, value in failing().items() if name != AT}
    async with scripted_pages(ScriptedApi(told)) as api, visiting(api.url) as visitor:
        await visitor.open(PAGE)
        await expect(visitor.page.get_by_text("This message is known from the history only.")).to_be_visible()
        await expect(visitor.page.get_by_role("button", name="Replay")).to_have_count(0)


async def test_another_one_with_its_id_is_told(visiting: Visiting) -> None:
    conflict = letter(receiver="-", reason="id_conflict", detail="other payload")
    told = failing() | {"/v1/failed": {"items": [conflict], "cursor": None}}
    async with scripted_pages(ScriptedApi(told)) as api, visiting(api.url) as visitor:
        await visitor.open(PAGE)
        await expect(visitor.page.get_by_text("Another message with this id came")).to_contain_text("other payload")


# --- edited copies and comparisons ----------------------------------------------------------------------------------


@SIZES
async def test_a_message_is_edited_and_sent_again(visiting: Visiting, viewport: ViewportSize) -> None:
    copied = message(delivery(), message_id="build-4711.copy-1", copy_of="build-4711")
    where = "/v1/sources/github/messages/build-4711.copy-1"
    payload = b'{\n  "ref": "main"\n}\n'
    told = round_trip() | {
        f"{AT}/payload": payload,
        where: copied,
        f"{where}/payload": payload.replace(b"main", b"fix"),
    }
    api = ScriptedApi(told, {f"{AT}/copies": copied})
    async with scripted_pages(api), visiting(api.url, viewport=viewport) as visitor:
        page = visitor.page
        await visitor.open(PAGE)
        await page.get_by_role("link", name="Edit and resend").click()
        await visitor.assert_accessible()
        await visitor.assert_fits()
        await page.get_by_role("button", name="Send the copy").click()
        await expect(page.get_by_role("status")).to_contain_text("The copy is sent.")
        assert api.calls[-1] == Call("POST", f"{AT}/copies", None)
        await visitor.open(f"{PAGE}/copy")
        await page.get_by_label("Payload").fill('{\n  "ref": "fix"\n}\n')
        await page.get_by_label("Headers of its own").fill("x-team: core\nx-why: test")
        await page.get_by_label("Receivers").fill("ci, cd")
        await page.get_by_role("button", name="Send the copy").click()
        await expect(page.get_by_role("heading", name="build-4711.copy-1")).to_be_visible()
        body = api.calls[-1].body
        assert base64.b64decode(body.pop("payload_base64")) == payload.replace(b"main", b"fix")
        assert body == {"headers": {"x-team": "core", "x-why": "test"}, "receivers": ["ci", "cd"]}
        await expect(page.get_by_text("A copy of build-4711")).to_be_visible()
        await page.get_by_role("link", name="compare", exact=True).click()
        await expect(page.get_by_role("region", name="Payload")).to_contain_text('-  "ref": "main"')
        await expect(page.get_by_role("region", name="Payload")).to_contain_text('+  "ref": "fix"')
        await visitor.assert_accessible()
        await visitor.assert_fits()


async def test_a_refused_copy_keeps_what_was_written(visiting: Visiting) -> None:
    refused = (422, problem("unknown-receiver", "Unknown receivers", "Unknown: nobody.", 422))
    api = ScriptedApi(round_trip(), {f"{AT}/copies": refused})
    async with scripted_pages(api), visiting(api.url) as visitor:
        visitor.allow("status of 4")
        await visitor.open(f"{PAGE}/copy")
        await visitor.page.get_by_label("Receivers").fill("nobody")
        await visitor.page.get_by_label("Payload").fill("{}")
        await visitor.page.get_by_role("button", name="Send the copy").click()
        await expect(visitor.page.get_by_role("alert")).to_contain_text("Unknown: nobody.")
        await expect(visitor.page.get_by_role("alert")).to_be_focused()
        await expect(visitor.page.get_by_label("Payload")).to_have_value("{}")


async def test_the_original_links_to_its_copies(visiting: Visiting) -> None:
    copies = [listed(message(delivery(), message_id=f"build-4711.copy-{n}")) for n in range(2)]
    told = round_trip() | {"/v1/messages": {"items": copies, "cursor": None, "behind_s": 0.0}}
    async with scripted_pages(ScriptedApi(told)) as api, visiting(api.url) as visitor:
        await visitor.open(PAGE)
        await expect(visitor.page.get_by_text("Copies of it")).to_contain_text("build-4711.copy-0, build-4711.copy-1")
        assert ("/v1/messages", {"source": "github", "id": "build-4711.copy-", "limit": "10"}) in api.queries


async def test_an_attempt_is_compared_with_the_one_before_it(visiting: Visiting) -> None:
    told = round_trip()
    tried = told[f"{AT}/attempts"]["items"]
    told |= {f"/v1/attempts/{each['partition']}/{each['offset']}": each for each in tried}
    async with scripted_pages(ScriptedApi(told)) as api, visiting(api.url) as visitor:
        page = visitor.page
        await visitor.open(PAGE)
        await page.locator("details.exchange:has(a[href^='/ui/compare'])").nth(1).locator("summary").first.click()
        await page.get_by_role("link", name="Compare with the attempt before it").locator("visible=true").click()
        await expect(page.get_by_role("region", name="Response")).to_contain_text("+202")
        await visitor.assert_accessible()
        await page.get_by_role("link", name="Attempt").last.click()
        await expect(page.get_by_role("heading", name="Request")).to_be_visible()
        await visitor.assert_accessible()


# --- what failed ----------------------------------------------------------------------------------------------------


async def test_a_group_is_counted_first_and_then_replayed(visiting: Visiting) -> None:
    api = ScriptedApi(failing(), {"/v1/replays": preview()})
    async with scripted_pages(api), visiting(api.url) as visitor:
        page = visitor.page
        await visitor.open("/ui/failed")
        await expect(page.get_by_label("audit: rejected")).to_contain_text("2messages")
        await page.get_by_role("button", name="Replay all audit").click()
        await expect(page.get_by_role("heading", name="Replay 11 messages?")).to_be_visible()
        await expect(page.get_by_text("1 left out: replayed before")).to_be_visible()
        assert api.calls == [Call("POST", "/v1/replays", {"receiver": "audit", "reason": "rejected", "dry_run": True})]
        await page.get_by_label("Messages per second").fill("50")
        api.posts["/v1/replays"] = job()
        await page.get_by_role("button", name="Replay 11").click()
        await expect(page.get_by_role("heading", name=f"Replay {job()['id']}")).to_be_visible()
        assert api.calls[-1].body == {"receiver": "audit", "reason": "rejected", "rate": 50.0}
        await expect(page.get_by_role("main")).to_contain_text("Ends2026-11-22 14:06 UTC")
        api.answers[f"/v1/replays/{job()['id']}"] = job(state="done", sent=3_990, ended_at=at(200))
        await expect(page.get_by_role("img", name="100 % done")).to_be_visible()
        await expect(page.get_by_role("main")).to_contain_text("Ended2026-11-22 14:06 UTC")  # without a reload


async def test_what_the_api_refuses_is_said(visiting: Visiting) -> None:
    refused = (409, problem("too-many-jobs", "Too many jobs", "8 are not over.", 409))
    api = ScriptedApi(failing(), {"/v1/discards": refused})
    async with scripted_pages(api), visiting(api.url) as visitor:
        visitor.allow("status of 409")
        await visitor.open("/ui/failed")
        await visitor.page.get_by_role("button", name="Discard all audit").click()
        await expect(visitor.page.get_by_role("main")).to_contain_text("8 are not over.")


async def test_a_job_can_be_stopped(visiting: Visiting) -> None:
    async with scripted_pages(ScriptedApi(failing())) as api, visiting(api.url) as visitor:
        page = visitor.page
        await visitor.open("/ui/replays")
        await page.get_by_role("button", name="Stop").click()
        await page.get_by_role("dialog").get_by_role("button", name="Stop").click()
        await expect(page.get_by_role("status")).to_contain_text("Stopping.")
        assert [call.path for call in api.calls] == [f"/v1/replays/{job()['id']}/stop"]
