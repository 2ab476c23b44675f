"""Browser tests of hostile texts in each field that a sender or receiver sets: they run no script, add no markup and
break no table."""

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

import pytest
from playwright.async_api import expect

from tests.browser.conftest import Visiting
from tests.browser.dev_relay import DevRelay
from tests.browser.hostile import CORPUS
from tests.browser.scripted_api import ScriptedApi, problem, scripted_pages
from tests.browser.told import api_of, at, attempt, delivery, job, letter, letter_groups, listed, message
from tests.browser.visitor import NARROW, Visitor

SHAPE = """() => {
    const all = [...document.querySelectorAll('*')];
    const tags = {};
    all.forEach((each) => { tags[each.tagName] = (tags[each.tagName] ?? 0) + 1; });
    const named = all.flatMap((each) => each.getAttributeNames().filter((name) => /^on/i.test(name)));
    const to = all.flatMap((each) => ['href', 'src', 'action'].map((name) => each.getAttribute(name) ?? '/'));
    const elsewhere = to.filter((each) => !/^(\\/(?!\\/)|#|\\?)/.test(each));
    const rows = [...document.querySelectorAll('tbody tr')].map((row) => row.cells.length);
    return { tags, named, elsewhere, rows, pwned: window.pwned ?? null };
}"""
"""The elements of a page, without its text."""


def message_with(text: str) -> dict[str, Any]:
    """A message that has `text` in every field that a sender or receiver sets."""
    ids = _ids(text)
    wait = {"kind": "order", "since": at(1), "until": None, "detail": text}
    answer = {"status": 200, "content_type": text, "body": text, "body_base64": None}
    back = {"status": "failed", "attempts": 2, "last_status": 500, "detail": text}
    return message(
        delivery("ci", "arrived", detail=text, advice=text, waiting_for=wait),
        delivery("audit", "failed", reason="rejected", detail=text, callback=back),
        delivery("mail", "response_received_from_receiver", answer=answer, callback=back),
        **ids,
        type=text,
    )


def everywhere(text: str, *others: str) -> dict[str, Any]:
    """The replies of an API that has `text` in every such field, and `others` in lists, too."""
    texts, one = (text, *others), message_with(text)
    ids = _ids(text)
    headers = {"x-from-them": text, text[:60]: text}
    response = {"status": 500, "headers": headers, "body": text, "truncated": True}
    error = {"kind": "protocol", "detail": text, "sent": True}
    request = {"method": "POST", "url": text, "headers": headers}
    tried = [
        attempt(1, 5, 500, **ids, response=response, request=request, outcome="retry", reason=text, detail=text),
        attempt(2, 5, None, **ids, attempt=2, error=error, request=request, outcome="dead", reason=text, detail=text),
    ]
    letters = [letter(**_ids(each), detail=each, offset=2 * number) for number, each in enumerate(texts)]
    letters += [
        letter(**_ids(each), receiver="-", reason="id_conflict", detail=each, offset=2 * number + 1)
        for number, each in enumerate(texts)
    ]
    where = f"/v1/sources/{quote(text[:256], safe='')}/messages/{quote(text[:256], safe='')}"
    told = api_of(one)
    return told | {
        where: one,
        f"{where}/attempts": {"items": tried[::-1], "cursor": text},
        f"{where}/payload": text.encode(),
        "/v1/messages": {
            "items": [listed(message_with(each), content_type=each, preview=each) for each in texts],
            "cursor": text,
            "behind_s": 99.0,
        },
        "/v1/failed": {"items": letters, "cursor": None},
        "/v1/failed/groups": letter_groups(*letters),
        "/v1/replays": {"items": [job(detail=each) for each in texts], "cursor": text},
        "/v1/replays/5f0c2ba7d1e94c36": job(detail=text),
        "/v1/broken": (500, problem("x", text, text)),
    }


def _ids(text: str) -> dict[str, str]:
    return {"source_id": text[:256], "message_id": text[:256]}


