"""`python -m tests.browser.screenshots [NAME ...]`: takes the pictures in docs/images from a running relay.

Takes all pictures, or the named ones. Run it whenever a page looks different.
"""

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, Literal

from playwright.async_api import Browser, Page, ViewportSize

from relay.sink import Mode, Sink, samples
from tests.browser.chromium import running_chromium
from tests.browser.dev_relay import DevRelay
from tests.servers.asking import until

IMAGES: Final = Path(__file__).parents[2] / "docs" / "images"
MOST_BYTES: Final = 150_000
_SIZE: Final = ViewportSize(width=1200, height=780)
_SOURCE: Final = "github"
_MESSAGES: Final = 24
_EVERY_S: Final = 0.08
_RATED: Final = ".stage .flow b:has-text('/s')"
_SHOWN: Final = "pr-4711"
"""The message with a page of its own."""


@dataclass(frozen=True, slots=True)
class Picture:
    """`after`: what has to be seen on the page before it is taken. `of`: the relay that has the page."""

    path: str
    after: str = "main h1"
    dark: bool = False
    of: Literal["demo", "empty", "product", "portal"] = "demo"


PICTURES: Final = {
    "overview": Picture("/ui/", _RATED),
    "overview-dark": Picture("/ui/", _RATED, dark=True),
    "messages": Picture("/ui/messages"),
    "message": Picture(f"/ui/messages/{_SOURCE}/{_SHOWN}"),
    "receivers": Picture("/ui/receivers"),
    "receiver": Picture("/ui/receivers/ci"),
    "failed": Picture("/ui/failed"),
    "workers": Picture("/ui/workers"),
    "try": Picture("/ui/try"),
    "start": Picture("/ui/", ".start .tick", of="empty"),
    "keys": Picture("/ui/keys", of="product"),
    "audit": Picture("/ui/audit", of="product"),
    "portal": Picture("/ui/receivers", of="portal"),
}


async def main(names: list[str]) -> None:
    chosen = {name: PICTURES[name] for name in names or PICTURES}
    IMAGES.mkdir(exist_ok=True)
    async with running_chromium() as browser, AsyncExitStack() as stack:
        relays: dict[Callable[[], object], DevRelay] = {}
        for name, picture in chosen.items():
            if (start := _RELAYS[picture.of]) not in relays:
                relays[start] = await stack.enter_async_context(start())
            file = IMAGES / f"{name}.png"
            relay = relays[start]
            status = await take(browser, relay.url, picture, file, enter=partial(_enter, relay, picture))
            print(f"{file.name}: {status}, {file.stat().st_size} bytes")  # noqa: T201
            if status != 200 or file.stat().st_size > MOST_BYTES:
                file.unlink()
                print(f"{file.name}: not kept")  # noqa: T201


async def _stay(_page: Page) -> None:
    """Used for pages that need no log-in."""


async def take(
    browser: Browser, url: str, picture: Picture, file: Path, *, enter: Callable[[Page], Awaitable[None]] = _stay
) -> int:
    """The status of the page. `enter`: logs in."""
    context = await browser.new_context(
        viewport=_SIZE, color_scheme="dark" if picture.dark else "light", reduced_motion="reduce"
    )
    page = await context.new_page()
    await enter(page)
    response = await page.goto(url + picture.path)
    await page.locator(picture.after).first.wait_for()
    await page.wait_for_timeout(2_500)  # live figures have their first rates by then
    await page.screenshot(path=file)
    await context.close()
    return 0 if response is None else response.status


async def _enter(relay: DevRelay, picture: Picture, page: Page) -> None:
    if picture.of == "portal":
        await page.goto((await relay.call("POST", "/v1/portal-links", {"owner": _OWNER}))["url"])
    elif picture.of == "product":
        await page.goto(f"{relay.url}/ui/login")
        await page.get_by_label("Key").fill(_KEY)
        await page.get_by_role("button", name="Log in").click()


