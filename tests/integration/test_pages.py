"""Tests of the frame of the pages without a browser: log-in, forms, response headers, and errors."""

import asyncio
import base64
import hashlib
import json
import re
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from urllib.parse import quote, unquote

import pytest
from aiohttp import ClientSession

from relay.domain.dead_letter import DeadLetter, dead_letter_headers
from relay.domain.hop import Hop, encode_hop
from relay.domain.identity import DeliveryId
from relay.domain.message import Message, message_headers
from relay.history.port import HistoryPage, MessageFound, MessageQuery
from relay.log.port import NewRecord
from relay.pages.visit import MOST_BYTES
from relay.pages.web import FILES
from relay.state.port import FailedEntry
from relay.state.read_model import LaneHeartbeat
from relay.state.rows import Mark, Stage, delivery_row
from tests.browser.scripted_api import ScriptedApi, scripted_pages
from tests.browser.scripted_api import problem as problem_of
from tests.browser.told import job
from tests.contract.history_facts import put
from tests.fakes.history import MemoryHistory
from tests.integration.api_rig import NOW, Reply, Rig, running_api
from tests.integration.history_world import pinged
from tests.integration.test_api_replays import add_dead_letter
from tests.integration.test_api_sessions import token

BROWSER = {"Accept": "text/html,application/xhtml+xml"}
DEEP = "[" * 100_000
FORM = {"Content-Type": "application/x-www-form-urlencoded"}
VENDORED: list[dict[str, str]] = json.loads((FILES / "vendor" / "vendored.json").read_text())


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    async with running_api(pages=True) as running:
        yield running


def csrf_of(page: Reply) -> str:
    found = re.search(r'name="csrf" value="([0-9a-f]{64})"', page.text)
    assert found is not None, page.text
    return found[1]


async def submit(rig: Rig, target: str, fields: str, **headers: str) -> Reply:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return await rig.request("POST", target, fields.encode(), FORM | named)


# --- the way in -----------------------------------------------------------------------------------------------------


async def test_a_browser_is_led_to_the_pages_and_a_program_is_not(rig: Rig) -> None:
    led = await rig.request("GET", "/", headers=BROWSER)
    assert (led.status, led.headers["Location"]) == (302, "/ui/")
    assert (await rig.request("GET", "/", headers={"Accept": "application/json"})).status == 200
    assert (await rig.get("/ui")).headers["Location"] == "/ui/"


async def test_the_navigation_calls_each_page_by_its_heading(rig: Rig) -> None:
    for path, label in re.findall(r'<li><a href="(/ui/[^"]*)"[^>]*>([^<]*)</a>', (await rig.get("/ui/system")).text):
        assert f"<h1>{label}</h1>" in (await rig.get(path)).text


async def test_without_pages_there_are_none() -> None:
    async with running_api(pages=False) as rig:
        assert (await rig.request("GET", "/", headers=BROWSER)).status == 200
        assert (await rig.get("/ui/")).status == 404


async def test_where_the_api_is_open_nobody_logs_in(rig: Rig) -> None:
    assert (await rig.get("/ui/system")).status == 200


async def test_the_pages_are_no_routes_of_the_document(rig: Rig) -> None:
    document = json.loads((await rig.get("/openapi.json")).body)
    assert not [path for path in document["paths"] if path.startswith("/ui")]


# --- forms ----------------------------------------------------------------------------------------------------------


async def test_a_form_counts_only_with_the_token_of_its_browser(rig: Rig) -> None:
    page = await rig.get("/ui/system")
    assert (await submit(rig, "/ui/theme", "theme=dark&to=/ui/system")).status == 403
    assert (await submit(rig, "/ui/theme", f"theme=dark&csrf={'0' * 64}")).status == 403
    reply = await submit(rig, "/ui/theme", f"theme=dark&to=/ui/system&csrf={csrf_of(page)}")
    assert (reply.status, reply.headers["Location"]) == (303, "/ui/system")
    assert 'data-theme="dark"' in (await rig.get("/ui/system")).text


