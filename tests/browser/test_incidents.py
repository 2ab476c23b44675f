"""Browser tests of incidents: each of six causes is fixed and replayed from the overview in at most three clicks, on a
desktop and on a phone."""

import json
import re
from pathlib import Path
from secrets import token_bytes
from typing import Final

from playwright.async_api import Locator, Page, ViewportSize, expect

from relay.domain.signing import generate_secret
from tests.browser.conftest import Visiting
from tests.browser.dev_relay import DevRelay
from tests.browser.test_six_causes import OFTEN, ONCE, PATIENT, _send, sink, strict_receiver
from tests.browser.visitor import SIZES, Visitor
from tests.integration.conftest import production
from tests.integration.conftest import redis_server as redis_server
from tests.servers.asking import until
from tests.servers.kafka import Broker
from tests.servers.valkey import ValkeyServer

MOST_CLICKS: Final = 3


class Clicks:
    """Counts what a person clicks."""

    def __init__(self, visitor: Visitor) -> None:
        self.visitor = visitor
        self.count = 0

    @property
    def page(self) -> Page:
        return self.visitor.page

    async def on(self, target: Locator) -> None:
        self.count += 1
        await target.click()

    async def overview(self) -> Locator:
        """What needs attention."""
        await self.visitor.open("/ui/")
        return self.page.get_by_role("region", name="Needs attention")

    async def begin(self, label: str) -> None:
        """From the overview to the page of the only incident with this action."""
        needs = await self.overview()
        await self.on(needs.get_by_role("link", name=re.compile(f"^{label}")))
        await expect(self.page.get_by_role("heading", name="Fix it")).to_be_visible()
        await self.visitor.assert_accessible()
        await self.visitor.assert_fits()

    async def mend(self, button: str) -> None:
        await self.on(self.page.get_by_role("form", name="Fix it").get_by_role("button", name=re.compile(button)))

    async def all_back(self) -> None:
        await expect(self.page.get_by_text("All back.")).to_be_visible()
        await expect(self.page.get_by_role("heading", name="Fix it")).to_be_hidden()
        await self.visitor.assert_accessible()
        await self.visitor.assert_fits()
        assert self.count <= MOST_CLICKS


async def until_failed(dev: DevRelay, *receivers: str) -> None:
    """Wait until all of these have a dead letter."""

    async def look() -> bool:
        return {each["receiver"] for each in (await dev.call("GET", "/v1/failed"))["items"]} >= set(receivers)

    await until(look)


async def unresolved(dev: DevRelay) -> list[tuple[str, str, str]]:
    """The unresolved incidents, without those of the relay itself, which a busy machine may cause."""
    found = (await dev.call("GET", "/v1/incidents?state=open"))["items"]
    known = [(one["kind"], one["party"]["type"], one["party"]["name"]) for one in found]
    return [one for one in known if one[1] != "relay"]


@SIZES
async def test_a_wrong_secret(dev: DevRelay, visiting: Visiting, viewport: ViewportSize) -> None:
    async with strict_receiver() as receiver, visiting(dev.url, viewport=viewport) as visitor:
        await dev.receiver("ci", receiver.url, secret=generate_secret(token_bytes), retry=ONCE, breaker=PATIENT)
        for message_id in ("m-1", "m-2"):
            await dev.send("shop", message_id, to="ci")
            await dev.until_status("shop", message_id, "failed")
        await until_failed(dev, "ci")
        clicks = Clicks(visitor)
        await clicks.begin("Change the secret")
        await expect(visitor.page.get_by_role("main")).to_contain_text("The receiver rejected our credentials (401)")
        await expect(visitor.page.get_by_role("region", name="Last exchange")).to_contain_text("401")
        await visitor.page.get_by_label("Signing secret").fill(receiver.secret)
        await clicks.mend("Save, test, replay 2")
        await clicks.all_back()
        for message_id in ("m-1", "m-2"):
            await dev.until_status("shop", message_id, "response_received_from_receiver")


async def test_a_secret_that_is_still_wrong_replays_nothing(dev: DevRelay, visiting: Visiting) -> None:
    async with strict_receiver() as receiver, visiting(dev.url) as visitor:
        await dev.receiver("ci", receiver.url, secret=generate_secret(token_bytes), retry=ONCE, breaker=PATIENT)
        await dev.send("shop", "m-1", to="ci")
        await until_failed(dev, "ci")
        clicks = Clicks(visitor)
        await clicks.begin("Change the secret")
        await visitor.page.get_by_label("Signing secret").fill(generate_secret(token_bytes))
        await clicks.mend("Save")
        await expect(visitor.page.get_by_role("alert")).to_contain_text("The test got 401")
        assert (await dev.message("shop", "m-1"))["status"] == "failed"
        await visitor.open("/ui/receivers/ci")
        await expect(visitor.page.get_by_role("region", name="Incidents")).to_contain_text("rejected our credentials")
        await visitor.assert_accessible()