@asynccontextmanager
async def demo() -> AsyncIterator[DevRelay]:
    """A relay with receivers of each kind, and messages that went well, wait, and were given up."""
    async with AsyncExitStack() as stack:
        directory = stack.enter_context(TemporaryDirectory())
        relay = await stack.enter_async_context(DevRelay(Path(directory)))
        sinks = {name: await _sink(stack, mode) for name, mode in _MODES.items()}
        status = sinks["deploy"].url + "/{message_id}"
        await relay.receiver("ci", sinks["ci"].url, sources=[_SOURCE], event_types=["*"])
        await relay.receiver(
            "deploy", sinks["deploy"].url, sources=[_SOURCE], event_types=["push"], status_endpoint=status
        )
        await relay.receiver("legacy", sinks["legacy"].url, retry={"base": 1, "max_attempts": 1})
        await relay.receiver("chat", sinks["ci"].url)
        await _fill(relay)
        going_on = asyncio.create_task(_trickle(relay))
        stack.callback(going_on.cancel)
        yield relay


@asynccontextmanager
async def empty() -> AsyncIterator[DevRelay]:
    """A relay that has only its own receiver."""
    with TemporaryDirectory() as directory:
        async with DevRelay(Path(directory)) as relay:
            yield relay


@asynccontextmanager
async def product() -> AsyncIterator[DevRelay]:
    """A relay with keys, as a part of a product, whose customer has receivers."""
    async with AsyncExitStack() as stack:
        directory = stack.enter_context(TemporaryDirectory())
        relay = await stack.enter_async_context(DevRelay(Path(directory), _LOOK, key=_KEY))
        sinks = {name: await _sink(stack, mode) for name, mode in _MODES.items()}
        for name, sink in sinks.items():
            await relay.receiver(name, sink.url, owner=_OWNER, retry={"base": 1, "max_attempts": 1})
            await relay.call("POST", "/v1/keys", {"scopes": [f"receiver:{name}"], "name": f"{_OWNER}'s {name}"})
        await relay.call("POST", "/v1/receivers/deploy/pause", {"reason": "the cluster is being moved"})
        for number in range(12):
            await relay.send("billing", f"invoice-{number}", b'{"amount": 120}', to="legacy" if number < 2 else "ci")
        names = ("ci", "legacy")

        async def counted() -> bool:
            return all([(await relay.call("GET", f"/v1/receivers/{name}/stats"))["attempts"] > 0 for name in names])

        await until(counted)
        yield relay


_KEY: Final = "the key of an administrator"
_OWNER: Final = "acme"
_LOOK: Final = {"RELAY_PORTAL_NAME": "Orchard Cloud", "RELAY_PORTAL_COLOUR": "#6b2fb3"}
_RELAYS: Final = {"demo": demo, "empty": empty, "product": product, "portal": product}
_MODES: Final[dict[str, Mode]] = {"ci": "answer", "deploy": "later", "legacy": "fail"}


async def _sink(stack: AsyncExitStack, mode: Mode) -> Sink:
    sink = Sink(mode)
    await sink.start()
    stack.push_async_callback(sink.stop)
    return sink


async def _fill(relay: DevRelay) -> None:
    names = samples.names()
    for number in range(_MESSAGES):
        sample = samples.load(names[number % len(names)])
        await relay.send(_SOURCE, f"pr-{4680 + number}", sample.payload, ce_type=sample.event_type)
    await relay.send(_SOURCE, _SHOWN, samples.load("github.push").payload, ce_type="push")
    for number in range(6):
        await relay.send(
            "billing", f"invoice-{number}", b'{"amount": 120, "currency": "EUR"}', to="legacy", ce_type="paid"
        )
    await relay.send("billing", "note-1", b'{"text": "done"}', to="chat", ce_type="note")
    await relay.call("POST", "/v1/receivers/chat/pause", {"reason": "chat is being moved"})
    await relay.until_status(_SOURCE, _SHOWN, "response_received_from_receiver")

    async def given_up() -> bool:
        return len((await relay.call("GET", "/v1/failed?receiver=legacy"))["items"]) >= 6

    await until(given_up)


async def _trickle(relay: DevRelay) -> None:
    """Send messages until it is cancelled, so that the pages show traffic."""
    names = samples.names()
    for number in count():
        sample = samples.load(names[number % len(names)])
        await relay.send(_SOURCE, f"live-{number}", sample.payload, ce_type=sample.event_type)
        await asyncio.sleep(_EVERY_S)


if __name__ == "__main__":
    os.environ.setdefault("CI", "true")
    asyncio.run(main(sys.argv[1:]))