@pytest.mark.parametrize(
    "headers", [{"Origin": "https://evil.example"}, {"Sec-Fetch-Site": "cross-site"}, {"Sec-Fetch-Site": "same-site"}]
)
async def test_a_form_of_another_origin_is_refused(rig: Rig, headers: dict[str, str]) -> None:
    fields = f"theme=dark&csrf={csrf_of(await rig.get('/ui/system'))}".encode()
    assert (await rig.request("POST", "/ui/theme", fields, FORM | headers)).status == 403


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
async def test_a_page_of_another_origin_takes_no_place_of_a_live_page(rig: Rig, site: str) -> None:
    headers = {"Accept": "text/event-stream", "Sec-Fetch-Site": site}
    async with asyncio.timeout(30):  # the stream has no end
        reply = await rig.request("GET", "/ui/live/overview", headers=headers)
    assert reply.status == 403


@pytest.mark.parametrize("to", ["https://evil.example/", "//evil.example", "/\\evil.example", "/v1/failed", "/ui/%7F"])
async def test_nobody_is_led_elsewhere(rig: Rig, to: str) -> None:
    reply = await submit(rig, "/ui/theme", f"to={to}&csrf={csrf_of(await rig.get('/ui/system'))}")
    assert reply.headers["Location"] == "/ui/"


@pytest.mark.parametrize(
    ("body", "headers", "status"),
    [
        (b"\xff", FORM, 400),
        (b"key=%ff", FORM, 400),
        (b"&a=" * 3000, FORM, 400),
        (b"key=x", {"Content-Type": "multipart/form-data; boundary=b"}, 415),
        (b"key=x", FORM | {"X-CSRF-Token": "\udcff"}, 403),
        (b"", {}, 403),
    ],
)
async def test_what_is_no_form_is_refused_as_such(rig: Rig, body: bytes, headers: dict[str, str], status: int) -> None:
    assert (await rig.request("POST", "/ui/login", body, headers)).status == status


async def test_a_form_is_read_within_the_bounds_of_any_body(rig: Rig) -> None:
    page = await rig.get("/ui/system")
    held = await submit(rig, "/ui/theme", f"theme=dark&to=/ui/system&csrf={csrf_of(page)}&more=" + "x" * 900_000)
    assert held.status == 303
    declared = FORM | {"Content-Length": str(MOST_BYTES + 1), "Expect": "100-continue"}
    refused = await rig.request("POST", "/ui/theme", b"", declared)
    assert (refused.status, refused.headers["Content-Type"]) == (413, "text/html; charset=utf-8")
    assert "The body is too large" in refused.text


async def test_a_cookie_that_can_be_no_token_is_none() -> None:
    async with running_api(pages=True, api_key="the key of the setting") as rig:
        for cookie in ("relay_session=x y", 'relay_session="a\\015\\012b"', "relay_session=" + "x" * 5_000):
            assert (await rig.request("GET", "/ui/workers", headers={"Cookie": cookie})).status == 303


async def act(rig: Rig, **fields: str) -> Reply:
    csrf = csrf_of(await rig.get("/ui/system"))
    text = "&".join(f"{name}={value}" for name, value in {"csrf": csrf, "next": "/ui/system", **fields}.items())
    return await submit(rig, "/ui/act", text)


async def test_an_action_is_a_call_of_the_api_and_its_note_is_shown_once(rig: Rig) -> None:
    reply = await act(rig, method="POST", path="/v1/receivers/ci/pause", done="Paused+ci.")
    assert (reply.status, reply.headers["Location"]) == (303, "/ui/system")
    assert [await rig.state.endpoints(["r:ci"])][0][0].paused_for_s > 0
    assert "Paused ci." in (await rig.get("/ui/system")).text
    assert "Paused ci." not in (await rig.get("/ui/system")).text


@pytest.mark.parametrize("letter", ["%D0%B6", "%F0%9F%A6%8A"])
async def test_a_long_note_in_any_script_fits_a_cookie(rig: Rig, letter: str) -> None:
    reply = await act(rig, method="POST", path="/v1/receivers/ci/pause", done=letter * 900)
    assert len(reply.headers["Set-Cookie"]) < 4_000
    assert unquote(letter) * 500 in (await rig.get("/ui/system")).text


