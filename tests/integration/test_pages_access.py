"""Tests of the pages of sources, keys and the audit log on the real API, without a browser."""

import re
from urllib.parse import urlencode

import pytest

from relay.config.receivers_file import Raw
from relay.pages.sources import patch_of
from relay.schema.receivers import SourceView
from tests.fakes.history import MemoryHistory
from tests.integration.api_rig import MADE_SECRET, NOW, Rig, running_api
from tests.integration.test_api_keys import SETTING
from tests.integration.test_api_sessions import token
from tests.integration.test_pages import csrf_of, submit
from tests.integration.test_pages import rig as rig


async def test_the_audit_is_filtered_and_leads_to_what_is_alike(rig: Rig) -> None:
    for verb in ("pause", "resume"):
        assert (await rig.request("POST", f"/v1/receivers/ci/{verb}")).status == 200
    page = await rig.get("/ui/audit?what=receiver.")
    assert page.status == 200
    assert len(re.findall("<tr><td>", page.text)) == 2, page.text
    assert "/ui/audit?what=receiver.paused" in page.text
    assert "Nothing matches" in (await rig.get("/ui/audit?who=nobody")).text


async def test_a_key_is_in_the_response_that_made_it_alone() -> None:
    async with running_api(pages=True, api_key="the key of the setting") as rig:
        body = b'{"key": "the key of the setting"}'
        made = await rig.request("POST", "/v1/sessions", body, {"content-type": "application/json"})
        cookie = {"Cookie": f"relay_session={re.findall('rs_[A-Za-z0-9_-]+', made.text)[0]}"}
        fields = {"csrf": csrf_of(await rig.get("/ui/keys", **cookie)), "scopes": "read:github, ingest:github"}
        shown = await submit(rig, "/ui/keys", urlencode(fields), **cookie)
        [key] = re.findall(r"<pre[^>]*>(rk_[^<]+|[^<]{20,})</pre>", shown.text)
        listed = await rig.get("/ui/keys", **cookie)
        assert "ingest:github, read:github" in listed.text
        assert key not in listed.text
        refused = await submit(rig, "/ui/keys", urlencode(fields | {"scopes": "sing:loud"}), **cookie)
        assert refused.status == 400
        assert 'value="sing:loud"' in refused.text


async def test_an_erasure_is_made_and_listed(rig: Rig) -> None:
    fields = {"csrf": csrf_of(await rig.get("/ui/erasures")), "source_id": "github", "message_id": "m-1"}
    made = await submit(rig, "/ui/erasures", urlencode(fields))
    assert made.status == 200
    assert "The payloads are erased" in made.text
    assert "from_sender" in made.text
    listed = (await rig.get("/ui/erasures")).text
    assert "/ui/messages/github/m-1" in listed
    assert "The payloads are erased" not in listed
    refused = await submit(rig, "/ui/erasures", urlencode(fields | {"receiver": "ci"}))
    assert refused.status == 400
    assert 'value="ci"' in refused.text


async def test_an_erasure_is_asked_about_without_scripts_too(rig: Rig) -> None:
    page = await rig.get("/ui/erasures")
    fields = {"csrf": csrf_of(page), "source_id": "github", "confirm": "Erase these payloads?", "label": "Erase"}
    empty = await submit(rig, "/ui/erasures", urlencode(fields | {"source_id": " "}))
    assert (empty.status, 'role="alert"' in empty.text) == (400, True), "nothing to ask about"
    asked = await submit(rig, "/ui/erasures", urlencode(fields))
    assert "<h1>Erase these payloads?</h1>" in asked.text
    assert 'action="/ui/erasures"' in asked.text
    assert 'name="source_id" value="github"' in asked.text
    assert "No erasure is in force" in (await rig.get("/ui/erasures")).text
    made = await submit(rig, "/ui/erasures", urlencode(fields | {"confirmed": "1"}))
    assert "The payloads are erased" in made.text


async def test_a_url_to_which_nothing_would_be_sent_is_a_warning_beside_the_new_secret(rig: Rig) -> None:
    csrf = csrf_of(await rig.get("/ui/receivers/new"))
    fields = {"csrf": csrf, "name": "far", "post_endpoint": "http://10.0.0.1/made"}
    made = await submit(rig, "/ui/receivers/new", urlencode(fields))
    assert "would send nothing to http://10.0.0.1/made" in made.text
    assert MADE_SECRET in made.text


