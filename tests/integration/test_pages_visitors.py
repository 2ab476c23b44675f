"""Tests of visitors of the pages: a portal link does not replace a session unasked, and the API gets the client's
address."""

import re
from typing import Final
from urllib.parse import quote

import pytest
from aiohttp import ClientSession, CookieJar, TCPConnector

from relay.api.authentication import MOST_FAILED
from relay.api.connection import VISITOR_ADDRESS
from tests.integration.api_rig import Reply, Rig, document, running_api
from tests.integration.test_api_keys import ADMIN, JSON, SETTING
from tests.integration.test_api_sessions import portal, token
from tests.integration.test_pages import BROWSER, csrf_of, submit
from tests.integration.test_pages_sessions import rig as rig

ELSEWHERE: Final = "127.0.0.2"
LED: Final = BROWSER | {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}
HERE: Final = LED | {"Sec-Fetch-Site": "same-origin"}
LIE: Final = {VISITOR_ADDRESS: "203.0.113.9"}


def cookies_of(reply: Reply) -> str:
    headers = reply.headers.getall("Set-Cookie", [])  # type: ignore[attr-defined]  # aiohttp's, with several of a name
    return "\n".join(headers)


async def follow(rig: Rig, text: str, headers: dict[str, str], session: str | None = None, more: str = "") -> Reply:
    """Open a portal link with this session."""
    cookie = {} if session is None else {"Cookie": f"relay_session={session}"}
    return await rig.request("GET", f"/ui/portal?token={text}{more}", headers=headers | cookie)


# --- links ----------------------------------------------------------------------------------------------------------


async def test_a_link_takes_no_session_away_before_that_is_wanted(rig: Rig) -> None:
    link, session = await portal(rig, SETTING, owner="acme"), await token(rig, SETTING)
    asked = await follow(rig, link, HERE, session)
    assert asked.status == 200
    assert "relay_session" not in cookies_of(asked)
    assert "logged in as <b>RELAY_API_KEY</b>" in asked.text
    assert "Open the portal of acme instead?" in asked.text
    fields = f"token={link}"
    by_another = await submit(rig, "/ui/portal", fields, Cookie=f"relay_session={session}")
    assert by_another.status == 403
    wanted = f"{fields}&csrf={csrf_of(asked)}"
    opened = await submit(rig, "/ui/portal", wanted, Cookie=f"relay_session={session}")
    assert (opened.status, opened.headers["Location"]) == (303, "/ui/receivers")
    assert f"relay_session={link}" in cookies_of(opened)


async def test_a_link_opens_at_once_where_there_is_nothing_to_lose(rig: Rig) -> None:
    link, newer = await portal(rig, SETTING, owner="acme"), await portal(rig, SETTING, owner="acme", hours=2)
    for session in (None, "rs_over", link, newer):
        opened = await follow(rig, link, HERE, session)
        assert (opened.status, opened.headers["Location"]) == (303, "/ui/receivers"), session
        assert f"relay_session={link}" in cookies_of(opened)
        rig.client.cookie_jar.clear()


async def test_the_portal_of_one_owner_is_not_left_for_that_of_another_unasked(rig: Rig) -> None:
    link, other = await portal(rig, SETTING, owner="acme"), await portal(rig, SETTING, owner="<b>globex")
    asked = await follow(rig, other, HERE, link)
    assert "in the portal of <b>acme</b>" in asked.text
    assert "the portal of &lt;b&gt;globex instead?" in asked.text
    assert "relay_session" not in cookies_of(asked)


@pytest.mark.parametrize("headers", [LED, BROWSER, BROWSER | {"Sec-Fetch-Site": "x"}])
async def test_a_browser_that_keeps_its_cookies_back_is_led_to_the_link_once_more(
    rig: Rig, headers: dict[str, str]
) -> None:
    """As it does where another site has led it here; whether it has a session is seen when a page of ours leads it."""
    link = await portal(rig, SETTING, owner="acme")
    led = await follow(rig, link, headers)
    assert led.status == 200
    assert "relay_session" not in cookies_of(led)
    found = re.search(r'http-equiv="refresh" content="0; url=([^"]+)"', led.text)
    assert found is not None
    assert found[1].replace("&amp;", "&") == f"/ui/portal?token={link}&again=1"
    opened = await follow(rig, link, headers, more="&again=1")  # with the cookie that each visitor gets
    assert opened.status == 303
    rig.client.cookie_jar.clear()
    without = await follow(rig, link, headers, more="&again=1")
    assert without.status == 400
    assert "this browser accepts none" in without.text
    assert "relay_session" not in cookies_of(without)


# --- addresses ------------------------------------------------------------------------------------------------------


async def log_in(url: str, client: ClientSession, **headers: str) -> int:
    """Log in on the page with a wrong key."""
    async with client.get(f"{url}/ui/login") as response:
        page = Reply(response.status, response.headers, await response.read())
    fields = {"csrf": csrf_of(page), "key": "wrong"}
    async with client.post(f"{url}/ui/login", data=fields, headers=headers) as response:
        return response.status


async def test_wrong_log_ins_of_one_visitor_are_not_those_of_another() -> None:
    async with (
        running_api(pages=True, api_key=SETTING) as rig,
        ClientSession(connector=TCPConnector(local_addr=(ELSEWHERE, 0)), cookie_jar=CookieJar(unsafe=True)) as other,
    ):
        statuses = [await log_in(rig.url, other) for _ in range(MOST_FAILED + 1)]
        assert statuses == [401] * MOST_FAILED + [429]
        assert await log_in(rig.url, other, **LIE) == 429
        assert await log_in(rig.url, rig.client) == 401


async def test_the_audit_tells_where_somebody_who_acts_on_a_page_is(rig: Rig) -> None:
    session = {"Cookie": f"relay_session={await token(rig, SETTING)}"}
    page = await rig.get("/ui/system", **session)
    fields = f"csrf={csrf_of(page)}&method=POST&path={quote('/v1/receivers/ci/pause', safe='')}"
    form = {"Content-Type": "application/x-www-form-urlencoded"} | session | LIE
    assert (await rig.request("POST", "/ui/act", fields.encode(), form)).status == 303
    resume = await rig.request("POST", "/v1/receivers/ci/resume", headers=JSON | ADMIN | LIE)
    assert resume.status == 200
    resumed, paused, *_ = document(await rig.request("GET", "/v1/audit", headers=ADMIN))["items"]
    assert [(line["what"], line["from"]) for line in (paused, resumed)] == [
        ("receiver.paused", "127.0.0.1"),
        ("receiver.resumed", "127.0.0.1"),
    ]