async def test_what_the_api_refuses_is_said_in_its_words(rig: Rig) -> None:
    await act(rig, method="POST", path="/v1/receivers/nobody/pause")
    assert "There is no receiver named" in (await rig.get("/ui/system")).text


async def test_what_is_to_be_confirmed_is_asked_about_first(rig: Rig) -> None:
    fields = {"method": "POST", "path": "/v1/receivers/ci/pause", "label": "Pause", "confirm": "Pause+ci?"}
    asked = await act(rig, **fields)
    assert asked.status == 200
    assert "Pause ci?" in asked.text
    assert [await rig.state.endpoints(["r:ci"])][0][0].paused_for_s == 0
    assert (await act(rig, **fields, confirmed="1")).status == 303
    assert [await rig.state.endpoints(["r:ci"])][0][0].paused_for_s > 0


@pytest.mark.parametrize(
    "fields",
    [
        {"method": "GET", "path": "/v1/receivers"},
        {"method": "POST", "path": "/ui/act"},
        {"method": "POST", "path": "https://evil.example/v1/"},
        {"method": "POST", "path": "/v1/../ui/act"},
        {"method": "POST", "path": "/v1/replays", "body": "{"},
        {"method": "POST", "path": "/v1/replays", "body": DEEP},
        {"method": "POST", "path": "/v1/replays", "body": quote(r'{"receiver": "\ud800"}')},
    ],
    ids=lambda fields: " ".join(fields.values())[:40],
)
async def test_an_action_is_nothing_but_a_change_by_the_api(rig: Rig, fields: dict[str, str]) -> None:
    refused = await act(rig, **fields)
    assert (refused.status, "The action is not valid" in refused.text) == (400, True)


async def test_what_is_nested_too_deeply_for_a_form_is_none(rig: Rig) -> None:
    csrf = csrf_of(await rig.get("/ui/system"))
    assert (await submit(rig, "/ui/messages/replay", f"csrf={csrf}&pick={DEEP}")).status == 303
    assert "Select some messages first." in (await rig.get("/ui/messages")).text
    assert (await submit(rig, "/ui/login", f"csrf={csrf}&key=x&pending={DEEP}")).status == 303
    note = base64.urlsafe_b64encode(DEEP[:3_000].encode()).decode()
    assert (await rig.get("/ui/system", Cookie=f"relay_note={note}")).status == 200


# --- response headers -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("target", ["/ui/system", "/ui/login", "/ui/no/such/page"])
async def test_a_page_runs_no_script_but_ours_and_is_in_nobodys_frame(rig: Rig, target: str) -> None:
    page = await rig.get(target)
    policy = page.headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "script-src 'self';" in policy
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
    assert page.headers["X-Content-Type-Options"] == "nosniff"
    assert page.headers["Cache-Control"] == "no-store"
    assert not re.search(r"<script(?![^>]*src=)|<style|\sstyle=|\son\w+=", page.text)


@pytest.mark.parametrize(
    "target",
    [
        *("/ui", "/ui/pulse", "/ui/find?q=/ui/failed", "/ui/messages/export", "/ui/live/overview"),
        *("/ui/static/0/relay.css", "/ui/system?x=%FF", "/ui/messages/a/b/payload"),
    ],
)
async def test_no_response_of_the_pages_may_run_anything(rig: Rig, target: str) -> None:
    async with rig.client.get(rig.url + target, allow_redirects=False) as response:
        assert "default-src 'none'" in response.headers["Content-Security-Policy"]
        assert response.headers["Cache-Control"] == "no-store"
        assert response.headers["X-Content-Type-Options"] == "nosniff"


async def test_what_is_static_is_kept_for_ever_under_the_hash_that_it_has(rig: Rig) -> None:
    page = await rig.get("/ui/system")
    found = re.findall(r'(?:src|href)="(/ui/static/[^"]+)"', page.text)
    assert len(found) >= 4
    for target in found:
        asset = await rig.request("GET", target, headers={"Accept-Encoding": "identity"})
        assert asset.status == 200
        assert "immutable" in asset.headers["Cache-Control"]
        assert hashlib.sha256(asset.body).hexdigest()[:16] == target.split("/")[3]
        assert (await rig.get(target.replace(target.split("/")[3], "0" * 16))).status == 404