@pytest.mark.parametrize(
    ("scope", "labels"),
    [
        ("receiver:ci", "Incidents Messages Receivers Event types Failed Replays"),
        ("owner:alice", "Incidents Messages Receivers Event types Failed Replays"),
        ("read:github", "Incidents Messages Event types Failed System"),
        ("ingest:github", "Event types Try it System"),
        ("metrics", ""),
    ],
)
async def test_the_navigation_has_the_pages_that_a_key_can_use(scope: str, labels: str) -> None:
    async with running_api(pages=True, api_key=SETTING, history=MemoryHistory()) as rig:
        text = await token(rig, await rig.keys.make(scope, now=NOW))
        browser = {"Accept": "text/html", "Cookie": f"relay_session={text}"}
        first = await rig.get("/ui/system", **browser)
        entries = re.findall(r'<li><a href="(/ui/[^"]*)"[^>]*>([^<]*)</a>', first.text)
        assert " ".join(label for _, label in entries) == labels
        for href, _ in entries:
            page = await rig.get(href, **browser)
            assert (page.status, 'role="alert"' in page.text) == (200, False), page
        home = await rig.get("/ui/", **browser)
        first_page = next((href for href in ("/ui/messages", "/ui/try") if href in dict(entries)), None)
        assert home.headers.get("Location") == first_page


@pytest.mark.parametrize(("scope", "may"), [("receiver:ci", False), ("admin", True), (None, True)])
async def test_buttons_of_an_owner_are_not_there_for_a_key_of_a_receiver(scope: str | None, may: bool) -> None:
    """None: a relay without keys."""
    async with running_api(pages=True, api_key=SETTING if scope else None, history=MemoryHistory()) as rig:
        browser = {"Accept": "text/html"}
        if scope:
            browser["Cookie"] = f"relay_session={await token(rig, await rig.keys.make(scope, now=NOW))}"
        assert ("Register a receiver</a>" in (await rig.get("/ui/receivers", **browser)).text) == may
        page = (await rig.get("/ui/receivers/ci", **browser)).text
        assert [button in page for button in ("Rotate the secret", "/remove", "Pause")] == [may, may, True]


def view(**settings: object) -> SourceView:
    known: Raw = {"answers": "all", "failures": True, "quota": None, "callback": None, "inbound": None, **settings}
    return {"source_id": "shop", "declared_by": "api", "etag": "e", "refused": None, "settings": known}


def test_kept_values_are_expressions_which_may_have_commas_and_equals_signs() -> None:
    before = view(keep={"sha": "payload.after", "first": "f(payload.a, 1) == 2"})
    same = {"keep": "sha=payload.after; first=f(payload.a, 1) == 2"}
    assert patch_of(same, before) == {}
    assert patch_of({"keep": "first=f(payload.a, 2)"}, before) == {"keep": {"sha": None, "first": "f(payload.a, 2)"}}
    assert patch_of({"keep": ""}, before) == {"keep": {"sha": None, "first": None}}


def test_only_what_a_form_changed_is_in_the_patch_of_a_source() -> None:
    before = view(callback={"url": "https://a.example/", "timeout": 15.0})
    same = {"callback.url": "https://a.example/", "callback.timeout": "15s", "answers": "all", "failures": "true"}
    assert patch_of(same, before) == {}
    assert patch_of({**same, "callback.timeout": "3s"}, before) == {"callback": {"timeout": "3s"}}
    assert patch_of({**same, "answers": "none", "failures": "false"}, before) == {"answers": "none", "failures": False}
    assert patch_of({**same, "callback.secret": "s"}, before) == {"callback": {"secret": "s"}}
    assert patch_of({**same, "callback.progress": "accepted, running"}, before) == {
        "callback": {"progress": ["accepted", "running"]}
    }
    assert patch_of({**same, "callback.url": ""}, before) == {"callback": None}
    anew = {**same, "callback.url": "https://b.example/", "anew:/callback/secret": "s"}
    assert patch_of(anew, before) == {"callback": {"url": "https://b.example/", "secret": "s"}}
    assert patch_of({"callback.url": "https://b.example/"}, view()) == {"callback": {"url": "https://b.example/"}}
