"""Browser tests that start at the overview: find why a message did not arrive, fix the cause, and have it delivered.

Each of six causes has one test. It uses only the pages, and finds controls by their visible text.
"""

import json
import re
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from secrets import token_bytes
from typing import Final

import pytest
from aiohttp import ClientSession, web
from playwright.async_api import Locator, Page, expect

from relay.domain.signing import generate_secret, verify_standard
from relay.sink import Sink
from tests.browser.conftest import Visiting
from tests.browser.dev_relay import DevRelay
from tests.integration.conftest import production
from tests.integration.conftest import redis_server as redis_server
from tests.servers.asking import until
from tests.servers.kafka import Broker
from tests.servers.valkey import ValkeyServer

ONCE: Final = {"base": 0.2, "factor": 1, "cap": 0.2, "max_attempts": 1}
OFTEN: Final = {"base": 0.2, "factor": 1, "cap": 0.2}
PATIENT: Final = {"failures": 1_000}
"""A breaker that does not open in these tests."""


class Strict:
    """A receiver that answers 401 unless `secret` has signed, and 500 to messages whose ids are in `stuck`."""

    def __init__(self) -> None:
        self.secret = generate_secret(token_bytes)
        self.stuck: set[str] = set()
        self.url = ""

    async def post(self, request: web.Request) -> web.Response:
        body = await request.read()
        if not verify_standard([self.secret], request.headers, body, time.time()):
            return web.json_response({"error": "wrong signature"}, status=401)
        if request.headers.get("ce-id") in self.stuck:
            return web.json_response({"error": "it hurts"}, status=500)
        return web.json_response({"state": "success"})


@asynccontextmanager
async def strict_receiver() -> AsyncIterator[Strict]:
    receiver, app = Strict(), web.Application()
    app.router.add_post("/hooks", receiver.post)
    runner = web.AppRunner(app, shutdown_timeout=1.0)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    receiver.url = f"http://127.0.0.1:{runner.addresses[0][1]}/hooks"
    try:
        yield receiver
    finally:
        await runner.cleanup()


@asynccontextmanager
async def sink() -> AsyncIterator[Sink]:
    one = Sink("answer")
    await one.start()
    try:
        yield one
    finally:
        await one.stop()


# --- what a person does ---------------------------------------------------------------------------------------------


def pages(page: Page) -> Locator:
    return page.get_by_role("navigation", name="Pages")


async def see_dead_letters(page: Page, url: str, reason: str) -> None:
    """From the overview to the dead letters with this reason."""
    await page.goto(f"{url}/ui/")
    await page.get_by_role("region", name="Dead letters of the last hour").get_by_role("link", name=reason).click()
    await expect(page.get_by_role("heading", name="Failed")).to_be_visible()


async def open_message(page: Page, source_id: str, message_id: str) -> None:
    """Open a message by its ids, from any page."""
    await pages(page).get_by_role("link", name="Messages").click()
    by_ids = page.get_by_role("search", name="By source and id")
    if await by_ids.count():
        await by_ids.get_by_role("textbox", name="Source").fill(source_id)
        await by_ids.get_by_role("textbox", name="Message id").fill(message_id)
        await by_ids.get_by_role("button", name="Open").click()
    else:
        await page.locator("summary", has_text="Filter").click()
        await page.get_by_label("Message id begins with").fill(message_id)
        await page.get_by_role("button", name="Search").click()
        await page.get_by_role("link", name="Follow live").click()  # the history may be a moment behind
        await page.get_by_role("link", name=message_id, exact=True).click()
    await expect(page.get_by_role("heading", name=message_id).first).to_be_visible()


async def replay_all(page: Page, receiver: str) -> None:
    await pages(page).get_by_role("link", name="Failed").click()
    await page.get_by_role("button", name=re.compile(f"^Replay all {receiver}")).click()
    await page.get_by_role("button", name="Replay 1").click()
    await expect(page.get_by_role("img", name="100 % done")).to_be_visible()


async def expect_delivered(page: Page, receiver: str) -> None:
    """The open page of a message shows the delivery without a reload."""
    of_it = page.get_by_role("region", name=f"Delivery to {receiver}")
    await expect(of_it.get_by_role("list", name="There and back")).to_contain_text("delivered")