def page_of(ids: Mapping[str, str]) -> str:
    return f"/ui/messages/{quote(ids['id'], safe='')}/{quote(ids['id'], safe='')}"


async def shape_of(visitor: Visitor, page: str) -> dict[str, Any]:
    assert (await visitor.open(page)).status == 200
    await visitor.page.wait_for_load_state("domcontentloaded")
    await expect(visitor.page.locator(".loading")).to_have_count(0)  # parts that come later
    await visitor.page.mouse.move(300, 300)
    found: dict[str, Any] = await visitor.page.evaluate(SHAPE)
    return found


LISTS = (
    "/ui/messages",
    "/ui/failed",
    "/ui/failed?receiver=ci&reason=rejected",
    "/ui/replays",
)
PAGES = (*LISTS, "/ui/replays/5f0c2ba7d1e94c36")
AT_ONCE = 14
"""Texts on a list."""


async def test_no_text_is_more_than_text(visiting: Visiting) -> None:
    """All pages have the same elements whatever is said on them, and no script of the corpus ran."""
    harmless = [f"plain words {number}" for number in range(AT_ONCE)]
    async with scripted_pages(ScriptedApi(everywhere(*harmless))) as api, visiting(api.url) as visitor:
        lists = {page: await shape_of(visitor, page) for page in LISTS}
        for begin in range(0, len(CORPUS), AT_ONCE):
            texts = (*CORPUS[begin : begin + AT_ONCE], *harmless)[:AT_ONCE]
            api.answers |= everywhere(*texts)
            for page, like in lists.items():
                assert await shape_of(visitor, page) == like, (texts, page)
        api.answers |= everywhere(harmless[0])
        of_one = await shape_of(visitor, PAGES[-1]), await shape_of(visitor, page_of({"id": harmless[0]}))
        for text in CORPUS:
            api.answers |= everywhere(text)
            for page, like in zip((PAGES[-1], page_of({"id": text[:256]})), of_one, strict=True):
                assert await shape_of(visitor, page) == like, (text, page)
        assert all(like["pwned"] is None and like["named"] == [] for like in (*lists.values(), *of_one))


@pytest.mark.parametrize("text", ["x" * 3_000, "\u202egnp.exe \x1b[2J", "W" * 256])
async def test_no_text_makes_a_page_wider_than_the_window(visiting: Visiting, text: str) -> None:
    async with (
        scripted_pages(ScriptedApi(everywhere(text))) as api,
        visiting(api.url, viewport=NARROW) as visitor,
    ):
        for page in (*PAGES, page_of({"id": text[:256]})):
            await visitor.open(page)
            try:
                await visitor.assert_fits()
            except AssertionError as error:
                raise AssertionError(f"{page}: {error}") from error


async def test_what_steers_or_hides_is_seen(visiting: Visiting) -> None:
    text = "a\x1bb\u202ec"
    async with scripted_pages(ScriptedApi(everywhere(text))) as api, visiting(api.url) as visitor:
        for page in (*PAGES[:3], page_of({"id": text})):
            await visitor.open(page)
            shown = await visitor.page.inner_text("main")
            assert "a\\x1bb\\u202ec" in shown
            assert "\u202e" not in shown


SIDES = """() => [...document.querySelectorAll('.of-message bdi, .rows bdi, .ids code, .crumbs a bdi')].map((each) => {
    const text = document.createRange(), [node] = each.childNodes, at = node.data.indexOf('evil');
    const edge = (place) => {
        text.setStart(node, place);
        text.setEnd(node, place + 1);
        return text.getBoundingClientRect().left;
    };
    return at < 0 || edge(0) < edge(at);
})"""
"""Whether `evil`, which is behind the Hebrew letters of an id, is at their right in each place."""


