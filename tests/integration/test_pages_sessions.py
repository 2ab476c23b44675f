"""Tests of pages whose session has ended, or whose relay was replaced: the message, and how to continue."""

import html
import json
import re
from collections.abc import AsyncIterator
from urllib.parse import quote, urlencode

import pytest
from aiohttp import ClientSession, CookieJar

from tests.browser.scripted_api import ScriptedApi, problem, scripted_pages
from tests.integration.api_rig import Rig, document, running_api
from tests.integration.test_api_keys import SETTING, bearer
from tests.integration.test_api_sessions import portal, token
from tests.integration.test_pages import csrf_of, submit

PAUSE = {"method": "POST", "path": "/v1/receivers/ci/pause", "label": "Pause", "next": "/ui/system"}


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    async with running_api(pages=True, api_key=SETTING) as running:
        yield running


async def is_paused(rig: Rig) -> bool:
    [answer] = await rig.state.endpoints(["r:ci"])
    return bool(answer.paused_for_s)


async def ended_session(rig: Rig) -> tuple[dict[str, str], str]:
    """The cookie of an ended session, and the token of its forms."""
    text = await token(rig, SETTING)
    cookie = {"Cookie": f"relay_session={text}"}
    csrf = csrf_of(await rig.get("/ui/system", **cookie))
    ended = await rig.request("DELETE", "/v1/session", headers={"Authorization": f"Bearer {text}"})
    assert ended.status == 200
    return cookie, csrf


async def test_what_was_sent_after_the_session_had_ended_is_done_after_the_log_in(rig: Rig) -> None:
    cookie, csrf = await ended_session(rig)
    named = cookie | {"Referer": f"{rig.url}/ui/system?a=1"}
    asked = await submit(rig, "/ui/act", urlencode({"csrf": csrf, **PAUSE}), **named)
    assert asked.status == 401
    assert "Your session has ended" in asked.text
    fields = dict(re.findall(r'type="hidden" name="([^"]+)" value="([^"]*)"', asked.text))
    fields = {name: html.unescape(value) for name, value in fields.items()}
    assert fields["to"] == "/ui/system?a=1"
    assert not await is_paused(rig)
    back = await submit(rig, "/ui/login", urlencode(fields | {"key": SETTING}), **cookie)
    assert back.status == 200
    [session] = re.findall("relay_session=([^;]+)", back.headers["Set-Cookie"])
    assert not await is_paused(rig)  # it is asked for once more
    form = dict(re.findall(r'type="hidden" name="([^"]+)" value="([^"]*)"', back.text))
    assert 'action="/ui/act"' in back.text
    again = await submit(rig, "/ui/act", urlencode(form), Cookie=f"relay_session={session}")
    assert (again.status, again.headers["Location"]) == (303, "/ui/system")
    assert await is_paused(rig)


@pytest.mark.parametrize(
    "pending",
    ["", "x", "[]", '["https://evil.example/", []]', '["/v1/keys", []]', '["/ui/act", 5]', '["/ui/login", []]'],
)
async def test_only_a_form_of_the_pages_is_sent_again(rig: Rig, pending: str) -> None:
    csrf = csrf_of(await rig.get("/ui/login"))
    fields = {"csrf": csrf, "key": SETTING, "to": "/ui/system", "pending": pending}
    back = await submit(rig, "/ui/login", urlencode(fields))
    assert (back.status, back.headers["Location"]) == (303, "/ui/system")


async def test_a_wrong_key_keeps_what_was_to_be_sent(rig: Rig) -> None:
    pending = json.dumps(["/ui/act", [["label", "Pause"]]])
    csrf = csrf_of(await rig.get("/ui/login"))
    page = await submit(rig, "/ui/login", f"csrf={csrf}&key=wrong&pending={quote(pending)}")
    assert page.status == 401
    assert html.escape(pending, quote=True).replace("&quot;", "&#34;") in page.text


async def test_a_page_knows_whether_its_session_goes_on_and_which_build_answers(rig: Rig) -> None:
    cookie = {"Cookie": f"relay_session={await token(rig, SETTING)}"}
    page = await rig.get("/ui/system", **cookie)
    pulse = document(await rig.get("/ui/pulse", **cookie))
    assert pulse["state"] == "ok"
    assert f'data-build="{pulse["build"]}"' in page.text
    over, _ = await ended_session(rig)
    assert document(await rig.get("/ui/pulse", **over))["state"] == "ended"