# --- six causes -----------------------------------------------------------------------------------------------------


async def test_a_wrong_secret_is_rotated(dev: DevRelay, visiting: Visiting) -> None:
    async with strict_receiver() as receiver, visiting(dev.url) as visitor:
        await dev.receiver("ci", receiver.url, secret=generate_secret(token_bytes), retry=ONCE, breaker=PATIENT)
        await dev.send("shop", "m-1", to="ci")
        await dev.until_status("shop", "m-1", "failed")
        page = visitor.page
        await see_dead_letters(page, dev.url, "exhausted")
        await expect(page.get_by_role("main")).to_contain_text("rejected the relay's credentials")
        await page.get_by_role("table").get_by_role("link", name="m-1").click()
        await expect(page.get_by_role("region", name="Delivery to ci")).to_contain_text("401 Unauthorized")
        await page.get_by_role("link", name="Settings of ci").click()
        await page.get_by_role("button", name="Rotate the secret").click()
        receiver.secret = (await page.get_by_role("group", name="the secret").inner_text()).strip()
        await page.get_by_role("link", name="I have it").click()
        await replay_all(page, "ci")
        await open_message(page, "shop", "m-1")
        await expect_delivered(page, "ci")


@pytest.mark.slow  # test_incidents.py has the shorter way
async def test_a_private_address_is_changed(dev: DevRelay, visiting: Visiting) -> None:
    async with sink() as receiver, visiting(dev.url) as visitor:
        await dev.receiver("ci", "https://10.11.12.13/hooks", retry=ONCE, breaker=PATIENT)
        await dev.send("shop", "m-1", to="ci")
        await dev.until_status("shop", "m-1", "failed")
        page = visitor.page
        await see_dead_letters(page, dev.url, "exhausted")
        await page.get_by_role("table").get_by_role("link", name="m-1").click()
        await expect(page.get_by_role("region", name="Delivery to ci")).to_contain_text(re.compile("blocked|private"))
        await page.get_by_role("link", name="Settings of ci").click()
        await page.get_by_role("link", name="Change", exact=True).click()
        await page.get_by_label("URL", exact=False).first.fill(receiver.url)
        await page.get_by_role("button", name="Save").click()
        await expect(page.get_by_role("heading", name="Settings")).to_be_visible()
        await replay_all(page, "ci")
        await open_message(page, "shop", "m-1")
        await expect_delivered(page, "ci")


@pytest.mark.slow  # test_incidents.py has the shorter way
async def test_an_open_breaker_is_closed(dev: DevRelay, visiting: Visiting) -> None:
    async with sink() as receiver, visiting(dev.url) as visitor:
        receiver.become("fail", fail_status=500)
        breaker = {"failures": 2, "window": 60, "open_for": 3_600}
        await dev.receiver("ci", receiver.url, retry=OFTEN, breaker=breaker)
        await dev.send("shop", "m-1", to="ci")
        await receiver.wait_for(2)
        page = visitor.page
        await page.goto(f"{dev.url}/ui/")
        await page.get_by_role("region", name="Needs attention").get_by_role("link", name="ci", exact=True).click()
        await expect(page.get_by_role("main")).to_contain_text("The breaker is open")
        await open_message(page, "shop", "m-1")
        await expect(page.get_by_role("region", name="Delivery to ci")).to_contain_text("The circuit breaker is open")
        receiver.become("answer")  # the receiver is mended
        await page.get_by_role("link", name="Settings of ci").click()
        await page.get_by_role("button", name="Resume").click()
        await open_message(page, "shop", "m-1")
        await expect_delivered(page, "ci")