@SIZES
async def test_a_private_address(dev: DevRelay, visiting: Visiting, viewport: ViewportSize) -> None:
    async with sink() as receiver, visiting(dev.url, viewport=viewport) as visitor:
        await dev.receiver("ci", "https://10.11.12.13/hooks", retry=ONCE, breaker=PATIENT)
        await dev.send("shop", "m-1", to="ci")
        await until_failed(dev, "ci")
        clicks = Clicks(visitor)
        await clicks.begin("Change the URL")
        await visitor.page.get_by_label("URL").fill(receiver.url)
        await clicks.mend("Save, test, replay 1")
        await clicks.all_back()
        await dev.until_status("shop", "m-1", "response_received_from_receiver")


@SIZES
async def test_an_open_breaker(dev: DevRelay, visiting: Visiting, viewport: ViewportSize) -> None:
    async with sink() as receiver, visiting(dev.url, viewport=viewport) as visitor:
        receiver.become("fail", fail_status=500)
        await dev.receiver("ci", receiver.url, retry=OFTEN, breaker={"failures": 2, "window": 60, "open_for": 3_600})
        await dev.send("shop", "m-1", to="ci")
        await receiver.wait_for(2)
        receiver.become("answer")  # the receiver is mended
        clicks = Clicks(visitor)
        await clicks.begin("Try now")
        await expect(visitor.page.get_by_role("main")).to_contain_text("its circuit breaker is open")
        await clicks.mend("Try now")
        await clicks.all_back()
        await dev.until_status("shop", "m-1", "response_received_from_receiver")


async def test_one_that_still_fails_gets_a_ping_and_no_message(dev: DevRelay, visitor: Visitor) -> None:
    async with sink() as receiver:
        receiver.become("fail", fail_status=500)
        breaker = {"failures": 1, "window": 60, "open_for": 3_600}
        await dev.receiver("ci", receiver.url, retry=ONCE, breaker=breaker)
        for message_id in ("m-1", "m-2"):
            await dev.send("shop", message_id, to="ci")
        await dev.until_status("shop", "m-1", "failed")
        clicks = Clicks(visitor)
        await clicks.begin("Try now")
        await clicks.mend("Try now")
        await expect(visitor.page.get_by_role("alert")).to_contain_text("500, so it was not resumed")
        await expect(visitor.page.get_by_role("alert")).to_be_focused()
        await expect(visitor.page.get_by_role("button", name="Resume anyway, replay 1")).to_be_visible()
        assert (await dev.call("GET", "/v1/receivers/ci"))["breaker"] == "open"
        assert (await dev.message("shop", "m-2"))["status"] == "arrived"


@SIZES
async def test_a_failing_head(dev: DevRelay, visiting: Visiting, viewport: ViewportSize) -> None:
    async with strict_receiver() as receiver, visiting(dev.url, viewport=viewport) as visitor:
        receiver.stuck.add("m-1")
        often = {"base": 0.5, "factor": 1, "cap": 0.5, "max_attempts": 1_000}
        await dev.receiver("ci", receiver.url, secret=receiver.secret, retry=often, breaker=PATIENT)
        for message_id in ("m-1", "m-2"):
            await dev.send("shop", message_id, to="ci")
        clicks = Clicks(visitor)
        await clicks.begin("Test or discard")
        await expect(visitor.page.get_by_role("main")).to_contain_text("behind 'm-1' of source 'shop'")
        await clicks.mend("Test, then discard m-1")
        await clicks.all_back()
        await dev.until_status("shop", "m-2", "response_received_from_receiver")


async def test_no_message_of_a_receiver_that_fails_with_each_is_discarded(dev: DevRelay, visitor: Visitor) -> None:
    async with sink() as receiver:
        receiver.become("fail", fail_status=500)
        often = {"base": 0.5, "factor": 1, "cap": 0.5, "max_attempts": 1_000}
        await dev.receiver("ci", receiver.url, retry=often, breaker=PATIENT)
        for message_id in ("m-1", "m-2"):
            await dev.send("shop", message_id, to="ci")
        clicks = Clicks(visitor)
        await clicks.begin("Test or discard")
        await clicks.mend("Test, then discard m-1")
        await expect(visitor.page.get_by_role("alert")).to_contain_text("500, so nothing was discarded")
        await expect(visitor.page.get_by_role("button", name="Discard m-1 anyway")).to_be_visible()
        await visitor.assert_accessible()
        await expect(visitor.page.get_by_role("button", name="Test, then discard m-1")).to_be_visible()
        receiver.become("answer")  # the receiver is mended
        for message_id in ("m-1", "m-2"):
            await dev.until_status("shop", message_id, "response_received_from_receiver")