async def test_an_id_is_read_from_left_to_right_everywhere(visiting: Visiting) -> None:
    text = "\u05d0\u05d1\u202e-evil-7"
    async with scripted_pages(ScriptedApi(everywhere(text))) as api, visiting(api.url) as visitor:
        for page in ("/ui/messages", page_of({"id": text})):
            await visitor.open(page)
            sides = await visitor.page.evaluate(SIDES)
            assert sides
            assert all(sides), page


async def test_lines_of_a_body_stay_lines_and_what_hides_is_seen(visiting: Visiting) -> None:
    text = "<p>\n\tfirst\u202ex</p>\nlast"
    headers = {"content-type": "text/html"}
    tried = {
        "name": "ci",
        "request": {"method": "POST", "url": "https://ci.example/", "headers": headers, "body": "{}"},
        "response": {"status": 500, "headers": headers, "body": text, "truncated": False},
        "failure": None,
        "duration_ms": 3.0,
    }
    version = {"version": 1, "schema": {"title": "a\u202eb"}, "examples": []}
    told = {"type": "push", "description": "", "deprecated": False, "versions": [version]}
    api = ScriptedApi(everywhere("x") | {"/v1/event-types/push": told}, {"/v1/receivers/ci/test": tried})
    async with scripted_pages(api), visiting(api.url) as visitor:
        await visitor.open("/ui/event-types/push")
        await expect(visitor.page.locator("pre")).to_contain_text('"title": "a\\u202eb"')
        await visitor.page.locator("form.theme").evaluate("form => { form.action = '/ui/receivers/ci/test'; }")
        await visitor.page.get_by_role("button", name="Dark").click()
        shown = visitor.page.get_by_role("group", name="the response body")
        assert await shown.text_content() == text.replace("\u202e", "\\u202e")


EVIL = b"""<script src="/ui/messages/shop/script/payload"></script><form hx-post="/ui/act" hx-trigger="load"
hx-include="[name=csrf]" hx-vals='{"method": "POST", "path": "/v1/receivers/ci/pause"}'></form>"""
PUT_AS_SCRIPT = """(src) => new Promise((done) => {
    const script = document.createElement('script');
    Object.assign(script, { src, onload: done, onerror: done });
    document.head.append(script);
})"""
PUT_IN_PAGE = "(url) => window.htmx.ajax('GET', url, {target: 'main', swap: 'innerHTML'})"


async def test_no_address_puts_a_payload_into_a_page(dev: DevRelay, visitor: Visitor) -> None:
    await dev.receiver("ci", "https://127.0.0.1:9/")
    await dev.send("shop", "script", b"window.pwned = 1", to="ci", content_type="text/javascript")
    await dev.send("shop", "html", EVIL, to="ci", content_type="text/html")
    page, payload = visitor.page, "/ui/messages/shop/html/payload"
    for place in ("shop/html/payload", "../messages/shop/html/payload", "..\\messages/shop/html/payload"):
        await visitor.open(f"/ui/messages?open={quote(place, safe='')}")
        await page.wait_for_load_state("networkidle")
        await expect(page.get_by_role("dialog", name="Message")).to_have_count(0)
    await page.evaluate(PUT_IN_PAGE, payload)
    await expect(page.get_by_role("heading", level=1)).to_have_text("Messages")
    visitor.allow("MIME type")
    visitor.allow("script/payload")
    await page.evaluate(PUT_AS_SCRIPT, "/ui/messages/shop/script/payload")
    assert await page.evaluate("window.pwned") is None
    assert (await dev.call("GET", "/v1/receivers/ci"))["hold"] is None


async def test_a_payload_is_saved_and_never_shown_as_what_it_says_it_is(visiting: Visiting) -> None:
    text = "<script>window.pwned=1</script>"
    async with scripted_pages(ScriptedApi(everywhere(text))) as api, visiting(api.url) as visitor:
        await visitor.open(page_of({"id": text}))
        async with visitor.page.expect_download() as saved:
            await visitor.page.get_by_role("link", name="Download payload").click()
        saved_at = await (await saved.value).path()
        assert saved_at.read_text() == text