async def test_another_message_with_the_id_is_shown_whatever_receiver_it_names(rig: Rig) -> None:
    await add_dead_letter(rig, 1)
    other = message_headers(Message("github", "m-1", ("ci",)))
    letter = DeadLetter("id_conflict", "this id was used before", rig.topics.from_sender, None, 0, 0, None)
    headers = dead_letter_headers(other, letter)
    (at,) = await rig.log.append([NewRecord(rig.topics.failed_messages, b"github", b"[]", headers)])
    await rig.state.index_failed([FailedEntry("ci", at, NOW, "id_conflict", "github", "m-1")])
    assert "Another message with this id came" in (await rig.get("/ui/messages/github/m-1")).text


@pytest.mark.parametrize("body", [b"half of", b""])
async def test_an_answer_that_was_cut_is_shown_as_such(rig: Rig, body: bytes) -> None:
    sent = await rig.request("POST", "/v1/sources/github/messages?receiver=ci", b"{}", {"ce-id": "m"})
    assert sent.status == 202
    delivery = DeliveryId("ci", "github", "m")
    result = encode_hop(Hop(delivery, outcome="answered", answer_status=200, answer_truncated=True))
    (at,) = await rig.log.append([NewRecord(rig.topics.to_sender, b"github", body, result)])
    await rig.state.mark([Mark(delivery_row(delivery), 0, Stage.PUBLISHED, (at.partition, at.offset))])
    page = (await rig.get("/ui/messages/github/m")).text
    assert "Its end is missing." in page
    assert "It is empty." not in page


async def test_a_copy_with_a_line_that_is_no_header_is_still_there_to_be_mended(rig: Rig) -> None:
    await add_dead_letter(rig, 1)
    target = "/ui/messages/github/m-1/copy"
    fields = f"csrf={csrf_of(await rig.get(target))}&headers=nonsense&payload=mine"
    refused = await submit(rig, target, fields)
    assert refused.status == 400
    assert "This is not a header" in refused.text
    assert "\nmine</textarea>" in refused.text


async def test_a_refusal_says_nothing_twice(rig: Rig) -> None:
    fields = "name=Bad&post_endpoint=http://127.0.0.1:9/&csrf=" + csrf_of(await rig.get("/ui/receivers/new"))
    refused = await submit(rig, "/ui/receivers/new", fields)
    assert refused.status == 422
    assert refused.text.count("has 1 to 63 of a-z") == 1


async def test_dead_letters_of_a_source_are_listed_as_those_of_that_source(rig: Rig) -> None:
    await add_dead_letter(rig, 1)
    listed = 'href="/ui/failed?source=github&amp;receiver=ci&amp;reason=rejected"'
    assert listed in (await rig.get("/ui/failed?source=github")).text


@pytest.mark.parametrize(
    "target", ["/ui/no/such/page", f"/ui/attempts/0/{'9' * 4301}", f"/ui/compare/0/1/0/{'9' * 4301}"]
)
async def test_a_page_that_there_is_not_is_a_page(rig: Rig, target: str) -> None:
    page = await rig.get(target)
    assert page.status == 404
    assert "There is no such page" in page.text
    assert "Try again" not in page.text


@pytest.mark.parametrize(
    ("target", "page"),
    [("/ui/act", "/ui/"), ("/ui/failed/all", "/ui/failed"), ("/ui/receivers/ci/test", "/ui/receivers")],
)
async def test_who_comes_back_to_what_a_form_was_sent_to_is_led_to_a_page(rig: Rig, target: str, page: str) -> None:
    led = await rig.request("GET", target, headers=BROWSER)
    assert (led.status, led.headers["Location"]) == (303, page)