@SIZES
async def test_a_broken_callback_is_one_incident_of_its_source(
    dev: DevRelay, visiting: Visiting, viewport: ViewportSize
) -> None:
    names = [f"r{number}" for number in range(6)]
    async with sink() as receiver, sink() as callback, visiting(dev.url, viewport=viewport) as visitor:
        callback.become("reject")
        for name in names:
            await dev.receiver(name, receiver.url)
        await dev.source("billing", callback={"url": callback.url})
        for name in names:
            await dev.send("billing", f"to-{name}", to=name)
        await until_failed(dev, *names)

        async def look() -> bool:
            return bool(await unresolved(dev))

        await until(look)
        assert await unresolved(dev) == [("callback", "source", "billing")]
        await visitor.open("/ui/sources/billing")
        await expect(visitor.page.get_by_role("region", name="Incidents")).to_contain_text("callback")
        await visitor.assert_accessible()
        clicks = Clicks(visitor)
        await clicks.begin("Change the callback")
        main = visitor.page.get_by_role("main")
        await expect(main).to_contain_text("6 dead letters can be replayed. Six receivers are not to blame.")
        callback.become("answer")  # it was mended elsewhere
        await clicks.mend("Save, test, replay 6")
        await clicks.all_back()
        for name in names:
            await dev.until_status("billing", f"to-{name}", "response_delivered_to_sender")
        assert len(receiver.received) == len(names)


async def test_a_callback_that_still_refuses_gets_nothing_again(dev: DevRelay, visiting: Visiting) -> None:
    async with sink() as receiver, sink() as callback, visiting(dev.url) as visitor:
        callback.become("reject")
        await dev.receiver("ci", receiver.url)
        await dev.source("billing", callback={"url": callback.url})
        await dev.send("billing", "m-1", to="ci")
        await until_failed(dev, "ci")
        clicks = Clicks(visitor)
        await clicks.begin("Change the callback")
        await clicks.mend("Save, test, replay 1")
        alert = visitor.page.get_by_role("alert")
        await expect(alert).to_contain_text("The test got 422, so nothing was replayed.")
        await visitor.assert_accessible()
        assert not (await dev.call("GET", "/v1/replays"))["items"]
        callback.become("answer")
        await clicks.mend("Replay anyway")
        await clicks.all_back()
        await dev.until_status("billing", "m-1", "response_delivered_to_sender")


async def test_a_callback_is_tested_on_the_page_of_its_source(dev: DevRelay, visiting: Visiting) -> None:
    async with sink() as callback, visiting(dev.url) as visitor:
        await dev.source("a/b", callback={"url": callback.url})
        await visitor.open("/ui/sources/a%2Fb")
        await visitor.page.get_by_role("button", name="Send a test").click()
        await expect(visitor.page.get_by_role("heading", level=1)).to_contain_text("Test of a/b 200")
        await visitor.assert_accessible()
        await visitor.page.get_by_role("link", name="a/b", exact=True).click()
        await expect(visitor.page.get_by_role("heading", level=1)).to_contain_text("a/b")


@SIZES
async def test_a_worker_that_is_missing(
    kafka_broker: Broker,
    redis_server: ValkeyServer,
    tmp_path: Path,
    unique_prefix: str,
    visiting: Visiting,
    viewport: ViewportSize,
) -> None:
    roles = "api,from-sender,to-sender,failed-messages,from-receiver-async"
    async with production(kafka_broker, redis_server, tmp_path, unique_prefix) as rig:
        rig.environ["RELAY_API_PORT"] = "0"
        async with rig.relay("run", "--roles", roles) as process:
            url = json.loads(await process.line_with('"api": "http'))["api"]
            async with visiting(url, viewport=viewport) as visitor:
                await _send(url)
                clicks = Clicks(visitor)
                needs = await clicks.overview()
                await expect(needs).to_contain_text("relay run --roles to-receiver")
                await clicks.on(needs.get_by_role("link", name="No worker serves a topic"))
                async with rig.relay("run", "--roles", "to-receiver"):
                    await clicks.all_back()