async def test_a_failing_head_is_seen_to(dev: DevRelay, visiting: Visiting) -> None:
    async with strict_receiver() as receiver, visiting(dev.url) as visitor:
        receiver.stuck.add("m-1")
        often = {"base": 0.5, "factor": 1, "cap": 0.5, "max_attempts": 1_000}  # it does not end before it is seen to
        # m-2 waits for `timeout` + 10 s if m-1 is discarded during an attempt
        await dev.receiver("ci", receiver.url, secret=receiver.secret, retry=often, breaker=PATIENT, timeout=2)
        for message_id in ("m-1", "m-2"):
            await dev.send("shop", message_id, to="ci")
        page = visitor.page
        await page.goto(f"{dev.url}/ui/")
        needs = page.get_by_role("region", name="Needs attention")
        await expect(needs).to_contain_text("1 message waits behind 'm-1' of source 'shop'")
        await expect(needs).to_contain_text("500")
        await needs.get_by_role("link", name="See the message ahead").click()
        await expect(page.get_by_role("heading", name="m-1").first).to_be_visible()
        await open_message(page, "shop", "m-2")
        behind = page.get_by_role("region", name="Delivery to ci")
        await expect(behind).to_contain_text("Behind another message")
        await behind.get_by_role("link", name="See the message ahead").click()
        await expect(page.get_by_role("heading", name="m-1").first).to_be_visible()
        await expect(page.get_by_role("region", name="Delivery to ci")).to_contain_text("500 Internal Server Error")
        await page.get_by_role("region", name="Delivery to ci").get_by_role("button", name="Discard").click()
        await page.get_by_role("dialog").get_by_role("button", name="Discard").click()
        await expect(page.get_by_role("region", name="Delivery to ci")).to_contain_text("Given up: discarded")
        await open_message(page, "shop", "m-2")
        await expect_delivered(page, "ci")
        receiver.stuck.clear()  # and the one that was in front, once the receiver can take it
        await open_message(page, "shop", "m-1")
        await page.get_by_role("region", name="Delivery to ci").get_by_role("button", name="Replay").click()
        await expect_delivered(page, "ci")


@pytest.mark.slow  # test_incidents.py has the shorter way
async def test_a_worker_that_is_missing_is_started(
    kafka_broker: Broker, redis_server: ValkeyServer, tmp_path: Path, unique_prefix: str, visiting: Visiting
) -> None:
    roles = "api,from-sender,to-sender,failed-messages,from-receiver-async"
    async with production(kafka_broker, redis_server, tmp_path, unique_prefix) as rig:
        rig.environ["RELAY_API_PORT"] = "0"
        async with rig.relay("run", "--roles", roles) as process:
            url = json.loads(await process.line_with('"api": "http'))["api"]
            async with visiting(url) as visitor:
                page = visitor.page
                await _send(url)
                await page.goto(f"{url}/ui/")
                needs = page.get_by_role("region", name="Needs attention")
                await expect(needs).to_contain_text("--roles to-receiver")
                await open_message(page, "shop", "m-1")
                of_it = page.get_by_role("region", name="Delivery to circleci")
                await expect(of_it).to_contain_text("No worker serves its lane")
                await of_it.get_by_role("link", name="See the workers").click()
                await expect(page.get_by_role("region", name="Lanes")).to_contain_text("not served")
                async with rig.relay("run", "--roles", "to-receiver"):
                    await open_message(page, "shop", "m-1")
                    await expect_delivered(page, "circleci")


async def test_a_callback_that_refuses_is_mended(dev: DevRelay, visiting: Visiting) -> None:
    async with sink() as receiver, sink() as callback, visiting(dev.url) as visitor:
        callback.become("reject")
        await dev.receiver("ci", receiver.url)
        await dev.source("shop", callback={"url": callback.url})
        await dev.send("shop", "m-1", to="ci")
        await callback.wait_for(1)
        page = visitor.page
        await _until_listed(dev)
        await see_dead_letters(page, dev.url, "callback rejected")
        await page.get_by_role("table").get_by_role("link", name="m-1").click()
        of_it = page.get_by_role("region", name="Delivery to ci")
        await expect(of_it).to_contain_text("The result could not be returned to the sender")
        await expect(of_it).to_contain_text("its callback refused it")
        callback.become("answer")  # the operator of the callback fixes it
        await of_it.get_by_role("button", name="Replay").click()
        await expect(of_it).to_contain_text("Back at the sender")
        assert len(receiver.received) == 1


async def _send(url: str) -> None:
    target = f"{url}/v1/sources/shop/messages?receiver=circleci"
    async with ClientSession() as session, session.post(target, data=b"{}", headers={"ce-id": "m-1"}) as response:
        assert response.status == 202, await response.text()


async def _until_listed(dev: DevRelay) -> None:
    async def look() -> bool:
        return bool((await dev.call("GET", "/v1/failed"))["items"])

    await until(look)