async def test_who_chooses_colours_where_a_form_was_sent_comes_back_to_its_page(rig: Rig) -> None:
    fields = "action=discard&receiver=ci&csrf=" + csrf_of(await rig.get("/ui/failed"))
    asked = await submit(rig, "/ui/failed/all", fields, Referer=f"{rig.url}/ui/failed?receiver=ci")
    assert 'name="to" value="/ui/failed?receiver=ci"' in asked.text


async def test_a_source_with_braces_has_a_page(rig: Rig) -> None:
    for target in ("/ui/sources/%7Bid%7D", "/ui/sources/%7Bid%7D/attempts"):
        assert (await rig.get(target)).status == 200, target


async def test_an_id_may_begin_as_the_way_up_does(rig: Rig) -> None:
    noted = await act(rig, method="POST", path="/v1/receivers/..x/pause")
    assert noted.status == 303, noted.text


@pytest.mark.parametrize("one", VENDORED, ids=lambda one: str(one["file"]))
def test_what_was_taken_from_others_is_as_it_was_and_has_its_licence(one: dict[str, str]) -> None:
    def digest(name: str) -> str:
        return hashlib.sha256((FILES / "vendor" / name).read_bytes()).hexdigest()

    assert digest(one["file"]) == one["sha256"]
    assert digest(one["licence_file"]) == one["licence_sha256"]


def test_all_that_was_taken_from_others_is_listed() -> None:
    listed = {name for one in VENDORED for name in (one["file"], one["licence_file"])}
    assert {file.name for file in (FILES / "vendor").iterdir()} == listed | {"vendored.json"}


def luminance(colour: str) -> float:
    """As WCAG 2.2 defines it."""
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize("behind", ["card", "page"])
@pytest.mark.parametrize("edge", ["strong", "accent"])
def test_edges_of_fields_and_the_focus_can_be_seen(edge: str, behind: str) -> None:
    """Success criterion 1.4.11, which axe does not check: a contrast of 3."""
    pairs = re.findall(r"--([\w-]+): light-dark\((#\w{6}), (#\w{6})\)", (FILES / "relay.css").read_text())
    for scheme in (1, 2):
        colours = {pair[0]: luminance(pair[scheme]) for pair in pairs}
        low, high = sorted((colours[edge], colours[behind]))
        assert (high + 0.05) / (low + 0.05) >= 3


@pytest.mark.parametrize("target", ["/ui/failed/all", "/ui/messages/replay"])
async def test_a_cancel_leads_back_and_not_elsewhere(rig: Rig, target: str) -> None:
    pick = quote('["github", "m-1", ["ci", false]]')
    csrf = csrf_of(await rig.get("/ui/system"))
    for back, led in (("/ui/failed?reason=gone", "/ui/failed?reason=gone"), ("https://evil.example/", "/ui/")):
        page = await submit(rig, target, f"csrf={csrf}&action=replay&receiver=ci&pick={pick}&back={quote(back)}")
        assert f'href="{led}">Cancel</a>' in page.text


def test_our_own_script_is_short() -> None:
    assert len((FILES / "relay.js").read_text().splitlines()) <= 200


# --- the pages of the frame -----------------------------------------------------------------------------------------


async def test_the_first_page_is_small(rig: Rig) -> None:
    """With all that it needs, as it goes over the wire: under 100 kB."""
    page = await rig.get("/ui/")
    found = set(re.findall(r'(?:src|href)="(/ui/static/[^"]+)"', page.text))
    total = len(page.body)
    for target in found:
        url = rig.url + target
        async with rig.client.get(url, headers={"Accept-Encoding": "gzip"}) as response:
            total += int(response.headers["Content-Length"])
    assert total < 100_000


@pytest.mark.parametrize(
    "target", ["/ui/", "/ui/workers", "/ui/workers?by=partition&served=false", "/ui/try", "/ui/system"]
)
async def test_each_page_is_there(rig: Rig, target: str) -> None:
    page = await rig.get(target)
    assert page.status == 200, page
    assert "<h1>" in page.text