async def test_a_pulse_takes_no_note_away_from_the_next_page() -> None:
    async with running_api(pages=True) as rig:
        csrf = csrf_of(await rig.get("/ui/system"))
        await submit(rig, "/ui/act", urlencode({"csrf": csrf, "done": "Paused ci.", **PAUSE}))
        await rig.get("/ui/pulse")
        assert "Paused ci." in (await rig.get("/ui/system")).text


async def is_valid(rig: Rig, text: str) -> bool:
    return (await rig.request("GET", "/v1/session", headers=bearer(text))).status == 200


@pytest.mark.parametrize(
    ("proto", "secure"),
    [("http", set()), ("https", {"Secure"}), ("HTTPS , http", {"Secure"}), ("http, https", set())],
)
async def test_the_cookie_of_a_session_is_for_our_pages_alone(rig: Rig, proto: str, secure: set[str]) -> None:
    """`proto`: of the browser's request, as proxies say, the one next to the browser first."""
    csrf = csrf_of(await rig.get("/ui/login"))
    said = {"X-Forwarded-Proto": proto}
    found = await submit(rig, "/ui/login", urlencode({"csrf": csrf, "key": SETTING}), **said)
    session, *attributes = found.headers["Set-Cookie"].split("; ")
    assert session.startswith("relay_session=rs_")
    assert set(attributes) == {"HttpOnly", "Path=/ui/", "SameSite=Strict"} | secure


async def test_a_log_in_ends_the_former_session_of_the_browser(rig: Rig) -> None:
    former, other = await token(rig, SETTING), await token(rig, SETTING)
    cookie = {"Cookie": f"relay_session={former}"}
    csrf = csrf_of(await rig.get("/ui/system", **cookie))
    refused = await submit(rig, "/ui/login", urlencode({"csrf": csrf, "key": "wrong"}), **cookie)
    assert (refused.status, await is_valid(rig, former)) == (401, True)
    logged_in = await submit(rig, "/ui/login", urlencode({"csrf": csrf, "key": SETTING}), **cookie)
    [new] = re.findall("relay_session=([^;]+)", logged_in.headers["Set-Cookie"])
    assert [await is_valid(rig, each) for each in (former, new, other)] == [False, True, True]


async def test_a_portal_in_place_of_a_session_ends_it(rig: Rig) -> None:
    former, of_link = await token(rig, SETTING), await portal(rig, SETTING, owner="alice")
    cookie = {"Cookie": f"relay_session={former}"}
    csrf = csrf_of(await rig.get("/ui/system", **cookie))
    assert (await submit(rig, "/ui/portal", urlencode({"csrf": csrf, "token": of_link}), **cookie)).status == 303
    assert [await is_valid(rig, each) for each in (former, of_link)] == [False, True]


async def test_a_former_session_that_could_not_be_ended_is_said() -> None:
    made = {"token": "rs_new", "expires_at": None, "scopes": ["admin"], "receivers": None}
    api = ScriptedApi({}, {"/v1/sessions": made, "/v1/session": (503, problem("x", "Away", "Wait."))})
    jar = CookieJar(unsafe=True)  # the host is an address
    async with scripted_pages(api), ClientSession(cookies={"relay_session": "rs_old"}, cookie_jar=jar) as client:
        async with client.get(f"{api.url}/ui/login") as form:
            [csrf] = set(re.findall(r'name="csrf" value="([0-9a-f]{64})"', await form.text()))
        async with client.post(f"{api.url}/ui/login", data={"csrf": csrf, "key": "k", "to": "/ui/try"}) as page:
            assert "valid until it expires. Wait." in await page.text()


async def test_a_form_of_a_former_session_is_offered_once_more(rig: Rig) -> None:
    """As in a tab that was open while its visitor logged in again in another one."""
    former = await token(rig, SETTING)
    csrf = csrf_of(await rig.get("/ui/system", Cookie=f"relay_session={former}"))
    now = {"Cookie": f"relay_session={await token(rig, SETTING)}"}
    fields = urlencode({"csrf": csrf, **PAUSE})
    refused = await submit(rig, "/ui/act", fields, **now)
    assert (refused.status, "The form is too old" in refused.text) == (403, True)  # it may be of any page
    asked = await submit(rig, "/ui/act", fields, Origin=rig.url, **now)
    assert (asked.status, await is_paused(rig)) == (403, False)
    form = dict(re.findall(r'type="hidden" name="([^"]+)" value="([^"]*)"', asked.text))
    again = await submit(rig, "/ui/act", urlencode(form), Origin=rig.url, **now)
    assert (again.status, await is_paused(rig)) == (303, True)
    late = await submit(rig, "/ui/login", f"csrf={csrf}&key={SETTING}", Origin=rig.url, **now)
    assert (late.status, SETTING in late.text) == (403, False)
