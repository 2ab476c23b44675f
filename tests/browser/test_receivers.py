"""Browser tests of receivers: log in, view them, and use each action on one."""

import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import pytest_asyncio
from playwright.async_api import expect

from relay.sink import Sink
from tests.browser.conftest import Visiting
from tests.browser.dev_relay import DevRelay
from tests.browser.visitor import Visitor
from tests.servers.asking import until

KEY = "the key of an administrator"
HOSTILE = "<img src=x onerror=alert(1)>\x1b[31m"


@asynccontextmanager
async def relay_with_receivers(directory: Path, environ: Mapping[str, str] | None = None) -> AsyncIterator[DevRelay]:
    """`ci` answers, `gone` refuses connections; both are of acme. `other` is globex's."""
    sink = Sink("answer")
    await sink.start()
    try:
        async with DevRelay(directory, environ, key=KEY) as relay:
            await relay.receiver("ci", sink.url, owner="acme", labels={"env": "production"}, rate_limit=50)
            await relay.receiver("gone", "http://127.0.0.1:9/", owner="acme")
            await relay.receiver("other", sink.url, owner="globex")
            await relay.source("shop", callback={"url": sink.url})
            await relay.send("shop", "m-1", to="ci")
            await relay.until_status("shop", "m-1", "response_delivered_to_sender")
            yield relay
    finally:
        await sink.stop()


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def dev(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[DevRelay]:
    """One relay for all tests of this module: each restores what it changes, or uses receivers of its own."""
    async with relay_with_receivers(tmp_path_factory.mktemp("receivers")) as relay:
        yield relay


async def log_in(visitor: Visitor, path: str, key: str = KEY) -> None:
    await visitor.open(path)
    await visitor.page.get_by_label("Key").fill(key)
    await visitor.page.get_by_role("button", name="Log in").click()


async def press(visitor: Visitor, name: str) -> None:
    await visitor.page.get_by_role("button", name=name, exact=True).click()


async def heading(visitor: Visitor, text: str) -> None:
    await expect(visitor.page.get_by_role("heading", level=1)).to_contain_text(text)


async def test_only_a_right_key_gets_in_and_who_logs_out_is_out(dev: DevRelay, visiting: Visiting) -> None:
    async with visiting(dev.url) as visitor:
        visitor.allow("status of 401")
        await log_in(visitor, "/ui/receivers", "a wrong key of nobody")
        await expect(visitor.page.get_by_role("alert")).to_contain_text("This key is not known")
        await visitor.assert_accessible()
        await log_in(visitor, "/ui/receivers?prefix=c")
        await expect(visitor.page).to_have_url(re.compile(r"/ui/receivers\?prefix=c$"))
        [cookie] = [each for each in await visitor.page.context.cookies() if each["name"] == "relay_session"]
        assert (cookie["httpOnly"], cookie["sameSite"], cookie["path"]) == (True, "Strict", "/ui/")
        await press(visitor, "Log out")
        await visitor.open("/ui/receivers")
        await heading(visitor, "Log in")


async def until_counted(dev: DevRelay, *names: str) -> None:
    """Return when the statistics of these receivers have an attempt: they are stored some seconds later."""

    async def look() -> bool:
        return all([(await dev.call("GET", f"/v1/receivers/{name}/stats"))["attempts"] > 0 for name in names])

    await until(look)


async def test_the_list_shows_how_each_is_and_is_narrowed(dev: DevRelay, visiting: Visiting) -> None:
    async with visiting(dev.url) as visitor:
        await dev.send("shop", "m-2", to="gone")
        await until_counted(dev, "ci", "gone")
        await log_in(visitor, "/ui/receivers")
        rows = visitor.page.locator("tbody tr")
        await expect(rows.filter(has=visitor.page.get_by_role("link", name="ci")).first).to_contain_text("healthy")
        refusing = rows.filter(has=visitor.page.get_by_role("link", name="gone"))
        await expect(refusing).to_contain_text("0 %")
        await expect(refusing.locator(".pill.bad")).not_to_have_count(0)
        await expect(refusing.locator(".good")).to_have_count(0)
        await visitor.page.get_by_label("Owner").fill("globex")
        await press(visitor, "Filter")
        await expect(rows).to_have_count(1)
        await expect(rows).to_contain_text("other")
        await visitor.open("/ui/receivers?prefix=nothing")
        await expect(visitor.page.get_by_text("Nothing matches these filters")).to_be_visible()


async def test_what_is_done_about_a_receiver_is_done_by_the_api(dev: DevRelay, visiting: Visiting) -> None:
    async with visiting(dev.url) as visitor:
        await log_in(visitor, "/ui/receivers/ci")
        await press(visitor, "Send a test")
        await heading(visitor, "Test of ci")
        await expect(visitor.page.get_by_text("webhook-signature")).to_be_visible()
        await visitor.assert_accessible()

        await visitor.open("/ui/receivers/ci")
        await visitor.page.locator("summary", has_text="Pause").click()
        await visitor.page.get_by_label("Reason").fill(HOSTILE)
        await press(visitor, "Pause")
        await expect(visitor.page.get_by_role("status")).to_contain_text("ci is paused.")
        await expect(visitor.page.locator("[data-note]")).to_be_focused()
        held = (await dev.call("GET", "/v1/receivers/ci"))["hold"]
        assert (held["reason"], "<img src=x onerror=alert(1)>" in held["detail"]) == ("paused", True)
        await expect(visitor.page.locator("main")).to_contain_text("<img src=x")
        await visitor.assert_accessible()
        await press(visitor, "Resume")
        await expect(visitor.page.get_by_role("status")).to_contain_text("is resumed")
        assert (await dev.call("GET", "/v1/receivers/ci"))["hold"] is None

        await press(visitor, "Rotate the secret")
        await heading(visitor, "ci has a new secret")
        assert (await visitor.page.locator("pre").inner_text()).startswith("whsec_")
        await visitor.page.get_by_role("link", name="I have it").click()
        await expect(visitor.page.locator("main")).not_to_contain_text("whsec_")

        await press(visitor, "Disable")
        await visitor.page.locator("dialog").get_by_role("button", name="Disable").click()
        await expect(visitor.page.get_by_role("status")).to_contain_text("ci is disabled")
        assert (await dev.call("GET", "/v1/receivers/ci"))["settings"]["enabled"] is False
        await expect(visitor.page.locator("main")).to_contain_text("It is switched off")
        await visitor.open("/ui/receivers?prefix=ci")
        await expect(visitor.page.locator("tbody tr").first).to_contain_text("switched off")
        await visitor.open("/ui/receivers/ci")
        await press(visitor, "Enable")
        await expect(visitor.page.get_by_role("status")).to_contain_text("ci is enabled")


async def test_settings_are_changed_and_an_overtaken_form_undoes_nothing(dev: DevRelay, visiting: Visiting) -> None:
    async with visiting(dev.url) as visitor:
        visitor.allow("status of 412")
        visitor.allow("status of 422")
        await log_in(visitor, "/ui/receivers/ci/edit")
        await visitor.page.get_by_label("Rate limit (").fill("7")
        await dev.call("PATCH", "/v1/receivers/ci", {"timeout": 3})
        await press(visitor, "Save")
        await expect(visitor.page.get_by_role("alert")).to_contain_text("changed by another request")
        assert (await dev.call("GET", "/v1/receivers/ci"))["settings"]["rate_limit"] == 50
        await visitor.page.get_by_label("Timeout").fill("3s")
        await press(visitor, "Save")
        await expect(visitor.page.get_by_role("status")).to_contain_text("Changed: rate_limit.")
        known = (await dev.call("GET", "/v1/receivers/ci"))["settings"]
        assert (known["rate_limit"], known["timeout"]) == (7, 3)

        await visitor.open("/ui/receivers/ci/edit")
        await visitor.page.get_by_label("Rate limit (").fill("many")
        await press(visitor, "Save")
        await expect(visitor.page.get_by_role("alert")).to_contain_text("'many' is not a whole number")
        await expect(visitor.page.get_by_label("Rate limit (")).to_have_value("many")
        await visitor.page.get_by_label("Rate limit (").fill("5")
        await visitor.page.get_by_label("URL", exact=False).first.fill("ftp://nowhere")
        await press(visitor, "Save")
        await expect(visitor.page.get_by_role("alert")).to_contain_text("URL: not a URL")
        await expect(visitor.page.get_by_role("alert")).not_to_contain_text("post_endpoint")
        await expect(visitor.page.locator("[aria-invalid]")).to_have_attribute("name", "post_endpoint")
        await expect(visitor.page.locator("[aria-invalid]")).to_be_focused()
        await expect(visitor.page.locator("[aria-invalid]")).to_have_accessible_description(re.compile("not a URL"))
        await visitor.assert_accessible()
        await visitor.page.get_by_label("URL", exact=False).first.fill("http://10.0.0.1/hooks")
        await press(visitor, "Save")
        await expect(visitor.page.get_by_role("status")).to_contain_text("would send nothing to http://10.0.0.1/hooks")
        await dev.call("PATCH", "/v1/receivers/ci", {"post_endpoint": known["post_endpoint"]})


async def test_a_receiver_is_registered_and_removed(dev: DevRelay, visiting: Visiting) -> None:
    async with visiting(dev.url) as visitor:
        await log_in(visitor, "/ui/receivers/new")
        await visitor.page.get_by_label("Name").fill("made-here")
        await visitor.page.locator("[name=post_endpoint]").fill("https://ci.example/hooks")
        await press(visitor, "Register")
        await heading(visitor, "made-here is registered")
        assert (await visitor.page.locator("pre").inner_text()).startswith("whsec_")
        await visitor.open("/ui/receivers/made-here/remove")
        await expect(visitor.page.locator("main")).to_contain_text("Unfinished in its lane")
        await press(visitor, "Remove made-here")
        await expect(visitor.page.get_by_role("status")).to_contain_text("made-here is removed")
        names = [item["name"] for item in (await dev.call("GET", "/v1/receivers"))["items"]]
        assert "made-here" not in names


async def test_a_receiver_is_tried_before_anything_is_sent(dev: DevRelay, visiting: Visiting) -> None:
    async with visiting(dev.url) as visitor:
        await dev.receiver(
            "build",
            "http://127.0.0.1:9/jobs",
            headers={"authorization": "Bearer canary-4711"},
            request={"json": {"branch": "${{ payload.ref }}"}},
            outcomes=[{"when": "response.status == 201", "is": "accepted"}],
            status_steps=[{"url": "${{ response.headers.location }}", "until": "body.done"}],
        )
        main = visitor.page.locator("main")
        await log_in(visitor, "/ui/receivers/build")
        await visitor.page.get_by_role("link", name="Try", exact=True).click()
        await heading(visitor, "Try build")
        await visitor.page.get_by_label("Payload").fill('{"other": 1}')
        await press(visitor, "Show")
        await expect(visitor.page.get_by_role("alert")).to_contain_text("request.json.branch")

        await visitor.page.get_by_label("Payload").fill('{"ref": "' + HOSTILE.partition("\x1b")[0] + '"}')
        posted = "HTTP/1.1 201 Created\nLocation: /jobs/7\n\n"
        await visitor.page.get_by_label("Response", exact=False).first.fill(posted)
        await press(visitor, "Show")
        await expect(main).to_contain_text('{"branch":"<img src=x')
        await expect(main).to_contain_text("accepted by outcomes[0]: response.status == 201")
        await expect(main).to_contain_text("GET http://127.0.0.1:9/jobs/7")
        await expect(main).not_to_contain_text("canary-4711")
        await visitor.assert_accessible()
        await visitor.assert_fits()

        await press(visitor, "Send it once")
        await expect(visitor.page.get_by_role("status")).to_contain_text("No response")
        await expect(main).to_contain_text("not processed")


async def test_a_replay_says_first_how_many_it_would_be(dev: DevRelay, visiting: Visiting) -> None:
    async with visiting(dev.url) as visitor:
        await log_in(visitor, "/ui/receivers/ci")
        await visitor.page.get_by_label("Also delivered messages").check()
        await press(visitor, "Preview")
        await heading(visitor, "Send 1 again to ci?")
        await visitor.assert_accessible()
        assert (await dev.call("GET", "/v1/replays"))["items"] == []
        await press(visitor, "Replay 1")
        await expect(visitor.page).to_have_url(re.compile("/ui/replays/"))
        [job] = (await dev.call("GET", "/v1/replays"))["items"]
        assert job["request"]["receiver"] == ["ci"]


async def test_the_callback_of_a_source_is_paused_and_resumed(dev: DevRelay, visiting: Visiting) -> None:
    async with visiting(dev.url) as visitor:
        await log_in(visitor, "/ui/sources")
        await visitor.page.get_by_role("link", name="shop").click()
        await visitor.page.locator("summary", has_text="Pause").click()
        await press(visitor, "Pause")
        await expect(visitor.page.get_by_role("status")).to_contain_text("paused")
        assert (await dev.call("GET", "/v1/sources/shop/callback"))["paused"] is True
        await press(visitor, "Resume")
        await expect(visitor.page.get_by_role("status")).to_contain_text("is resumed")


async def test_the_pages_can_be_used_by_everybody_in_the_dark(dev: DevRelay, visiting: Visiting) -> None:
    """On a phone and in light colours: test_long_names.py."""
    paths = ("", "/ci", "/gone", "/new", "/ci/edit", "/ci/remove", "/ci/try")
    async with visiting(dev.url, color_scheme="dark") as visitor:
        await log_in(visitor, "/ui/receivers")
        for path in (*(f"/ui/receivers{path}" for path in paths), "/ui/sources", "/ui/sources/shop"):
            assert (await visitor.open(path)).status == 200, path
            await visitor.assert_accessible()
            await visitor.assert_fits()


async def test_the_pages_are_read_without_a_script(dev: DevRelay, visiting: Visiting) -> None:
    async with visiting(dev.url, java_script_enabled=False) as visitor:
        await log_in(visitor, "/ui/receivers")
        await visitor.page.get_by_role("link", name="ci", exact=True).click()
        await heading(visitor, "ci")
        await expect(visitor.page.get_by_role("img", name=re.compile("attempts? in 24 h"))).to_be_visible()
        await press(visitor, "Disable")
        await heading(visitor, "Disable ci?")


async def test_gaps_of_a_numbered_receiver_are_listed_and_replayed(dev: DevRelay, visiting: Visiting) -> None:
    sink = Sink("reject")
    await sink.start()
    try:
        await dev.receiver("numbered", sink.url, owner="acme", ordering="receiver")
        for number in range(2):
            await dev.send("shop", f"g-{number}", to="numbered")

        async def listed() -> bool:
            return bool((await dev.call("GET", "/v1/receivers/numbered/gaps"))["items"])

        await until(listed)
        await dev.until_status("shop", "g-1", "failed")
        sink.become("answer")
        async with visiting(dev.url) as visitor:
            await log_in(visitor, "/ui/receivers/numbered")
            await expect(visitor.page.locator("#gaps")).to_contain_text("rejected")
            await visitor.assert_accessible()
            await press(visitor, "Replay all gaps")
            await visitor.page.locator("dialog").get_by_role("button", name="Replay all gaps").click()
            await expect(visitor.page.get_by_role("status")).to_contain_text("The replay has started.")
        await dev.until_status("shop", "g-0", "response_delivered_to_sender")
        await dev.until_status("shop", "g-1", "response_delivered_to_sender")
    finally:
        await sink.stop()