async def test_the_settings_in_force_are_shown_with_where_each_comes_from() -> None:
    async with running_api(pages=True, api_key="the key of the setting") as rig:
        page = await rig.get("/ui/system", Cookie=f"relay_session={await token(rig, 'the key of the setting')}")
        assert re.search(r"RELAY_HOLD_MAX</th><td class=\"wrap\"[^>]*>7s</td><td>RELAY_HOLD_MAX</td>", page.text)
        assert re.search(r"RELAY_API_PORT</th><td class=\"wrap\"[^>]*>8080</td><td>default</td>", page.text)
        assert "nobody-is-shown-this" not in page.text
        narrow = await rig.keys.make("read:github", now=rig.clock.time())
        page = await rig.get("/ui/system", Cookie=f"relay_session={await token(rig, narrow)}")
        assert page.status == 200
        assert "RELAY_HOLD_MAX" not in page.text
        assert 'role="alert"' not in page.text


async def test_a_lane_that_nobody_serves_is_red_and_first(rig: Rig) -> None:
    await rig.state.keep_heartbeats([LaneHeartbeat(rig.topics.to_sender, number) for number in range(10)])
    rows = re.findall(r'<tr(| class="bad")>\s*<th scope="row"><code>([^<]+)', (await rig.get("/ui/workers")).text)
    assert {name: red != "" for red, name in rows}[rig.topics.to_sender] is False
    assert rows[0][0] != ""
    assert rows[-1] == ("", rig.topics.to_sender)


async def test_what_is_live_comes_in_pieces_and_ends_with_the_server(rig: Rig) -> None:
    async with rig.client.get(f"{rig.url}/ui/live/overview") as stream:
        assert stream.headers["Content-Type"] == "text/event-stream"
        told = await stream.content.readuntil(b"event: failures\n")
        assert b"event: flow\n" in told
        assert b"event: attention\n" in told
        await rig.server.stop()
        await stream.content.read()


def incident(id: str, **changed: object) -> dict[str, object]:
    """An incident in a list of the API: the disk of the log is full."""
    times = ("opened_at", "last_at", "cleared_at", "resolved_at", "acknowledged_at")
    nothing: dict[str, object] = dict.fromkeys((*times, "resolved_by", "acknowledged_by", "merged_into"))
    return nothing | {
        "id": id,
        "kind": "store_away",
        "severity": "error",
        "party": {"type": "relay", "name": "disk"},
        "state": "open",
        "reopened": 0,
        "count": 0,
        "waiting": 0,
        "summary": "the disk of /data is full",
        "cause": "It is away",
        "action": {"kind": "look", "label": "See", "href": "/ui/doctor"},
        **changed,
    }


async def test_of_many_causes_another_page_has_the_most_urgent() -> None:
    causes = [incident(f"i{number}", severity="warning", summary=f"warning {number}") for number in range(9)]
    causes.append(incident("i9", summary="an error"))
    api = ScriptedApi({"/v1/incidents": {"items": causes, "left_out": 0, "cursor": None}})
    async with scripted_pages(api), ClientSession() as client, client.get(f"{api.url}/ui/doctor") as page:
        text = await page.text()
    assert [text.count(each) for each in ("an error", "warning 3", "warning 4")] == [1, 1, 0]
    assert '<a href="/ui/incidents">All incidents</a>' in text


async def test_an_overview_that_cannot_be_read_has_the_cause() -> None:
    """The log is away, and the incidents are known without it."""
    away = 503, problem_of("unavailable", "Not now", "The log does not answer.", 503)
    answers = {"/v1/overview": away, "/v1/incidents": {"items": [incident("i1")], "left_out": 0, "cursor": None}}
    async with scripted_pages(ScriptedApi(answers)) as api, ClientSession() as client:
        async with client.get(f"{api.url}/ui/") as page:
            assert "the disk of /data is full" in await page.text()
        async with client.get(f"{api.url}/ui/live/overview") as stream:
            told = (await stream.content.readuntil(b"event: failures\n")).decode().split("event: ")
            [attention] = [text for text in told if text.startswith("attention\n")]
            assert "the disk of /data is full" in attention
            assert "The log does not answer." in attention


def listed(name: str, lane: str = "shared", parked: int = 3, oldest_s: float | None = None) -> dict[str, object]:
    """A receiver in a list of the API, with its traffic."""
    counts = {"attempts": 0, "success_rate": None}
    traffic: dict[str, object] = {
        **counts,
        "outcomes": {},
        "p50_ms": None,
        "p99_ms": None,
        "hours": [],
        "last_response": None,
    }
    return {
        "name": name,
        "owner": None,
        "post_endpoint": "https://ci.example/",
        "lane": lane,
        "enabled": True,
        "condition": "up",
        "breaker": "closed",
        "declared_by": "api",
        "labels": {},
        "health": {**counts, "state": "idle", "last_error": None, "oldest_waiting_s": oldest_s},
        "traffic": {**traffic, "unfinished": 747, "parked": parked, "rate": None},
    }


@pytest.mark.parametrize(("lane", "own", "beside"), [("dedicated", "750", False), ("shared", "3", True)])
async def test_messages_of_neighbours_in_the_shared_lane_do_not_count_as_waiting(
    lane: str, own: str, beside: bool
) -> None:
    api = ScriptedApi({"/v1/receivers": {"items": [listed("ci", lane)], "cursor": None}})
    async with scripted_pages(api), ClientSession() as client, client.get(f"{api.url}/ui/receivers") as page:
        text = await page.text()
    assert f'<td class="num">{own}<' in text
    assert ("747 in its shared lane" in text) == beside


async def test_how_many_wait_in_the_memory_of_a_shared_lane_is_not_known() -> None:
    api = ScriptedApi({"/v1/receivers": {"items": [listed("ci", parked=0, oldest_s=90.0)], "cursor": None}})
    async with scripted_pages(api), ClientSession() as client, client.get(f"{api.url}/ui/receivers") as page:
        text = await page.text()
    assert '<td class="num">–<span class="faint under">747 in its shared lane</span>' in text
    assert "oldest 1 min" in text


async def test_what_is_found_leads_to_all_of_its_kind() -> None:
    page = {"items": [listed(f"team-{number}") for number in range(10)], "cursor": "c"}
    api = ScriptedApi({"/v1/receivers": page, "/v1/messages": {"items": [], "cursor": None, "behind_s": 0.0}})
    async with scripted_pages(api), ClientSession() as client, client.get(f"{api.url}/ui/find?q=team-%26") as found:
        assert '<a href="/ui/receivers?prefix=team-%26">' in await found.text()


async def test_what_the_address_asks_wrongly_is_not_tried_again() -> None:
    api = ScriptedApi({"/v1/receivers": (400, problem_of("invalid-request", "No", status=400))})
    async with scripted_pages(api), ClientSession() as client:
        async with client.get(f"{api.url}/ui/receivers?state=x") as page:
            assert "Try again" not in await page.text()
        api.answers["/v1/receivers"] = 503, problem_of("unavailable", "Not now", status=503)
        async with client.get(f"{api.url}/ui/receivers?state=x") as page:
            assert "Try again" in await page.text()


@pytest.mark.parametrize(("action", "word"), [("replay", "Sent"), ("discard", "Discarded"), ("cancel", "Cancelled")])
async def test_the_page_of_a_job_counts_what_it_does(action: str, word: str) -> None:
    place = f"/replays/{job()['id']}"
    api = ScriptedApi({f"/v1{place}": job(action=action)})
    async with scripted_pages(api), ClientSession() as client, client.get(f"{api.url}/ui{place}") as page:
        text = await page.text()
    assert [each for each in ("Sent", "Discarded", "Cancelled") if f">{each}<" in text] == [word]


async def test_a_live_part_renders_its_first_content_once() -> None:
    api = ScriptedApi({"/v1/replays": {"items": [], "cursor": None}})
    async with scripted_pages(api), ClientSession() as client, client.get(f"{api.url}/ui/live/replays") as stream:
        await stream.content.readuntil(b"event: message\n")
        assert [path for path, _ in api.queries] == ["/v1/session", "/v1/replays"]


async def test_of_many_streams_of_one_browser_the_oldest_ends(rig: Rig) -> None:
    async with AsyncExitStack() as open_ones:
        await rig.get("/ui/system")  # which makes the visitor's cookie
        streams = [await open_ones.enter_async_context(rig.client.get(f"{rig.url}/ui/live/overview")) for _ in range(9)]
        assert {stream.status for stream in streams} == {200}
        await streams[0].content.read()
        assert not streams[-1].content.at_eof()


async def test_who_may_not_look_has_no_stream() -> None:
    async with running_api(pages=True, api_key="the key of the setting") as rig:
        strange = {"Cookie": "relay_session=x"}
        statuses = [(await rig.request("GET", "/ui/live/overview", headers=strange)).status for _ in range(30)]
        assert statuses == [204] * 30


@pytest.mark.parametrize("looked_into", ["payload=/a=17", "header=x-a:17"])
async def test_a_search_in_bodies_is_shown_but_not_followed(looked_into: str) -> None:
    async with running_api(pages=True, history=MemoryHistory()) as rig:
        assert "/ui/live/messages" in (await rig.get("/ui/messages?live=1&type=push")).text
        page = await rig.get(f"/ui/messages?live=1&{looked_into}")
        assert page.status == 200
        assert "Nothing matches these filters" in page.text
        assert not re.search("/ui/live/messages|Follow live", page.text)
        async with rig.client.get(f"{rig.url}/ui/live/messages?{looked_into}") as stream:
            assert b"This cannot be followed" in await stream.content.readuntil(b"\n\n")


async def test_where_no_bodies_are_kept_a_search_in_them_says_so_once() -> None:
    async with running_api(pages=True, history=MemoryHistory(), keeps_bodies=False) as rig:
        page = await rig.get("/ui/messages?payload=/a=17")
        assert page.status == 200
        assert page.text.count("RELAY_HISTORY_BODIES is 0") == 1
        assert "Nothing matches" not in page.text


async def test_a_page_on_which_nothing_was_found_yet_leads_on() -> None:
    async with running_api(pages=True, history=LookedThrough()) as rig:
        page = await rig.get("/ui/messages?payload=/a=17")
        assert "Nothing so far" in page.text
        assert "cursor=behind-it" in page.text


class LookedThrough(MemoryHistory):
    """Of so many messages that a page ends before one is found."""

    async def messages(
        self, query: MessageQuery, *, limit: int, cursor: str | None = None
    ) -> HistoryPage[MessageFound]:
        return HistoryPage([], "behind-it")


async def test_a_ping_has_no_link_to_a_message() -> None:
    history = MemoryHistory()
    await put(history, pinged(offset=0, at=8))
    async with running_api(pages=True, history=history) as rig:
        for target in ("/ui/receivers/ci", "/ui/sources/github"):
            text = (await rig.get(target)).text
            assert "/ui/messages/None" not in text
            assert "Macro" not in text
            assert (">ping</span>" in text) == (target == "/ui/receivers/ci")


async def test_who_logs_out_is_told_where_the_session_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running_api(pages=True, api_key="the key of the setting") as rig:
        for most, told in ((400, ""), (0, "could not end it")):
            monkeypatch.setattr("relay.control.keys.MOST_ENDED_OF_ONE", most)
            cookie = f"relay_session={await token(rig, 'the key of the setting')}"
            page = await rig.get("/ui/system", Cookie=cookie)
            left = await submit(rig, "/ui/logout", f"csrf={csrf_of(page)}", Cookie=cookie)
            assert (left.status, left.headers["Location"]) == (303, "/ui/login")
            cookies = " ".join(value for name, value in left.headers.items() if name == "Set-Cookie")
            assert 'relay_session=""' in cookies
            note = re.search("relay_note=[^;]+", cookies)
            assert (note is not None) == bool(told)
            if note is not None:
                assert told in (await rig.get("/ui/login", Cookie=note[0])).text


async def test_who_has_no_session_is_led_to_the_log_in() -> None:
    async with running_api(pages=True, api_key="the key of the setting") as rig:
        led = await rig.get("/ui/workers?role=to-sender")
        assert (led.status, led.headers["Location"]) == (303, "/ui/login?to=/ui/workers?role%3Dto-sender")
        assert (await rig.get("/ui/live/overview")).status == 204  # so a browser does not ask again
